"""The file of finality statements: what is appended counts, what does not check is told."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, sha3_commitment
from luxrelay.bus.finality import FinalityRow, FinalityState, FinalityStatement
from luxrelay.errors import ConfigError, StoreError
from luxrelay.node.config import parse_config
from luxrelay.node.finality import FILE_BYTES_MAX, FinalityFile
from luxrelay.node.message_limits import make_guards
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig

NOW = 1_764_000_000_000

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


def test_what_was_said_reaches_the_store(path: Path) -> None:
    """Rows are handed over with the head, and again while their message has not come (21-58)."""
    path.write_text(line(1, 1) + line(2, 2))
    found = oracle(path)
    calls: list[tuple[list[int], dict[NamespaceId, int]]] = []

    def apply(rows: Sequence[FinalityRow], heads: Mapping[NamespaceId, int]) -> list[FinalityRow]:
        calls.append(([row.seq for row in rows], dict(heads)))
        return [row for row in rows if row.seq == 2 and len(calls) < 2]

    assert [found.hand_over(apply) for _ in range(3)] == [1, 0, 0]
    assert calls == [([1, 2], {NS: 2}), ([2], {NS: 2})]


def test_rows_that_wait_are_bounded(path: Path) -> None:
    """The ones said longest ago are given up."""
    path.write_text("".join(line(number, number) for number in range(1, 5)))
    found = FinalityFile(path, "devnet", [SIGNER.public_field], waiting_max=3)

    assert found.hand_over(lambda rows, _: list(rows)) == 3
    assert found.hand_over(lambda rows, _: [row for row in rows if row.seq < 2]) == 0


def test_a_store_that_fails_is_told_again(path: Path) -> None:
    """Nothing that was said is lost with a write that failed."""
    path.write_text(line(1, 1))
    found = oracle(path)

    def fail(rows: Sequence[FinalityRow], heads: Mapping[NamespaceId, int]) -> list[FinalityRow]:
        raise StoreError(f"{len(rows)} {len(heads)}", where="store", code="store.io")

    with pytest.raises(StoreError, match="1 1"):
        found.hand_over(fail)
    assert found.hand_over(lambda rows, _: list(rows)) == 1


def test_guards_take_finality_into_the_store(path: Path, tmp_path: Path) -> None:
    """At the start and at every later look the store learns what the file says (21-58, J9)."""
    text = f"""
[node]
data_dir = "data"
network = "devnet"
[finality]
file = "{path.name}"
signers = ["{SIGNER.public_field.hex()}"]
"""
    config = parse_config(text, source="relay.toml", base=tmp_path)
    key = SigningKey.from_seed(SignatureScheme.ED25519, bytes(32))
    header = key.sign_header(
        MsgHeader(
            namespace_id=NS, seq=1, timestamp=NOW, blob_commitment=sha3_commitment(b""),
            blob_len=0, policy_hash=bytes(32),
        )
    )  # fmt: skip
    message = IncomingMessage(header=header, blob=b"", parent=NS, received_at=NOW)
    with RelayStore.open(tmp_path / "store", RelayStoreConfig.small(), now_ms=NOW) as store:
        store.put_many([message], NOW)
        path.write_text(line(1, 1))
        guards = make_guards(config, store)
        assert store.head(NS).finalized_seq == 1
        with path.open("a") as file:
            file.write(line(2, 2))
        guards.learn_finality()
        assert store.head(NS).finalized_seq == 2
