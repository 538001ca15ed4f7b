"""Headers without their blob or sidecar: time of the next question, and providers.

A large blob is announced by its header alone (J7), and a peer may strip a small one. Each is asked
for at once, then after pauses that double, so that a blob which is on its way comes soon and one
that nobody has costs little. The list is in memory only: after a restart the holes in sequences are
known from the store, missing blobs are not.

Whoever stores a blob says so (`arrived`), and what has expired goes when its turn comes, so nothing
ever walks the list to look into the store. A TFHE sidecar is a second blob of its header, under its
own commitment, and counts as one. A header without a blob costs its sender a signature and a new
key nothing, so each sender has a share, and where the list is full the peer that brought most of
what is on it pays: of what that peer brought the sender with the most loses one, and of that
sender's the one asked for most often in vain goes, then the oldest.

Source: LP-6421 §2.2; decisions J7, P28.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from luxrelay.bus import ContentId, MessageId, MsgHeader, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.pause import doubled

WANTED_MAX: Final = 4096
"""Headers without a blob that are remembered; beyond it the peer that brought most loses one."""
SENDER_MAX: Final = 1024
"""Of these the most of one sender; beyond it that sender loses one."""
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
    """What is asked for: the header's commitment to its blob, or to its sidecar."""
    parent: NamespaceId
    """The namespace that brought the header."""
    until_ms: int
    """When the message is forgotten and its blob with it, Unix milliseconds."""
    holders: tuple[bytes, ...] = ()
    """Peer ids that announced or brought the header."""
    source: bytes = b""
    """Who brought it first; empty for catching up from relays of the configuration."""
    ask_at_ms: int = field(default=0, compare=False)
    """When it is asked for next, Unix milliseconds."""
    asked: int = field(default=0, compare=False)
    """How often it was asked for since something new was heard of it."""
    sidecar: bool = False
    """Whether it is the TFHE sidecar, of which the header says no length (LP-6411 §2.10)."""


Lack = tuple[ContentId, bool]
"""What is lacking: of which message, and whether it is the sidecar."""


