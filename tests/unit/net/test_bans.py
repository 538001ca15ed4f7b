"""The list of bans: expiry, bound, and the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from luxrelay.bus import SignatureScheme, SigningKey
from luxrelay.errors import NetError
from luxrelay.gossip import PeerId, peer_id_of
from luxrelay.net.addresses import peer_text
from luxrelay.net.bans import OLD_BAN_MAX_MS, BanList


def peer(number: int) -> PeerId:
    """A peer id that can be written down and read again."""
    key = SigningKey.from_seed(SignatureScheme.ED25519, bytes([number]) * 32)
    return peer_id_of(key.public_field[1:])


class Clock:
    """A clock that stands where it is put, milliseconds."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """The time it was put to."""
        return self.now_ms


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
    steady = Clock()
    bans = BanList(8, path, steady_ms=steady)
    bans.ban(peer(1), 1000, "spam")
    bans.ban(peer(2), 9000, "x" * 1000)
    assert bans.unsaved
    steady.now_ms = 5000
    saved(bans)
    assert not bans.unsaved

    again = BanList(8, path, steady_ms=Clock(70_000))
    again.load(70_000)

    assert set(again.all(70_000)) == {peer(2)}
    assert again.all(70_000)[peer(2)].until_ms == 74_000
    assert len(again.all(70_000)[peer(2)].reason) == 200
    assert again.unsaved  # the one that has ended is still in the file


YEAR_MS = 365 * 86_400_000


@pytest.mark.trial
@pytest.mark.parametrize("written_at", [-YEAR_MS, 0, YEAR_MS], ids=["behind", "right", "ahead"])
@pytest.mark.parametrize("read_at", [-YEAR_MS, 0, YEAR_MS], ids=["behind", "right", "ahead"])
def test_a_ban_lasts_as_long_whatever_the_clock_says(
    tmp_path: Path, written_at: int, read_at: int
) -> None:
    """A ban of 60 s has 60 s left after a restart, wherever the wall clock stood and stands."""
    path, true_ms = tmp_path / "bans.json", 1_790_000_000_000
    bans = BanList(8, path, steady_ms=Clock(5_000), wall_ms=Clock(true_ms + written_at))
    bans.ban(peer(1), 65_000, "spam")
    saved(bans)

    again = BanList(8, path, steady_ms=Clock(100), wall_ms=Clock(true_ms + read_at))
    again.load(100)

    assert again.banned(peer(1), 60_099) is not None
    assert again.banned(peer(1), 60_100) is None


@pytest.mark.trial
@pytest.mark.parametrize(
    ("until_ms", "left_ms"),
    [(1_000_060_000, 60_000), (1_000_000_000 + YEAR_MS, OLD_BAN_MAX_MS), (999_000_000, 0)],
    ids=["60 s", "a year", "over"],
)
def test_a_file_of_wall_times_is_believed_up_to_a_bound(
    tmp_path: Path, until_ms: int, left_ms: int
) -> None:
    """A file that an older node wrote stays readable; a ban in it lasts a day at most."""
    path = tmp_path / "bans.json"
    row = {"peer": peer_text(peer(1)), "until_ms": until_ms, "reason": "spam"}
    path.write_text(json.dumps({"version": 1, "bans": [row]}))
    bans = BanList(8, path, steady_ms=Clock(7), wall_ms=Clock(1_000_000_000))

    bans.load(7)

    assert bans.set_aside is None
    assert [ban.until_ms - 7 for ban in bans.all(7).values()] == ([left_ms] if left_ms else [])


@pytest.mark.trial
def test_a_crash_prolongs_a_ban_by_seconds_only(tmp_path: Path) -> None:
    """What is left is written again while bans run down, though the list does not change."""
    steady = Clock()
    bans = BanList(8, tmp_path / "bans.json", steady_ms=steady)
    bans.ban(peer(1), 600_000, "spam")
    saved(bans)

    steady.now_ms = 29_999
    assert not bans.unsaved
    steady.now_ms = 30_000
    assert bans.unsaved


@pytest.mark.trial
def test_what_is_left_of_a_ban_is_written_at_the_stop(tmp_path: Path) -> None:
    """The file says at the stop how long each ban lasts yet."""
    steady = Clock()
    bans = BanList(8, tmp_path / "bans.json", steady_ms=steady)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bans.keep_written, 3600.0)
            bans.ban(peer(1), 60_000, "spam")
            await trio.lowlevel.checkpoint()
            steady.now_ms = 20_000
            nursery.cancel_scope.cancel()

    trio.run(main)  # in real time: the write is in a thread

    (row,) = json.loads((tmp_path / "bans.json").read_text())["bans"]
    assert row["left_ms"] == 40_000


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
    """An operator can read who is banned, for how long, until when and why."""
    bans = BanList(8, tmp_path / "bans.json", steady_ms=Clock(400), wall_ms=Clock(400))
    bans.ban(peer(1), 1000, "spam")
    saved(bans)

    (row,) = json.loads((tmp_path / "bans.json").read_text())["bans"]

    assert row["until_ms"] == 1000
    assert row["left_ms"] == 600
    assert row["reason"] == "spam"
    assert row["peer"].startswith("12D3Koo")
