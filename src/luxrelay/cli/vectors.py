"""vectors write, check: the conformance vectors, also against another implementation."""

from __future__ import annotations

import argparse
from pathlib import Path

from luxrelay.cli.arguments import SubParsers, add_command
from luxrelay.cli.output import print_json
from luxrelay.errors import VectorError
from luxrelay.testing.vectors import VectorReport, check_vectors, foreign_answers, write_vectors

_SHOWN_MAX = 20
"""Most failures printed; the count is always complete."""


def register(commands: SubParsers) -> None:
    """Add the command."""
    vectors = commands.add_parser("vectors", help="write and check the conformance vectors")
    actions = vectors.add_subparsers(dest="action", metavar="ACTION", required=True)
    write = add_command(
        actions,
        "write",
        "write every vector file; says which ones changed",
        "luxrelay vectors write --dir vectors",
        _write,
    )
    check = add_command(
        actions,
        "check",
        "compare the vectors with this implementation, or with another program",
        'luxrelay vectors check --dir vectors --against "node my-relay.mjs"',
        _check,
    )
    for parser in (write, check):
        parser.add_argument(
            "--dir",
            type=Path,
            default=Path("vectors"),
            metavar="DIR",
            help="the folder of the kinds' folders (default %(default)s)",
        )
    check.add_argument(
        "--against",
        metavar="CMD",
        help="a program that answers one JSON object a line; vectors/README.md describes it",
    )
    check.add_argument("--json", action="store_true", help="print JSON")


def _write(arguments: argparse.Namespace) -> int:
    try:
        changed = write_vectors(arguments.dir)
    except ModuleNotFoundError as error:
        raise VectorError(
            "writing needs deterministic ML-DSA signatures",
            where=str(error.name),
            hint="pip install dilithium-py; checking does not need it",
        ) from error
    except OSError as error:
        raise VectorError(
            f"cannot write: {error}", where=str(arguments.dir), hint="choose another --dir"
        ) from error
    for name in changed:
        print(f"changed {name}")
    print(f"{len(changed)} of the files changed")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    answers = foreign_answers(arguments.against) if arguments.against is not None else None
    report = check_vectors(arguments.dir, answers)
    if arguments.json:
        failures = [[each.file, each.case, each.difference] for each in report.failures]
        print_json({"right": report.passed, "skipped": report.skipped, "wrong": failures})
    else:
        _print(report)
    return 1 if report.failures else 0


def _print(report: VectorReport) -> None:
    for failure in report.failures[:_SHOWN_MAX]:
        print(f"{failure.file}: {failure.case}: {failure.difference}")
    if len(report.failures) > _SHOWN_MAX:
        print(f"and {len(report.failures) - _SHOWN_MAX} more")
    print(f"{report.passed} right, {len(report.failures)} wrong, {report.skipped} skipped")