class WantedBlobs:
    """A bounded list, the longest unasked first; any thread may call it."""

    def __init__(
        self,
        *,
        ttl_ms: int,
        wanted_max: int = WANTED_MAX,
        sender_max: int = SENDER_MAX,
        largest: int = c.MAX_BLOB_BYTES,
        news: Callable[[], None] = lambda: None,
        unasked: Callable[[NamespaceId], bool] = lambda _: True,
    ) -> None:
        """Start empty.

        Args:
            ttl_ms: How long the store keeps a blob.
            wanted_max: Headers that are remembered.
            sender_max: Of these the most of one sender.
            largest: Bytes of the largest blob that the store keeps; no larger one is asked for.
            news: Called, by any thread, when there is something to ask for at once.
            unasked: Whether a namespace's blobs are asked for although no reader asks for them.

        """
        self._largest = largest
        self._ttl_ms = ttl_ms
        self._max = wanted_max
        self._news = news
        self._unasked = unasked
        self._lock = threading.Lock()
        self._wanted: dict[Lack, WantedBlob] = {}
        self._coming: set[bytes] = set()
        self.came: list[Callable[[bytes], None]] = []
        """Each is told, by any thread, of the commitment of a blob that is stored now."""
        self.named: dict[bytes, dict[Lack, None]] = {}
        """What is wanted, by the commitment of its blob; others only look whether one is there."""
        self._shares = _Shares(sender_max)
        self._sources = _Shares(wanted_max)
        self._brought: dict[bytes, _Shares] = {}
        self.forgotten = 0
        """Blobs that are no longer asked for because the list, or a sender's share, was full."""
        self.sidecars = 0
        """How many of those that are wanted are sidecars."""

    @property
    def largest(self) -> int:
        """Bytes of the largest blob that is asked for; a sidecar has no more either."""
        return self._largest

    def __len__(self) -> int:
        with self._lock:
            return len(self._wanted)

    def view(self) -> dict[str, int]:
        """Return how many blobs and sidecars are wanted."""
        with self._lock:
            sidecars = self.sidecars
            return {"blobs": len(self._wanted) - sidecars, "sidecars": sidecars}

    def add(
        self,
        header: MsgHeader,
        parent: NamespaceId,
        holders: Iterable[bytes] = (),
        *,
        source: bytes = b"",
        sidecar: bool = False,
    ) -> None:
        """Ask for the blob of a stored header from now on, if it would be kept.

        Args:
            header: What was stored.
            parent: The namespace that brought it.
            holders: Peer ids that may have it, whoever says so.
            source: The connected peer that brought it; empty for a relay of the configuration.
            sidecar: Ask for its TFHE sidecar instead.

        """
        reference = header.tfhe_sidecar if sidecar else None
        commitment = header.blob_commitment if reference is None else reference.commitment
        if self._largest < (1 if sidecar else header.blob_len):
            return
        with self._lock:
            said = tuple(holders)
            lack = header.content_id, sidecar
            known = self._wanted.get(lack)
            if known is None:
                self._make_room(header.sender_pub_key, source)
                self._charge(header.sender_pub_key, source, lack)
                self.sidecars += sidecar
            else:
                said, source = (*said, *known.holders), known.source
            self._wanted[lack] = WantedBlob(
                message_id=header.message_id,
                header=header,
                commitment=commitment,
                parent=parent,
                until_ms=header.timestamp + self._ttl_ms,
                holders=tuple(dict.fromkeys(said))[:HOLDERS_MAX],
                source=source,
                sidecar=sidecar,
            )
            self.named.setdefault(commitment, {})[lack] = None
        if self._unasked(parent):
            self._news()

    def find(self, commitment: bytes) -> WantedBlob | None:
        """Return what is wanted under a commitment."""
        with self._lock:
            found = map(self._wanted.__getitem__, self.named.get(commitment, ()))
            return next(found, None)

    def tell(self) -> None:
        """Have another round begun."""
        self._news()

    def hear(self, commitment: bytes, holder: bytes = b"") -> bool:
        """Ask at once for what somebody says to have; False when nobody here wants it.

        Args:
            commitment: Which one.
            holder: The peer id of who says so; empty when it is known otherwise.

        """
        with self._lock:
            heard = tuple(self.named.get(commitment, ()))
            for content in heard:
                known = self._wanted[content]
                said = tuple(dict.fromkeys((holder, *known.holders) if holder else known.holders))
                self._wanted[content] = replace(
                    known, ask_at_ms=0, asked=0, holders=said[:HOLDERS_MAX]
                )
        if heard:
            self._news()
        return bool(heard)

    def due(self, commitment: bytes, now_ms: int) -> WantedBlob | None:
        """Return what may be asked for now under a commitment, and put it off as `take` does."""
        with self._lock:
            for content in tuple(self.named.get(commitment, ())):
                each = self._wanted[content]
                if each.until_ms <= now_ms:
                    self._drop(content)
                elif self._due(each, now_ms):
                    return self._put_off(content, now_ms)
        return None

    def _due(self, wanted: WantedBlob, now_ms: int) -> bool:
        if wanted.commitment in self._coming:
            return not wanted.ask_at_ms
        return _come(wanted, now_ms)

    def begun(self, commitment: bytes) -> None:
        """Take note that a blob is being fetched: it is not due until something is heard of it."""
        with self._lock:
            self._coming.add(commitment)

    def ended(self, commitment: bytes, now_ms: int) -> None:
        """Take note that it is fetched no longer; if it is still wanted, its pause begins."""
        with self._lock:
            self._coming.discard(commitment)
            for content in self.named.get(commitment, ()):
                each = self._wanted[content]
                if each.ask_at_ms:  # else somebody said meanwhile to have it
                    pause_ms = int(doubled(PAUSE_MIN_MS, each.asked, PAUSE_MAX_MS))
                    self._wanted[content] = replace(each, ask_at_ms=now_ms + pause_ms)

    def coming(self, commitment: bytes) -> bool:
        """Return True while a blob is being fetched."""
        with self._lock:
            return commitment in self._coming

    def take(self, limit: int, now_ms: int) -> list[WantedBlob]:
        """Return the first ones whose time has come and put them last; each has its turn.

        What has expired is dropped on the way. Of what is being fetched only those are returned of
        which something was heard since.
        """
        with self._lock:
            due: list[Lack] = []
            late: list[Lack] = []
            for content, each in self._wanted.items():
                if len(due) >= limit:
                    break
                if each.until_ms <= now_ms:
                    late.append(content)
                elif self._unasked(each.parent) and self._due(each, now_ms):
                    due.append(content)
            for content in late:
                self._drop(content)
            return [self._put_off(content, now_ms) for content in due]

    def arrived(self, commitment: bytes, *, sidecar: bool = False) -> None:
        """Ask no more for a blob, or a sidecar, that is stored now."""
        with self._lock:
            lacks = [lack for lack in self.named.get(commitment, ()) if lack[1] == sidecar]
            for lack in lacks:
                self._drop(lack)
        for told in self.came if lacks else ():
            told(commitment)

    def _put_off(self, content: Lack, now_ms: int) -> WantedBlob:
        wanted = self._wanted.pop(content)
        pause_ms = int(doubled(PAUSE_MIN_MS, wanted.asked + 1, PAUSE_MAX_MS))
        put_off = replace(wanted, ask_at_ms=now_ms + pause_ms, asked=wanted.asked + 1)
        self._wanted[content] = put_off
        return put_off

    def _make_room(self, sender: bytes, source: bytes) -> None:
        """Forget one where the list or the sender's share is full."""
        entries: Iterable[Lack] = ()
        if self._shares.full(sender):
            entries = self._shares.of(sender)
        elif len(self._wanted) >= self._max:
            shares = self._brought[self._sources.largest(source)]
            entries = shares.of(shares.largest(sender))
        # The first of equals: the one that came first.
        vain = max(entries, key=lambda content: self._wanted[content].asked, default=None)
        if vain is not None:
            self._drop(vain)
            self.forgotten += 1

    def _charge(self, sender: bytes, source: bytes, content: Lack) -> None:
        self._shares.add(sender, content)
        self._sources.add(source, content)
        self._brought.setdefault(source, _Shares(self._max)).add(sender, content)

    def _drop(self, content: Lack) -> None:
        wanted = self._wanted.pop(content)
        self.sidecars -= wanted.sidecar
        sender, source = wanted.header.sender_pub_key, wanted.source
        self._shares.remove(sender, content)
        self._sources.remove(source, content)
        self._brought[source].remove(sender, content)
        if not self._sources.of(source):
            del self._brought[source]
        named = self.named[wanted.commitment]
        del named[content]
        if not named:
            del self.named[wanted.commitment]

    def next_ms(self) -> int | None:
        """Return when the next one is to be asked for, Unix milliseconds; None for never."""
        with self._lock:
            waiting = (
                each.ask_at_ms
                for each in self._wanted.values()
                if self._unasked(each.parent)
                and (not each.ask_at_ms or each.commitment not in self._coming)
            )
            return min(waiting, default=None)


