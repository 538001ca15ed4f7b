"""`verify`: a sample of archived messages against their hashes and the relays. No JVM.

Three questions: does each message of a random sample pass every check again, its payload and its
signature included; does the root of its day stand in ``roots`` and prove it; and is each relay's
Merkle root that of what the archive has of the relay's intervals, or what differs (`comparison`).

Source: LP-6440, LP-6411 §2.4; decisions J4, J11, P26.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from luxrelay.archive.answers import ArchivedMessage, NamespaceReach
from luxrelay.archive.comparison import Archived, RelayComparison, compare
from luxrelay.archive.offsets import Span
from luxrelay.archive.options import SourceOptions
from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.recovery import checked_messages
from luxrelay.archive.relays import connect
from luxrelay.archive.rules import ArchiveRules
from luxrelay.errors import ArchiveError

SAMPLE_MAX: Final = 100_000
FINDINGS_MAX: Final = 100
"""Findings listed; further ones are counted."""


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """What was looked at and what was wrong."""

    messages: int = 0
    """Messages that were checked again."""
    proofs: int = 0
    """Of these, how many a root proves; the others' day has no root yet."""
    relays: list[RelayComparison] = field(default_factory=list)
    """What came of each relay."""
    wrong: int = 0
    """Findings, the listed ones and the others."""
    findings: list[str] = field(default_factory=list)
    """What was wrong and where, 100 at most."""

    def missing_here(self) -> list[Span]:
        """Return the sequences that some relay serves and the archive lacks."""
        spans = {span for relay in self.relays for span in relay.missing_here()}
        return sorted(spans, key=lambda span: (span.namespace, span.first, span.last))

    def note(self, finding: str) -> None:
        """Count a finding and list it while there is room."""
        self.wrong += 1
        self.say(finding)

    def say(self, finding: str) -> None:
        """List a finding that is counted elsewhere, while there is room."""
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
    now_ms: int | None = None,
) -> VerifyReport:
    """Check a sample of the archive against itself and against relays.

    Args:
        reader: The archive.
        rng: Where the sample comes from.
        relays: Relays to compare with, 64 at most; none to look at the archive alone.
        sample: Messages to look at, 1 to 100,000, and namespaces whose blocks are compared with a
            relay when its Merkle root cannot tell.
        rules: Signing mode and policies, as in `ingest`.
        tls: As in `ingest`.
        now_ms: The time, Unix milliseconds; the clock's when not given.

    Raises:
        ArchiveError: a table cannot be read.
        ArchiveArgumentError: an address is none.

    """
    report = VerifyReport()
    reaches = reader.reaches()
    for message in _sampled(reader, reaches, min(sample, SAMPLE_MAX), rng):
        _check(reader, message, rules or ArchiveRules(), report)
    if not relays:
        return report
    options = SourceOptions.parse({"relays": ",".join(relays)} | dict(tls or {}))
    archived = Archived(
        reader=reader,
        reaches={reach.namespace_id: reach for reach in reaches},
        retired=reader.retired(),
        rules=rules or ArchiveRules(),
        now_ms=int(time.time() * 1000) if now_ms is None else now_ms,
    )
    chosen = [reach.namespace_id for reach in rng.sample(reaches, min(sample, len(reaches)))]
    for relay in options.relays:
        with connect(relay, options) as client:
            _judge(compare(archived, client, chosen), report)
    return report


def _judge(found: RelayComparison, report: VerifyReport) -> None:
    """Add what came of a relay to the report."""
    report.relays.append(found)
    report.wrong += found.wrong
    if found.failed:
        report.say(f"relay {found.relay} could not be compared: {found.failed}")
    for difference in found.differences:
        report.say(f"relay {found.relay}: {difference}")
    for count, what in (
        (found.further, "differences"),
        (found.further_blocks, "blocks differ and were not read"),
    ):
        if count:
            report.say(f"relay {found.relay}: {count:,} further {what}")


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
