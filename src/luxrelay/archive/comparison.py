"""The archive beside one relay: equal Merkle roots, or exactly which messages differ. No JVM.

Theory of operation
===================

*Decides* what of the two is compared, where they differ, and whose lack it is.

*Does not know* tables (`expected_contents`), Spark, how what is missing is read again
(`refetching`).

*What relays can prove*: one Merkle tree over the content ids of everything they hold, of every
namespace together (J4); and, for each 256 sequences of one namespace, a digest of the header hashes
(P26). There is no root of one namespace or of one span of time. So the two sides are made equal in
scope here instead: the relay says which sequences it holds, by intervals, and the archive's tree is
made of what it has within these.

*Steps*: (1) the roots. Equal ones end it: whatever the relay holds is archived, and nothing that it
should hold is absent from it. (2) Else the nodes, buckets and ids that differ, by which messages
are found on either side, and by them their blocks. (3) When the tree says nothing useful (the relay
takes no part in it, too much differs because much is new or much is not archived), the digests
of the newest blocks of chosen namespaces. (4) Each block that is suspected is read from the relay,
message by message, and held beside the archive's. Only this step accuses.

*No difference*: what is newer than the archive's last sequence of its namespace, what was deleted
on purpose, what a class or a rule keeps out of the archive, what is past its time at the relay.

*Bounds*: the constants below, those of `expected_contents`, and those of the client.

*No proof*: whoever chooses content ids can make two sets look equal (`luxrelay.store.merkle`), and
a relay can say what it likes of itself. One that hides what it holds looks like one that does not
hold it; what it serves is checked as in `ingest` before it counts as missing here.

*What else to change when you change this*: `expected_contents`, `verification`.

Source: retention document, "Merkle Tree Implications"; decisions J4, J8, J11, P26.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import pyarrow as pa

from luxrelay.archive.answers import NamespaceReach
from luxrelay.archive.decode import check_batch
from luxrelay.archive.expected_contents import (
    HeldRow,
    block_digests,
    block_rows,
    held_tree,
    losers,
    rows_of,
    within,
)
from luxrelay.archive.offsets import Span
from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.relays import CONTENTS_MAX, PAGE_BYTES
from luxrelay.archive.rules import ArchiveRules
from luxrelay.archive.schema import MAX_I64, RAW
from luxrelay.errors import SyncRemoteError, SyncUnreachableError
from luxrelay.sync.heads import SeqRange
from luxrelay.sync.held import BLOCK_SEQS, HeldLane
from luxrelay.sync.messages import WireMessage
from luxrelay.sync.reconcile import TreeConfig, TreeInitiator
from luxrelay.sync.rpc.client import RelaySyncClient

INTERVALS_MAX: Final = 1_000_000
"""Intervals of a relay that are looked at, of all namespaces together: some 100 MB."""
NAMED_MAX: Final = 1_000
"""Ids on either side whose messages are looked for; where more differ, blocks say which."""
CONTENTS_ASKED: Final = 16
"""Messages asked for by content id at a time: with the largest payloads 32 MiB."""
BLOCKS_ASKED: Final = 32
"""Blocks of one namespace that are compared by digest, the newest; fewer than a call may ask."""
BLOCKS_READ: Final = 64
"""Blocks read from one relay message by message; further ones that differ are counted."""
DIFFERENCES_MAX: Final = 1_000
"""Differences named of one relay; further ones are counted."""

Root = Literal["equal", "differs", "unasked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One message that one side has and the other lacks."""

    namespace_id: bytes
    """20 bytes."""
    seq: int
    """Its sequence."""
    content_id: bytes
    """32 bytes."""
    missing: Literal["here", "there"]
    """``here``: the archive lacks what the relay serves; ``there``: the relay lacks what the
    archive has and the relay's intervals say it holds."""
    held_by: tuple[str, ...]
    """Relays that are known to have it, or to have had it."""

    def __str__(self) -> str:
        """Say it in one line."""
        where = "the archive lacks" if self.missing == "here" else "a relay lacks"
        return (
            f"{where} namespace {self.namespace_id.hex()} seq {self.seq},"
            f" content {self.content_id.hex()}, served by {', '.join(self.held_by) or 'nobody'}"
        )


