"""What the network says of this node: its clock, silence of all peers, what is mostly refused.

Theory of operation
-------------------
*Decides* whether the node is ready as far as its peers can tell, and what an operator is told of
it. *Does not know* sockets: it is given what peers told of their clocks (`luxrelay.net`), how long
ago their last byte came, and the counts of verdicts.
*Clock* (G36): above `clock_warn_ms` from the median of the peers' a warning; above the tolerance
for live messages the node is not ready, because others refuse what it publishes and it refuses
theirs. Receipts say so with numbers (`luxrelay.node.ingress`).
*Silence* (G37): not ready when no byte of any peer came for `silence_max_s`, unless it has no peers
and names none: a relay may stand alone.
*Refusals* (G37): when more than half of what peers sent in a minute was refused for one reason, it
is told; the node stays ready, because a stranger that sends nonsense must not take it away.
`RefusedShare` sees cumulative counts every few seconds, so no message is touched for it.
*Bounds*: `WINDOW_S` / `LOOK_S` samples of as many counts as there are codes; one line a kind and
`SAID_EVERY_S`.

Source: LP-6411 §2.3, LP-6490; decisions G36, G37, H14.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import trio

from luxrelay.bus import Code, VerdictKind
from luxrelay.bus.constants import LIVE_TOLERANCE_MS
from luxrelay.net.peer_clocks import ClockOffset
from luxrelay.node.logs import log

WINDOW_S: Final = 60.0
"""Seconds over which refusals are counted."""
LOOK_S: Final = 1.0
"""Seconds between two looks."""
SAID_EVERY_S: Final = 600.0
"""Seconds after which a line about something that lasts is repeated."""
SAID_MIN_S: Final = 60.0
"""Seconds between two lines of one kind, however often it comes and goes."""
NETWORK: Final = "network"
"""Reason of peers that were let go because they are of another network or version."""
_EVENTS: Final = {
    "clock": ("the clock differs from the peers'", "the clock agrees with the peers' again"),
    "silence": ("no byte of any peer comes", "bytes of peers come again"),
    "refusals": ("most of what peers send is refused", "what peers send is accepted again"),
}
"""Lines of the log by what they are about: while it lasts, and when it is over."""
_DOORS: Final = frozenset({"gossip", "sync"})
"""Doors by which peers' messages come."""


class MostRefused(NamedTuple):
    """For what reason most of what arrived was refused."""

    reason: str
    """The verdict's code, or `NETWORK`."""
    refused: int
    """MostRefused for it in the last minute."""
    arrived: int
    """Arrived in the same time, and not known already."""

    @property
    def share(self) -> float:
        """Part of what arrived, 0 to 1."""
        return self.refused / self.arrived

    @property
    def text(self) -> str:
        """The same for people."""
        what = "peers that came are" if self.reason == NETWORK else "messages from peers were"
        why = "of another network or version" if self.reason == NETWORK else "refused"
        code = "" if self.reason == NETWORK else f" as {self.reason}"
        return f"{self.refused:,} of {self.arrived:,} {what} {why}{code} in the last minute"


class RefusedShare:
    """The reason for which more than half of what arrived in a minute was refused. Pure.

    Args:
        arrivals_min: Arrivals in the minute below which nothing is said.
        window_s: The minute, seconds.

    """

    def __init__(self, *, arrivals_min: int, window_s: float = WINDOW_S) -> None:
        self._arrivals_min = arrivals_min
        self._window_s = window_s
        self._samples: deque[tuple[float, int, Mapping[str, int]]] = deque([(0.0, 0, {})])

    def take(self, now: float, taken: int, refused: Mapping[str, int]) -> None:
        """Note the counts since the start as they stand now.

        Args:
            now: Monotonic seconds.
            taken: What was accepted.
            refused: What was refused, by reason.

        """
        self._samples.append((now, taken, dict(refused)))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window_s:
            self._samples.popleft()

    def __len__(self) -> int:
        """Samples kept; bounded by the window and how often counts are taken."""
        return len(self._samples)

    def view(self, standing: int = 0) -> MostRefused | None:
        """Return the reason that more than half was refused for, or None.

        Args:
            standing: What counts as accepted beside what came in the window, such as peers that
                are connected.

        """
        _, before, earlier = self._samples[0]
        _, after, later = self._samples[-1]
        lately = {reason: count - earlier.get(reason, 0) for reason, count in later.items()}
        arrived = after - before + standing + sum(lately.values())
        if not lately or arrived < self._arrivals_min:
            return None
        reason = max(lately, key=lambda each: lately[each])
        found = MostRefused(reason, lately[reason], arrived)
        return found if 2 * found.refused > found.arrived else None


