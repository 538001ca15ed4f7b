"""`luxrelay peers` against two real relays."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.cli.main import main

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
    assert "topic penalty" in shown
    assert "time in mesh" in shown
    assert main([*command, "12D3nobody"]) == 1
    assert "not connected" in capsys.readouterr().err
