"""A relay with a full policy: writers are enforced end to end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxrelay.cli.main import main

pytestmark = pytest.mark.slow
TOPIC = "/chat/1/room"


def test_only_listed_writers_may_publish(
    new_node: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The owner writes and a stranger does not, by a file that `policy sign` made (11-39)."""

    def printed(*arguments: str) -> str:
        assert main(list(arguments)) == 0
        return capsys.readouterr().out.strip()

    owner, stranger = str(tmp_path / "owner.pem"), str(tmp_path / "stranger.pem")
    for key in (owner, stranger):
        printed("keys", "new", key)
    public = printed("keys", "export-public", owner)
    form = {
        "owner": {"type": "raw_key", "value": "0x" + public.removeprefix("0x")},
        "writers": {"mode": "owner_only"},
    }
    policy = json.dumps(form)
    signed = printed(
        "policy", "sign", policy, "--key", owner, "--network", "test", "--topic", TOPIC
    )
    node = new_node("relay-1")
    node.write_config()
    (node.folder / "room.policy").write_text(signed + "\n")
    with node.config.open("a") as config:
        config.write('policy_file = "room.policy"\n')
    node.write_config = lambda: None
    printed("node", "check", "--config", str(node.config))

    relay = ["--relay", node.start().sync, "--topic", TOPIC, "--json"]
    bound = ["--policy-hash", printed("policy", "encode", policy, "--hash"), "hello"]
    accepted = json.loads(printed("publish", *relay, "--key", owner, *bound))
    main(["publish", *relay, "--key", stranger, *bound])
    refused = json.loads(capsys.readouterr().out)

    assert accepted[0]["stored"]
    assert (refused[0]["stored"], refused[0]["code"]) == (False, 1003)
    assert "write" in refused[0]["reason"]