class SaidLines:
    """Which lines are due: when something begins or ends, and now and then while it lasts. Pure."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, str]] = {}

    def due(self, kind: str, state: str, now: float) -> bool:
        """Whether a line of the kind is due; ``state`` is empty while all is well."""
        at, before = self._said.get(kind, (float("-inf"), ""))
        lasts = state == before
        if (lasts and not state) or now - at < (SAID_EVERY_S if lasts else SAID_MIN_S):
            return False
        self._said[kind] = (now, state)
        return True


def clock_state(offset: ClockOffset, warn_ms: int) -> str:
    """Return ``unknown``, ``right``, ``off`` (told) or ``wrong`` (not ready)."""
    if not offset.known:
        return "unknown"
    if abs(offset.offset_ms) > LIVE_TOLERANCE_MS:
        return "wrong"
    return "off" if abs(offset.offset_ms) > warn_ms else "right"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSources:
    """Where `NetworkHealth` looks; any thread may call each."""

    clock: Callable[[], ClockOffset]
    """What the peers' clocks say."""
    quiet_s: Callable[[], float | None]
    """Seconds since the last byte of any peer; None where nobody is expected."""
    greeted: Callable[[], tuple[int, int, int]]
    """Peers accepted and refused so far, and connected now."""
    verdicts: Callable[[], Mapping[tuple[str, VerdictKind, Code], int]]
    """Verdicts so far."""


class NetworkHealth:
    """Looks at the network's word once a second; `view` is for any thread.

    Args:
        sources: Where it looks.
        clock_warn_ms: Offset of the clock above which a warning is said, milliseconds.
        silence_max_s: Silence of all peers above which the node is not ready; 0 never.
        arrivals_min: Messages of peers in a minute below which refusals are not told.
        told: Learns the offset of the clock at each look.

    """

    def __init__(
        self,
        sources: NetworkSources,
        *,
        clock_warn_ms: int,
        silence_max_s: float,
        arrivals_min: int,
        told: Callable[[ClockOffset], None],
    ) -> None:
        self._sources = sources
        self._warn_ms = clock_warn_ms
        self._silence_max_s = silence_max_s
        self._told = told
        self._messages = RefusedShare(arrivals_min=arrivals_min)
        self._peers = RefusedShare(arrivals_min=1)
        self._lines = SaidLines()
        self.refused: tuple[MostRefused, ...] = ()
        """What was mostly refused in the last minute, as of the last look."""

    async def keep(self) -> None:
        """Look for ever."""
        while True:
            self.look(trio.current_time())
            await trio.sleep(LOOK_S)

    def look(self, now: float) -> None:
        """Look once, and log what begins, lasts or ends; ``now`` in monotonic seconds."""
        clock = self._sources.clock()
        self._told(clock)
        taken, refused = judged(self._sources.verdicts())
        self._messages.take(now, taken, refused)
        accepted, foreign, connected = self._sources.greeted()
        self._peers.take(now, accepted, {NETWORK: foreign})
        found = (self._messages.view(), self._peers.view(connected))
        self.refused = tuple(each for each in found if each is not None)
        state = clock_state(clock, self._warn_ms)
        self._say("clock", state if state in ("off", "wrong") else "", now, self._clock_words())
        self._say("silence", "silent" if self._silent() else "", now, self._silence_words())
        words = "; ".join(each.text for each in self.refused)
        self._say("refusals", ",".join(each.reason for each in self.refused), now, words)

    def view(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the network keeps the node from being ready, and what it says."""
        clock, quiet_s = self._sources.clock(), self._sources.quiet_s()
        state = clock_state(clock, self._warn_ms)
        silent, wrong = self._silent(), state == "wrong"
        why = [self._clock_words()] if state in ("off", "wrong") else []
        why += [self._silence_words()] if silent else []
        why += [each.text for each in self.refused]
        shown = {
            "clock": {
                "state": state,
                "offset_ms": clock.offset_ms,
                "spread_ms": clock.spread_ms,
                "peers": clock.peers,
            },
            "quiet_s": None if quiet_s is None else round(quiet_s, 1),
            "refused": [
                {"reason": each.reason, "refused": each.refused, "arrived": each.arrived}
                for each in self.refused
            ],
            "warnings": why,
        }
        return not (wrong or silent), shown

    def _silent(self) -> bool:
        quiet_s = self._sources.quiet_s()
        return bool(self._silence_max_s) and quiet_s is not None and quiet_s > self._silence_max_s

    def _clock_words(self) -> str:
        clock = self._sources.clock()
        words = f"this node's clock is {clock.text}"
        if abs(clock.offset_ms) <= LIVE_TOLERANCE_MS:
            return words
        return f"{words}; live messages may be {LIVE_TOLERANCE_MS / 1000:g} s off"

    def _silence_words(self) -> str:
        quiet_s = self._sources.quiet_s() or 0.0
        return f"no byte of any peer came for {quiet_s:,.0f} s, {self._silence_max_s:g} are allowed"

    def _say(self, kind: str, state: str, now: float, words: str) -> None:
        if self._lines.due(kind, state, now):
            begins, ends = _EVENTS[kind]
            if state:
                log(logging.WARNING, begins, about=kind, what=words)
            else:
                log(logging.INFO, ends, about=kind)


def judged(
    verdicts: Mapping[tuple[str, VerdictKind, Code], int],
) -> tuple[int, dict[str, int]]:
    """Return how many of the peers' messages were accepted, and refused by reason.

    What is known already is neither: it was accepted when it came first.
    """
    taken, refused = 0, Counter[str]()
    for (door, kind, code), count in verdicts.items():
        if door not in _DOORS or code is Code.DUPLICATE:
            continue
        if kind is VerdictKind.ACCEPT:
            taken += count
        else:
            refused[code.name.lower()] += count
    return taken, dict(refused)
