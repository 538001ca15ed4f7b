"""Write the column 'reached by' of docs/reference/specifications.md from what the tests recorded.

The tests leave the doors that each of them went through in ``build/doors`` (tests/doors/reached.py
says how they are found). This merges them into docs/reference/reached_by.json, for the tests that
the page names, and writes the column anew. A test with several parameters, or several records,
has the doors that all of them share. Tests that did not run keep what they had.

    RECORD_DOORS=1 .venv/bin/pytest tests/integration/test_node.py
    .venv/bin/python tools/doors.py
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "specifications.md"
DATA = ROOT / "docs" / "reference" / "reached_by.json"
RECORDS = ROOT / "build" / "doors"
COLUMN = "reached by"
LIBRARY = "library"
sys.path.insert(0, str(ROOT / "tests" / "doors"))

from reached import DOORS  # noqa: E402  it stands with the tests

Reached = dict[str, dict[str, list[str]]]


def in_order(doors: set[str]) -> list[str]:
    """Return doors as the pages name them."""
    return [door for door in DOORS if door in doors]


def rows(page: str) -> list[tuple[str, list[str]]]:
    """Return each row of a table with a column of tests: the line, and its cells."""
    found = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and "../tests/" in line:
            found.append((line, cells))
    return found


def named_tests(cells: list[str]) -> list[str]:
    """Return the test files that a row names."""
    return re.findall(r"\]\(\.\./\.\./(tests/[\w./]+\.py)\)", " ".join(cells))


def doors_of(cells: list[str], reached: Reached) -> str:
    """Return the cell of a row: the doors of its tests all together."""
    found = {
        door
        for file in named_tests(cells)
        for doors in reached.get(file, {}).values()
        for door in doors
    }
    return ", ".join(in_order(found)) or LIBRARY


def with_column(page: str, reached: Reached) -> str:
    """Return the page with its column as the data say."""
    for line, cells in rows(page):
        cells[3] = doors_of(cells, reached)
        page = page.replace(line, f"| {' | '.join(cells)} |".replace("|  |", "|  |"))
    return page


def recorded() -> dict[str, set[str]]:
    """Return the doors of each test that has records: those that all of them share."""
    found: dict[str, set[str]] = {}
    for path in sorted(RECORDS.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            doors = set(record["doors"])
            found[record["test"]] = found.get(record["test"], doors) & doors
    return found


def merged(reached: Reached, records: dict[str, set[str]], page: str) -> Reached:
    """Return the data with the records, for the tests that the page names and that are there."""
    kept: Reached = {}
    for file in sorted({file for _, cells in rows(page) for file in named_tests(cells)}):
        there = set(
            re.findall(r"^(?:async )?def (test_\w+)", (ROOT / file).read_text(), re.MULTILINE)
        )
        tests = {name: doors for name, doors in reached.get(file, {}).items() if name in there}
        for test, doors in records.items():
            of_file, _, name = test.partition("::")
            if of_file == file and name in there:
                tests[name] = in_order(doors)
        tests = {name: doors for name, doors in sorted(tests.items()) if doors}
        if tests:
            kept[file] = tests
    return kept


def lost_by_rows(page: str, reached: Reached, since: float) -> list[str]:
    """Return ``row: door`` where all tests that have gone by a door of a row ran, and none did."""
    went: dict[str, set[str]] = {}
    for path in RECORDS.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record.get("at", 0.0) >= since:
                went.setdefault(record["test"], set()).update(record["doors"])
    lost = []
    for _, cells in rows(page):
        known = {
            f"{file}::{test}": doors
            for file in named_tests(cells)
            for test, doors in reached.get(file, {}).items()
        }
        for door in in_order({door for doors in known.values() for door in doors}):
            those = [test for test, doors in known.items() if door in doors]
            if went.keys() >= set(those) and not any(door in went[test] for test in those):
                lost.append(f"{cells[0]}: {door}")
    return lost


def read_data() -> Reached:
    """Return what is committed."""
    found: Reached = json.loads(DATA.read_text())["tests"] if DATA.exists() else {}
    return found


def main() -> int:
    """Merge the records, write data and page; the records that are merged are deleted."""
    page = PAGE.read_text()
    reached = merged(read_data(), recorded(), page)
    text = {"what": "doors that tests went through, recorded; tools/doors.py", "tests": reached}
    DATA.write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(with_column(page, reached))
    for path in RECORDS.glob("*.jsonl"):
        path.unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
