"""`report`: one HTML page about a run, complete in itself.

The page makes no request: style and charts are inside. It is made from plain values, so that a
run without Spark can be reported too; a section without data is left out.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from luxrelay.archive.chart_data import Chart, Outage, Series
from luxrelay.bus import Code
from luxrelay.files import write_whole

if TYPE_CHECKING:
    from luxrelay.archive.completeness import AuditReport

ROWS_SHOWN: Final = 50
"""Rows of a table before it is cut."""

Tone = Literal["plain", "good", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One number at the top of the page."""

    label: str
    """What it counts."""
    value: str
    """The number as it is shown, with its unit."""
    note: str = ""
    """A few words below."""
    tone: Tone = "plain"
    """``good`` and ``bad`` colour the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table of text."""

    title: str
    """Above the table."""
    head: tuple[str, ...]
    """Column titles."""
    rows: tuple[tuple[str, ...], ...]
    """Cells; those that begin with a digit are set to the right."""
    note: str = ""
    """Below the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What the page shows."""

    title: str
    """Title of the page."""
    summary: str
    """One or two sentences: what was run, and how it ended."""
    tiles: tuple[Tile, ...] = ()
    """Numbers at the top."""
    throughput: tuple[Series, ...] = ()
    """Messages per second over time."""
    latencies_ms: Sequence[float] = ()
    """Time from signing to storing, one value a delivery."""
    stored: tuple[Series, ...] = ()
    """Messages stored over time, one line a relay."""
    outages: tuple[Outage, ...] = ()
    """When a relay was down."""
    audit: AuditReport | None = None
    """The archive's audit."""
    tables: tuple[ReportTable, ...] = ()
    """Further tables, at the end."""


def report(run: RunReport, *, out: Path) -> Path:
    """Write the page about ``run`` to ``out``, whole or not at all, and return its path."""
    page = render(run)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, page.encode(), mode=0o644)
    return out


def render(run: RunReport) -> str:
    """Return the page about ``run``; where matplotlib is not installed it says so, in one line."""
    sections = [
        *_chart_sections(run),
        *_audit_sections(run.audit),
        *(_section(table.title, _table(table)) for table in run.tables),
    ]
    body = "\n".join(part for part in sections if part)
    title = html.escape(run.title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{title}</h1><p>{html.escape(run.summary)}</p></header>\n"
        f"{_tiles(run.tiles)}\n{body}\n</main>\n</body>\n</html>\n"
    )


def audit_tables(audit: AuditReport) -> list[ReportTable]:
    """Return an audit as tables: its findings, its relays, and what is missing."""
    tables = [
        ReportTable(
            title="Archive audit",
            head=("Check", "Found", "Verdict"),
            rows=tuple(_findings(audit)),
            note="" if not audit.cut else "There is more than is listed here.",
        )
    ]
    if audit.messages_by_relay:
        rows = tuple(
            (relay, _count(count), _share(count, audit.rows))
            for relay, count in audit.messages_by_relay.items()
        )
        tables.append(
            ReportTable(
                title="Copies by relay", head=("Relay", "Messages served", "Of all"), rows=rows
            )
        )
    if audit.gaps:
        missing = tuple(
            (
                gap.namespace.hex(),
                _count(gap.first),
                _count(gap.last),
                ", ".join(gap.held_by),
                _codes(gap.rejected),
            )
            for gap in audit.gaps
        )
        tables.append(
            ReportTable(
                title="Missing sequences",
                head=("Namespace", "First", "Last", "May still be had from", "Rejected there"),
                rows=missing,
                note="Where rows were rejected relays served something, but no message.",
            )
        )
    if audit.behind:
        ahead = tuple(
            (each.namespace.hex(), _count(each.archived), _count(each.head), _codes(each.rejected))
            for each in audit.behind
        )
        tables.append(
            ReportTable(
                title="Still to be read",
                head=("Namespace", "Archived up to", "Relays have up to", "Rejected there"),
                rows=ahead,
            )
        )
    return tables


def _findings(audit: AuditReport) -> Iterable[tuple[str, str, str]]:
    yield "Messages archived", _count(audit.rows), ""
    yield "Namespaces", _count(len(audit.namespaces)), ""
    for copies, count in sorted(audit.messages_by_copies.items(), reverse=True):
        name = "relay" if copies == 1 else "relays"
        yield f"Messages served by {copies} {name}", _count(count), _share(count, audit.rows)
    yield "Messages stored twice", _count(audit.duplicates), _verdict(good=not audit.duplicates)
    yield "Missing sequences", _count(audit.missing), _verdict(good=not audit.missing)
    yield "Namespaces behind the relays", _count(len(audit.behind)), _verdict(good=not audit.behind)
    yield "Slots with more than one message", _count(audit.contested), ""
    yield "Rejected rows", _count(audit.rejected), "kept apart" if audit.rejected else ""
    for code, count in audit.rejected_by_code.items():
        yield f"… {_code_name(code)}", _count(count), f"code {code}"
    for relay in audit.unreachable:
        yield f"Relay {relay}", "unreachable", _verdict(good=False)


def _code_name(code: int) -> str:
    try:
        return Code(code).name.lower().replace("_", " ")
    except ValueError:
        return "unknown code"


def _codes(codes: Sequence[int]) -> str:
    return ", ".join(f"{_code_name(code)} ({code})" for code in codes)


def _verdict(*, good: bool) -> str:
    return "✓ none" if good else "✗ must be none"


