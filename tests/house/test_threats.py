"""Every row of the threat model names tests that are there and has a mutant without its defence."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import mutants  # noqa: E402  it stands in tools

PAGE = ROOT / "docs" / "explanation" / "threat-model.md"
WITHOUT = {
    "ids chosen so that a tree of XORs collides": "trees prove nothing: no defence to take out",
}
"""Rows whose defence is not a line that a patch can take out."""


def rows() -> dict[str, str]:
    """Return the first cell of each row of an attack, with the cell of who plays it."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 3 and cells[0] != "attack":
            found[cells[0]] = cells[2]
    return found


def test_each_row_has_a_mutant() -> None:
    """The first cell of a row stands in the head of a patch."""
    said = {mutant.row for mutant in mutants.mutants()}
    assert rows().keys() - said - WITHOUT.keys() == set()


def test_each_mutant_is_of_a_row() -> None:
    """A patch names a row as the page spells it; ``-`` for a defence of no row."""
    unknown = {mutant.name: mutant.row for mutant in mutants.mutants() if mutant.row != "-"}
    assert {name: row for name, row in unknown.items() if row not in rows()} == {}


def test_who_plays_a_row_is_there() -> None:
    """Paths of the last column lead to files of this repository."""
    named = [path for cell in rows().values() for path in re.findall(r"`([\w./]+/[\w./]+)`", cell)]
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
