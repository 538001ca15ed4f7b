"""What the operator's pages say of a node: one truth at every door, and no longer than it holds."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.trial]


def told(address: str, path: str) -> Any:
    """Return a page of a running node."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        return json.load(answer)


def test_a_repaired_token_file_is_told_no_longer(
    new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """The fault goes as it came, within about a second, and the log says both."""
    node = new_node("relay-1")
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    page = node.start().http
    tokens = node.folder / "data" / "tokens.json"
    for _ in range(2):  # a fault that comes back is told again
        tokens.write_text("{ broken")
        tokens.chmod(0o600)
        eventually(lambda: "tokens" in told(page, "/healthz"), 30)
        tokens.unlink()
        eventually(lambda: "tokens" not in told(page, "/healthz"), 30)  # a minute before
    eventually(lambda: "the token file is believed again" in (node.folder / "log").read_text(), 30)
    assert "the changed token file is not believed" in (node.folder / "log").read_text()


def test_a_round_that_never_ended_is_told_as_none_at_both_doors(
    new_node: Callable[[str], Any],
) -> None:
    """`/healthz` gave the node's age for it, as if a round had ended then."""
    node = new_node("relay-1")
    node.sections["sync"]["reconcile_interval_ms"] = 3_600_000
    page = node.start().http
    health, status = told(page, "/healthz"), told(page, "/status")
    assert health["round_ended_s"]["reconcile"] is None
    assert status["rounds"]["reconcile"]["ended_s"] is None
    assert health["round_ended_s"].keys() == status["rounds"].keys()


def test_a_relay_without_peers_is_neither_complete_nor_behind(
    new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> None:
    """`complete` is null without `sync.peers`, and true once a peer was asked to the end."""
    first, second = new_node("relay-1"), new_node("relay-2")
    one = first.start()
    assert told(one.http, "/status")["catch_up"]["complete"] is None
    second.sections["sync"]["peers"] = [one.sync]
    two = second.start()
    eventually(lambda: told(two.http, "/status")["catch_up"]["complete"] is True)
