"""Paging over loopback gRPC from another process: frames of many against frames of one.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    lane,
    sha3_commitment,
)
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig
from luxrelay.sync import RelaySyncClient, RelaySyncServer, SyncClientConfig, SyncServerConfig

MESSAGES = 20_000
BLOB_BYTES = 200
REPEATS = 3
AIM = 5.0
PARENT = NamespaceId(b"\x22" * 20)
KEY = SigningKey.from_seed(SignatureScheme.ED25519, bytes(32))
LANE = lane(PARENT, KEY.public_field)


def now_ms() -> int:
    """Return the wall clock, Unix milliseconds."""
    return time.time_ns() // 1_000_000


def messages() -> list[IncomingMessage]:
    """Return signed messages of one lane."""
    blob = bytes(BLOB_BYTES)
    commitment, stamp = sha3_commitment(blob), now_ms()
    return [
        IncomingMessage(
            header=KEY.sign_header(
                MsgHeader(
                    namespace_id=LANE,
                    seq=seq,
                    timestamp=stamp,
                    blob_commitment=commitment,
                    blob_len=BLOB_BYTES,
                    policy_hash=bytes(32),
                )
            ),
            blob=blob,
            parent=PARENT,
            received_at=stamp,
        )
        for seq in range(1, MESSAGES + 1)
    ]


def serve(channel: Connection) -> None:
    """Serve a filled store until the other side says stop; sends the port first."""
    with tempfile.TemporaryDirectory() as folder:
        store = RelayStore.open(Path(folder) / "store", RelayStoreConfig.small(), now_ms=now_ms())
        store.put_many(messages(), now_ms())
        server = RelaySyncServer(store, SyncServerConfig(port=0), clock_ms=now_ms)
        channel.send(server.start())
        channel.recv()
        server.stop(grace_s=0)
        store.close()


def paged(client: RelaySyncClient) -> float:
    """Return messages a second of paging everything into a list."""
    began = time.perf_counter()
    received = [message for page in client.iter_pages(LANE) for message in page.messages]
    elapsed = time.perf_counter() - began
    assert len(received) == MESSAGES
    assert received[-1].seq == MESSAGES
    return MESSAGES / elapsed


def main() -> None:
    """Print the figure: medians of runs that take turns."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,))
    process.start()
    address = f"127.0.0.1:{ours.recv()}"
    many = RelaySyncClient(address)
    one = RelaySyncClient(address, config=SyncClientConfig(frame_messages=1))
    with many, one:
        many.get_head(LANE)
        one.get_head(LANE)
        pairs = [(paged(many), paged(one)) for _ in range(REPEATS)]
    ours.send("stop")
    process.join()
    plain = statistics.median(single for _, single in pairs)
    print(
        json.dumps(
            {
                "part": "sync",
                "name": f"page {MESSAGES:,} messages of {BLOB_BYTES} B over loopback gRPC",
                "value": round(statistics.median(grouped for grouped, _ in pairs)),
                "unit": "messages/s",
                "against": f"one message a frame, the plain LP-6421 protocol: {round(plain)}/s",
                "ratio": round(statistics.median(a / b for a, b in pairs), 2),
                "aim": AIM,
            }
        )
    )


if __name__ == "__main__":
    main()
