"""What Prometheus reads of a running archive."""

from __future__ import annotations

from http.client import HTTPConnection

import pytest
from prometheus_client.parser import text_string_to_metric_families

from luxrelay.archive.batches import BatchReport
from luxrelay.archive.derived import RefreshReport
from luxrelay.archive.options import RELAYS_MAX
from luxrelay.archive.pipeline import IngestReport
from luxrelay.archive.progress import ArchiveProgress, MetricsServer
from luxrelay.errors import ArchiveError


def _counted() -> ArchiveProgress:
    progress = ArchiveProgress()
    batch = BatchReport(batch=0, rows=10, messages=4, rejected=3, seconds=0.5)
    progress.batch(batch, 1_700_000_000_999)
    progress.batch(batch, 1_700_000_001_000)
    progress.run(
        IngestReport(
            batches=(batch, batch),
            rows_by_relay={},
            rejected_by_code={1005: 5, 1201: 1},
            unread={"a:1": 2},
            seconds=1.0,
            derived=RefreshReport(open_gaps=2, missing=7),
        )
    )
    progress.failed()
    return progress


def test_counters_as_prometheus_understands_them() -> None:
    """Its own parser finds every metric with its kind, its help and its value."""
    families = list(text_string_to_metric_families(_counted().page()))

    values = {
        (sample.name.removeprefix("luxrelay_archive_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
    assert all(family.documentation and family.type != "unknown" for family in families)
    assert values == {
        ("rows_total",): 20, ("messages_total",): 8, ("batches_total",): 2,
        ("batch_seconds_total",): 1.0, ("runs_total",): 1, ("failed_runs_total",): 1,
        ("rejected_total", "1005"): 5, ("rejected_total", "1201"): 1,
        ("unread_total", "a:1"): 2, ("open_gaps",): 2, ("missing_sequences",): 7,
        ("last_batch_timestamp_seconds",): 1_700_000_001,
    }  # fmt: skip


def _get(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_page_is_served_on_the_loopback() -> None:
    """One page, and a hint elsewhere; a port that is taken is named."""
    progress = _counted()
    with MetricsServer(progress, 0) as server:
        assert _get(server.port, "/metrics") == (200, progress.page())
        assert _get(server.port, "/") == (404, "see /metrics\n")
        with pytest.raises(ArchiveError, match="cannot be had"):
            MetricsServer(progress, server.port)


def test_readers_beyond_the_bound_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no place left the page is not made."""
    monkeypatch.setattr("luxrelay.archive.progress.READERS_MAX", 0)
    with MetricsServer(ArchiveProgress(), 0) as server:
        assert _get(server.port, "/metrics") == (503, "too many readers at once\n")


def test_names_of_relays_are_text_and_bounded() -> None:
    """Segment files name relays as they like: no name makes a line of its own (RELAYS_MAX)."""
    progress = ArchiveProgress()
    hostile = 'a"} 1\nup{x="\\'
    unread = {hostile: 3} | {f"relay-{number}:1": 1 for number in range(RELAYS_MAX + 5)}
    report = IngestReport(
        batches=(), rows_by_relay={}, rejected_by_code={}, unread=unread, seconds=1.0
    )

    progress.run(report)

    (family,) = (
        family
        for family in text_string_to_metric_families(progress.page())
        if family.name == "luxrelay_archive_unread"
    )
    values = {sample.labels["relay"]: sample.value for sample in family.samples}
    assert values[hostile] == 3
    assert values["others"] == 6
    assert len(values) == RELAYS_MAX + 1
