"""Continuous integration does what the README tells a newcomer to do."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_ci_runs_the_readmes_commands_to_the_letter() -> None:
    """The commands of its first section, and the demonstration from an installed wheel."""
    tried = (ROOT / "README.md").read_text().split("## Try it")[1].split("##")[0]
    commands = [line.strip() for line in tried.splitlines() if line.startswith("    ")]
    lines = (ROOT / ".ci" / "run").read_text().splitlines()

    assert commands == ["make demo", "make test"]
    assert {*commands, "make first-hour"} <= set(lines)
