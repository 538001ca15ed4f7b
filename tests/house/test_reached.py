"""The column 'reached by' of the specifications is what the tests recorded, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from reached import DOORS, SYNC_METHODS, Recorder, of_metrics, of_process

from luxrelay.sync.rpc import relay_sync_pb2

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import doors  # noqa: E402  it stands in tools

PAGE = doors.PAGE.read_text()
SECTIONS = {
    "LP-6411, the header": [
        "1.1, 1.2", "1.3, 1.4", "2.1", "2.2", "2.3", "2.4, 2.5", "2.6", "2.7, 2.8", "2.9", "2.10",
        "3.1", "3.2", "4.1, 4.2", "5", "rationale", "security: malleability", "security: replay",
        "security: signatures", "test plan",
    ],
    "LP-6420, gossip": [
        "1.1", "1.2, 1.3", "2", "3.1", "3.2, 3.3", "4.1", "4.2", "4.3", "5", "6.1", "6.2",
        "7.1, 7.2", "8", "9", "security: Sybil attacks", "security: message flooding",
        "security: eclipse attacks", "test plan: routing", "test plan: latency",
        "test plan: churn",
    ],
    "LP-6421, persistence": [
        "1.1", "1.2", "1.3", "2.1", "2.2", "2.3", "3.1, 3.2", "4.1, 4.2", "5", "6.1, 6.2", "7.1",
        "7.2", "8", "security: storage exhaustion", "security: stale data",
        "security: eclipse by sync", "test plan: storage", "test plan: offline",
        "test plan: performance",
    ],
    "Retention and garbage collection": [
        "window and cycle", "clock skew", "Merkle tree", "sync of trees", "sync soft-filter",
        "storage layout changes", "start-up", "edge cases", "metrics",
    ],
    "Reliable channel": [
        "node configuration", "segmentation", "scalable data sync", "repair",
        "rate limit manager", "encryption hook", "persistence", "incoming messages",
    ],
}  # fmt: skip
"""How the row of each section begins, document by document."""


def test_the_column_is_what_was_recorded() -> None:
    """Page and data agree; `tools/doors.py` writes both."""
    assert doors.with_column(PAGE, doors.read_data()) == PAGE


def test_what_was_recorded_is_of_tests_that_a_row_names() -> None:
    """Each test of the data is there and its file stands in a row; its doors are known."""
    reached = doors.read_data()

    assert doors.merged(reached, {}, PAGE) == reached
    assert {door for tests in reached.values() for each in tests.values() for door in each} == set(
        DOORS
    )


def test_every_row_names_tests_that_are_there() -> None:
    """A row without a test says nothing of its section."""
    assert len(doors.rows(PAGE)) == PAGE.count("\n| ") - PAGE.count("\n| section ")
    for line, cells in doors.rows(PAGE):
        assert len(cells) == 5, line
        assert [file for file in doors.named_tests(cells) if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("document", SECTIONS)
def test_every_section_has_a_row(document: str) -> None:
    """The security and the test plan included."""
    block = PAGE.partition(f"## {document}\n")[2].partition("\n## ")[0]
    names = [cells[0] for _, cells in doors.rows(block)]

    for begins in SECTIONS[document]:
        assert [name for name in names if re.match(rf"{re.escape(begins)}\b", name)], begins


def test_records_of_one_test_share_its_doors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one parameter alone goes by may go the next time."""
    (tmp_path / "a.jsonl").write_text(
        '{"test": "x.py::test_a", "doors": ["HTTP", "gossip"]}\n'
        '{"test": "x.py::test_a", "doors": ["HTTP"]}\n'
    )
    monkeypatch.setattr(doors, "RECORDS", tmp_path)

    assert doors.recorded() == {"x.py::test_a": {"HTTP"}}


