"""`luxrelay peers` against two real relays."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.bus import topic_namespace
from luxrelay.cli.main import main
from luxrelay.client import RelayClient
from luxrelay.errors import ClientRefusedError

pytestmark = pytest.mark.slow


def test_the_command_shows_each_term_of_a_score(
    new_node: Callable[[str], Any],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """20-25: who is connected, what its score is made of, and a word on who is not."""
    one, two = new_node("one"), new_node("two")
    one.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": "127.0.0.1:0"}
    runtime = one.start()
    two.sections["gossip"]["peers"] = [runtime.gossip[0]]
    peer = two.start().peer_id
    assert main(["node", "token", "new", "--config", str(one.config), "--scope", "read", "t"]) == 0
    (token,) = re.findall(r"lrt_\S+", capsys.readouterr().out)
    monkeypatch.setenv("LUXRELAY_TOKEN", token)
    command = ["peers", "--gateway", f"http://{runtime.gateway}"]

    def rows() -> list[dict[str, Any]]:
        assert main([*command, "--json"]) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return [row for row in found if row["score"] and row["score"]["topics"]]

    eventually(rows, 60)
    (row,) = rows()
    terms = row["score"]
    signs = {"credit": 1, "topic_penalty": -1, "application": 1, "colocation": -1, "behaviour": -1}

    assert row["peerId"] == peer
    assert terms["score"] == pytest.approx(sum(s * terms[name] for name, s in signs.items()))
    assert main([*command, peer]) == 0
    shown = capsys.readouterr().out
    assert peer in shown
    assert "clock: " in shown
    assert "topic penalty" in shown
    assert "time in mesh" in shown
    assert main([*command, "12D3nobody"]) == 1
    told = capsys.readouterr().err
    assert "not connected" in told
    assert "`luxrelay peers` without PEER" in told
    revoke = ["node", "token", "revoke", "--config", str(one.config), "deadbeef"]
    assert main(revoke) == 1
    assert "`luxrelay node token list`" in capsys.readouterr().err
    pages = str(runtime.http)
    assert main(["subscribe", "--gateway", pages, "--topic", "/chat/1/room"]) == 1
    told = capsys.readouterr().err
    assert "this is another service" in told
    assert "node's own code" not in told
    with (
        pytest.raises(ClientRefusedError, match="this is another service"),
        RelayClient(pages) as c,
    ):
        c.head(topic_namespace("/chat/1/room"))
    host, _, port = pages.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as stream:
        stream.sendall(b"POST /status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        head, _, body = stream.makefile("rb").read().partition(b"\r\n\r\n")
    assert b" 405 " in head.splitlines()[0]
    assert b"Allow: GET" in head
    assert "GET" in json.loads(body)["hint"]
