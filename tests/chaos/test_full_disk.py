"""A disk that is full stops acknowledgements, not the process, and the store recovers by itself.

A file system of a few megabytes in memory, mounted in a namespace of its own; where the system does
not allow that, a limit on the size of files does what a full disk does to the log.

Source: docs/explanation/store.md.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import random, resource, sys
from pathlib import Path

sys.path.insert(0, sys.argv[2])
from store import NOW, PARENT, Forge

from luxrelay.errors import StoreError
from luxrelay.store import NamespaceQuery, PutOutcome, RelayStore, RelayStoreConfig
from luxrelay.store import relay_store as recovery

recovery.RETRY_S = 0.0
folder, limited = Path(sys.argv[1]), sys.argv[3] == "limit"
forge = Forge()
config = RelayStoreConfig(write_buffer_bytes=1 << 22, inline_blob_bytes_max=1 << 17)
filler = folder / "filler"
with RelayStore.open(folder / "store", config, now_ms=NOW) as store:
    acknowledged, faults, seq = [], 0, 0
    if limited:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    while faults < 3:
        seq += 1
        message = forge.message(seq, blob=random.Random(seq).randbytes(32768))
        try:
            assert store.put_many([message], NOW) == [PutOutcome.STORED]
            acknowledged.append(seq)
        except StoreError as error:
            assert error.code == "store.io", error
            faults += 1
            found = store.query(NamespaceQuery(namespace_id=PARENT, limit=10_000), NOW).messages
            assert {m.seq for m in found} >= set(acknowledged), "readers stopped"
    print("refused after", len(acknowledged), flush=True)
    if limited:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    else:
        filler.unlink()
    again = store.put_many([forge.message(seq + 1, blob=bytes(32768))], NOW)
    assert again == [PutOutcome.STORED], again
    assert store.stats().recovered >= 1
    found = store.query(NamespaceQuery(namespace_id=PARENT, limit=10_000), NOW).messages
    assert {m.seq for m in found} >= {*acknowledged, seq + 1}
    assert store.verify() == []
with RelayStore.open(folder / "store", config, now_ms=NOW) as store:
    assert store.verify() == []
    found = store.query(NamespaceQuery(namespace_id=PARENT, limit=10_000), NOW).messages
    assert {m.seq for m in found} >= {*acknowledged, seq + 1}
print("recovered", flush=True)
"""
MOUNTED = """
set -e
mount -t tmpfs -o size=64m tmpfs "$1"
head -c 44m /dev/zero > "$1/filler"
exec "$2" -c "$3" "$1" "$4" disk
"""
ORACLE = str(Path(__file__).parents[1] / "oracle")


def can_mount() -> bool:
    """Return True when a file system can be mounted in a namespace of our own."""
    try:
        probe = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["disk", "limit"])
def test_a_full_disk_is_survived(tmp_path: Path, kind: str) -> None:
    """Nothing acknowledged is lost, readers go on, and room is all it takes to write again."""
    if kind == "disk" and not can_mount():
        kind = "limit"  # the same child, the other way to fill a disk
    command = [sys.executable, "-c", CHILD, str(tmp_path), ORACLE, "limit"]
    if kind == "disk":
        shell = ["unshare", "-Urm", "sh", "-c", MOUNTED, "sh"]
        command = [*shell, str(tmp_path), sys.executable, CHILD, ORACLE]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "recovered"
