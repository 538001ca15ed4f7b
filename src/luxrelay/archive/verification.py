"""`verify`: does the archive hold what it says, and what the relays say? A sample; no JVM.

Three questions to a random sample: does each message pass every check again, its payload and its
signature included; does the root of its day stand in ``roots`` and prove it; and do the digests of
whole blocks of 256 sequences equal those of each relay that still holds them (P26).

Source: LP-6440, LP-6411 §2.4; decisions J11, P26.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from luxrelay.archive.answers import ArchivedMessage, NamespaceReach
from luxrelay.archive.options import SourceOptions
from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.recovery import checked_messages
from luxrelay.archive.relays import connect
from luxrelay.archive.rules import ArchiveRules
from luxrelay.errors import ArchiveError, SyncRemoteError, SyncUnreachableError
from luxrelay.sync.heads import Head
from luxrelay.sync.held import BLOCK_SEQS
from luxrelay.sync.rpc.client import RelaySyncClient

SAMPLE_MAX: Final = 100_000
BLOCKS_ASKED: Final = 32
"""Blocks of one namespace that are compared with one relay."""
FINDINGS_MAX: Final = 100
"""Findings listed; further ones are counted."""


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """What was looked at and what was wrong."""

    messages: int = 0
    """Messages that were checked again."""
    proofs: int = 0
    """Of these, how many a root proves; the others' day has no root yet."""
    blocks: int = 0
    """Blocks compared with relays."""
    wrong: int = 0
    """Findings, the listed ones and the others."""
    findings: list[str] = field(default_factory=list)
    """What was wrong and where, 100 at most."""

    def note(self, finding: str) -> None:
        """Count a finding and list it while there is room."""
        self.wrong += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


def verify(
    reader: ArchiveReader,
    *,
    rng: random.Random,
    relays: Sequence[str] = (),
    sample: int = 200,
    rules: ArchiveRules | None = None,
    tls: Mapping[str, str] | None = None,
) -> VerifyReport:
    """Check a sample of the archive against itself and against relays.

    Args:
        reader: The archive.
        rng: Where the sample comes from.
        relays: Relays to compare with, 64 at most; none to look at the archive alone.
        sample: Messages to look at, 1 to 100,000, and namespaces to compare.
        rules: Signing mode and policies, as in `ingest`.
        tls: As in `ingest`.

    Raises:
        ArchiveError: a table cannot be read.
        ArchiveArgumentError: an address is none.

    """
    report = VerifyReport()
    reaches = reader.reaches()
    for message in _sampled(reader, reaches, min(sample, SAMPLE_MAX), rng):
        _check(reader, message, rules or ArchiveRules(), report)
    if relays:
        options = SourceOptions.parse({"relays": ",".join(relays)} | dict(tls or {}))
        chosen = rng.sample(reaches, min(sample, len(reaches)))
        for relay in options.relays:
            _compare(reader, relay, options, chosen, report)
    return report


def _sampled(
    reader: ArchiveReader, reaches: Sequence[NamespaceReach], count: int, rng: random.Random
) -> Iterator[ArchivedMessage]:
    """Yield messages at random: namespaces by their size, then a place in each."""
    if not reaches:
        return
    weights = [reach.messages for reach in reaches]
    for reach in rng.choices(reaches, weights, k=count):
        seq = rng.randint(reach.first_seq, reach.last_seq)
        page = reader.by_namespace(reach.namespace_id, from_seq=seq, limit=1)
        yield from page.messages


def _check(
    reader: ArchiveReader, message: ArchivedMessage, rules: ArchiveRules, report: VerifyReport
) -> None:
    place = message.place
    where = f"namespace {place.namespace_id.hex()} seq {place.seq}"
    report.messages += 1
    good = checked_messages([message], rules)
    if not good:
        report.note(f"a message that is none: {where}")
    elif good[0].header.content_id != place.content_id:
        report.note(f"a message under another content id: {where}")
    try:
        report.proofs += reader.prove(message) is not None
    except ArchiveError as error:
        report.note(f"{error.what}: {where}")


def _compare(
    reader: ArchiveReader,
    relay: str,
    options: SourceOptions,
    reaches: Sequence[NamespaceReach],
    report: VerifyReport,
) -> None:
    with connect(relay, options) as client:
        try:
            for reach in reaches:
                head = client.get_head(reach.namespace_id)
                _compare_blocks(reader, client, reach, head, report)
        except (SyncUnreachableError, SyncRemoteError) as error:
            report.note(f"relay {relay} could not be compared: {error.what}")


def _compare_blocks(
    reader: ArchiveReader,
    client: RelaySyncClient,
    reach: NamespaceReach,
    head: Head,
    report: VerifyReport,
) -> None:
    """Compare the newest whole blocks that both hold without a hole."""
    first = max(head.earliest_seq, reach.first_seq)
    last = min(head.contiguous_seq, reach.contiguous_seq)
    begin, end = -(-(first - 1) // BLOCK_SEQS), last // BLOCK_SEQS  # blocks wholly inside
    begin = max(begin, end - BLOCKS_ASKED)
    if not head.earliest_seq or begin >= end:
        return
    theirs = client.get_digests(reach.namespace_id, begin, end - begin)
    ours = reader.block_digests(reach.namespace_id, begin, end - begin)
    for block, (their, our) in enumerate(zip(theirs, ours, strict=True), start=begin):
        report.blocks += 1
        if their != our:
            seqs = f"{block * BLOCK_SEQS + 1} to {(block + 1) * BLOCK_SEQS}"
            report.note(
                f"relay {client.address} holds other messages:"
                f" namespace {reach.namespace_id.hex()} seq {seqs}"
            )