def _come(wanted: WantedBlob, now_ms: int) -> bool:
    """Whether its time has come, or is further away than any pause: the clock was set back."""
    return not now_ms < wanted.ask_at_ms <= now_ms + PAUSE_MAX_MS


class _Shares:
    """Who has how many entries; the largest is known without a look at all of them.

    A sender here is whoever entries are counted under: a key, or a peer.
    """

    def __init__(self, sender_max: int) -> None:
        self._max = sender_max
        self._entries: dict[bytes, dict[Lack, None]] = {}
        self._ranks: list[dict[bytes, None]] = [{}]
        """Senders by their number of entries; the last one is not empty, except rank 0."""

    def of(self, sender: bytes) -> Iterable[Lack]:
        """Return a sender's entries, the oldest first."""
        return self._entries.get(sender, ())

    def full(self, sender: bytes) -> bool:
        """Return True when a sender may have no further entry."""
        return len(self._entries.get(sender, ())) >= self._max

    def largest(self, sender: bytes) -> bytes:
        """Return who has the most entries: ``sender``, else the one that has as many longest."""
        first = self._ranks[-1]
        return sender if sender in first else next(iter(first))

    def add(self, sender: bytes, content: Lack) -> None:
        """Note a new entry."""
        entries = self._entries.setdefault(sender, {})
        entries[content] = None
        self._move(sender, len(entries) - 1, len(entries))

    def remove(self, sender: bytes, content: Lack) -> None:
        """Note that an entry is gone."""
        entries = self._entries[sender]
        del entries[content]
        self._move(sender, len(entries) + 1, len(entries))
        if not entries:
            del self._entries[sender]

    def _move(self, sender: bytes, before: int, after: int) -> None:
        if before:
            del self._ranks[before][sender]
        if after:
            while len(self._ranks) <= after:
                self._ranks.append({})
            self._ranks[after][sender] = None
        while len(self._ranks) > 1 and not self._ranks[-1]:
            self._ranks.pop()
