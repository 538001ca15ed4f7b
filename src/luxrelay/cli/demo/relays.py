"""Relays as operating-system processes on loopback, each with its own folder and key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from luxrelay.cli.demo.patience import DemoPatience
from luxrelay.errors import DemoError
from luxrelay.node.folder import Runtime, read_runtime

START_IDLE_S: Final = 120.0
"""Seconds that a relay which is not ready may neither compute nor log anything."""
STOP_S: Final = 20.0
"""Seconds a relay has to stop in order before it is killed."""
_POLL_S: Final = 0.05
_STORAGE_BYTES: Final = 16 * 1024**3
_SAMPLE_S: Final = 0.2
_STATUS_S: Final = 30.0
"""Longest wait for a status page, seconds; on a busy machine a relay may be slow to answer."""


class RelayProcess:
    """One relay: its configuration, its process, and where it listens."""

    def __init__(self, name: str, folder: Path, topics: Sequence[str]) -> None:
        """Describe the relay; nothing is started yet."""
        self.name = name
        self._folder = folder
        self._topics = topics
        self._process: subprocess.Popen[bytes] | None = None
        self._log_path = folder / "relay.log"
        self._runtime: Runtime | None = None
        self._stopping = False
        """Asked to end, and not started again since."""

    @property
    def runtime(self) -> Runtime:
        """Where it listens.

        Raises:
            DemoError: it is not running.

        """
        if self._runtime is None:
            raise DemoError(f"{self.name} is not running", where=str(self._log_path))
        return self._runtime

    @property
    def running(self) -> bool:
        """True between `wait_ready` and `stop`."""
        return self._runtime is not None

    def start(self, others: Sequence[RelayProcess]) -> None:
        """Start the process; its peers are the running ones among ``others``.

        Only the thread that lives as long as the demonstration may call it: on Linux a relay ends
        with the thread that started it.

        Raises:
            DemoError: the folder cannot be written, or there is no room for a process.

        """
        config = self._folder / "relay.toml"
        self._stopping = False
        peers = [other.runtime for other in others if other.running]
        # What the demonstration says holds, whatever a relay of this machine is told.
        environ = {k: v for k, v in os.environ.items() if not k.startswith("LUXRELAY_")}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            config.write_text(self._config(peers))
            with self._log_path.open("ab") as log:
                self._process = subprocess.Popen(  # noqa: S603  our own interpreter and package
                    [sys.executable, "-m", "luxrelay.cli.demo.child", str(config)],
                    stdin=subprocess.PIPE,  # whose end ends the relay
                    stdout=log,
                    stderr=log,
                    env=environ,
                    start_new_session=True,
                )
        except OSError as error:
            raise DemoError(
                f"{self.name} cannot be started: {error.strerror}", where=str(self._folder)
            ) from error

    def wait_ready(self) -> None:
        """Return when the relay has written where it listens.

        Raises:
            DemoError: it ended, or it stands still; carries its last words.

        """
        process = self._require_process()
        patience = DemoPatience(START_IDLE_S)
        while not patience.lost((self._log_path.stat().st_size, _cpu_ticks(process.pid))):
            self.require_alive()
            runtime = read_runtime(self._folder / "data")
            if runtime is not None and runtime.pid == process.pid:
                self._runtime = runtime
                return
            time.sleep(_POLL_S)
        raise DemoError(
            f"{self.name} did nothing for {START_IDLE_S:.0f} s and is not ready: "
            f"{self._last_words()}",
            where=str(self._log_path),
        )

    def require_alive(self) -> None:
        """Return when the process runs, or is not meant to.

        Raises:
            DemoError: it has ended although nobody asked it to; carries its last words.

        """
        process = self._process
        if process is not None and not self._stopping and process.poll() is not None:
            raise DemoError(
                f"{self.name} ended with {process.returncode}: {self._last_words()}",
                where=f"see {self._log_path}",
            )

    def ask_to_stop(self) -> None:
        """Ask the process to end, without waiting."""
        process, self._runtime = self._process, None
        self._stopping = True
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Ask the process to end, and end it when it does not."""
        self.ask_to_stop()
        process = self._process
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
        self.kill()

    def kill(self) -> None:
        """End the process without asking, if it still runs."""
        process, self._process, self._runtime = self._process, None, None
        if process is None:
            return
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def status(self) -> dict[str, Any] | None:
        """Return the relay's /status page, or None when it does not answer."""
        runtime = self._runtime
        if runtime is None:
            return None
        try:
            with urllib.request.urlopen(
                f"http://{runtime.http}/status", timeout=_STATUS_S
            ) as answer:
                loaded: dict[str, Any] = json.load(answer)
                return loaded
        except (OSError, ValueError, urllib.error.URLError):
            return None

    def _require_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise DemoError(f"{self.name} was not started", where=str(self._log_path))
        return self._process

    def _last_words(self) -> str:
        lines = self._log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "no output"

    def _config(self, peers: Sequence[Runtime]) -> str:
        lines = [
            "[node]",
            f"name = {json.dumps(self.name)}",
            'network = "demo"',
            'data_dir = "data"',
            "[gossip]",
            'listen = ["/ip4/127.0.0.1/tcp/0"]',
            f"peers = {json.dumps([peer.gossip[0] for peer in peers])}",
            "[store]",
            "ttl_ms = 3600000  # an hour, so that nothing ages while the demo runs",
            f"max_storage_bytes = {_STORAGE_BYTES}  # and nothing has to make room",
            f"namespace_quota_bytes = {_STORAGE_BYTES}",
            "[sync]",
            'listen = "127.0.0.1:0"',
            f"peers = {json.dumps([peer.sync for peer in peers])}",
            "interval_ms = 1000",
            "allow_publish = true",
            'known_hosts = ["127.0.0.1"]  # publisher, readers and peers share one address',
            "[http]",
            'listen = "127.0.0.1:0"',
            "[limits]  # the demo sends as fast as it can",
            *(f"{layer}_messages_per_s = 0" for layer in ("peer", "node", "namespace", "sender")),
        ]
        for topic in self._topics:
            lines += ["[[namespace]]", f"content_topic = {json.dumps(topic)}"]
        return "\n".join(lines) + "\n"


def _cpu_ticks(pid: int) -> int:
    """Return what a process has computed so far, in ticks; 0 where the system does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


class Sampler:
    """Asks every running relay how much it holds, five times a second."""

    def __init__(self, relays: Sequence[RelayProcess]) -> None:
        """Begin to sample."""
        self._relays = relays
        self._began = time.monotonic()
        self._stop = threading.Event()
        self.samples: dict[str, list[tuple[float, int | None]]] = {r.name: [] for r in relays}
        """Relay to (seconds since the start, messages stored or None while it was away)."""
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    def stop(self) -> None:
        """Take a last sample and end."""
        self._stop.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        for relay in self._relays:
            status = relay.status()
            stored = None if status is None else int(status["store"]["messages"])
            self.samples[relay.name].append((self.seconds(), stored))