@dataclass(slots=True, kw_only=True)
class RelayComparison:
    """What came of one relay."""

    relay: str
    """Its address."""
    root: Root = "unasked"
    """Whether its Merkle root is that of what the archive has in its intervals."""
    ids: int = 0
    """Content ids under the archive's root."""
    namespaces: int = 0
    """Namespaces that both have."""
    blocks: int = 0
    """Blocks compared by digest."""
    blocks_read: int = 0
    """Blocks compared message by message."""
    further_blocks: int = 0
    """Blocks that may differ and were not read, beyond ``BLOCKS_READ``."""
    differences: list[Difference] = field(default_factory=list)
    """What differs, ``DIFFERENCES_MAX`` at most."""
    further: int = 0
    """Differences beyond these."""
    newer: int = 0
    """Sequences of the relay that the archive has not come to yet, as far as they were met."""
    kept_out: int = 0
    """Sequences with something that is not archived: a reject, an Ephemeral message, one that was
    deleted on purpose."""
    note: str = ""
    """Why the roots were not compared, or could not tell."""
    failed: str = ""
    """Why the comparison has no end."""

    @property
    def wrong(self) -> int:
        """Findings against either side, and a comparison without an end."""
        return len(self.differences) + self.further + self.further_blocks + bool(self.failed)

    def missing_here(self) -> list[Span]:
        """Return the sequences that the relay can give back to the archive, as ranges."""
        seqs = sorted({(d.namespace_id, d.seq) for d in self.differences if d.missing == "here"})
        spans: list[Span] = []
        for name, seq in seqs:
            if spans and spans[-1].namespace == name and spans[-1].last == seq - 1:
                spans[-1] = Span(name, spans[-1].first, seq)
            else:
                spans.append(Span(name, seq, seq))
        return spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """The archive, as it is compared with relays."""

    reader: ArchiveReader
    """Its messages."""
    reaches: Mapping[bytes, NamespaceReach]
    """How far each namespace reaches."""
    retired: Mapping[bytes, int]
    """Up to which sequence each namespace was deleted on purpose."""
    rules: ArchiveRules
    """What its messages are checked by."""
    now_ms: int
    """The time, Unix milliseconds."""


def compare(
    archived: Archived, client: RelaySyncClient, chosen: Sequence[bytes]
) -> RelayComparison:
    """Return what differs between the archive and a relay.

    Args:
        archived: The archive.
        client: The relay.
        chosen: Namespaces whose blocks are compared when the roots cannot tell.

    Raises:
        ArchiveError: a table cannot be read.

    """
    found = RelayComparison(relay=client.address)
    try:
        _Comparison(archived, client, found).run(chosen)
    except (SyncUnreachableError, SyncRemoteError) as error:
        found.failed = error.what
    return found


