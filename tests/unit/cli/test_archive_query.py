"""archive query: questions to an archive from the command; it needs no Java."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from luxrelay.archive.proofs import InclusionProof
from luxrelay.bus import MsgHeader
from luxrelay.cli.main import main
from luxrelay.sync import WireMessage


def _load(name: str) -> ModuleType:
    path = Path(__file__).parents[1] / "archive" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"archive_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


FORGE = _load("conftest")
NS = b"n" * 20
Messages = list[WireMessage]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Messages]:
    """An archive of five messages."""
    messages = [FORGE._forge(NS, seq, blob=b"line %d\x1b" % seq) for seq in range(1, 6)]
    path = FORGE._archive_of(tmp_path_factory.mktemp("asked") / "archive", messages)
    return str(path), messages


Ask = Callable[..., dict[str, object]]


@pytest.fixture
def ask(archive: tuple[str, Messages], capsys: pytest.CaptureFixture[str]) -> Ask:
    """Ask by the command and return its JSON."""

    def run(*arguments: str) -> dict[str, object]:
        assert main(["archive", "query", "--out", archive[0], "--json", *arguments]) == 0
        answer: dict[str, object] = json.loads(capsys.readouterr().out)
        return answer

    return run


def test_pages_follow_one_another(ask: Ask, archive: tuple[str, Messages]) -> None:
    """NextCursor leads to the next page, and is empty at the end."""
    first = ask("--namespace", NS.hex(), "--limit", "3")
    rest = ask("--namespace", NS.hex(), "--limit", "3", "--cursor", str(first["nextCursor"]))

    headers = [each["header"] for page in (first, rest) for each in page["messages"]]  # type: ignore[attr-defined]
    assert headers == ["0x" + message.header.hex() for message in archive[1]]
    assert rest["nextCursor"] == ""


def test_a_proof_in_json_can_be_checked(ask: Ask) -> None:
    """A program needs nothing but the JSON and the root it trusts."""
    answer = ask("--namespace", NS.hex(), "--from-seq", "2", "--to-seq", "2", "--proof")
    (message,) = answer["messages"]  # type: ignore[misc]
    shown = message["proof"]  # type: ignore[index]

    proof = InclusionProof(
        namespace=NS,
        day=shown["day"],
        count=shown["count"],
        index=shown["index"],
        path=tuple(bytes.fromhex(node[2:]) for node in shown["path"]),
    )
    content = bytes.fromhex(message["contentId"][2:])  # type: ignore[index]
    assert proof.holds(2, content, bytes.fromhex(shown["root"][2:]))


def test_other_questions(ask: Ask, archive: tuple[str, Messages]) -> None:
    """By sender, blob, time, and SQL with bytes as hex and dates as text."""
    header = MsgHeader.decode(archive[1][0].header)
    stamp = str(header.timestamp)

    for question in (
        ("--sender", header.sender_address.hex(), "--to-ms", stamp),
        ("--blob", header.blob_commitment.hex()),
        ("--from-ms", stamp, "--to-ms", stamp),
        ("--namespace", NS.hex(), "--to-ms", stamp),
    ):
        (found,) = ask(*question)["messages"]  # type: ignore[misc]
        assert found["seq"] == 1, question  # type: ignore[index]
    rows = ask("--sql", "SELECT date, namespace_id FROM messages WHERE seq = 1")
    assert rows == [{"date": "2024-01-01", "namespace_id": "0x" + NS.hex()}]


def test_tables_for_people(
    archive: tuple[str, Messages], capsys: pytest.CaptureFixture[str]
) -> None:
    """Payloads cannot steer the terminal."""
    assert main(["archive", "query", "--out", archive[0], "--namespace", NS.hex()]) == 0
    shown = capsys.readouterr().out

    assert "line 1·" in shown
    assert main(["archive", "query", "--out", archive[0], "--sql", "SELECT 1 AS one"]) == 0
    assert capsys.readouterr().out.split() == ["one", "───", "1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "one question at a time"),
        (["--namespace", NS.hex(), "--sender", NS.hex()], "one question at a time"),
        (["--namespace", "12"], "--namespace"),
        (["--sql", "DROP TABLE messages"], "only SELECT"),
        (["--namespace", NS.hex(), "--cursor", "00"], "cursor"),
    ],
)
def test_say_what_is_wrong(
    archive: tuple[str, Messages],
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A clear error in one line, exit code 1."""
    assert main(["archive", "query", "--out", archive[0], *arguments]) == 1
    assert said in capsys.readouterr().err


def test_erasing_asks_twice(capsys: pytest.CaptureFixture[str]) -> None:
    """There is no way back, so --yes is asked for before anything starts."""
    assert main(["archive", "erase", "--namespace", NS.hex()]) == 1
    assert "--yes" in capsys.readouterr().err


def test_bound_networks_have_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Mistakes are found before Spark starts."""
    assert main(["archive", "ingest", "--bound"]) == 1
    assert "--network" in capsys.readouterr().err
    assert main(["archive", "audit", "--spark", "nothing"]) == 1
    assert "KEY=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("statement", "value", "cell"),
    [
        ("CAST(1.5 AS DECIMAL(10,2)) AS x", 1.5, "1.5"),
        ("CAST(7 AS DECIMAL(20,0)) AS x", 7, "7"),
        ("NULL AS x", None, "–"),
        ("CAST('NaN' AS DOUBLE) AS x", None, "–"),
        ("array_agg(blob_len) AS x FROM messages", [7] * 5, "[7, 7, 7, 7, 7]"),
        ("min(message_id) = max(message_id) AS x FROM messages", False, "no"),
        ("'1' || chr(27) || '[31m' AS x", "1\x1b[31m", "1·[31m"),
        ("DATE '2026-01-02' AS x", "2026-01-02", "2026-01-02"),
    ],
)
def test_values_of_sql_are_what_they_are(
    archive: tuple[str, Messages],
    capsys: pytest.CaptureFixture[str],
    statement: str,
    value: object,
    cell: str,
) -> None:
    """Parts of a number are not lost, nothing is null in JSON, and no value steers a terminal."""
    asked = ["archive", "query", "--out", archive[0], "--sql", f"SELECT {statement}"]

    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"x": value}]
    assert main(asked) == 0
    assert capsys.readouterr().out.splitlines()[2].strip() == cell


def test_nested_bytes_of_sql_are_hex(ask: Ask) -> None:
    """In lists and in structures as well."""
    answer = ask("--sql", "SELECT array_agg(DISTINCT namespace_id) AS n FROM messages")

    assert answer == [{"n": ["0x" + NS.hex()]}]
