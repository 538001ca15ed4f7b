"""A store that is killed at any moment loses nothing it acknowledged and keeps nothing half.

A child puts batches and prints each sequence after `put_many` returned. It is killed with SIGKILL
at random moments, several rounds on one folder; after each round the store is opened, scanned for
orphans, and compared with everything ever printed.

Source: P3, P9, P43; 21-09, 21-16.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from luxrelay.bus import NamespaceId
from luxrelay.store import NamespaceQuery, RelayStore, RelayStoreConfig

NOW = 1_764_000_000_000
NAMESPACE = NamespaceId(b"k" * 20)
ROUNDS = int(os.environ.get("LUXRELAY_KILL_ROUNDS", "6"))
"""Kills a parameter; 50 make 200 in all."""

CHILD = """
import sys
from pathlib import Path

from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, sha3_commitment
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig

NOW = 1_764_000_000_000
NAMESPACE = NamespaceId(b"k" * 20)
KEY = SigningKey.from_seed(SignatureScheme.ED25519, bytes(32))
folder, durability, batch = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
config = RelayStoreConfig(
    durability=durability, write_buffer_bytes=1 << 18, inline_blob_bytes_max=64, slice_ms=500
)
store = RelayStore.open(folder, config, now_ms=NOW)


def message(seq):
    # Every fifth blob is large and shared by all of its kind; the oldest ones expire.
    blob = b"large and shared " * 100 if seq % 5 == 0 else b"blob %d" % seq
    unsigned = MsgHeader(
        namespace_id=NAMESPACE,
        seq=seq,
        timestamp=NOW + seq,
        blob_commitment=sha3_commitment(blob),
        blob_len=len(blob),
        policy_hash=bytes(32),
    )
    return IncomingMessage(
        header=KEY.sign_header(unsigned), blob=blob, parent=NAMESPACE, received_at=NOW + seq
    )


seq = store.head(NAMESPACE).latest_seq
print("open", flush=True)
while True:
    store.put_many([message(seq + n) for n in range(1, batch + 1)], NOW)
    seq += batch
    print(seq, flush=True)
    if seq % (4 * batch) == 0:
        store.expire(NOW + 600_000 + seq // 2)
        print("expired", seq // 2, flush=True)
"""


def run_and_kill(folder: Path, durability: str, batch: int, delay_s: float) -> list[str]:
    """Return the complete lines a child printed before it was killed."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), durability, str(batch)],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"open\n"
    killer = threading.Timer(delay_s, child.send_signal, (signal.SIGKILL,))
    killer.start()
    output = child.stdout.read()
    killer.join()
    child.stdout.close()
    assert child.wait(30) == -signal.SIGKILL
    return (
        output.decode().splitlines()
        if output.endswith(b"\n")
        else (output.decode().splitlines()[:-1])
    )


def held(store: RelayStore) -> set[int]:
    """Return every sequence the store serves at `NOW`."""
    found: set[int] = set()
    cursor = b""
    while True:
        query = NamespaceQuery(namespace_id=NAMESPACE, limit=10_000, cursor=cursor)
        page = store.query(query, NOW)
        for message in page.messages:
            assert message.blob is not None
            assert len(message.blob) == message.header.blob_len
            found.add(message.seq)
        if not page.has_more:
            return found
        cursor = page.next_cursor


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize(
    ("durability", "batch"), [("fsync", 16), ("group", 16), ("os", 50), ("fsync", 1)]
)
def test_kill_loses_nothing_acknowledged(tmp_path: Path, durability: str, batch: int) -> None:
    """After every kill all acknowledged sequences are there and no row is an orphan (21-16)."""
    rng = random.Random(f"{durability} {batch}")
    acknowledged = 0

    for _ in range(ROUNDS):
        lines = run_and_kill(tmp_path / "store", durability, batch, rng.uniform(0.02, 0.4))
        acknowledged = max([acknowledged, *(int(line) for line in lines if line.isdigit())])
        with RelayStore.open(tmp_path / "store", RelayStoreConfig.small(), now_ms=NOW) as store:
            assert store.verify() == []
            head = store.head(NAMESPACE)
            found = held(store)
            assert head.latest_seq >= acknowledged
            assert head.contiguous_seq == head.latest_seq
            # A killed cycle may have removed some of what was due, and nothing else.
            assert head.floor <= head.latest_seq // 2
            assert found == set(range(head.floor + 1, head.latest_seq + 1))

    assert acknowledged > 0
