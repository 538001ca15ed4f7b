"""The file of finality statements: what is appended counts, what does not check is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from luxrelay.bus import NamespaceId, SigningKey
from luxrelay.bus.finality import FinalityRow, FinalityState, FinalityStatement
from luxrelay.errors import ConfigError
from luxrelay.node.finality import FILE_BYTES_MAX, FinalityFile

SIGNER, STRANGER = SigningKey.generate(), SigningKey.generate()
NS = NamespaceId(b"\x22" * 20)
HASH = b"\x01" * 32


def line(number: int, seq: int, key: SigningKey = SIGNER) -> str:
    """Return a line that finalizes a sequence."""
    rows = (FinalityRow(NS, seq, HASH, FinalityState.FINALIZED),)
    statement = FinalityStatement(
        network="devnet", number=number, issued_ms=1, rows=rows, signer=key.public_field
    )
    return statement.signed_by(key).encode().hex() + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty file of statements."""
    made = tmp_path / "finality.hex"
    made.write_text("# statements of the validator\n")
    return made


def oracle(path: Path) -> FinalityFile:
    """Return an oracle that trusts one signer."""
    return FinalityFile(path, "devnet", [SIGNER.public_field])


def test_statements_count_once_they_are_appended(path: Path) -> None:
    """A refresh takes over what is new, whole lines only."""
    found = oracle(path)
    assert found.finalized_seq(NS) == 0
    with path.open("a") as file:
        file.write(line(1, 1))
        file.write(line(2, 2)[:-20])
    assert found.refresh() == 1
    assert found.finalized_seq(NS) == 1
    assert found.state(NS, 1, HASH) is FinalityState.FINALIZED
    with path.open("a") as file:
        file.write(line(2, 2)[-20:])
    assert found.refresh() == 1
    assert found.finalized_seq(NS) == 2
    assert found.refresh() == 0
    assert (found.applied, found.refused) == (2, 0)


def test_what_does_not_check_is_skipped(path: Path) -> None:
    """A stranger's, a replayed and a garbled statement change nothing and stop nothing."""
    path.write_text(line(1, 1) + line(2, 9, STRANGER) + line(1, 9) + "zz\n" + line(3, 3))
    found = oracle(path)
    assert found.finalized_seq(NS) == 3
    assert (found.applied, found.refused) == (2, 3)


def test_a_file_that_is_replaced_starts_anew(path: Path) -> None:
    """Statements heard of already are refused one by one; new ones count."""
    path.write_text(line(1, 1))
    found = oracle(path)
    fresh = path.with_suffix(".new")
    fresh.write_text(line(1, 1) + line(2, 2))
    fresh.replace(path)
    assert found.refresh() == 1
    assert found.finalized_seq(NS) == 2


def test_a_missing_file_stops_the_start_and_not_the_node(path: Path) -> None:
    """At the start it is an error with a hint; later what was said stands."""
    path.write_text(line(1, 1))
    found = oracle(path)
    path.unlink()
    assert found.refresh() == 0
    assert found.finalized_seq(NS) == 1
    with pytest.raises(ConfigError, match="cannot read the statements"):
        oracle(path)


def test_a_file_beyond_the_bound_is_refused(path: Path) -> None:
    """It is not even read."""
    os.truncate(path, FILE_BYTES_MAX + 1)
    with pytest.raises(ConfigError, match="larger than"):
        oracle(path)