def _count(value: int) -> str:
    return f"{value:,}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def _stored_note(outages: Sequence[Outage]) -> str:
    note = "Messages in each relay's store."
    if not outages:
        return note
    return f"{note} Shaded: while a relay was down; it then catches up from the others."


def _audit_sections(audit: AuditReport | None) -> list[str]:
    if audit is None:
        return []
    return [_section(table.title, _table(table)) for table in audit_tables(audit)]


def _chart_sections(run: RunReport) -> list[str]:
    if not (run.throughput or len(run.latencies_ms) or run.stored):
        return []
    try:
        from luxrelay.archive.charts import distribution_chart, lines_chart  # noqa: PLC0415  extra
    except ImportError as error:
        if error.name != "matplotlib":
            raise
        note = "The charts are drawn where matplotlib is installed: pip install 'luxrelay[plots]'."
        return [_section("Charts", f'<p class="note">{html.escape(note)}</p>')]
    return [
        _chart_section(
            "Throughput",
            "Messages per second over time.",
            lines_chart(run.throughput, label="messages per second", filled=True)
            if run.throughput
            else None,
        ),
        _chart_section(
            "Latency",
            "From the sender's clock to the moment a relay had stored the message."
            f" {len(run.latencies_ms):,} deliveries.",
            distribution_chart(run.latencies_ms, label="deliveries")
            if len(run.latencies_ms)
            else None,
        ),
        _chart_section(
            "Stored messages",
            _stored_note(run.outages),
            lines_chart(run.stored, label="messages stored", outages=run.outages)
            if run.stored
            else None,
        ),
    ]


def _chart_section(title: str, note: str, chart: Chart | None) -> str:
    if chart is None:
        return ""
    figure = (
        f'<figure><div class="wide">{chart.wide}</div><div class="narrow">{chart.narrow}</div>'
        f"<figcaption>{html.escape(note)}</figcaption></figure>"
    )
    return _section(title, figure)


def _section(title: str, content: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{content}</section>"


def _tiles(tiles: Sequence[Tile]) -> str:
    cells = "".join(
        f'<div class="tile {tile.tone}"><dt>{html.escape(tile.label)}</dt>'
        f"<dd>{html.escape(tile.value)}<small>{html.escape(tile.note)}</small></dd></div>"
        for tile in tiles
    )
    return f'<dl class="tiles">{cells}</dl>' if tiles else ""


def _table(table: ReportTable) -> str:
    numeric = [_is_numeric(row[place] for row in table.rows) for place in range(len(table.head))]
    head = "".join(
        f'<th scope="col"{_kind("", number)}>{html.escape(name)}</th>'
        for name, number in zip(table.head, numeric, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{_kind(cell, number)}>{html.escape(cell)}</td>"
            for cell, number in zip(row, numeric, strict=True)
        )
        + "</tr>"
        for row in table.rows[:ROWS_SHOWN]
    )
    hidden = len(table.rows) - ROWS_SHOWN
    note = f"{hidden:,} more rows are not shown. " if hidden > 0 else ""
    note = (note + table.note).strip()
    foot = f'<p class="note">{html.escape(note)}</p>' if note else ""
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        f"</div>{foot}"
    )


def _is_numeric(cells: Iterable[str]) -> bool:
    """Return True for a column of numbers, with or without a unit."""
    return all(re.fullmatch(r"[0-9][0-9,.]*( \S{1,3})?", cell) for cell in cells)


def _kind(cell: str, numeric: bool) -> str:
    name = "number" if numeric else {"✓": "good", "✗": "bad"}.get(cell[:1], "")
    return f' class="{name}"' if name else ""


_STYLE: Final = """
:root { color-scheme: light; --ink: #1d2733; --soft: #5b6875; --line: #dfe5eb;
  --good: #00734f; --bad: #b3261e; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f8fa; color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1136px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 8px; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 0 0 12px; }
header p { margin: 0; color: var(--soft); max-width: 70ch; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(158px, 1fr));
  gap: 12px; margin: 24px 0 0; }
.tile, section { background: #fff; border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 14px 16px; }
.tile dt { font-size: 13px; color: var(--soft); }
.tile dd { margin: 2px 0 0; font-size: 26px; font-weight: 650; line-height: 1.2;
  font-variant-numeric: tabular-nums; }
.tile small { display: block; font-size: 13px; font-weight: 400; color: var(--soft);
  margin-top: 4px; line-height: 1.35; }
.tile.good dd { color: var(--good); } .tile.bad dd { color: var(--bad); }
section { padding: 20px 24px; margin-top: 16px; }
figure { margin: 0; }
figcaption, .note { color: var(--soft); font-size: 14px; margin: 8px 0 0; }
svg { display: block; width: 100%; height: auto; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg text { font-family: inherit; }
.narrow { display: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 15px; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 13px; }
th, td { padding: 7px 16px 7px 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
tbody tr:last-child td { border-bottom: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap;
  padding-right: 40px; }
td.good { color: var(--good); } td.bad { color: var(--bad); font-weight: 600; }
th, td.good, td.bad { white-space: nowrap; }
@media (max-width: 640px) {
  main { padding: 20px 12px 40px; } section { padding: 16px 12px; } h1 { font-size: 23px; }
  .tiles { grid-template-columns: repeat(2, 1fr); gap: 8px; } .tile { padding: 12px; }
  .tile dd { font-size: 22px; } .wide { display: none; } .narrow { display: block; }
  table { font-size: 14px; } .number { padding-right: 16px; }
}
@media print { body { background: #fff; } section, .tile { break-inside: avoid; } }
"""
