"""Write the reference pages that are made from code; `--check` says whether they are current."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from luxrelay.bus import structure
from luxrelay.bus.semantics import LIVE_RULES, SYNC_RULES
from luxrelay.cli.main import build_parser
from luxrelay.errors import CATALOGUE
from luxrelay.node.config import KEYS

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
NOTE = "<!-- Made by tools/generate_reference.py from the code; do not edit. -->\n\n"


def config_page() -> str:
    """Return config.md: every key of a node's file."""
    lines = [
        "# The configuration of a node\n",
        "One TOML file; `luxrelay node check --config FILE` says what is wrong and where.\n",
    ]
    section = ""
    for key in KEYS:
        if key.section != section:
            section = key.section
            title = f"[[{section}]]" if section == "namespace" else f"[{section}]"
            lines += [f"\n## {title}\n", "| key | default | unit | meaning |", "|---|---|---|---|"]
        default = "(required)" if key.default is None else f"`{_toml(key.default)}`"
        lines.append(f"| `{key.name}` | {default} | {key.unit} | {key.sentence} |")
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    """Return errors.md: every error code."""
    lines = [
        "# Errors\n",
        "Each error has a stable code. Its text is one line: what was wrong; where; what to do.\n",
        "| code | meaning | what to do |",
        "|---|---|---|",
    ]
    lines += [f"| `{e.code}` | {e.meaning} | {e.remedy} |" for e in CATALOGUE.values()]
    return "\n".join(lines) + "\n"


def verdicts_page() -> str:
    """Return verdicts.md: every rule on a message, in the order in which it is asked."""
    lines = [
        "# Verdicts\n",
        "A message is accepted, ignored (nobody's fault) or rejected (counted against the peer).",
        "The first rule it breaks decides; rules are asked in this order.\n",
        "## Structure: REJECT\n",
        "| code | rule broken | source |",
        "|---|---|---|",
    ]
    order = [rule.code for rule in structure.FIXED_RULES]
    order += [code for code in structure.REASONS if code not in order]
    for code in order:
        section, reason = structure.REASONS[code]
        lines.append(f"| {code.value} `{code.name.lower()}` | {reason} | {section} |")
    for title, rules in (("Live: gossip and publish", LIVE_RULES), ("History: sync", SYNC_RULES)):
        lines += [
            f"\n## {title}\n",
            "| code | verdict | rule broken | source |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {r.code.value} `{r.code.name.lower()}` | {r.kind.name} | {r.reason} | {r.section} |"
            for r in rules
        ]
    lines.append("\nThen come the blob, the announcement's signature and the sender's signature.")
    return "\n".join(lines) + "\n"


def command_page() -> str:
    """Return command.md: every subcommand with its options and its example."""
    lines = [
        "# The command\n",
        "Exit codes: 0 success, 1 a clear error on standard error, 2 wrong usage.",
    ]
    for words, parser in _subcommands(build_parser(), []):
        lines += [f"\n## luxrelay {' '.join(words)}\n", f"{_sentence(parser.description)}\n"]
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [_argument(action) for action in parser._actions if action.dest != "help"]
        lines.append(f"\n    {(parser.epilog or '').removeprefix('example: ')}")
    return "\n".join(lines) + "\n"


def _subcommands(
    parser: argparse.ArgumentParser, words: list[str]
) -> Iterator[tuple[list[str], argparse.ArgumentParser]]:
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for action in inner:
        for name, below in action.choices.items():
            yield from _subcommands(below, [*words, name])
    if not inner:
        yield words, parser


def _argument(action: argparse.Action) -> str:
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar}`"
    value = f" `{action.metavar}`" if action.option_strings and action.metavar else ""
    fields = {"default": action.default}
    return f"| {names}{value} | {_sentence((action.help or '') % fields)} |"


def _sentence(text: str | None) -> str:
    words = text or ""
    return words[:1].upper() + words[1:] + "."


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    return f'"{value}"' if isinstance(value, str) else f"{value}"


PAGES: dict[str, Callable[[], str]] = {
    "config.md": config_page,
    "errors.md": errors_page,
    "verdicts.md": verdicts_page,
    "command.md": command_page,
}


def main() -> int:
    """Write every page, or compare; return 1 when a page is not current."""
    check = "--check" in sys.argv[1:]
    stale = []
    for name, make in PAGES.items():
        path, text = FOLDER / name, NOTE + make()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not check:
                FOLDER.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    if check and stale:
        print(f"not current: {', '.join(stale)}; run make docs")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