def test_a_test_that_goes_by_fewer_doors_fails(tmp_path: Path) -> None:
    """What is committed is asked of each test that runs; one that reaches more passes."""
    file, test = "tests/integration/sync/test_wire_additions.py", "test_fetch_by_content_id"
    data, codes = tmp_path / "reached.json", []
    for claimed in (["gossip", "RelaySync"], []):
        data.write_text(json.dumps({"tests": {file: {test: claimed}}}))
        environ = {k: v for k, v in os.environ.items() if k != "RECORD_DOORS"}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{file}::{test}"],
            cwd=ROOT,
            env=environ | {"REACHED_BY": str(data), "DOORS": "strict"},
            capture_output=True,
            text=True,
            check=False,
        )
        codes.append(done.returncode)
        assert ("the test went by gossip once" in done.stdout) == bool(claimed)

    assert codes == [1, 0]


def test_a_row_that_loses_a_door_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all tests that went by it ran; records of earlier runs do not count."""
    one, other = (f"{folder}/{name}.py" for folder in ("tests",) for name in "xy")
    page = f"| 1 a | code | [x](../../{one}), [y](../../{other}) | HTTP, gossip |  |"
    reached = {one: {"test_a": ["gossip", "HTTP"]}, other: {"test_b": ["HTTP"]}}
    monkeypatch.setattr(doors, "RECORDS", tmp_path)

    def ran(**went: list[str]) -> list[str]:
        files = {"test_a": one, "test_b": other}
        old = {"test": f"{one}::test_a", "doors": ["gossip", "HTTP"], "at": 1.0}
        new = [{"test": f"{files[t]}::{t}", "doors": d, "at": 9.0} for t, d in went.items()]
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in [old, *new]))
        return doors.lost_by_rows(page, reached, 5.0)

    assert ran(test_a=["gossip"], test_b=["HTTP"]) == []
    assert ran(test_a=["HTTP"]) == ["1 a: gossip"]
    assert ran(test_a=["gossip"]) == []  # the other test that goes by HTTP did not run
    assert ran(test_a=["gossip"], test_b=[]) == ["1 a: HTTP"]


def test_calls_of_the_contract_are_told_apart() -> None:
    """RelaySync is one service; other gRPC is not."""
    service = relay_sync_pb2.DESCRIPTOR.services_by_name["RelaySync"]
    assert {method.name for method in service.methods} == SYNC_METHODS


def test_a_node_says_what_its_doors_answered() -> None:
    """Counters of zero are no traffic, and of two listeners each counts."""
    text = (
        "# HELP x y\n"
        'relay_sync_requests_total{method="ListHeads",status="OK"} 2.0\n'
        'relay_sync_requests_total{method="Publish",status="OK"} 1.0\n'
        'luxrelay_gateway_responses_total{listener="public",status="101"} 1.0\n'
        'luxrelay_gateway_responses_total{listener="admin",status="200"} 0.0\n'
        "luxrelay_net_bytes_in_total 512.0\n"
    )

    found = of_metrics(text)

    assert {door for door in DOORS if found[door]} == {
        "gossip", "RelaySync", "RelayNode gRPC", "WebSocket",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["python", "-m", "luxrelay", "node", "run", "--config", "x"], set()),
        (["/bin/luxrelay", "status", "--json"], {"command"}),
        (["luxrelay", "archive", "query"], {"command", "archive"}),
        ("cd x && luxrelay peers", {"command"}),
        (["cp", "luxrelay.toml", "x"], set()),
    ],
)
def test_a_process_is_a_command_or_none(arguments: object, expected: set[str]) -> None:
    """The node itself is no command of a user."""
    found = of_process(arguments)
    assert {door for door in found if found[door]} == expected


def test_what_was_there_before_a_test_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that a module shares counts for a test when it grows."""
    monkeypatch.setattr(subprocess.Popen, "__init__", subprocess.Popen.__init__)
    recorder = Recorder()
    recorder.watch()
    recorder.begin()
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert recorder.end() == []

    recorder.begin()
    shown = subprocess.Popen([sys.executable, "-m", "luxrelay", "--version"])
    assert shown.wait() == 0
    assert recorder.end() == ["command"]

    recorder.begin()
    assert recorder.end() == []