class _Comparison:
    """One comparison on its way."""

    def __init__(self, archived: Archived, client: RelaySyncClient, found: RelayComparison) -> None:
        self._archived = archived
        self._client = client
        self._found = found
        self._held: dict[bytes, HeldLane] = {}
        self._newer: set[tuple[bytes, int]] = set()
        self._kept_out: set[tuple[bytes, int]] = set()

    def run(self, chosen: Sequence[bytes]) -> None:
        """Go through the steps, and count what is no difference."""
        try:
            self._run(chosen)
        finally:
            self._found.newer, self._found.kept_out = len(self._newer), len(self._kept_out)

    def _run(self, chosen: Sequence[bytes]) -> None:
        shared = self._shared()
        self._found.namespaces = len(shared)
        suspects = self._by_root(shared)
        if suspects is None:
            suspects = [
                suspect for name in chosen if name in shared for suspect in self._by_digest(name)
            ]
        for place, (name, block) in enumerate(suspects):
            if place == BLOCKS_READ:
                self._found.further_blocks = len(suspects) - BLOCKS_READ
                return
            self._read(name, block)

    def _shared(self) -> dict[bytes, Sequence[SeqRange]]:
        """Return what the relay says it holds of namespaces that are archived."""
        room = INTERVALS_MAX
        for lane in self._client.list_held():
            name = bytes(lane.namespace_id)
            if not lane.spans or name not in self._archived.reaches:
                continue
            room -= len(lane.spans)
            if room < 0:
                raise SyncRemoteError(
                    f"the relay names more than {INTERVALS_MAX:,} intervals",
                    where=self._found.relay,
                )
            self._held[name] = lane
        return {name: lane.spans for name, lane in self._held.items()}

    def _by_root(
        self, shared: Mapping[bytes, Sequence[SeqRange]]
    ) -> list[tuple[bytes, int]] | None:
        """Return the blocks of what differs below the root; None when that is not known."""
        found = self._found
        if any(lane.cut for lane in self._held.values()):
            found.note = "the relay holds more intervals than it names"
            return None
        tree = held_tree(self._archived.reader, shared)
        if tree is None:
            found.note = "the relay holds more than one tree is made of"
            return None
        found.ids = len(tree)
        initiator = TreeInitiator(tree, TreeConfig(found_max=NAMED_MAX))
        try:
            self._client.reconcile(initiator)
        except (SyncUnreachableError, SyncRemoteError) as error:
            found.note = error.what
            return None
        found.root = "equal" if initiator.rounds == 1 else "differs"
        if found.root == "equal":
            return []
        if initiator.cut or not (initiator.need or initiator.have):
            found.note = "more differs than is named" if initiator.cut else "nothing is named"
            return None
        return self._suspects(list(initiator.need), list(initiator.have))

    def _suspects(self, need: Sequence[bytes], have: Sequence[bytes]) -> list[tuple[bytes, int]]:
        """Return the blocks of some ids, one side's and the other's."""
        places = {(row.namespace_id, row.seq) for row in rows_of(self._archived.reader, have)}
        for start in range(0, len(need), CONTENTS_ASKED):
            messages, _ = self._client.get_contents(need[start : start + CONTENTS_ASKED])
            for message in messages:
                name, seq = bytes(message.namespace_id), message.seq
                if seq and self._expected(name, seq) and name in self._held:
                    places.add((name, seq))
        return sorted({(name, (seq - 1) // BLOCK_SEQS) for name, seq in places})

    def _expected(self, name: bytes, seq: int) -> bool:
        """Return whether the archive should have a sequence; remembers it when it need not."""
        reach = self._archived.reaches.get(name)
        if seq <= self._archived.retired.get(name, 0):
            self._kept_out.add((name, seq))
            return False
        if reach is None or seq > reach.last_seq:
            self._newer.add((name, seq))
            return False
        return True

    def _by_digest(self, name: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield the blocks of a namespace that differ, among the newest that both have come to."""
        spans, last = self._held[name].spans, self._archived.reaches[name].last_seq
        whole = spans[-1].last <= last
        end = -(-spans[-1].last // BLOCK_SEQS) if whole else last // BLOCK_SEQS
        begin = max((spans[0].first - 1) // BLOCK_SEQS, end - BLOCKS_ASKED)
        if begin >= end:
            return
        theirs = self._client.get_digests(name, begin, end - begin)
        rows = block_rows(self._archived.reader, name, begin, end - begin)
        ours = block_digests(rows, spans, begin, end - begin)
        for block, (their, our) in enumerate(zip(theirs, ours, strict=True), start=begin):
            self._found.blocks += 1
            if their != our:
                yield name, block

    def _read(self, name: bytes, block: int) -> None:
        """Compare one block message by message."""
        ours = {row.content_id: row for row in block_rows(self._archived.reader, name, block, 1)}
        theirs, earliest = self._messages(name, block)
        self._found.blocks_read += 1
        for content_id, seq in sorted(theirs.items(), key=lambda item: (item[1], item[0])):
            if content_id not in ours and self._expected(name, seq):
                self._note(name, seq, content_id, "here", (self._found.relay,))
        for row in self._due(ours.values(), name):
            if row.content_id not in theirs and row.seq >= earliest:
                self._note(name, row.seq, row.content_id, "there", row.relays)

    def _due(self, rows: Collection[HeldRow], name: bytes) -> list[HeldRow]:
        """Return what of the archive's rows the relay should hold."""
        dropped = {row.content_id for row in losers(rows)}
        spans, now_ms = self._held[name].spans, self._archived.now_ms
        return [
            row
            for row in rows
            if within(row.seq, spans) and row.expires_at > now_ms and row.content_id not in dropped
        ]

    def _messages(self, name: bytes, block: int) -> tuple[dict[bytes, int], int]:
        """Return content id and sequence of a block's messages, and where the relay begins now."""
        first, last = block * BLOCK_SEQS, (block + 1) * BLOCK_SEQS
        found: dict[bytes, int] = {}
        room, earliest = CONTENTS_MAX * BLOCK_SEQS, 0
        for page in self._client.iter_pages(name, first, last, max_bytes=PAGE_BYTES, held=True):
            room -= len(page.messages)
            if room < 0:
                raise SyncRemoteError(
                    f"the relay serves more than {CONTENTS_MAX} messages for each sequence",
                    where=f"{self._found.relay}, namespace {name.hex()}",
                )
            found.update(self._good(name, page.messages))
            earliest = max(earliest, page.status.earliest_seq or MAX_I64)
        return found, earliest

    def _good(self, name: bytes, messages: Sequence[WireMessage]) -> Iterator[tuple[bytes, int]]:
        """Yield content id and sequence of what passes every check of `ingest`."""
        rows = [
            {
                "relay": self._found.relay,
                "namespace": name,
                "seq": message.seq,
                "header": message.header,
                "blob": message.blob or None,
                "received_at": min(message.received_at, MAX_I64),
                "expires_at": min(message.expires_at, MAX_I64),
                "finality": 0,
                "parent": bytes(self._held[name].parent_id),
            }
            for message in messages
        ]
        batch = pa.RecordBatch.from_pylist(rows, schema=RAW.arrow())
        checked = check_batch(batch, self._archived.rules)
        columns = (checked.column(each).to_pylist() for each in ("code", "content_id", "seq"))
        for code, content_id, seq, message in zip(*columns, messages, strict=True):
            if code == 0:
                yield content_id, seq
            else:
                self._kept_out.add((name, message.seq))

    def _note(
        self,
        name: bytes,
        seq: int,
        content_id: bytes,
        missing: Literal["here", "there"],
        held_by: Sequence[str],
    ) -> None:
        """Name a difference while there is room, else count it."""
        if len(self._found.differences) == DIFFERENCES_MAX:
            self._found.further += 1
            return
        self._found.differences.append(
            Difference(
                namespace_id=name,
                seq=seq,
                content_id=content_id,
                missing=missing,
                held_by=tuple(held_by),
            )
        )
