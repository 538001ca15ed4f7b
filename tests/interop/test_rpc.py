"""RelaySync spoken by Node, from the published contract alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from luxrelay.bus import (
    MsgHeader,
    SignatureScheme,
    SigningKey,
    lane,
    sha3_commitment,
    topic_namespace,
)
from luxrelay.store import IncomingMessage, RelayStore
from luxrelay.sync import (
    PublishItem,
    PublishReceipt,
    RelaySyncServer,
    SyncServerConfig,
)

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / ".make" / "interop-rpc" / "client.mjs"
PARENT = topic_namespace("/interop/1/rpc/proto")
pytestmark = pytest.mark.interop


class Taker:
    """Takes every message."""

    def publish(self, items: list[PublishItem]) -> list[PublishReceipt]:
        """Accept all."""
        return [PublishReceipt(verdict=0, stored=True) for _ in items]

    def receipts(self, digests: list[bytes]) -> list[PublishReceipt]:
        """Remember none."""
        return [PublishReceipt(verdict=1, digest=each) for each in digests]


def test_node_reads_and_publishes(tmp_path: Path) -> None:
    """21-57, P37: a stub made by another language from the .proto files is served."""
    key = SigningKey.from_seed(SignatureScheme.ED25519, bytes(32))
    now_ms = time.time_ns() // 1_000_000
    namespace = lane(PARENT, key.public_field)
    messages = [
        IncomingMessage(
            header=key.sign_header(
                MsgHeader(
                    namespace_id=namespace,
                    seq=seq,
                    timestamp=now_ms,
                    blob_commitment=sha3_commitment(b"hello"),
                    blob_len=5,
                    policy_hash=bytes(32),
                )
            ),
            blob=b"hello",
            parent=PARENT,
            received_at=now_ms,
        )
        for seq in range(1, 11)
    ]
    store = RelayStore.open(tmp_path / "store", now_ms=now_ms)
    store.put_many(messages, now_ms)
    server = RelaySyncServer(
        store, SyncServerConfig(port=0), clock_ms=lambda: now_ms, publisher=Taker()
    )
    try:
        address = f"127.0.0.1:{server.start()}"
        done = subprocess.run(
            [
                shutil.which("node") or "node",
                str(CLIENT),
                str(ROOT / "src"),
                address,
                namespace.hex(),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        server.stop(grace_s=0)
        store.close()

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["plain"] == [3, 4, 5, 6, 7]
    assert told["status"]["has_more"]
    assert told["status"]["last_seq"] == 7
    assert told["grouped"] == [7, 8, 9, 10]
    assert (told["latest"], told["heads"], told["steps"]) == (10, 1, [1, 9])
    assert told["verdict"] == 0
    assert told["refused"] == "INVALID_ARGUMENT"
