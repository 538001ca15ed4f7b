"""Which stored headers still lack their blob, when each is asked for next, and who may have it.

A large blob is announced by its header alone (J7), and a peer may strip a small one. Each is asked
for at once, then after pauses that double, so that a blob which is on its way comes soon and one
that nobody has costs little. The list is in memory only: after a restart the holes in sequences are
known from the store, missing blobs are not.

Source: J7, P28; LP-6421 §2.2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from luxrelay.bus import ContentId, MessageId, MsgHeader, NamespaceId
from luxrelay.bus import constants as c

WANTED_MAX: Final = 4096
"""Headers without a blob that are remembered; beyond it the oldest is forgotten and counted."""
HOLDERS_MAX: Final = 8
"""Peers remembered that may have one blob."""
PAUSE_MIN_MS: Final = 250
"""Pause after the first question, milliseconds; each further one is twice as long."""
PAUSE_MAX_MS: Final = 30_000
"""Longest pause, milliseconds (P28)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedBlob:
    """A blob to ask for."""

    message_id: MessageId
    """The slot whose header came without it."""
    header: MsgHeader
    """The header."""
    commitment: bytes
    """What the header commits to."""
    parent: NamespaceId
    """The namespace that brought the header."""
    until_ms: int
    """When the message is forgotten and its blob with it, Unix milliseconds."""
    holders: tuple[bytes, ...] = ()
    """Peer ids that announced or brought the header."""
    ask_at_ms: int = field(default=0, compare=False)
    """When it is asked for next, Unix milliseconds."""
    asked: int = field(default=0, compare=False)
    """How often it was asked for since something new was heard of it."""


class WantedBlobs:
    """A bounded list, the longest unasked first; any thread may call it."""

    def __init__(
        self,
        *,
        ttl_ms: int,
        wanted_max: int = WANTED_MAX,
        largest: int = c.MAX_BLOB_BYTES,
        news: Callable[[], None] = lambda: None,
    ) -> None:
        """Start empty.

        Args:
            ttl_ms: How long the store keeps a blob.
            wanted_max: Headers that are remembered.
            largest: Bytes of the largest blob that the store keeps; no larger one is asked for.
            news: Called, by any thread, when there is something to ask for at once.

        """
        self._largest = largest
        self._ttl_ms = ttl_ms
        self._max = wanted_max
        self._news = news
        self._lock = threading.Lock()
        self._wanted: dict[ContentId, WantedBlob] = {}
        self._named: dict[bytes, dict[ContentId, None]] = {}
        self.forgotten = 0
        """Blobs that are no longer asked for because the list was full."""

    def __len__(self) -> int:
        with self._lock:
            return len(self._wanted)

    def add(self, header: MsgHeader, parent: NamespaceId, holders: Iterable[bytes] = ()) -> None:
        """Ask for the blob of a stored header from now on, if it would be kept."""
        if header.blob_len > self._largest:
            return
        with self._lock:
            known = self._wanted.get(header.content_id)
            if known is None and len(self._wanted) >= self._max:
                self._drop(next(iter(self._wanted)))
                self.forgotten += 1
            said = (*holders, *(() if known is None else known.holders))
            self._wanted[header.content_id] = WantedBlob(
                message_id=header.message_id,
                header=header,
                commitment=header.blob_commitment,
                parent=parent,
                until_ms=header.timestamp + self._ttl_ms,
                holders=tuple(dict.fromkeys(said))[:HOLDERS_MAX],
            )
            self._named.setdefault(header.blob_commitment, {})[header.content_id] = None
        self._news()

    def find(self, commitment: bytes) -> WantedBlob | None:
        """Return what is wanted under a commitment."""
        with self._lock:
            found = map(self._wanted.__getitem__, self._named.get(commitment, ()))
            return next(found, None)

    def hear(self, commitment: bytes) -> bool:
        """Ask at once for what somebody says to have; False when nobody here wants it."""
        with self._lock:
            heard = tuple(self._named.get(commitment, ()))
            for content in heard:
                self._wanted[content] = replace(self._wanted[content], ask_at_ms=0, asked=0)
        if heard:
            self._news()
        return bool(heard)

    def due(self, commitment: bytes, now_ms: int) -> WantedBlob | None:
        """Return what may be asked for now under a commitment, and put it off as `take` does."""
        with self._lock:
            for content in self._named.get(commitment, ()):
                if self._wanted[content].ask_at_ms <= now_ms:
                    return self._put_off(content, now_ms)
        return None

    def take(self, limit: int, now_ms: int) -> list[WantedBlob]:
        """Return the first ones whose time has come and put them last; each has its turn."""
        with self._lock:
            due = (key for key, each in self._wanted.items() if each.ask_at_ms <= now_ms)
            return [self._put_off(content, now_ms) for content in list(islice(due, limit))]

    def _put_off(self, content: ContentId, now_ms: int) -> WantedBlob:
        wanted = self._wanted.pop(content)
        pause_ms = min(PAUSE_MIN_MS << min(wanted.asked, 16), PAUSE_MAX_MS)
        put_off = replace(wanted, ask_at_ms=now_ms + pause_ms, asked=wanted.asked + 1)
        self._wanted[content] = put_off
        return put_off

    def _drop(self, content: ContentId) -> None:
        wanted = self._wanted.pop(content, None)
        if wanted is not None:
            named = self._named[wanted.commitment]
            del named[content]
            if not named:
                del self._named[wanted.commitment]

    def next_ms(self) -> int | None:
        """Return when the next one is to be asked for, Unix milliseconds; None for never."""
        with self._lock:
            return min((each.ask_at_ms for each in self._wanted.values()), default=None)

    def settle(self, held: Callable[[bytes], bool], now_ms: int) -> int:
        """Drop what is held or expired; return how many are held.

        Args:
            held: Whether the blob of a commitment is stored.
            now_ms: Unix milliseconds.

        """
        with self._lock:
            entries = list(self._wanted.items())
        here = [content for content, wanted in entries if held(wanted.commitment)]
        late = [content for content, wanted in entries if wanted.until_ms <= now_ms]
        with self._lock:
            for content in (*here, *late):
                self._drop(content)
        return len(here)
