"""Reading signed statements; how they meet the tables is in tests/integration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luxrelay.archive import statements as module
from luxrelay.archive.folder import ArchiveFolder, Marker
from luxrelay.archive.statements import (
    FILE_BYTES_MAX,
    Said,
    Statements,
    read_statements,
    settle_finality,
)
from luxrelay.bus import NamespaceId, SignatureScheme, SigningKey
from luxrelay.bus.finality import FinalityRow, FinalityState, FinalityStatement
from luxrelay.errors import ArchiveArgumentError

KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"\x31" * 32)
OTHER = SigningKey.from_seed(SignatureScheme.ED25519, b"\x32" * 32)
A = NamespaceId(b"\x0a" * 20)


def _line(number: int, seq: int, state: FinalityState, key: SigningKey = KEY) -> str:
    rows = (FinalityRow(A, seq, b"h" * 32, state),)
    said = FinalityStatement(network="main", number=number, issued_ms=1, rows=rows)
    return said.signed_by(key).encode().hex()


@pytest.fixture
def statements(tmp_path: Path) -> Statements:
    """A file that is not there yet."""
    return Statements(path=tmp_path / "said", network="main", signers=(KEY.public_field,))


def test_the_last_word_on_a_message_counts(statements: Statements) -> None:
    """Comments and empty lines are skipped, 0x is allowed (J9)."""
    lines = [
        "# finality of main",
        _line(1, 1, FinalityState.PRECONFIRMED),
        "",
        "0x" + _line(2, 1, FinalityState.FINALIZED),
        _line(3, 2, FinalityState.REJECTED),
    ]
    statements.path.write_text("\n".join(lines) + "\n")

    _, said, applied, refused = read_statements(statements)

    assert said == {
        (A, 1, b"h" * 32): FinalityState.FINALIZED,
        (A, 2, b"h" * 32): FinalityState.REJECTED,
    }
    assert (applied, refused) == (3, 0)


def test_what_does_not_check_changes_nothing(statements: Statements) -> None:
    """A stranger's statement, an old number, a forbidden step and rubbish are counted."""
    lines = [
        _line(5, 1, FinalityState.FINALIZED),
        _line(6, 1, FinalityState.REORGED, OTHER),
        _line(5, 2, FinalityState.FINALIZED),
        _line(7, 1, FinalityState.REJECTED),
        "rubbish",
        _line(8, 3, FinalityState.FINALIZED)[:-2],
    ]
    statements.path.write_text("\n".join(lines) + "\n")

    _, said, applied, refused = read_statements(statements)

    assert said == {(A, 1, b"h" * 32): FinalityState.FINALIZED}
    assert (applied, refused) == (1, 5)


def test_a_line_that_is_being_written_waits(statements: Statements) -> None:
    """Without its end it is neither read nor refused."""
    statements.path.write_text(_line(1, 1, FinalityState.FINALIZED))

    assert read_statements(statements)[1:] == ({}, 0, 0)


def test_a_sequence_beyond_the_tables_is_passed_over(statements: Statements) -> None:
    """Tables hold 63 bits; no archived message can be meant."""
    statements.path.write_text(_line(1, 2**63, FinalityState.FINALIZED) + "\n")

    assert read_statements(statements)[1:] == ({}, 1, 0)


def test_a_file_that_cannot_be_read_is_named(statements: Statements) -> None:
    """Absent, not text, or larger than FILE_BYTES_MAX."""
    with pytest.raises(ArchiveArgumentError, match="cannot be read"):
        read_statements(statements)
    statements.path.write_bytes(b"\xff\n")
    with pytest.raises(ArchiveArgumentError, match="cannot be read"):
        read_statements(statements)
    with statements.path.open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(ArchiveArgumentError, match="at most") as caught:
        read_statements(statements)

    assert str(statements.path) in str(caught.value)


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> list[Said]:
    """What is joined to the tables, which stand still meanwhile."""
    found: list[Said] = []

    def merge(_spark: Any, _folder: ArchiveFolder, said: Said) -> int:
        found.append(said)
        return len(said)

    monkeypatch.setattr(module, "_merge", merge)
    monkeypatch.setattr(module, "version_of", lambda _folder, _table: 7)
    return found


def test_a_statement_that_is_appended_meanwhile_counts_next_time(
    statements: Statements, merged: list[Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run has not read is not taken for read, whenever it came."""
    folder = ArchiveFolder(tmp_path, Marker())
    first, late = _line(1, 1, FinalityState.FINALIZED), _line(2, 2, FinalityState.FINALIZED)
    statements.path.write_text(first + "\n")
    apply = module.StatementOracle.apply

    def append_and_apply(oracle: Any, statement: FinalityStatement) -> int:
        monkeypatch.setattr(module.StatementOracle, "apply", apply)  # once, after the first read
        with statements.path.open("a") as file:
            file.write(late + "\n")
        return apply(oracle, statement)

    monkeypatch.setattr(module.StatementOracle, "apply", append_and_apply)
    during = settle_finality(None, folder, statements)  # type: ignore[arg-type]  # no Spark here
    after = settle_finality(None, folder, statements)  # type: ignore[arg-type]  # as above
    again = settle_finality(None, folder, statements)  # type: ignore[arg-type]  # as above

    assert [(done.applied, done.messages) for done in (during, after, again)] == [
        (1, 1),
        (2, 2),
        (2, 0),
    ]
    assert [sorted(seq for _, seq, _ in said) for said in merged] == [[1], [1, 2]]


def test_statements_are_joined_again_when_their_network_is_another(
    statements: Statements, merged: list[Said], tmp_path: Path
) -> None:
    """A run under a wrong name does not use the file up."""
    folder = ArchiveFolder(tmp_path, Marker())
    statements.path.write_text(_line(1, 1, FinalityState.FINALIZED) + "\n")

    wrong = settle_finality(None, folder, replace(statements, network="test"))  # type: ignore[arg-type]
    right = settle_finality(None, folder, statements)  # type: ignore[arg-type]  # no Spark here

    assert (wrong.refused, right.applied, right.messages, len(merged)) == (1, 1, 1, 1)
