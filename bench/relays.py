"""A relay as a process, for the benchmarks that need real ones."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from luxrelay.node.folder import Runtime, read_runtime

TOPIC = "/bench/1/node"
TTL_MS = 30 * 86_400_000
START_S = 600.0


class Relay:
    """One relay as a process."""

    def __init__(self, folder: Path, peers: Sequence[str] = ()) -> None:
        """Write its configuration."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "relay.toml").write_text(
            f'[node]\ndata_dir = "data"\nnetwork = "bench"\n'
            f'[gossip]\nlisten = ["/ip4/127.0.0.1/tcp/0"]\npeers = {json.dumps(list(peers))}\n'
            f"heartbeat_ms = 200\n[store]\nttl_ms = {TTL_MS}\nmax_storage_bytes = {2**36}\n"
            '[sync]\nlisten = "127.0.0.1:0"\nallow_publish = true\n[http]\nlisten = "127.0.0.1:0"\n'
            "[limits]\nsender_messages_per_s = 1000000\nnamespace_messages_per_s = 1000000\n"
            "peer_messages_per_s = 1000000\nnode_messages_per_s = 1000000\n"
            '[gateway]\nlisten = "127.0.0.1:0"\nadmin_listen = ""\nrequests_per_s = 1000000\n'
            f'publish_bytes_per_s = {2**40}\n[[namespace]]\ncontent_topic = "{TOPIC}"\n'
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> tuple[Runtime, float]:
        """Return where it listens and the seconds until it was ready."""
        began = time.perf_counter()
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "luxrelay", "node", "run", "--config",
                 str(self.folder / "relay.toml")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        while time.perf_counter() - began < START_S:
            runtime = read_runtime(self.folder / "data")
            if runtime is not None and runtime.pid == self.process.pid:
                return runtime, time.perf_counter() - began
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        sys.exit((self.folder / "log").read_text()[-2000:])

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
            self.process = None
