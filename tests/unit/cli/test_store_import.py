"""A store written out by export and read in again by import is the same store."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import MsgHeader, SigningKey, lane, topic_namespace
from luxrelay.bus import constants as c
from luxrelay.cli import store_import
from luxrelay.cli.main import main
from luxrelay.client import LaneSigner
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig

PARENT = topic_namespace("/chat/1/room")


@pytest.fixture
def now() -> int:
    """The real clock: the command has no other."""
    return time.time_ns() // 1_000_000


@pytest.fixture
def data(tmp_path: Path, now: int) -> Path:
    """A data folder whose store has four messages of two lanes, one of them without its blob."""
    folder = tmp_path / "data"
    messages = []
    for _ in range(2):
        signer = LaneSigner(SigningKey.generate(), PARENT)
        for text in (b"", b"hello"):
            message = signer.sign(text, now)
            header = MsgHeader.decode(message.header)
            messages.append(
                IncomingMessage(header=header, blob=text, parent=PARENT, received_at=now)
            )
    last = messages.pop()
    bare = IncomingMessage(header=last.header, blob=None, parent=PARENT, received_at=now)
    with RelayStore.open(folder / "store", RelayStoreConfig(), now_ms=now) as store:
        store.put_many([*messages, bare], now)
    return folder


def exported(data: Path) -> list[dict[str, Any]]:
    """Return what export writes."""
    out = data.parent / "messages.jsonl"
    assert main(["store", "export", str(data), "--out", str(out)]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def imported(folder: Path, lines: list[Any], *more: str) -> int:
    """Import lines and return the exit code."""
    file = folder.parent / "some.jsonl"
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    file.write_text("\n".join(texts) + "\n")
    return main(["store", "import", str(folder), str(file), *more])


def test_there_and_back(data: Path, tmp_path: Path, now: int, capsys: Any) -> None:
    """The same messages, the same tree, the same lanes; a second import changes nothing."""
    lines = exported(data)
    other = tmp_path / "other"

    assert imported(other, lines) == 0
    assert "4 messages stored" in capsys.readouterr().out
    assert imported(other, lines) == 0
    assert "0 messages stored, 4 held already" in capsys.readouterr().out

    with (
        RelayStore.open_read_only(data / "store", now_ms=now) as old,
        RelayStore.open_read_only(other / "store", now_ms=now) as new,
    ):
        assert new.tree_root() == old.tree_root()
        assert new.head(PARENT) == old.head(PARENT)
        lanes = {head.namespace_id: head.parent for head in old.heads(PARENT, b"", 0)[0]}
        assert lanes == {head.namespace_id: head.parent for head in new.heads(PARENT, b"", 0)[0]}
    same = [{**line, "expiresAt": 0} for line in lines]  # the other store keeps longer
    assert [{**line, "expiresAt": 0} for line in exported(other)] == same


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"header": None}, "header"),
        ({"header": "0xzz"}, "header"),
        ({"header": "0x00"}, "header"),
        ({"blob": "0x68656c6c6f68656c6c6f"}, "blob"),
        ({"blob": "0x68656c6c00"}, "commitment"),
        ({"blob": 7}, "blob"),
        ({"parentId": "0x" + "11" * 20}, "lane"),
        ({"parentId": "0x11"}, "parentId"),
        ({"receivedAt": None}, "receivedAt"),
        ({"receivedAt": True}, "receivedAt"),
        ({"receivedAt": -1}, "received_at"),
        ({"receivedAt": 2**64 - 1}, "future"),
        ({"receivedAt": 2**80}, "future"),
    ],
)
def test_a_line_that_proves_nothing_is_named(
    data: Path, tmp_path: Path, capsys: Any, change: dict[str, Any], what: str
) -> None:
    """It is refused with its place and what is wrong; the lines around it are stored."""
    lines = exported(data)
    spoken = next(index for index, line in enumerate(lines) if line["blob"] not in {None, "0x"})
    lines[spoken] = {**lines[spoken], **change}

    assert imported(tmp_path / "other", lines) == 1

    said = capsys.readouterr()
    assert f"some.jsonl:{spoken + 1}: " in said.err
    assert what in said.err
    assert "3 messages stored" in said.out
    assert "1 refused" in said.out


def test_what_is_past_its_time_stays_out(data: Path, tmp_path: Path, capsys: Any, now: int) -> None:
    """The time to live is the node's, not the longest there is."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    message = signer.sign(b"old", now - 2 * 3_600_000)
    line = {**exported(data)[0], "header": "0x" + message.header.hex(), "blob": "0x6f6c64"}
    line["receivedAt"] = now - 2 * 3_600_000
    for hours, what in ((1, "1 too old"), (3, "1 messages stored")):
        assert imported(tmp_path / f"{hours}", [line], "--ttl-hours", str(hours)) == 0
        assert what in capsys.readouterr().out


