"""The list of bans: expiry, bound, and the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from luxrelay.bus import SignatureScheme, SigningKey
from luxrelay.errors import NetError
from luxrelay.gossip import PeerId, peer_id_of
from luxrelay.net.bans import BanList


def peer(number: int) -> PeerId:
    """A peer id that can be written down and read again."""
    key = SigningKey.from_seed(SignatureScheme.ED25519, bytes([number]) * 32)
    return peer_id_of(key.public_field[1:])


def saved(bans: BanList) -> None:
    """The list is in its file."""
    snapshot = bans.snapshot()
    bans.write(snapshot)
    bans.written(snapshot)


def test_ban_ends() -> None:
    """A ban is in force until its time and not at it."""
    bans = BanList(8)
    bans.ban(peer(1), 1000, "spam")

    assert bans.banned(peer(1), 999) is not None
    assert bans.banned(peer(1), 1000) is None
    assert bans.banned(peer(2), 0) is None


def test_longer_ban_counts() -> None:
    """A shorter ban changes nothing, a longer one extends, lifting ends it."""
    bans = BanList(8)
    bans.ban(peer(1), 1000, "first")
    bans.ban(peer(1), 500, "shorter")
    bans.ban(peer(1), 2000, "longer")

    found = bans.banned(peer(1), 1500)

    assert found is not None
    assert found.reason == "longer"
    assert bans.lift(peer(1))
    assert not bans.lift(peer(1))
    assert bans.banned(peer(1), 1500) is None


def test_list_is_bounded() -> None:
    """Beyond `bans_max` the ban that ends first goes."""
    bans = BanList(2)
    for number, until_ms in ((1, 300), (2, 100), (3, 200)):
        bans.ban(peer(number), until_ms, "")

    assert set(bans.all(0)) == {peer(1), peer(3)}


def test_bans_survive_a_restart(tmp_path: Path) -> None:
    """What was saved is in force in the next process, as far as it has not ended."""
    path = tmp_path / "bans.json"
    bans = BanList(8, path)
    bans.ban(peer(1), 1000, "spam")
    bans.ban(peer(2), 9000, "x" * 1000)
    assert bans.unsaved
    saved(bans)
    assert not bans.unsaved

    again = BanList(8, path)
    again.load(5000)

    assert set(again.all(5000)) == {peer(2)}
    assert len(again.all(5000)[peer(2)].reason) == 200
    assert again.unsaved  # the one that has ended is still in the file


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"version": 2, "bans": []}',
        b'{"version": 1, "bans": [{"peer": "!", "until_ms": 1, "reason": ""}]}',
        b'{"version": 1, "bans": [{"peer": 7, "until_ms": 1, "reason": ""}]}',
        b'{"version": 1, "bans": [{"until_ms": 1, "reason": ""}]}',
        b'{"version": 1, "bans": [3]}',
        b'{"version": 1, "bans": 3}',
        b"[" * 100_000,
        b" " * (4 * 1024 * 1024 + 1),
    ],
    ids=range(12),
)
def test_set_unreadable_file_aside(tmp_path: Path, data: bytes) -> None:
    """A file that is not ours is kept under another name, and the list begins empty."""
    path = tmp_path / "bans.json"
    path.write_bytes(data)
    bans = BanList(8, path)

    bans.load(0)

    assert bans.all(0) == {}
    assert bans.set_aside is not None
    assert bans.set_aside.read_bytes() == data
    assert not path.exists()


def test_no_file_is_an_empty_list(tmp_path: Path) -> None:
    """The first start has no file and nothing to save."""
    bans = BanList(8, tmp_path / "bans.json")
    bans.load(0)

    assert bans.all(0) == {}
    assert not bans.unsaved


def test_say_what_the_disk_says(tmp_path: Path) -> None:
    """A file that cannot be written or read is an error with its path; the bans stay in force."""
    (tmp_path / "bans.json").mkdir()
    bans = BanList(8, tmp_path / "bans.json")
    bans.ban(peer(1), 1000, "spam")

    with pytest.raises(NetError, match=r"bans\.json") as written:
        bans.write(bans.snapshot())
    with pytest.raises(NetError, match=r"bans\.json"):
        bans.load(0)

    assert written.value.code == "net.bans"
    assert bans.unsaved
    assert bans.banned(peer(1), 0) is not None


def test_file_is_readable_text(tmp_path: Path) -> None:
    """An operator can read who is banned, until when and why."""
    bans = BanList(8, tmp_path / "bans.json")
    bans.ban(peer(1), 1000, "spam")
    saved(bans)

    (row,) = json.loads((tmp_path / "bans.json").read_text())["bans"]

    assert row["until_ms"] == 1000
    assert row["reason"] == "spam"
    assert row["peer"].startswith("12D3Koo")
