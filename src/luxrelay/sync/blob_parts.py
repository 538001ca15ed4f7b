"""`BlobParts`: what came of one blob, from whom, and who sent other bytes.

Theory of operation
===================

Peers send a blob one after the other: where one ends, the next goes on, so a link that is cut costs
nothing that came. All of it is checked at the end. When a blob made of parts of several peers is
not what its commitment says, nobody can be blamed for sure: it is *doubted*. From then on the parts
of each peer are kept apart, and each has to send what it has not sent itself, so that a whole is
one peer's word. Of the doubted parts a hash is kept: once the blob is known, whoever sent other
bytes is named. That is what a liar costs at most: one more fetch.

*Bounds*: the blob's length, twice of it while it is doubted.

Source: LP-6421 §5.2; decisions P28, P49.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha3_256


@dataclass(slots=True)
class _Piece:
    peer: str
    start: int
    data: bytearray = field(default_factory=bytearray)

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class BlobParts:
    """The parts of one blob; see the theory above.

    Args:
        length: Bytes it has.
        exact: Whether it has all of them; else it may have fewer, as a sidecar.

    """

    __slots__ = ("_doubts", "_most", "_own", "_shared", "_total", "doubted", "exact")

    def __init__(self, length: int, *, exact: bool = True) -> None:
        self.exact = exact
        self.doubted = False
        """Whether parts of several peers made something else."""
        self._most = length
        self._total: int | None = length if exact else None
        self._shared: list[_Piece] = []
        self._own: dict[str, list[_Piece]] = {}
        self._doubts: list[tuple[str, int, int, bytes]] = []

    @property
    def length(self) -> int:
        """Bytes it has as far as known, else the most it may have."""
        return self._most if self._total is None else self._total

    @property
    def most(self) -> int:
        """Bytes it may have."""
        return self._most

    @property
    def held(self) -> int:
        """Bytes that are in memory."""
        return sum(len(each.data) for pieces in self._lists() for each in pieces)

    @property
    def bound(self) -> int:
        """Bytes that may be in memory."""
        return self.length * (2 if self.doubted else 1)

    def gap(self, peer: str) -> tuple[int, int]:
        """Return where ``peer`` has to go on, and how many bytes are asked of it; 0 for none."""
        at = 0
        for piece in self._of(peer):
            if piece.start > at:
                return at, piece.start - at
            at = piece.end
        return at, self.length - at

    def told(self, peer: str, total: int) -> str:
        """Take note of the length that a peer says; return why it is wrong, or nothing."""
        if not 0 < total <= self._most or (self.exact and total != self._most):
            return f"{total} bytes instead of {self._most}"
        if not self.exact and total != self._total:
            if self._of(peer):
                self.doubt()
            self._total = total
        return ""

    def begin(self, peer: str, offset: int) -> None:
        """Take note that a peer sends from a byte on."""
        pieces = self._of(peer)
        if not any(piece.peer == peer and piece.end == offset for piece in pieces):
            pieces.append(_Piece(peer, offset))
            pieces.sort(key=lambda piece: piece.start)

    def add(self, peer: str, offset: int, data: bytes) -> None:
        """Keep bytes that a peer sent; they follow those of its last `begin`."""
        for piece in self._of(peer):
            if piece.peer == peer and piece.end == offset:
                piece.data += data
                break
        while self.held > self.bound and len(self._own) > 1:
            others = [each for each in self._own if each != peer]
            largest = max(others, key=lambda each: sum(len(p.data) for p in self._own[each]))
            del self._own[largest]

    def whole(self, peer: str) -> bytes:
        """Return the blob as it came, nothing missing by `gap`."""
        return b"".join(bytes(piece.data) for piece in self._of(peer))

    def senders(self, peer: str) -> list[str]:
        """Return who sent the parts that make the whole of ``peer``, each once."""
        return list(dict.fromkeys(piece.peer for piece in self._of(peer) if piece.data))

    def doubt(self) -> None:
        """Keep the parts of each peer apart from now on, and remember what each had sent."""
        self.doubted = True
        pieces, self._shared = self._shared, []
        for piece in pieces:
            if piece.data:
                digest = sha3_256(piece.data).digest()
                self._doubts.append((piece.peer, piece.start, len(piece.data), digest))
                self._own.setdefault(piece.peer, []).append(piece)

    def forget(self, peer: str) -> None:
        """Drop what a peer sent that is to blame."""
        self._shared = [piece for piece in self._shared if piece.peer != peer]
        self._own.pop(peer, None)
        self._doubts = [each for each in self._doubts if each[0] != peer]
        if not (self.exact or self._shared or self.doubted):
            self._total = None

    def liars(self, blob: bytes) -> list[str]:
        """Return whose doubted parts are not those of the blob, each once."""
        return list(
            dict.fromkeys(
                peer
                for peer, start, size, digest in self._doubts
                if sha3_256(blob[start : start + size]).digest() != digest
            )
        )

    def _of(self, peer: str) -> list[_Piece]:
        return self._own.setdefault(peer, []) if self.doubted else self._shared

    def _lists(self) -> list[list[_Piece]]:
        return [self._shared, *self._own.values()]
