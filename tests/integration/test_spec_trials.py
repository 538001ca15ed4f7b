"""What a user met who held a running node against LP-6411: rules that stood in tables alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from luxrelay.bus import Code, MsgHeader, SigningKey, VerdictKind, lane, topic_namespace
from luxrelay.bus.header import sha3_commitment
from luxrelay.bus.policy import default_policy
from luxrelay.cli import publish as publishing
from luxrelay.cli.main import main
from luxrelay.sync import PublishItem, PublishReceipt, RelaySyncClient

if TYPE_CHECKING:
    from tests.conftest import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.trial]
ROOM = "/chat/1/room"
PARENT = topic_namespace(ROOM)
POLICY = default_policy(PARENT).policy_hash


def test_a_lane_s_rules_reach_a_running_validator(new_node: Callable[[str], NodeProcess]) -> None:
    """Time goes on, a gap is parked, a strange namespace is told (trial t1)."""
    node = new_node("validator")
    node.sections["gossip"]["role"] = "validator"
    runtime = node.start()
    key, now_ms = SigningKey.generate(), time.time_ns() // 1_000_000

    with RelaySyncClient(runtime.sync) as client:

        def published(seq: int, timestamp: int, **changes: object) -> PublishReceipt:
            fields: dict[str, object] = {
                "namespace_id": lane(PARENT, key.public_field),
                "seq": seq,
                "timestamp": timestamp,
                "blob_commitment": sha3_commitment(b"x"),
                "blob_len": 1,
                "policy_hash": POLICY,
            }
            parent = changes.pop("parent", PARENT)
            header = MsgHeader(**(fields | changes))  # type: ignore[arg-type]  # by name
            signed = key.sign_header(header).encode()
            item = PublishItem(header=signed, blob=b"x", parent_id=parent)  # type: ignore[arg-type]
            (receipt,) = client.publish([item])
            return receipt

        assert published(1, now_ms).stored
        back = published(2, now_ms - 20_000)
        assert (back.verdict, back.code) == (VerdictKind.IGNORE, Code.TIMESTAMP_INVALID)
        assert "20.000 s before that of sequence 1" in back.reason
        assert not back.stored
        assert published(2, now_ms + 1).stored
        assert published(5, now_ms + 2).stored  # ahead of a hole (H16)
        strange = topic_namespace("/nobody/1/here")
        unknown = published(1, now_ms, namespace_id=lane(strange, key.public_field), parent=strange)
        assert (unknown.stored, unknown.code) == (False, Code.INVALID_NAMESPACE)


def test_a_clock_that_stepped_back_does_not_take_a_lane_with_it(
    new_node: Callable[[str], NodeProcess],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """`luxrelay publish` twice, 20 s back between them: both stored, in order (trial t5)."""
    runtime = new_node("relay").start()
    key = tmp_path / "key.pem"
    assert main(["keys", "new", str(key)]) == 0
    real = time.time_ns
    place = ["--relay", runtime.sync, "--topic", ROOM]

    for offset_s, text in ((0, "before"), (-20, "after the clock stepped back")):
        monkeypatch.setattr(publishing.time, "time_ns", lambda o=offset_s: real() + o * 10**9)
        assert main(["publish", *place, "--key", str(key), text]) == 0
    monkeypatch.undo()

    capsys.readouterr()
    assert main(["query", *place, "--lanes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    times = [int(each["header"]["timestamp"]) for each in found["messages"]]
    assert len(times) == 2
    assert times == sorted(times)
