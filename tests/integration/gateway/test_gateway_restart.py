"""A node under load is stopped and started; clients stay connected, nothing is lost or repeated."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.bus import Code, SigningKey, topic_namespace
from luxrelay.client import (
    Gap,
    LaneSigner,
    Message,
    Reconnected,
    RelayClient,
    Retry,
    Subscribe,
    subscribe,
)
from luxrelay.errors import ClientRefusedError, ClientUnreachableError
from luxrelay.node.gateway.tokens import TokenFile

pytestmark = pytest.mark.slow
PARENT = topic_namespace("/chat/1/room")
QUICK = Retry(first_s=0.05, most_s=0.5)
RESTARTS = int(os.environ.get("LUXRELAY_RESTARTS", "1"))
FOLLOWERS = 3


class Writer(threading.Thread):
    """Publishes one after the other; what has no answer is published again."""

    def __init__(self, address: str, token: str) -> None:
        """Sign in a lane of its own."""
        super().__init__()
        self.signer = LaneSigner(SigningKey.generate(), PARENT)
        self.stored = 0
        self.stopping = threading.Event()
        self._client = RelayClient(address, token=token, timeout_s=20)

    def run(self) -> None:
        """Publish until told to stop."""
        with self._client:
            while not self.stopping.is_set():
                message = self.signer.sign(b"x" * 200, time.time_ns() // 1_000_000)
                while True:
                    try:
                        (receipt,) = self._client.publish([message])
                    except (ClientUnreachableError, ClientRefusedError):
                        time.sleep(0.05)  # the node is away
                        continue
                    if receipt.stored:
                        self.stored += 1
                        break
                    # The node was away for longer than a timestamp may be old: sign it anew.
                    assert receipt.code == Code.TIMESTAMP_INVALID, receipt
                    self.signer.next_seq -= 1
                    message = self.signer.sign(b"x" * 200, time.time_ns() // 1_000_000)


class Follower(threading.Thread):
    """Takes everything until each lane has come to its end."""

    def __init__(self, address: str, token: str) -> None:
        """Follow from the beginning."""
        super().__init__()
        self.seqs: dict[bytes, list[int]] = {}
        self.gaps: list[Gap] = []
        self.reconnected = 0
        self.goal: dict[bytes, int] | None = None
        self._client = RelayClient(address, token=token, timeout_s=20)

    def run(self) -> None:
        """Follow; a quiet stream is no reason to stop looking at the goal."""
        wanted = Subscribe(namespaces=[PARENT], gap_wait_ms=60_000)
        for event in subscribe(self._client, wanted, retry=QUICK):
            if isinstance(event, Message):
                lane = event.header.namespace_id
                self.seqs.setdefault(lane, []).append(event.header.seq)
            elif isinstance(event, Gap):
                self.gaps.append(event)
            self.reconnected += isinstance(event, Reconnected)
            if self.goal is not None and self.there():
                return

    def there(self) -> bool:
        """Whether each lane has come to its end."""
        goal = self.goal or {}
        return all(self.seqs.get(lane, [0])[-1] >= last for lane, last in goal.items())


def test_a_node_under_load_is_upgraded(
    new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """Stopped and started while two senders publish: each follower has every message once."""
    node = new_node("relay-1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    node.sections["gateway"] = {"listen": f"127.0.0.1:{port}", "admin_listen": ""}
    node.sections["limits"] = {
        "sender_messages_per_s": 100_000,
        "namespace_messages_per_s": 100_000,
    }
    runtime = node.start()
    token, _ = TokenFile(node.folder / "data", 10).new("t", ["read", "publish"], 1_700_000_000_000)
    writers = [Writer(runtime.gateway, token) for _ in range(2)]
    followers = [Follower(runtime.gateway, token) for _ in range(FOLLOWERS)]
    for thread in (*writers, *followers):
        thread.start()
    try:
        for _ in range(RESTARTS):
            before = [writer.stored for writer in writers]
            eventually(
                lambda b=before: all(w.stored > n + 20 for w, n in zip(writers, b, strict=True))
            )
            assert node.stop() == 0
            node.start()
        before = [writer.stored for writer in writers]
        eventually(lambda: all(w.stored > n + 20 for w, n in zip(writers, before, strict=True)))
    finally:
        for writer in writers:
            writer.stopping.set()
            writer.join(30)
    goal = {writer.signer.namespace_id: writer.signer.next_seq for writer in writers}
    for follower in followers:
        follower.goal = goal
    with RelayClient(runtime.gateway, token=token) as client:  # one more each wakes the followers
        for writer in writers:
            message = writer.signer.sign(b"the end", time.time_ns() // 1_000_000)
            assert client.publish([message])[0].stored
    for follower in followers:
        follower.join(60)

    for follower in followers:
        assert not follower.is_alive()
        assert follower.gaps == []
        assert follower.reconnected >= RESTARTS
        assert follower.seqs == {lane: list(range(1, last + 1)) for lane, last in goal.items()}
