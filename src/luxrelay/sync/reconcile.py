"""Merkle sync: two stores compare their trees over content ids, as two small machines.

Theory of operation
===================

*Decides*: which nodes, buckets and ids to ask for next; which ids each side lacks.

*Does not know*: the store, streams, clocks. The tree is read through `TreeView`, which filters ids
by the cut-off of its own side: what one side has forgotten does not come back from the other, and
what a peer pushes from before the cut-off is refused by whoever stores it (the soft filters).

*Machines and their states*: an **initiator** asks for the root, then the 256 nodes, then the
buckets of the nodes that differ, then the ids of the buckets that differ, each in as many messages
as it takes. A **responder** has no state between messages.

*Inputs and what they may cause*: ``receive`` the next question, or the end, or an error when the
bytes are no message.

*Timers*: none. *Bounds*: `TreeConfig`.

*Deviations from the specification*: the document pushes what the other side lacks; here each side
fetches what it lacks when it is the initiator, through the door that verifies what comes.

*No proof*: see `luxrelay.store.merkle`. Who chooses ids can hide a difference of two of them.

*What else to change when you change this*: ``rpc/reconciling.py``, ``negentropy.py`` (the other
method, the same interface).

Source: retention document, "Merkle Tree Implications" and "Sync Soft-Filter"; decisions J4, J11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import sha3_256
from typing import Final, Protocol

from luxrelay.errors import ReconcileError, SyncArgumentError

NODES: Final = 256
HASH_BYTES: Final = 32
NODE_BYTES: Final = 256 * 40
"""The 256 buckets of a node: XOR of the ids (32 bytes) and their number (8 bytes) each."""
_BUCKET_BYTES: Final = 40
_ROOT: Final = 1
_NODES: Final = 2
_BUCKETS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeConfig:
    """Bounds of one Merkle sync; every number is positive."""

    nodes_max: int = 128
    """Nodes asked for in one message, 10 KiB of answer each; 256 at most."""
    buckets_max: int = 2_048
    """Buckets asked for in one message."""
    bucket_ids_max: int = 512
    """Ids of one bucket in an answer; more are cut off."""
    rounds_max: int = 256
    """Messages sent at most."""
    found_max: int = 100_000
    """Ids found on either side at most; what is left is found by the next one."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise SyncArgumentError(f"{each.name} must be positive", where="TreeConfig")
        if self.nodes_max > NODES:
            raise SyncArgumentError(f"there are {NODES} nodes", where="TreeConfig.nodes_max")


class TreeView(Protocol):
    """One side's tree and its ids."""

    def nodes(self) -> Sequence[bytes]:
        """Return the 256 level-1 hashes."""
        ...

    def buckets(self, node: int) -> bytes:
        """Return the 256 buckets of a node, 40 bytes each."""
        ...

    def ids(self, bucket: int, limit: int) -> Sequence[bytes]:
        """Return the lowest ids of a bucket that are past no cut-off."""
        ...


class TreeResponder:
    """Answers an initiator from its own tree."""

    def __init__(self, view: TreeView, config: TreeConfig | None = None) -> None:
        self._view = view
        self._config = config or TreeConfig()

    def receive(self, message: bytes) -> bytes:
        """Return the answer; an empty one to a root that is ours.

        Raises:
            ReconcileError: the bytes are no message.

        """
        kind, rest = message[:1], message[1:]
        if kind == bytes([_ROOT]) and len(rest) == HASH_BYTES:
            nodes = b"".join(self._view.nodes())
            return b"" if sha3_256(nodes).digest() == rest else nodes
        if kind == bytes([_NODES]) and 0 < len(rest) <= self._config.nodes_max:
            return b"".join(self._view.buckets(node) for node in rest)
        if kind == bytes([_BUCKETS]) and 0 < len(rest) <= 2 * self._config.buckets_max:
            if len(rest) % 2:
                raise _bad("half a bucket")
            return b"".join(self._ids(bucket) for bucket in _numbers(rest))
        raise _bad(f"{len(message)} bytes of kind {kind.hex() or 'none'}")

    def _ids(self, bucket: int) -> bytes:
        ids = self._view.ids(bucket, self._config.bucket_ids_max)
        return len(ids).to_bytes(2, "big") + b"".join(ids)


