"""The HTML page about a run."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from luxrelay.archive.chart_data import Outage, Series
from luxrelay.archive.completeness import ArchiveGap, AuditReport, Behind, NamespaceAudit
from luxrelay.archive.reporting import (
    ROWS_SHOWN,
    ReportTable,
    RunReport,
    Tile,
    audit_tables,
    render,
    report,
)

AUDIT = AuditReport(
    namespaces=(
        NamespaceAudit(
            namespace=b"n" * 20, first=1, last=9, rows=7, slots=7, contested=0, duplicates=0
        ),
    ),
    gaps=(ArchiveGap(namespace=b"n" * 20, first=3, last=4, held_by=("a:1",), rejected=(1005,)),),
    behind=(),
    rejected_by_code={1005: 2, 9999: 1},
    messages_by_copies={2: 6, 1: 1},
    messages_by_relay={"a:1": 7, "b:1": 6},
    unreachable=("c:1",),
)
POINTS = ((0.0, 0.0), (1.0, 50.0), (2.0, 90.0))
RUN = RunReport(
    title="A run",
    summary="Three relays.",
    tiles=(Tile(label="Messages", value="5,000", note="in 700 lanes", tone="good"),),
    throughput=(Series(name="published", points=POINTS),),
    latencies_ms=[10.0, 20.0, 300.0],
    stored=(Series(name="relay-a", points=POINTS),),
    outages=(Outage(name="relay-b down", start_s=0.5, end_s=1.0),),
    audit=AUDIT,
    tables=(ReportTable(title="Timings", head=("Step", "Seconds"), rows=(("start", "1.2"),)),),
)


class _Balance(HTMLParser):
    """Checks that elements close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, _: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "path", "use"}:
            self.open.append(tag)

    def handle_startendtag(self, _tag: str, _: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


@pytest.mark.slow
def test_page_is_whole_and_asks_for_nothing() -> None:
    """Every section is there, elements close, and no address is named."""
    page = render(RUN)
    balance = _Balance()
    balance.feed(page)

    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == [
        "Throughput", "Latency", "Stored messages", "Archive audit", "Copies by relay",
        "Missing sequences", "Timings",
    ]  # fmt: skip
    assert (balance.open, balance.wrong) == ([], [])
    assert not re.search(r"https?:|src=|@import|<link|<script", page)


def test_sections_without_data_are_left_out() -> None:
    """An empty run gives a title and a sentence."""
    page = render(RunReport(title="Empty", summary="Nothing ran."))

    assert "<section>" not in page
    assert "Nothing ran." in page


def test_text_is_escaped() -> None:
    """Names come from elsewhere and must not become elements."""
    bad = "<script>alert(1)</script>"
    page = render(
        RunReport(
            title=bad,
            summary=bad,
            tiles=(Tile(label=bad, value=bad, note=bad),),
            tables=(ReportTable(title=bad, head=(bad,), rows=((bad,),), note=bad),),
        )
    )

    assert "<script" not in page


def test_audit_says_what_must_not_be() -> None:
    """What is wrong is marked, codes have names, unknown ones too."""
    findings, relays, missing = audit_tables(AUDIT)
    rows = {row[0]: row[1:] for row in findings.rows}

    assert rows["Missing sequences"] == ("2", "✗ must be none")
    assert rows["Messages stored twice"] == ("0", "✓ none")
    assert rows["… invalid signature"] == ("2", "code 1005")
    assert rows["… unknown code"] == ("1", "code 9999")
    assert rows["Messages served by 2 relays"] == ("6", "85.7 %")
    assert rows["Relay c:1"] == ("unreachable", "✗ must be none")
    assert relays.rows == (("a:1", "7", "100.0 %"), ("b:1", "6", "85.7 %"))
    assert missing.rows == (("6e" * 20, "3", "4", "a:1", "invalid signature (1005)"),)


def test_audit_says_what_is_still_to_be_read() -> None:
    """With the reason, where everything was rejected."""
    behind = (
        Behind(namespace=b"n" * 20, archived=3, head=9),
        Behind(namespace=b"o" * 20, archived=0, head=2, rejected=(1005, 9999)),
    )

    *_, ahead = audit_tables(replace(AUDIT, behind=behind))

    assert ahead.rows == (
        ("6e" * 20, "3", "9", ""),
        ("6f" * 20, "0", "2", "invalid signature (1005), unknown code (9999)"),
    )


def test_long_tables_are_cut() -> None:
    """A table shows ROWS_SHOWN rows and says how many more there are."""
    rows = tuple((f"row {number}", str(number)) for number in range(ROWS_SHOWN + 7))

    page = render(
        RunReport(
            title="t", summary="s", tables=(ReportTable(title="x", head=("a", "b"), rows=rows),)
        )
    )

    assert page.count("<tr>") == 1 + ROWS_SHOWN
    assert "7 more rows are not shown." in page


def test_columns_of_numbers_stand_to_the_right() -> None:
    """A column is numeric when each of its cells is."""
    table = ReportTable(
        title="x", head=("a", "b", "c"), rows=(("r", "1,000", "1"), ("s", "2 ms", "-"))
    )

    page = render(RunReport(title="t", summary="s", tables=(table,)))

    assert page.count('class="number"') == 3


def test_page_is_written_whole(tmp_path: Path) -> None:
    """The file appears complete under its name; nothing else stays."""
    path = report(RunReport(title="t", summary="s"), out=tmp_path / "deep" / "report.html")

    assert path == tmp_path / "deep" / "report.html"
    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert list(path.parent.iterdir()) == [path]
