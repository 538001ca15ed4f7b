"""How a running archive is watched: counters over its runs, as Prometheus reads them.

The text format is written here by hand: the archive's extra brings no Prometheus client, and one
small page needs none. Labels are bounded: verdict codes and the relays of the command.

Source: Prometheus text exposition format 0.0.4.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Final

from luxrelay.archive.batches import BatchReport
from luxrelay.archive.loopback import LoopbackServer
from luxrelay.archive.options import RELAYS_MAX
from luxrelay.archive.pipeline import IngestReport
from luxrelay.pages import Answer

READERS_MAX: Final = 16
"""Readers of the page at once."""
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_HELP: Final = {
    "rows_total": ("counter", "Raw rows read, all relays together."),
    "messages_total": ("counter", "Messages written, each counted once."),
    "batches_total": ("counter", "Micro-batches written."),
    "batch_seconds_total": ("counter", "Time spent in micro-batches."),
    "runs_total": ("counter", "Runs that ended well."),
    "failed_runs_total": ("counter", "Runs that ended with an error."),
    "rejected_total": ("counter", "Rejected rows by the code of their verdict."),
    "unread_total": ("counter", "Tasks that could not read a relay, by relay."),
    "open_gaps": ("gauge", "Gaps of the archive that are open."),
    "missing_sequences": ("gauge", "Sequences in open gaps."),
    "last_batch_timestamp_seconds": ("gauge", "When the last micro-batch was written."),
}
"""Every metric once: kind and help."""


_OTHERS: Final = "others"
"""The label of relays beyond `RELAYS_MAX`: segment files name whom they like."""


def _label(text: str) -> str:
    """Return the value of a label, escaped."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class ArchiveProgress:
    """Counters of an archive that runs; any thread may read them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Counter[str] = Counter()
        self._rejected: Counter[int] = Counter()
        self._unread: Counter[str] = Counter()
        self._seconds = 0.0

    def batch(self, report: BatchReport, now_ms: int) -> None:
        """Count a micro-batch when it is written."""
        with self._lock:
            self._values["rows_total"] += report.rows
            self._values["messages_total"] += report.messages
            self._values["batches_total"] += 1
            self._values["last_batch_timestamp_seconds"] = now_ms // 1000
            self._seconds += report.seconds

    def run(self, report: IngestReport) -> None:
        """Count a run that ended well."""
        with self._lock:
            self._values["runs_total"] += 1
            self._rejected.update(report.rejected_by_code)
            for relay, count in report.unread.items():
                known = relay in self._unread or len(self._unread) < RELAYS_MAX
                self._unread[relay if known else _OTHERS] += count
            if report.derived is not None:
                self._values["open_gaps"] = report.derived.open_gaps
                self._values["missing_sequences"] = report.derived.missing

    def failed(self) -> None:
        """Count a run that did not."""
        with self._lock:
            self._values["failed_runs_total"] += 1

    def page(self) -> str:
        """Return what Prometheus reads."""
        with self._lock:
            return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        for name, (kind, text) in _HELP.items():
            full = f"luxrelay_archive_{name}"
            yield f"# HELP {full} {text}"
            yield f"# TYPE {full} {kind}"
            if name == "rejected_total":
                for code, count in sorted(self._rejected.items()):
                    yield f'{full}{{code="{code}"}} {count}'
            elif name == "unread_total":
                for relay, count in sorted(self._unread.items()):
                    yield f'{full}{{relay="{_label(relay)}"}} {count}'
            elif name == "batch_seconds_total":
                yield f"{full} {self._seconds:.3f}"
            else:
                yield f"{full} {self._values[name]}"


class MetricsServer(LoopbackServer):
    """Serves ``/metrics`` on the loopback; a context manager.

    Args:
        progress: What is served.
        port: TCP port; 0 lets the system choose.

    Raises:
        ArchiveError: ``archive.argument``: the port cannot be had.

    """

    def __init__(self, progress: ArchiveProgress, port: int) -> None:
        def answer(path: str) -> Answer:
            if path != "/metrics":
                return 404, _TEXT, b"see /metrics\n"
            return 200, _TEXT, progress.page().encode()

        busy = 503, _TEXT, b"too many readers at once\n"
        super().__init__(answer, port, busy=busy, calls_max=READERS_MAX, timeout_s=5)
