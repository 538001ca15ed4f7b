"""The conformance vectors: written from cases, read from files, checked against an answerer.

Theory of operation
-------------------
A *case* is what is given and what must be answered. A *kind* (header, namespace, …) has files of
cases and `answer`, which is this implementation's answer to what is given. Writing runs the cases
through `answer` and refuses to write an expectation that differs from it; the same seeds, and
ML-DSA signatures in FIPS 204's deterministic mode, make the same bytes every time (11-50).
Checking reads the files and compares with an answerer: ours, or a foreign program that is given
one JSON object a line on standard input and answers one a line on standard output.
An answerer may leave keys out, or answer ``{"skip": true}``; what it answers must be right, and a
key that nobody asked for is wrong.
*Bounds*: `FOREIGN_TIMEOUT_S` for a foreign program, `FILE_BYTES_MAX` for a file.

Source: decisions H35; 11-50.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from luxrelay.errors import InputError, LuxRelayError, VectorError
from luxrelay.testing.cases import KINDS, Case, Json

FORMAT: Final = 1
"""Version of the files' form."""
FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Longest vector file that is read."""
FOREIGN_TIMEOUT_S: Final = 300
"""How long a foreign program may take for all cases, seconds."""

Answers = Callable[[Sequence[tuple[str, Json]]], Iterable[Json]]
"""All cases as (kind, given) to their answers, in order."""


class Failure(NamedTuple):
    """A case that was answered wrongly."""

    file: str
    case: str
    difference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorReport:
    """What a check found."""

    passed: int
    """Cases of which everything answered was right."""
    skipped: int
    """Cases the answerer left out."""
    failures: tuple[Failure, ...]
    """Cases answered wrongly."""


def make_files() -> Iterator[tuple[str, str]]:
    """Yield every vector file as its path below ``vectors/`` and its text."""
    for kind, module in KINDS.items():
        for name, cases in module.files():
            made = [case._asdict() | {"expect": _agreed(module.answer, case)} for case in cases]
            yield f"{kind}/{name}.json", _text(kind, made)


def _agreed(answer: Callable[[Json], Json], case: Case) -> Json:
    """Return our answer, which holds everything that the case already expects."""
    found = answer(case.given)
    for key, value in case.expect.items():
        assert found.get(key) == value, f"{case.name}: {key} is {found.get(key)}, not {value}"
    return found


def _text(kind: str, cases: list[dict[str, object]]) -> str:
    """Return the file: one case a line, so that a difference is a line."""
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    return f'{{"format": {FORMAT}, "kind": "{kind}", "cases": [\n{lines}\n]}}\n'


def write_vectors(folder: Path) -> list[str]:
    """Write every file below ``folder`` and return those that changed.

    JSON files that are no longer made are removed from the kinds' folders.
    """
    made = dict(make_files())
    changed = []
    for name, text in made.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            changed.append(name)
    for kind in KINDS:
        for path in (folder / kind).glob("*.json"):
            if f"{kind}/{path.name}" not in made:
                path.unlink()
                changed.append(f"{kind}/{path.name}")
    return changed


def read_vectors(folder: Path) -> Iterator[tuple[str, str, Case]]:
    """Yield (file, kind, case) of every vector below ``folder``.

    Raises:
        InputError: there are none, or a file has another form.

    """
    paths = sorted(folder.glob("*/*.json"))
    if not paths:
        raise InputError("no vectors here", where=str(folder), hint="name the folder with --dir")
    for path in paths:
        name = f"{path.parent.name}/{path.name}"
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                raise InputError(f"more than {FILE_BYTES_MAX:,} bytes", where=name)
            document = json.loads(path.read_text())
            kind, cases = document["kind"], document["cases"]
            if document["format"] != FORMAT or kind not in KINDS:
                raise InputError("another format or kind", where=name)
            for case in cases:
                yield name, kind, Case(case["name"], dict(case["given"]), dict(case["expect"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"no vector file: {error!r}", where=name) from error


def check_vectors(folder: Path, answers: Answers | None = None) -> VectorReport:
    """Return how the answers compare with the vectors below ``folder``.

    Args:
        folder: Where the kinds' folders are.
        answers: The answerer; ours when not given.

    """
    read = list(read_vectors(folder))
    asked = [(kind, case.given) for _, kind, case in read]
    passed, skipped, failures = 0, 0, []
    for (name, _, case), answer in zip(read, (answers or own_answers)(asked), strict=True):
        if answer.get("skip") is True:
            skipped += 1
            continue
        difference = _difference(answer, case.expect)
        if difference:
            failures.append(Failure(name, case.name, difference))
        else:
            passed += 1
    return VectorReport(passed=passed, skipped=skipped, failures=tuple(failures))


def _difference(answer: Mapping[str, object], expected: Mapping[str, object]) -> str:
    if not answer:
        return "answered nothing"
    for key, value in answer.items():
        if key not in expected:
            return f"{key} was not asked for"
        if value != expected[key]:
            return f"{key} is {_short(value)}, not {_short(expected[key])}"
    return ""


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "…"


def own_answers(asked: Sequence[tuple[str, Json]]) -> Iterator[Json]:
    """Yield this implementation's answers.

    Raises:
        InputError: what is given does not have the form of its kind.

    """
    for kind, given in asked:
        try:
            yield KINDS[kind].answer(given)
        except (LuxRelayError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(f"no {kind} case: {error!r}", where=str(given)[:64]) from error


def foreign_answers(command: str) -> Answers:
    """Return the answerer that is another program.

    Args:
        command: Program and arguments, as a shell would split them; no shell runs.

    Raises:
        VectorError: when used: it cannot start, is too slow, fails, or answers no JSON object a
            line.

    """

    def answers(asked: Sequence[tuple[str, Json]]) -> Iterable[Json]:
        lines = "".join(json.dumps({"kind": kind, "given": given}) + "\n" for kind, given in asked)
        try:
            done = subprocess.run(  # noqa: S603  the user names the program
                shlex.split(command),
                input=lines,
                capture_output=True,
                text=True,
                timeout=FOREIGN_TIMEOUT_S,
                check=True,
            )
        except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
            raise VectorError(f"the program failed: {error}", where=command) from error
        replies = done.stdout.splitlines()
        if len(replies) != len(asked):
            raise VectorError(
                f"{len(replies)} lines came back for {len(asked)} cases", where=command
            )
        return [_parse(reply, number, command) for number, reply in enumerate(replies, 1)]

    return answers


def _parse(reply: str, number: int, command: str) -> dict[str, Any]:
    try:
        answer = json.loads(reply)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise VectorError(f"line {number} is no JSON object", where=command)
    return answer
