"""What a subscriber of a node is told of gaps while the node may catch up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.bus import SigningKey, topic_namespace
from luxrelay.client import NO_RETRY, Gap, LaneSigner, Live, Message, RelayClient, Subscribe
from luxrelay.client import subscribe as follow
from luxrelay.sync import PublishItem, RelaySyncClient

PARENT = topic_namespace("/chat/1/room")


@pytest.mark.trial
def test_a_gap_is_not_told_as_missing_while_a_catch_up_is_due(
    new_node: Callable[[str], Any],
) -> None:
    """P48: a sync peer is away, so what is missing may come still: the gap is coming, the rest new.

    What comes into it afterwards is told as late, and nothing as missing.
    """
    node = new_node("relay")
    node.sections["sync"] |= {"peers": ["127.0.0.1:1"]}
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
    runtime = node.start()
    signer = LaneSigner(SigningKey.generate(), PARENT)
    line = [signer.sign(b"x", time.time_ns() // 1_000_000) for _ in range(5)]
    items = [PublishItem(header=s.header, blob=s.blob, parent_id=PARENT) for s in line]
    told: list[Any] = []
    with RelaySyncClient(runtime.sync) as relay, RelayClient(runtime.gateway) as client:
        relay.publish([items[0], items[4]])
        wanted = Subscribe(namespaces=[PARENT], gap_wait_ms=0)
        for event in follow(client, wanted, retry=NO_RETRY):
            told.append(event)
            if isinstance(event, Live):
                relay.publish(items[1:4])
            if isinstance(event, Message) and event.header.seq == 4:
                break
    messages = [(each.header.seq, each.late) for each in told if isinstance(each, Message)]
    assert messages == [(1, False), (5, False), (2, True), (3, True), (4, True)]
    assert [each.reason for each in told if isinstance(each, Gap)] == ["coming"]
