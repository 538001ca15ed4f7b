"""A real node whose wall clock jumps by a year, either way, while it runs and while it is down."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import SigningKey, topic_namespace
from luxrelay.bus.policy import default_policy
from luxrelay.client import LaneSigner
from luxrelay.sync import PublishItem, RelaySyncClient

pytestmark = [pytest.mark.trial, pytest.mark.slow]
PARENT = topic_namespace("/chat/1/room")
YEAR_S = 365 * 86_400
BAN_MS = 30_000
SOURCE = Path(__file__).with_name("wall_clock.c")


@pytest.fixture
def move_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many seconds the clock of nodes that are started from now on is ahead."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build a clock that can be moved")
    library, file = tmp_path / "wall_clock.so", tmp_path / "clock"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    file.write_text("0")
    monkeypatch.setenv("LUXRELAY_TEST_CLOCK", str(file))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    return lambda seconds: _replace(file, str(seconds))


def _replace(file: Path, text: str) -> None:
    draft = file.with_suffix(".new")
    draft.write_text(text)
    draft.replace(file)


def samples(http: str) -> dict[str, float]:
    """Return every sample that a node shows."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=30) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line[:1] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S], ids=["ahead", "back"])
def test_a_year_either_way_ends_no_ban_and_deletes_nothing(
    new_node: Callable[[str], Any],
    eventually: Callable[..., Any],
    move_clock: Callable[[int], None],
    jump_s: int,
) -> None:
    """Bans last as long as they were for, messages stay, all goes on with the right clock."""
    node = new_node("relay")
    node.sections["gossip"] |= {"foreign_ban_ms": BAN_MS}
    node.sections["store"] |= {"expire_interval_ms": 2_000}
    runtime = node.start()
    policy = default_policy(PARENT).policy_hash
    signer = LaneSigner(SigningKey.generate(), PARENT, policy_hash=policy)

    def stored() -> bool:
        message = signer.sign(b"kept", time.time_ns() // 1_000_000)
        item = PublishItem(header=message.header, blob=b"kept", parent_id=PARENT)
        with RelaySyncClient(runtime.sync) as relay:
            (receipt,) = relay.publish([item])
        return bool(receipt.stored)

    assert stored()
    foreign = new_node("foreign")
    foreign.sections["node"]["network"] = "other"
    foreign.sections["gossip"] |= {"peers": [runtime.gossip[0]]}
    foreign.start()
    eventually(lambda: samples(runtime.http)["luxrelay_net_bans"] == 1)
    foreign.stop()

    move_clock(jump_s)
    eventually(lambda: samples(runtime.http)["luxrelay_clock_alarms_total"] >= 1)
    shown = samples(runtime.http)
    assert abs(shown["luxrelay_clock_moved_ms"]) > YEAR_S * 900
    assert shown["luxrelay_net_bans"] == 1
    assert shown["relay_store_messages"] == 1
    assert node.stop() == 0
    (ban,) = json.loads((node.folder / "data" / "bans.json").read_text())["bans"]
    assert 0 < ban["left_ms"] <= BAN_MS

    # gRPC takes the machine's own clock: its start would wait for a time that ours is ahead of.
    move_clock(min(jump_s, 0))
    runtime = node.start()
    move_clock(max(0, jump_s))  # before the first deletion cycle
    eventually(lambda: samples(runtime.http)["luxrelay_clock_alarms_total"] >= 1)
    assert samples(runtime.http)["relay_store_messages"] == 1
    assert samples(runtime.http)["luxrelay_net_bans"] == 1
    move_clock(0)
    eventually(lambda: samples(runtime.http)["luxrelay_net_bans"] == 0)
    assert node.stop() == 0

    runtime = node.start()
    assert samples(runtime.http)["relay_store_messages"] == 1
    with RelaySyncClient(runtime.sync) as relay:
        assert [each.blob for each in relay.sync_page(signer.namespace_id).messages] == [b"kept"]
    assert stored()
    assert samples(runtime.http)["relay_store_messages"] == 2
    assert node.stop() == 0