def test_bound_signatures_are_checked_as_such(data: Path, tmp_path: Path, now: int) -> None:
    """Messages of a network with bound signatures come in where the network is named."""
    signer = LaneSigner(SigningKey.generate(), PARENT, bound_network="main")
    message = signer.sign(b"hello", now)
    line = {**exported(data)[0], "header": "0x" + message.header.hex(), "blob": "0x68656c6c6f"}

    assert imported(tmp_path / "literal", [line]) == 1
    assert imported(tmp_path / "other", [line], "--bound", "test") == 1
    assert imported(tmp_path / "bound", [line], "--bound", "main") == 0


def test_a_blob_that_cannot_be_checked_stays_outside(data: Path, tmp_path: Path, now: int) -> None:
    """Of a header with a KZG commitment a wrong blob is refused, or not stored, never served."""
    key = SigningKey.generate()
    header = key.sign_header(
        MsgHeader(
            namespace_id=lane(PARENT, key.public_field), seq=1, timestamp=now,
            blob_commitment=bytes(32), blob_len=6, policy_hash=bytes(32),
            flags=c.FLAG_KZG_COMMITMENT,
        )
    )  # fmt: skip
    line = {**exported(data)[0], "header": "0x" + header.encode().hex(), "blob": "0x" + "41" * 6}

    imported(tmp_path / "other", [line])

    with RelayStore.open_read_only(tmp_path / "other" / "store", now_ms=now) as store:
        assert store.get_blob(bytes(32)) is None


def test_a_forged_signature_is_refused(data: Path, tmp_path: Path, capsys: Any) -> None:
    """A header that nobody signed does not come in by this door either."""
    lines = exported(data)
    header = lines[0]["header"]
    place = len(header) - 20  # inside the signature
    lines[0]["header"] = (
        header[:place] + ("1" if header[place] == "0" else "0") + header[place + 1 :]
    )

    assert imported(tmp_path / "other", lines) == 1
    assert "signature" in capsys.readouterr().err


def test_lines_that_are_none(data: Path, tmp_path: Path, capsys: Any) -> None:
    """Text, lists and deep nests are refused, empty lines passed over; ten are named at most."""
    lines = ["", "hello", "[]", "[" * 100_000, *["{}"] * 20, *exported(data)]

    assert imported(tmp_path / "other", lines) == 1

    said = capsys.readouterr()
    assert "4 messages stored" in said.out
    assert "23 refused" in said.out
    assert said.err.count("some.jsonl:") == 10
    assert "and 13 lines more" in said.err


def test_a_line_is_bounded(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line beyond `LINE_BYTES_MAX` is passed over whole, and what follows is read."""
    monkeypatch.setattr(store_import, "LINE_BYTES_MAX", 2_000)
    good = json.dumps(exported(data)[0]).encode() + b"\n"
    refused = store_import.Refusals()

    lines = io.BytesIO(b"x" * 10_000 + b"\n" + good)
    found = list(store_import.proven(lines, "f", refused, time.time_ns() // 1_000_000))

    assert len(found) == 1
    assert refused.named == ["f:1: a line of more than 2,000 bytes"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: Any) -> None:
    """The error names it, and no store is made."""
    assert main(["store", "import", str(tmp_path / "other"), str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
