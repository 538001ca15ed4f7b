"""The conformance vectors: written alike, read with care, compared key by key."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from luxrelay.errors import InputError, VectorError
from luxrelay.testing import vectors
from luxrelay.testing.cases import KINDS, Case, Json
from luxrelay.testing.vectors import (
    check_vectors,
    foreign_answers,
    make_files,
    read_vectors,
    write_vectors,
)

ROOT = Path(__file__).resolve().parents[3]
VECTORS = ROOT / "vectors"
ORACLE = f"{sys.executable} {ROOT / 'tests' / 'oracle' / 'header.py'}"


def _folder(tmp_path: Path, **case: object) -> Path:
    document = {"format": 1, "kind": "namespace", "cases": [case]}
    (tmp_path / "namespace").mkdir()
    (tmp_path / "namespace" / "valid-x.json").write_text(json.dumps(document))
    return tmp_path


def _keyed(answer: Json) -> vectors.Answers:
    def answers(asked: Sequence[tuple[str, Json]]) -> Iterable[Json]:
        return [answer for _ in asked]

    return answers


@pytest.mark.slow
def test_regenerated_vectors_equal_the_committed_ones() -> None:
    """The same bytes come out every time, ML-DSA included (11-50)."""
    made = dict(make_files())
    stored = {f"{p.parent.name}/{p.name}": p.read_text() for p in VECTORS.glob("*/*.json")}

    assert made == stored
    assert sum(map(len, stored.values())) < 3_000_000


def test_names_are_unique_and_every_kind_has_a_format() -> None:
    """A case is found by its file and name, and each folder says what its keys mean."""
    names = [(file, case.name) for file, _, case in read_vectors(VECTORS)]

    assert len(names) == len(set(names)) > 300
    for kind in KINDS:
        assert (VECTORS / kind / "FORMAT.md").exists()
        assert {"valid", "reject"} <= {p.name[:6].rstrip("-") for p in (VECTORS / kind).iterdir()}


def test_this_implementation_agrees() -> None:
    """Every vector holds for LuxRelay itself (11-50)."""
    report = check_vectors(VECTORS)

    assert not report.failures
    assert report.skipped == 0


@pytest.mark.slow
def test_second_implementation_agrees() -> None:
    """An oracle of struct and hashlib alone reproduces hashes, ids and refusals (11-27, 11-50)."""
    report = check_vectors(VECTORS, foreign_answers(ORACLE))

    assert not report.failures
    assert report.skipped == 0


def test_vectors_v1_and_v2_are_among_them() -> None:
    """V1 and V2 have the published numbers (11-01, 11-12, 11-23, 11-27)."""
    cases = {
        (file.split("/")[0], case.name): case.expect for file, _, case in read_vectors(VECTORS)
    }

    assert cases["header", "V1"]["headerHash"] == (
        "0xe9bb9fd3bdf378bf66f1c57841d6d8c75718c56202fe1304f7d5af6b323c521a"
    )
    assert cases["namespace", "V2"]["namespaceId"] == "0x9a37ec99238e5e156f7cdaca9ab0ed137bdc5fae"
    assert cases["policy", "V2"]["policyHash"] == (
        "0x25eaf8a0d82c723f329d7af08b62e058eb03723269a00157622f1b1376155059"
    )


@pytest.mark.slow
def test_write_says_what_changed(tmp_path: Path) -> None:
    """A second run changes nothing; a file of an earlier format goes away."""
    assert write_vectors(tmp_path)
    (tmp_path / "header" / "valid-old.json").write_text("{}")
    (tmp_path / "header" / "valid-v1.json").write_text("{}")

    assert write_vectors(tmp_path) == ["header/valid-v1.json", "header/valid-old.json"]
    assert write_vectors(tmp_path) == []


@pytest.mark.parametrize(
    ("answer", "difference"),
    [
        ({}, "answered nothing"),
        ({"wellFormed": False}, "wellFormed is false, not true"),
        ({"wellFormed": True, "more": 1}, "more was not asked for"),
        ({"namespaceId": "0x" + "00" * 200}, "…"),
    ],
)
def test_wrong_answers_are_told_apart(tmp_path: Path, answer: Json, difference: str) -> None:
    """What is answered must be right, and something must be answered."""
    folder = _folder(tmp_path, name="x", given={}, expect={"wellFormed": True, "namespaceId": "0x"})

    (failure,) = check_vectors(folder, _keyed(answer)).failures

    assert difference in failure.difference
    assert (failure.file, failure.case) == ("namespace/valid-x.json", "x")


def test_partial_answers_and_skips_count(tmp_path: Path) -> None:
    """Leaving keys out is right, leaving a case out is counted."""
    folder = _folder(tmp_path, name="x", given={}, expect={"wellFormed": True, "namespaceId": "0x"})

    assert check_vectors(folder, _keyed({"wellFormed": True})).passed == 1
    assert check_vectors(folder, _keyed({"skip": True})).skipped == 1


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"format": 2, "kind": "header", "cases": []}', '{"format": 1, "kind": "x"}',
     '{"format": 1, "kind": "header", "cases": [5]}', '{"format": 1, "kind": "x", "cases": []}'],
)  # fmt: skip
def test_reject_file_of_another_form(tmp_path: Path, text: str) -> None:
    """A file that is no vector file is named."""
    (tmp_path / "header").mkdir()
    (tmp_path / "header" / "valid-x.json").write_text(text)

    with pytest.raises(InputError, match=r"header/valid-x\.json"):
        list(read_vectors(tmp_path))


@pytest.mark.parametrize("given", [{}, {"bytes": 5}, {"bytes": "0xzz"}, {"bytes": [1]}])
@pytest.mark.parametrize("kind", list(KINDS))
def test_reject_case_of_another_form(tmp_path: Path, kind: str, given: Json) -> None:
    """A case that gives something else than its kind takes is named, without a traceback."""
    (tmp_path / kind).mkdir()
    case = {"name": "x", "given": given, "expect": {}}
    text = json.dumps({"format": 1, "kind": kind, "cases": [case]})
    (tmp_path / kind / "valid-x.json").write_text(text)

    with pytest.raises(InputError, match=f"no {kind} case"):
        check_vectors(tmp_path)


def test_reject_folder_without_vectors_and_long_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty folder is an error, and so is a file above FILE_BYTES_MAX."""
    with pytest.raises(InputError, match="no vectors"):
        list(read_vectors(tmp_path))
    monkeypatch.setattr(vectors, "FILE_BYTES_MAX", 10)
    with pytest.raises(InputError, match="10 bytes"):
        list(read_vectors(_folder(tmp_path, name="x", given={}, expect={})))