class TreeInitiator:
    """Asks, and learns what each side has that the other lacks."""

    def __init__(self, view: TreeView, config: TreeConfig | None = None) -> None:
        self._view = view
        self._config = config or TreeConfig()
        self._asked: bytes = b""
        self._nodes: list[int] = []
        self._buckets: list[int] = []
        self.need: dict[bytes, None] = {}
        """Ids the other side has and we lack, in the order found."""
        self.have: dict[bytes, None] = {}
        """Ids we have and the other side lacks, in the order found."""
        self.rounds = 0
        """Messages sent."""
        self.cut = False
        """A bound ended the exchange; another one finds the rest."""

    def start(self) -> bytes:
        """Return the first message."""
        return self._ask(_ROOT, sha3_256(b"".join(self._view.nodes())).digest())

    def receive(self, message: bytes) -> bytes | None:
        """Return the next message; None when the trees are compared, or a bound is reached.

        Raises:
            ReconcileError: the bytes are no answer to what was asked.

        """
        kind, asked = self._asked[0], self._asked[1:]
        if kind == _ROOT:
            self._take_nodes(message)
        elif kind == _NODES:
            self._take_buckets(asked, message)
        else:
            self._take_ids(_numbers(asked), message)
        return self._next()

    def _next(self) -> bytes | None:
        if self.cut or not (self._nodes or self._buckets):
            return None
        if self.rounds >= self._config.rounds_max:
            self.cut = True
            return None
        if self._nodes:
            nodes = self._nodes[: self._config.nodes_max]
            del self._nodes[: len(nodes)]
            return self._ask(_NODES, bytes(nodes))
        buckets = self._buckets[: self._config.buckets_max]
        del self._buckets[: len(buckets)]
        return self._ask(_BUCKETS, b"".join(each.to_bytes(2, "big") for each in buckets))

    def _ask(self, kind: int, rest: bytes) -> bytes:
        self.rounds += 1
        self._asked = bytes([kind]) + rest
        return self._asked

    def _take_nodes(self, message: bytes) -> None:
        if not message:
            return  # equal
        if len(message) != NODES * HASH_BYTES:
            raise _bad(f"{len(message)} bytes instead of {NODES} hashes")
        ours = b"".join(self._view.nodes())
        self._nodes = [
            node
            for node in range(NODES)
            if ours[node * HASH_BYTES : (node + 1) * HASH_BYTES]
            != message[node * HASH_BYTES : (node + 1) * HASH_BYTES]
        ]

    def _take_buckets(self, nodes: bytes, message: bytes) -> None:
        if len(message) != len(nodes) * NODE_BYTES:
            raise _bad(f"{len(message)} bytes instead of {len(nodes)} nodes")
        for index, node in enumerate(nodes):
            theirs = message[index * NODE_BYTES : (index + 1) * NODE_BYTES]
            ours = self._view.buckets(node)
            self._buckets += [
                node * 256 + at // _BUCKET_BYTES
                for at in range(0, NODE_BYTES, _BUCKET_BYTES)
                if ours[at : at + _BUCKET_BYTES] != theirs[at : at + _BUCKET_BYTES]
            ]

    def _take_ids(self, buckets: Sequence[int], message: bytes) -> None:
        at = 0
        for bucket in buckets:
            count = int.from_bytes(message[at : at + 2], "big")
            end = at + 2 + count * HASH_BYTES
            if end > len(message):
                raise _bad("it ends in the middle of a bucket")
            theirs = dict.fromkeys(
                message[start : start + HASH_BYTES] for start in range(at + 2, end, HASH_BYTES)
            )
            if any(int.from_bytes(each[:2], "big") != bucket for each in theirs):
                raise _bad("an id of another bucket")
            ours = set(self._view.ids(bucket, self._config.bucket_ids_max))
            for each in theirs:
                if each not in ours:
                    self._note(self.need, each)
            for each in sorted(ours.difference(theirs)):
                self._note(self.have, each)
            at = end
        if at != len(message):
            raise _bad("bytes after the last bucket")

    def _note(self, found: dict[bytes, None], each: bytes) -> None:
        if len(found) < self._config.found_max:
            found[each] = None
        else:
            self.cut = True


def _numbers(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


def _bad(what: str) -> ReconcileError:
    return ReconcileError(f"a reconciliation message cannot be used: {what}", where="tree")
