"""SIGKILL of a relay while it takes messages: nothing it acknowledged is missing afterwards."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.bus import MsgHeader, SigningKey, lane, sha3_commitment, topic_namespace
from luxrelay.bus.policy import default_policy
from luxrelay.errors import LuxRelayError
from luxrelay.sync import PublishItem, RelaySyncClient

pytestmark = [pytest.mark.chaos, pytest.mark.slow]
PARENT = topic_namespace("/chat/1/room")
POLICY = default_policy(PARENT).policy_hash
ROUNDS = int(os.environ.get("LUXRELAY_CHAOS_ROUNDS", "3"))


def items(key: SigningKey, first: int, count: int) -> list[PublishItem]:
    """Return the next messages of the key's lane."""
    made = []
    for seq in range(first, first + count):
        blob = f"message {seq}".encode()
        header = MsgHeader(
            namespace_id=lane(PARENT, key.public_field),
            seq=seq,
            timestamp=time.time_ns() // 1_000_000,
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=POLICY,
        )
        made.append(
            PublishItem(header=key.sign_header(header).encode(), blob=blob, parent_id=PARENT)
        )
    return made


def test_nothing_acknowledged_is_lost(new_node: Callable[[str], Any]) -> None:
    """After each kill and restart every acknowledged message is served again (21-16)."""
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    node, key = new_node("relay-1"), SigningKey.generate()
    acknowledged = 0
    for _ in range(ROUNDS):
        address = node.start().sync
        process = node.process
        killer = threading.Timer(rng.uniform(0.05, 0.4), process.send_signal, (signal.SIGKILL,))
        with RelaySyncClient(address) as relay:
            held = relay.get_head(lane(PARENT, key.public_field))
            assert held.contiguous_seq >= acknowledged, f"seed {seed}"
            assert held.contiguous_seq == held.latest_seq == held.messages, f"seed {seed}"
            acknowledged = held.latest_seq
            killer.start()
            try:
                while True:
                    receipts = relay.publish(items(key, acknowledged + 1, 16))
                    assert all(receipt.stored for receipt in receipts), f"seed {seed}"
                    acknowledged += len(receipts)
            except LuxRelayError:
                process.wait(30)
    assert acknowledged > 0

    address = node.start().sync
    with RelaySyncClient(address) as relay:
        served = [
            message.seq
            for page in relay.iter_pages(lane(PARENT, key.public_field))
            for message in page.messages
        ]
    assert served == list(range(1, len(served) + 1))
    assert len(served) >= acknowledged, f"seed {seed}"
