"""`BlobUplink`: which question for a blob is answered now, and which is put off.

Theory of operation
===================

*Decides*: whether somebody who asks for a blob gets it now or is asked to come again. Everybody
hears of a new blob at the same time and asks its sender first; a narrow uplink that answers all of
them sends each byte as often as there are peers, and none has the blob before all have it. So
once a blob was given to one, and while more is under way than the uplink carries in ``ahead_s``,
others are put off for as long as that takes. By then who got it has told them, and they ask there;
else they come back, as soon as they are told that there is room (`next_askers`), and are served.

Only of an uplink on which something stood in a queue of late: a far peer is slow to serve, and
that is no reason to send to nobody else.

*Does not know*: stores, streams, clocks, who is who beyond a name. It is shared by all doors that
serve blobs, because they share the uplink.

*Bounds*: for one blob nobody is put off for longer than `PUT_OFF_S`: an uplink that looks narrow
because one peer takes little delays others that long, and no more. Of put-off questions
`PUT_OFF_MAX` are remembered, of blobs that were given `GIVEN_MAX`.

*What else to change when you change this*: ``net/blobs.py``, ``reading.py``, ``sync/fetch.py``.

Source: LP-6421 §5.2; decisions P46, P52.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from luxrelay.sync.transfer import LinkWindow, TransferConfig

UPLINK: Final = TransferConfig(ahead_s=0.25, window_first=64 * 1024, window_min=32 * 1024)
"""How much may be under way before anybody is put off: what goes in a quarter of a second."""
NARROW_S: Final = 60.0
"""An uplink counts as narrow for so many seconds after something stood in a queue."""
LATER_MIN_S: Final = 2.0
LATER_MAX_S: Final = 10.0
"""Shortest and longest time after which somebody who was put off asks again, seconds."""
PUT_OFF_S: Final = 40.0
"""Longest time for which somebody is put off for one blob, seconds."""
TOLD_AT_ONCE: Final = 4
"""Of those who were put off so many are told at once that there is room."""
GIVEN_MAX: Final = 1_024
"""Blobs that were given to somebody and are remembered."""
HANDED_MAX: Final = 256
"""Answers that the system took at once and that are counted still; further ones are not."""
PUT_OFF_MAX: Final = 4_096
"""Questions that were put off and are remembered; the oldest is forgotten."""


@dataclass(frozen=True, slots=True)
class _PutOff:
    until: float
    told: bool
    """Whether he can be told that there is room."""


@dataclass(frozen=True, slots=True)
class _Handed:
    until: float
    size: int


class BlobUplink:
    """What is sent of blobs by all doors of a node; any thread may call it.

    Args:
        clock: Monotonic seconds.
        config: How much may be under way.

    """

    def __init__(self, clock: Callable[[], float], config: TransferConfig = UPLINK) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # an answer may be ended by whoever collects garbage
        self._window = LinkWindow(config)
        self._sending: Counter[bytes] = Counter()
        self._put_off: OrderedDict[tuple[bytes, str], _PutOff] = OrderedDict()
        self._narrow_until = -inf
        self._given: OrderedDict[bytes, None] = OrderedDict()
        self._handed: deque[_Handed] = deque()
        self._handed_bytes = 0
        self.put_off = 0
        """Blobs that somebody was put off for; who asks again too early counts once."""

    def begin(
        self,
        commitment: bytes,
        asker: str,
        size: int,
        *,
        must: bool = False,
        measured: bool = True,
    ) -> float:
        """Return 0 when somebody is answered now, else how long he is put off, seconds.

        Who is answered counts until `ended`, or `handed`.

        Args:
            commitment: What is asked for.
            asker: Who asks.
            size: Bytes of the answer.
            must: He cannot be put off.
            measured: It is told when bytes have gone (`sent`), and he can be told of room.

        """
        key, now = (commitment, asker), self._clock()
        with self._lock:
            full = self._full(commitment, now)
            known = self._put_off.get(key)
            if not must and full and (known is None or now < known.until):
                if known is None:
                    known = _PutOff(now + PUT_OFF_S, measured)
                    self._note(key, known)
                return min(self._wait_s(now), known.until - now)
            self._put_off.pop(key, None)
            self._sending[commitment] += 1
            if measured:
                self._window.asked(size, now)
            return 0.0

    def sent(self, size: int, *, narrow: bool) -> None:
        """Take note that ``size`` bytes of an answer have gone.

        Args:
            size: How many.
            narrow: Whether they stood in a queue: the way carries no more.

        """
        with self._lock:
            now = self._clock()
            self._window.came(size, now)
            if narrow:
                self._narrow_until = now + NARROW_S

    def ended(self, commitment: bytes, left: int, *, most: bool) -> None:
        """Take note of the end of an answer, of which ``left`` bytes were not sent.

        Args:
            commitment: What was asked for.
            left: How many.
            most: Whether it was most of the blob: who asks for a byte has it not.

        """
        with self._lock:
            self._window.ended(left, self._clock())
            self._gone(commitment, given=most and not left)

    def handed(self, commitment: bytes, size: int, *, most: bool) -> None:
        """Take note of the end of an answer of which the system took ``size`` bytes at once.

        They count for as long as the uplink needs for them by what was measured of others, and for
        no longer than anybody is put off at a time.
        """
        with self._lock:
            now, rate = self._clock(), self._window.rate
            self._gone(commitment, given=most)
            self._purge(now)
            if rate is not None and len(self._handed) < HANDED_MAX:
                begins = self._handed[-1].until if self._handed else now
                until = min(max(now, begins) + size / rate, now + LATER_MAX_S)
                self._handed.append(_Handed(until, size))
                self._handed_bytes += size

    def next_askers(self) -> list[tuple[bytes, str]]:
        """Return some of those who wait longest, by blob and name, where there is room by now.

        Each is another's, and has its turn; who has the blob by then passes it over.
        """
        found: dict[str, bytes] = {}
        with self._lock:
            now = self._clock()
            if self._busy(now):
                return []
            for (commitment, asker), known in list(self._put_off.items()):
                if known.until + PUT_OFF_S <= now:
                    del self._put_off[commitment, asker]
                elif known.told and asker not in found:
                    found[asker] = commitment
                    self._put_off.move_to_end((commitment, asker))
                if len(found) >= TOLD_AT_ONCE:
                    break
        return [(commitment, asker) for asker, commitment in found.items()]

    def _gone(self, commitment: bytes, *, given: bool) -> None:
        self._sending[commitment] -= 1
        if not self._sending[commitment]:
            del self._sending[commitment]
        if given:
            self._given[commitment] = None
            self._given.move_to_end(commitment)
            if len(self._given) > GIVEN_MAX:
                self._given.popitem(last=False)

    def _purge(self, now: float) -> None:
        while self._handed and self._handed[0].until <= now:
            self._handed_bytes -= self._handed.popleft().size

    def _under_way(self, now: float) -> int:
        self._purge(now)
        return self._window.under_way + self._handed_bytes

    def _full(self, commitment: bytes, now: float) -> bool:
        busy = self._busy(now)
        return busy and (commitment in self._given or self._sending[commitment] > 0)

    def _busy(self, now: float) -> bool:
        under_way = self._under_way(now)
        return now < self._narrow_until and under_way > self._window.size

    def _wait_s(self, now: float) -> float:
        rate = self._window.rate or self._window.size
        return min(max(self._under_way(now) / rate, LATER_MIN_S), LATER_MAX_S)

    def _note(self, key: tuple[bytes, str], known: _PutOff) -> None:
        self.put_off += 1
        self._put_off[key] = known
        if len(self._put_off) > PUT_OFF_MAX:
            self._put_off.popitem(last=False)
