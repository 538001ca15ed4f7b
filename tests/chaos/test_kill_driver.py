"""An ingest that is killed at any moment loses nothing, and doubles nothing.

The driver is a process of its own with its JVM; both are killed with SIGKILL at random moments
after a random batch, round after round on one folder, and once a relay goes away in between. Then
one run is left alone, and every table must be exactly right.

LUXRELAY_KILLS sets the rounds: 2 unless it is given.

Source: J8; 21-52.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from luxrelay.sync import RelaySyncServer, SyncServerConfig

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.slow, pytest.mark.long]
KILLS = int(os.environ.get("LUXRELAY_KILLS", "2"))
COUNT = 400 * (KILLS + 2)
"""Slots of the corpus: enough batches for every round."""

CHILD = """
import sys
from pathlib import Path

from luxrelay.archive import ArchiveSession, ingest
from luxrelay.archive.session import SessionConfig

out, relays = Path(sys.argv[1]), sys.argv[2].split(",")
options = (  # compiling a plan is not worth it for a few rows
    ("spark.sql.codegen.wholeStage", "false"),
    ("spark.sql.codegen.factoryMode", "NO_CODEGEN"),
    ("spark.sql.adaptive.enabled", "false"),
)
with ArchiveSession(SessionConfig(master="local[2]", tasks=2, options=options)) as session:
    done = ingest(
        session,
        relays=relays,
        out=out,
        heads="latest",
        rows_per_batch=600,
        progress=lambda batch: print("batch", batch.batch, flush=True),
    )
print("done", flush=True)
"""


def _load_oracle() -> ModuleType:
    path = Path(__file__).parents[1] / "oracle" / "archive.py"
    spec = spec_from_file_location("archive_oracle", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["archive_oracle"] = module
    spec.loader.exec_module(module)
    return module


class Driver:
    """A run in processes of its own: Python, its workers and the JVM are one group."""

    def __init__(self, out: Path, relays: list[str], log: Path) -> None:
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CHILD, str(out), ",".join(relays)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def lines(self) -> Iterator[str]:
        """Yield what it prints."""
        assert self.process.stdout is not None
        yield from self.process.stdout

    def kill(self) -> None:
        """End every process of the group, as a power cut would."""
        with suppress(ProcessLookupError):  # it had ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> int:
        """Wait for its end and return the exit code."""
        code = self.process.wait(timeout=300)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()
        return code


def test_a_driver_killed_at_any_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """After each kill the next run goes on, and in the end all tables are right (21-52, J8)."""
    oracle = _load_oracle()
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    texts = [b"what the relays say", b"and what they leave out"]
    corpus = oracle.Corpus(COUNT, texts, namespaces=12, holes=8, contended=10)
    out, log = tmp_path / "archive", tmp_path / "spark.log"
    killed = 0
    with ExitStack() as stack:
        relays = []
        for store in corpus.stores:
            server = RelaySyncServer(
                store, SyncServerConfig(port=0), clock_ms=lambda: corpus.NOW_MS
            )
            relays.append(f"127.0.0.1:{server.start()}")
            stack.callback(server.stop, 0)
        for _ in range(KILLS):
            driver = Driver(out, relays, log)
            wanted, timer = rng.randrange(2), None
            for number, line in enumerate(driver.lines()):
                if number == wanted and line.startswith("batch"):
                    # Somewhere in the batch that follows: before, between or after its commits.
                    timer = threading.Timer(rng.random(), driver.kill)
                    timer.start()
            killed += driver.close() == -signal.SIGKILL
            if timer is not None:
                timer.cancel()
        last = Driver(out, relays, log)
        said = list(last.lines())
        assert last.close() == 0, log.read_text(errors="replace")[-2_000:]

    print("killed", killed, "of", KILLS)
    assert said[-1] == "done\n"
    assert killed, "no run was killed before its end"
    assert oracle.differences(out, corpus.expected, relays) == []
