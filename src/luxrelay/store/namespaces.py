"""What the store knows of a namespace besides its messages. Pure.

``floor``: nothing at or below it is expected any more. ``contiguous``: the highest sequence with no
hole above the floor; it never goes back. Expiry raises the floor to the highest sequence it
removed: timestamps do not decrease in a namespace, so a hole below has expired as well.

Source: LP-6421 §2.2; decisions P22, P25, J6; retention document, "Edge Cases".
"""

from __future__ import annotations

from dataclasses import dataclass, field

from luxrelay.bus import NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import StoreArgumentError
from luxrelay.store.holes import HeldRuns


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceHead:
    """How far a namespace reaches; all zero for one the store does not know."""

    namespace_id: NamespaceId
    """The namespace."""
    parent: NamespaceId
    """The namespace this one is a lane of; its own id when it is none (J6)."""
    earliest_seq: int = 0
    """Lowest sequence stored; 0 without messages."""
    contiguous_seq: int = 0
    """Highest sequence with no hole above the floor; never goes back (P25)."""
    latest_seq: int = 0
    """Highest sequence ever stored."""
    finalized_seq: int = 0
    """Highest finalized sequence; 0 without an oracle (J9)."""
    latest_header_hash: bytes = c.ZERO_HASH
    """headerHash at ``latest_seq``; of several candidates, the one with the lowest content id."""
    latest_timestamp: int = 0
    """Timestamp of that header, milliseconds."""
    messages: int = 0
    """Messages stored, every candidate of a slot counted."""
    size_bytes: int = 0
    """Their logical bytes, index rows included."""
    floor: int = 0
    """Nothing at or below this sequence is expected any more."""


@dataclass(slots=True, kw_only=True)
class NamespaceState:
    """A namespace's row in memory; the writer changes copies and publishes them whole."""

    namespace_id: NamespaceId
    parent: NamespaceId
    floor: int = 0
    contiguous: int = 0
    latest: int = 0
    earliest: int = 0
    finalized: int = 0
    latest_hash: bytes = c.ZERO_HASH
    latest_timestamp: int = 0
    messages: int = 0
    size_bytes: int = 0
    watermark: int | None = None
    """Sequence up to which the archive has read; None without a handoff (J8)."""
    runs: HeldRuns = field(default_factory=HeldRuns)
    """Sequences held above ``contiguous``; rebuilt from the rows at start."""

    def copy(self) -> NamespaceState:
        """Return an independent copy."""
        return NamespaceState(
            namespace_id=self.namespace_id,
            parent=self.parent,
            floor=self.floor,
            contiguous=self.contiguous,
            latest=self.latest,
            earliest=self.earliest,
            finalized=self.finalized,
            latest_hash=self.latest_hash,
            latest_timestamp=self.latest_timestamp,
            messages=self.messages,
            size_bytes=self.size_bytes,
            watermark=self.watermark,
            runs=self.runs.copy(),
        )

    def holds(self, seq: int) -> bool:
        """Return False when no message can stand at ``seq``; True is no promise below the head."""
        return seq <= self.contiguous or seq in self.runs

    def hold(self, seq: int) -> None:
        """Count ``seq`` as held; the contiguous head moves over everything it now reaches."""
        self.latest = max(self.latest, seq)
        self.earliest = min(self.earliest, seq) if self.earliest else seq
        if seq == self.contiguous + 1:
            self.contiguous = self.runs.take_from(seq) if self.runs else seq
        elif seq > self.contiguous:
            self.runs.add(seq)

    def raise_floor(self, seq: int) -> None:
        """Expect nothing at or below ``seq`` any more."""
        if seq > self.floor:
            self.floor = seq
            self.contiguous = self.runs.take_from(max(self.contiguous, seq))

    def gaps(self, first: int, last: int, limit: int) -> list[tuple[int, int]]:
        """Return the lowest ``limit`` holes in ``[first, last]``, none above ``latest``."""
        return self.runs.gaps(max(first, self.contiguous + 1), min(last, self.latest), limit)

    def head(self) -> NamespaceHead:
        """Return what others may know."""
        return NamespaceHead(
            namespace_id=self.namespace_id,
            parent=self.parent,
            earliest_seq=self.earliest,
            contiguous_seq=self.contiguous,
            latest_seq=self.latest,
            finalized_seq=self.finalized,
            latest_header_hash=self.latest_hash,
            latest_timestamp=self.latest_timestamp,
            messages=self.messages,
            size_bytes=self.size_bytes,
            floor=self.floor,
        )


def check_names(*names: bytes, where: str) -> None:
    """Return when every name can be a namespace's.

    Raises:
        StoreArgumentError: one has not 20 bytes.

    """
    if any(len(name) != c.NAMESPACE_BYTES for name in names):
        raise StoreArgumentError("a namespace has 20 bytes", where=where)