@pytest.mark.parametrize(
    "script",
    ["import sys; sys.exit(3)", "print('{}'); print('{}')", "print('[]')", "print('{')", "pass"],
)
def test_reject_program_that_does_not_speak(tmp_path: Path, script: str) -> None:
    """A program that fails or answers otherwise is named with what it did (FOREIGN_TIMEOUT_S)."""
    folder = _folder(tmp_path, name="x", given={}, expect={"wellFormed": True})
    program = tmp_path / "program.py"
    program.write_text(script)

    with pytest.raises(VectorError):
        check_vectors(folder, foreign_answers(f"{sys.executable} {program}"))


def test_reject_program_that_is_too_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After FOREIGN_TIMEOUT_S the program is ended."""
    monkeypatch.setattr(vectors, "FOREIGN_TIMEOUT_S", 0.05)
    folder = _folder(tmp_path, name="x", given={}, expect={"wellFormed": True})

    with pytest.raises(VectorError, match="timed out"):
        check_vectors(
            folder, foreign_answers(f'{sys.executable} -c "import signal; signal.pause()"')
        )
    with pytest.raises(VectorError):
        check_vectors(folder, foreign_answers("no-such-program-anywhere"))


def test_a_wrong_expectation_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that our answer contradicts stops the writing."""

    class Odd:
        @staticmethod
        def files() -> Iterable[tuple[str, list[Case]]]:
            yield "valid-x", [Case("x", {}, {"wellFormed": True})]

        @staticmethod
        def answer(_: Json) -> Json:
            return {"wellFormed": False}

    monkeypatch.setattr(vectors, "KINDS", {"odd": Odd})
    with pytest.raises(AssertionError, match="x: wellFormed is False, not True"):
        dict(make_files())
