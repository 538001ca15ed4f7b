"""The statements of the specifications: each has a status, and evidence that is there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "conformance.md"
STATUSES = ("full", "as decided", "thin", "library only", "missing")
STATEMENTS = {
    "LP-6411, the header": 43,
    "LP-6420, gossip": 44,
    "LP-6421, persistence": 32,
    "Retention and garbage collection": 23,
    "Reliable channel": 23,
}
"""How many statements each document was read into; one that goes takes its number along."""
LACKING_MAX = 8
"""Statements that a user cannot have at all; each is a decision."""
THIN_MAX = 12


class Row(NamedTuple):
    """One statement."""

    document: str
    section: str
    statement: str
    status: str
    evidence: list[tuple[str, str]]
    """Text and target of each link."""


def rows() -> list[Row]:
    """Return the statements of the page."""
    found, document = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            document = line[3:]
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if document and line.startswith("| ") and cells[0] != "section":
            links = re.findall(r"\[([^\]]+)\]\(([^)]+)\)", cells[3])
            found.append(Row(document, *cells[:3], links))
    return found


ROWS = rows()


def test_every_statement_is_there_once() -> None:
    """As many as each document has, none twice, each with a known status."""
    assert Counter(row.document for row in ROWS) == STATEMENTS
    assert len({row[:3] for row in ROWS}) == len(ROWS) == 165
    assert {row.status for row in ROWS} <= set(STATUSES)


def test_the_summary_counts_the_rows() -> None:
    """Each line of the first table is what the tables below it hold."""
    lines = re.findall(r"^\| ([\w-]+) \| (\d+(?: \| \d+){5}) \|$", PAGE.read_text(), re.MULTILINE)
    said = [[int(number) for number in numbers.split(" | ")] for _, numbers in lines]
    counted = []
    for document, statements in STATEMENTS.items():
        of = Counter(row.status for row in ROWS if row.document == document)
        counted.append([statements, *(of[status] for status in STATUSES)])
    counted.append([sum(column) for column in zip(*counted, strict=True)])

    assert said == counted


def test_little_is_lacking() -> None:
    """What no user can have is little and decided; what is thin is little."""
    of = Counter(row.status for row in ROWS)

    assert of["library only"] + of["missing"] <= LACKING_MAX
    assert of["thin"] <= THIN_MAX


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.document[:7]}-{row.statement[:40]}")
def test_the_evidence_is_there(row: Row) -> None:
    """A test that is named exists; a status that departs from the text names a decision or page."""
    tests = [(text, target) for text, target in row.evidence if "/tests/" in target]
    decisions = [target for _, target in row.evidence if "protocol.md#" in target]
    for text, target in tests:
        source = (PAGE.parent / target).read_text()
        assert text == Path(target).stem or f"def {text}(" in source, text

    if row.status == "full":
        assert tests
    elif row.status in {"as decided", "thin"}:
        assert tests
        assert len(row.evidence) > len(tests)
    else:
        assert decisions
