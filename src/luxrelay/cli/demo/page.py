"""report.html: the run on one page."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Final

from luxrelay.archive import report
from luxrelay.archive.chart_data import Outage, Series
from luxrelay.archive.reporting import ReportTable, RunReport, Tile
from luxrelay.cli.demo.archiving import ArchivingAct
from luxrelay.cli.demo.outcome import DemoOutcome
from luxrelay.cli.demo.rehearsal import Course

_BIN_S: Final = 0.5
"""Width of a throughput bin, seconds."""


def write_page(path: Path, outcome: DemoOutcome, course: Course, archived: ArchivingAct) -> None:
    """Write the page."""
    faults = outcome.faults()
    ending = "Everything held." if not faults else "Faults: " + "; ".join(faults) + "."
    report(
        RunReport(
            title="LuxRelay demonstration",
            summary=(
                f"{outcome.messages:,} signed messages of {outcome.senders:,} senders went "
                f"through {len(outcome.relays)} relays"
                f"{_destination(outcome)}. {ending}"
            ),
            tiles=_tiles(outcome),
            throughput=(Series(name="published", points=_per_second(course.published_at_s)),),
            latencies_ms=[float(value) for value in course.latencies_ms],
            stored=tuple(
                Series(name=name, points=_stored(samples))
                for name, samples in sorted(course.samples.items())
            ),
            outages=_outages(course),
            audit=archived.audit,
            tables=(_relays(outcome), _corrupt(outcome), _seconds(outcome)),
        ),
        out=path,
    )


def _destination(outcome: DemoOutcome) -> str:
    if outcome.archive is not None:
        return " into the archive"
    return f". The archive is {outcome.archive_hint}"


def _tiles(outcome: DemoOutcome) -> tuple[Tile, ...]:
    ok = not outcome.faults()
    latency, corrupt = outcome.latency_ms, outcome.corrupt
    several = len(outcome.relays) > 1
    return (
        Tile(label="Result", value="ok" if ok else "not ok", tone="good" if ok else "bad"),
        Tile(
            label="Messages",
            value=f"{outcome.messages:,}",
            note=f"in {outcome.namespaces:,} lanes",
        ),
        Tile(
            label="Latency, median",
            value=f"{latency['p50']:,} ms" if several else "–",
            note=f"99 % within {latency['p99']:,} ms" if several else "one relay: no gossip",
        ),
        Tile(
            label="Broken messages stored",
            value=f"{corrupt.stored:,}",
            note=f"of {corrupt.sent:,} sent: {corrupt.rejected:,} refused, "
            f"{corrupt.unheard:,} unheard",
            tone="bad" if corrupt.stored or corrupt.unaccounted else "good",
        ),
        _archived(outcome),
    )


def _archived(outcome: DemoOutcome) -> Tile:
    archive = outcome.archive
    if archive is None:
        return Tile(label="Archived", value="not made", note=outcome.archive_hint)
    return Tile(
        label="Archived",
        value=f"{archive.rows:,}",
        note=f"{archive.gaps:,} gaps, {archive.duplicates:,} duplicates",
        tone="good" if archive.rows == outcome.messages and not archive.gaps else "bad",
    )


def _per_second(times_s: list[float]) -> tuple[tuple[float, float], ...]:
    counts = Counter(int(at / _BIN_S) for at in times_s)
    if not counts:
        return ()
    bins = range(min(counts), max(counts) + 1)
    return tuple(((index + 0.5) * _BIN_S, counts[index] / _BIN_S) for index in bins)


def _stored(samples: list[tuple[float, int | None]]) -> tuple[tuple[float, float], ...]:
    """Return the samples; where the relay was away, a hole in the line."""
    return tuple((at, math.nan if count is None else float(count)) for at, count in samples)


def _outages(course: Course) -> tuple[Outage, ...]:
    if course.outage is None:
        return ()
    name, start_s, end_s = course.outage
    return (Outage(name=f"{name} is down", start_s=start_s, end_s=end_s),)


def _relays(outcome: DemoOutcome) -> ReportTable:
    return ReportTable(
        title="Relays",
        head=("relay", "stored", "missed while offline", "recovered", "contiguous"),
        rows=tuple(
            (
                relay.name,
                f"{relay.stored:,}",
                f"{relay.missed_while_offline:,}",
                f"{relay.recovered:,}",
                "yes" if relay.contiguous else "no",
            )
            for relay in outcome.relays
        ),
        note="Read back from each relay over RelaySync after the last message.",
    )


def _corrupt(outcome: DemoOutcome) -> ReportTable:
    return ReportTable(
        title="Broken messages",
        head=("kind", "sent", "refused", "with the code", "unheard"),
        rows=tuple(
            (kind.kind, f"{kind.sent:,}", f"{kind.refused:,}", kind.code, f"{kind.unheard:,}")
            for kind in outcome.corrupt.kinds
        ),
        note="Each breaks one rule of a message that would otherwise be accepted. Unheard: the "
        "relay does not look at what a peer sends whose score is below the threshold. "
        f"Unaccounted for: {outcome.corrupt.unaccounted:,}.",
    )


def _seconds(outcome: DemoOutcome) -> ReportTable:
    return ReportTable(
        title="Time",
        head=("part", "seconds"),
        rows=tuple((name, f"{value:.1f}") for name, value in outcome.seconds.items()),
    )
