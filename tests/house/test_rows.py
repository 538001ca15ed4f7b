"""Every row of the requirements that is built has a test that names it."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
COMPLETE = {f"11-{row:02d}" for row in range(1, 51)}
"""LP-6411: the whole table."""
BUILT = COMPLETE | {
    "20-02", "20-04", "20-55",
    "20-01", "20-03", "20-06", "20-24", "20-30", "20-31", "20-32", "20-38", "20-39", "20-40",
    "20-42", "20-47", "20-48",
    "20-05", "20-07", "20-08", "20-09", "20-10", "20-11", "20-12", "20-13", "20-14", "20-15",
    "20-16", "20-17", "20-18", "20-19", "20-20", "20-21", "20-22", "20-23", "20-25", "20-26",
    "20-27", "20-28", "20-29", "20-33", "20-34",
    "20-35", "20-36", "20-37", "20-41", "20-43", "20-49", "20-50", "20-51",
    "20-52", "20-53", "20-54", "20-56", "20-57", "20-58",
    "21-01", "21-03", "21-04", "21-05", "21-06", "21-07", "21-08", "21-09", "21-10", "21-11",
    "21-12", "21-13", "21-14", "21-15", "21-16", "21-18", "21-19", "21-20", "21-21", "21-22",
    "21-23", "21-24", "21-25", "21-26", "21-27", "21-28", "21-29", "21-30", "21-31", "21-32",
    "21-33", "21-37", "21-38", "21-39", "21-40", "21-41", "21-42", "21-45", "21-46", "21-47",
    "21-48", "21-49", "21-50", "21-51", "21-52", "21-53", "21-54", "21-55", "21-56", "21-57",
    "21-02", "21-17", "21-34", "21-35", "21-36", "21-43", "21-44", "21-58",
}  # fmt: skip
"""LP-6420 and LP-6421: rows that a test names today; a row leaves only with its requirement."""


def test_every_built_row_is_named_in_a_test() -> None:
    """A row of the requirements table that is built is cited by the test that pins it."""
    text = "\n".join(
        path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__)
    )
    named = set(re.findall(r"\b(?:11|20|21)-\d\d\b", text))

    assert not BUILT - named, sorted(BUILT - named)
