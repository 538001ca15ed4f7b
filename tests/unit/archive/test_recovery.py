"""From an archive into an empty relay store, with equal roots."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.recovery import PAGE, restore
from luxrelay.archive.rules import ArchiveRules
from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, lane, sha3_commitment
from luxrelay.bus.bound import sign_header_bound
from luxrelay.cli.main import main
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig
from luxrelay.sync import WireMessage

NOW = 1_704_067_260_000
A = NamespaceId(b"\x0a" * 20)
KEYS = [SigningKey.from_seed(SignatureScheme.ED25519, bytes([n]) * 32) for n in range(1, 8)]
LANE = lane(A, KEYS[0].public_field)


def _message(seq: int, key: int = 0, blob: bytes = b"hi", namespace: bytes = A) -> WireMessage:
    header = KEYS[key].sign_header(
        MsgHeader(
            namespace_id=NamespaceId(namespace),
            seq=seq,
            timestamp=NOW - 50_000 + seq,
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=b"p" * 32,
        )
    )
    return WireMessage(
        header=header.encode(), blob=blob, received_at=NOW - 40_000, expires_at=NOW + 600_000
    )


@pytest.fixture
def messages() -> list[WireMessage]:
    """A line, a lane, a slot with six senders and one in which a sender equivocates."""
    line = [_message(seq) for seq in range(1, 40)]
    rivals = [_message(40, key) for key in range(6)]
    equivocal = [_message(41, 0, blob) for blob in (b"one", b"two", b"three")]
    return [*line, *rivals, *equivocal, *(_message(seq, 0, b"", LANE) for seq in (1, 2, 3))]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RelayStore]:
    """An empty store."""
    with RelayStore.open(tmp_path / "store", RelayStoreConfig.small(), now_ms=NOW) as opened:
        yield opened


def test_a_restored_store_has_the_root_of_a_relay_that_saw_everything(
    archive_of: Callable[..., Path],
    messages: list[WireMessage],
    store: RelayStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the order, the page size and the rivals: same contents, same root (J4, J11)."""
    monkeypatch.setattr("luxrelay.archive.recovery.PAGE", 7)
    reader = ArchiveReader(archive_of(tmp_path / "archive", messages))

    done = restore(reader, store, now_ms=NOW)

    with RelayStore.open(tmp_path / "other", RelayStoreConfig.small(), now_ms=NOW) as other:
        other.put_many(
            [
                IncomingMessage(
                    header=MsgHeader.decode(message.header),
                    blob=message.blob,
                    parent=A,
                    received_at=NOW,
                )
                for message in reversed(messages)
            ],
            NOW,
        )
        assert other.tree_root() == store.tree_root() == done.root
    assert done.whole
    assert (done.read, done.refused, done.expired, done.full) == (len(messages), 0, 0, 0)
    assert store.stats().messages == 39 + 4 + 1 + 3
    assert store.verify() == []
    assert PAGE == 1_000


def test_lanes_come_back_as_lanes(
    archive_of: Callable[..., Path], messages: list[WireMessage], store: RelayStore, tmp_path: Path
) -> None:
    """The parent that a relay named is kept, because it is proven by the key (J6)."""
    path = archive_of(tmp_path / "archive", messages, parents={LANE: A})

    restore(ArchiveReader(path), store, now_ms=NOW)

    assert store.head(LANE).parent == A


def test_what_somebody_changed_is_not_restored(
    archive_of: Callable[..., Path], messages: list[WireMessage], store: RelayStore, tmp_path: Path
) -> None:
    """Signatures and payloads are checked again; the roots then differ, and it says so."""
    path = archive_of(tmp_path / "archive", messages)
    table = DeltaTable(str(path / "messages"))
    rows = table.to_pyarrow_table().to_pylist()
    for row in rows:
        if row["seq"] == 7:
            row["blob"] = b"no"
    changed = pa.Table.from_pylist(rows, schema=pa.schema(table.to_pyarrow_table().schema))
    write_deltalake(str(path / "messages"), changed, mode="overwrite")

    done = restore(ArchiveReader(path), store, now_ms=NOW)

    assert (done.refused, done.whole) == (1, False)


def test_one_namespace_alone_and_a_store_that_is_too_small(
    archive_of: Callable[..., Path], messages: list[WireMessage], tmp_path: Path
) -> None:
    """Only what was asked for is read; what expired at the store's times is counted."""
    reader = ArchiveReader(archive_of(tmp_path / "archive", messages))
    short = replace(RelayStoreConfig.small(), cold_store_ttl_ms=1_000)
    with RelayStore.open(tmp_path / "short", short, now_ms=NOW) as store:
        told: list[int] = []
        done = restore(reader, store, now_ms=NOW, namespaces=[LANE], progress=told.append)

    assert (done.read, done.expired, done.stored) == (3, 3, 0)
    assert not done.whole
    assert told == [3]


def test_the_command_restores_into_a_folder(
    archive_of: Callable[..., Path],
    messages: list[WireMessage],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It opens a store with room and time, and refuses one that is not empty."""
    path = archive_of(tmp_path / "archive", messages)
    command = ["archive", "restore", "--out", str(path), "--store", str(tmp_path / "new")]

    assert main([*command, "--days", "20000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["whole"] is True
    assert main(command) == 1
    assert "not empty" in capsys.readouterr().err


def test_the_command_knows_a_network_with_bound_signatures(
    archive_of: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its archive is restored under the rules under which it was made, and under no others (H3)."""
    header = MsgHeader.decode(_message(1).header)
    bound = replace(_message(1), header=sign_header_bound(KEYS[0], header, "closed").encode())
    rules = ArchiveRules.of([], network="closed", bound=True)
    path = archive_of(tmp_path / "archive", [bound], rules=rules)
    command = ["archive", "restore", "--out", str(path), "--days", "20000", "--json"]

    assert main([*command, "--store", str(tmp_path / "other")]) == 1
    assert json.loads(capsys.readouterr().out)["refused"] == 1
    options = ["--store", str(tmp_path / "new"), "--network", "closed", "--bound"]
    assert main([*command, *options]) == 0
    assert json.loads(capsys.readouterr().out)["stored"] == 1
