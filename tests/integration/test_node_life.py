"""A node's life: its modules, SIGHUP, and an end in order."""

import json
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import topic_namespace
from luxrelay.cli.main import main
from luxrelay.sync import RelaySyncClient

pytestmark = pytest.mark.slow
TOPIC = "/chat/1/room"


def page(address: str, path: str) -> bytes:
    """Return a page of a running node."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        body: bytes = answer.read()
        return body


def told(node: Any) -> list[dict[str, Any]]:
    """Return what the node's log says."""
    lines = (node.folder / "log").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_modules_run_and_end_in_order(new_node: Callable[[str], Any]) -> None:
    """The status page and the metrics name each; SIGTERM ends them all with 0."""
    node = new_node("relay-1")
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    runtime = node.start()
    modules = json.loads(page(runtime.http, "/status"))["modules"]
    assert list(modules) == ["sync", "pages", "gossip", "catch-up", "upkeep", "gateway"]
    assert page(runtime.gateway, "/openapi.json")
    assert {module["state"] for module in modules.values()} == {"running"}
    metrics = page(runtime.http, "/metrics").decode()
    assert 'luxrelay_module_up{module="gossip"} 1.0' in metrics
    assert 'luxrelay_module_restarts_total{module="upkeep"} 0.0' in metrics
    assert 'luxrelay_gateway_responses_total{listener="public",status="200"} 1.0' in metrics
    assert node.stop() == 0
    assert told(node)[-1]["event"] == "stopped"
    assert not (node.folder / "data" / "runtime.json").exists()


def test_sighup_takes_over_what_can_change(
    new_node: Callable[[str], Any],
    eventually: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rates and levels at once; what needs a restart is named; a broken file changes nothing."""
    node = new_node("relay-1")
    sync = node.start().sync
    key = str(tmp_path / "alice.pem")
    main(["keys", "new", key])
    publish = ["publish", "--relay", sync, "--topic", TOPIC, "--key", key, "--json"]
    assert main([*publish, *(f"m{n}" for n in range(50))]) == 0

    def heard(event: str) -> list[dict[str, Any]]:
        return [line for line in told(node) if line["event"] == event]

    node.sections["limits"] = {"sender_messages_per_s": 1, "burst_s": 1}
    node.sections["node"]["log_levels"] = ["net=debug"]
    node.sections["store"]["ttl_ms"] = 7_200_000
    node.write_config()
    node.process.send_signal(signal.SIGHUP)
    (line,) = eventually(lambda: heard("reloaded"))
    assert set(line["changed"]) == {"limits", "log_levels"}
    (line,) = heard("these need a restart")
    assert line["keys"] == ["ttl_ms"]
    capsys.readouterr()
    assert main([*publish, "--no-wait", *(f"n{n}" for n in range(20))]) == 1
    receipts = json.loads(capsys.readouterr().out)
    assert [r["code"] for r in receipts].count(1006) >= 15

    node.config.write_text("[node]\nname = 5\n")
    node.process.send_signal(signal.SIGHUP)
    (line,) = eventually(lambda: heard("the changed file does not fit; nothing changes"))
    assert "relay.toml:2" in line["error"]
    assert node.process.poll() is None
    assert node.stop() == 0


def test_the_gateway_over_grpc_has_the_bounds_of_the_file(
    new_node: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole node hands its time to live and its rates on to the gateway, as to the sync port."""
    node = new_node("relay-1")
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    node.sections["gateway"]["grpc_listen"] = "127.0.0.1:0"
    node.sections["store"]["ttl_ms"] = 1_234_567
    node.sections["sync"]["out_bytes_per_s"] = 20_000
    runtime = node.start()
    key = str(tmp_path / "alice.pem")
    main(["keys", "new", key])
    publish = ["publish", "--relay", runtime.sync, "--topic", TOPIC, "--key", key]
    main([*publish, "x" * 48_000, "x" * 48_000, "x"])
    capsys.readouterr()

    with RelaySyncClient(runtime.grpc) as client:
        now_ms = time.time_ns() // 1_000_000
        (head,) = client.list_heads(topic_namespace(TOPIC))
        began = time.monotonic()
        for _ in range(2):
            assert client.sync_page(head.namespace_id).status.last_seq == 3
        took_s = time.monotonic() - began

    assert abs(now_ms - 1_234_567 - head.window_start_ms) < 60_000
    assert took_s > 2.0  # 192 kB at 20 kB/s, two seconds' worth of it at once
