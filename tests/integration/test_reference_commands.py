"""Every example of the command's reference works as it stands there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus.policy import default_policy
from luxrelay.bus.policy_json import policy_to_json
from luxrelay.testing import message_line

from .test_docs_commands import ROOT, Terminal

pytestmark = pytest.mark.slow
PAGE = ROOT / "docs" / "reference" / "command.md"
ELSEWHERE = {
    "demo": ("tests/integration/test_demo.py", '"demo"'),
    "archive": ("tests/integration/archive/test_archive_upkeep.py", '"archive"'),
    "peers": ("tests/integration/gateway/test_cli_peers.py", '"peers"'),
    "channel send": ("tests/integration/gateway/test_cli_gateway.py", '"send"'),
    "sim replay": ("docs/how-to/simulate.md", "sim replay"),  # that page is typed
    "vectors check": ("tests/unit/cli/test_vectors.py", '"--against"'),
    "header sign": ("tests/integration/test_producers.py", '"header", "sign"'),
    "keys vouch": ("tests/integration/test_producers.py", '"keys", "vouch"'),
    "fees": ("tests/integration/test_prepaid.py", '"fees", "attach"'),
    "finality sign": ("tests/integration/test_producers.py", '"finality", "sign"'),
    "namespace follow": ("tests/integration/test_carried.py", 'command("follow"'),
    "namespace unfollow": ("tests/integration/test_carried.py", 'command("unfollow"'),
    "namespace derive": ("tests/integration/test_producers.py", '"namespace", "derive"'),
}
"""Commands that want Spark, peers, a recording or another program, and where they run."""
HERE = {
    "node run", "node check", "node init", "node token new", "node token list",
    "node token revoke", "keys new", "keys new-shared", "keys show", "keys export-public",
    "header encode",
    "header decode", "header verify", "policy encode", "policy decode", "policy sign", "publish",
    "subscribe", "query", "head", "sync", "channel chat", "store stats", "store verify",
    "store gc", "store export", "store repair", "store import", "sim run", "sim list",
    "vectors write", "doctor", "completion",
}  # fmt: skip


def examples() -> dict[str, str]:
    """Return the example of each command by its words."""
    text = PAGE.read_text()
    found = re.findall(r"^## luxrelay (.+)\n(?:.*\n)*?    (.*luxrelay .+)$", text, re.MULTILINE)
    assert len(found) == text.count("\n## luxrelay ")
    return {name.strip(): line for name, line in found}


EXAMPLES = examples()
GATEWAY = {"LUXRELAY_GATEWAY_LISTEN": "127.0.0.1:0", "LUXRELAY_GATEWAY_ADMIN_LISTEN": "127.0.0.1:0"}


def test_each_is_run_somewhere() -> None:
    """A new command is run here, or named with the test that runs it."""
    elsewhere = {name for name in EXAMPLES if name.startswith(tuple(ELSEWHERE))}
    assert set(EXAMPLES) - elsewhere == HERE
    for place, word in ELSEWHERE.values():
        assert word in (ROOT / place).read_text(), place


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A folder whose processes end with the test."""
    opened = Terminal(tmp_path)
    yield opened
    opened.end()


def test_those_that_need_no_node(terminal: Terminal) -> None:
    """Keys, headers, policies, simulations, vectors, completion and the doctor."""
    folder = terminal.folder
    (message,) = message_line(1)
    header = "0x" + message.header.encode().hex()
    policy = policy_to_json(default_policy(message.header.namespace_id))
    (folder / "policy.json").write_text(json.dumps(policy))

    # A passphrase is typed at a terminal: tests/unit/cli/test_passphrase.py.
    terminal.type(EXAMPLES["keys new"].removesuffix(" --passphrase"))
    terminal.type("luxrelay keys new owner.pem")
    assert terminal.type(EXAMPLES["keys show"])
    assert "fingerprint" in terminal.type(EXAMPLES["keys new-shared"])
    terminal.type(EXAMPLES["keys export-public"])
    assert "0x01" in (folder / "alice.pub").read_text()

    decoded = terminal.type(EXAMPLES["header decode"].replace("0x0100…", header))
    (folder / "header.json").write_text(decoded)
    assert terminal.type(EXAMPLES["header encode"]).strip() == header
    assert terminal.type(EXAMPLES["header verify"].replace("0x0100…", header))
    encoded = terminal.type(EXAMPLES["policy encode"]).strip()
    shown = terminal.type(EXAMPLES["policy decode"].replace("0x0001…", encoded))
    assert json.loads(shown) == policy
    assert terminal.type(EXAMPLES["policy sign"])

    terminal.type(EXAMPLES["sim run"].replace("200", "20"))
    assert list((folder / "sim-out").iterdir())
    assert "propagation" in terminal.type(EXAMPLES["sim list"])
    terminal.type(EXAMPLES["vectors write"])
    assert (folder / "vectors").is_dir()
    command, _, file = EXAMPLES["completion"].partition(" > ")
    assert file.startswith("~/")  # not into the home of whoever runs the test
    assert "luxrelay" in terminal.type(command)
    terminal.type(EXAMPLES["doctor"])


def test_those_that_need_a_node(terminal: Terminal, eventually: Callable[..., Any]) -> None:
    """A node's own, those that ask it, and those on its store when it has stopped."""
    folder = terminal.folder
    terminal.type(EXAMPLES["node init"])
    assert 'profile = "relay"' in (folder / "relay.toml").read_text()
    (folder / "relay.toml").unlink()
    terminal.type("luxrelay node init --profile messenger --topic /chat/1/room")
    terminal.move_listeners()
    terminal.type(EXAMPLES["node check"])
    runtime = terminal.run_node(EXAMPLES["node run"], folder, eventually, GATEWAY)

    made = terminal.type(EXAMPLES["node token new"])
    (token,) = re.findall(r"lrt_\S+", made)
    identity = token.split("_")[1]
    assert "phone" in terminal.type(EXAMPLES["node token list"])
    terminal.type("luxrelay keys new alice.pem")
    terminal.type(EXAMPLES["publish"])
    lanes = terminal.type("luxrelay query --topic /chat/1/room --lanes --json")
    namespace = json.loads(lanes)["messages"][0]["header"]["namespaceId"].removeprefix("0x")
    assert terminal.type(re.sub(r"[0-9a-f]{40}", namespace, EXAMPLES["query"]))
    assert terminal.type(EXAMPLES["head"])
    gateway = f"--gateway {runtime.gateway}"
    quick = EXAMPLES["subscribe"].replace("--after latest", f"--after 0 --count 1 {gateway}")
    assert terminal.type(quick)
    (folder / "alice.token").write_text(token)
    (folder / "alice.token").chmod(0o600)  # one that others may open is refused
    chat = f"{EXAMPLES['channel chat']} {gateway} --token-file alice.token"
    terminal.type(f"{chat} < /dev/null")
    assert identity in terminal.type(EXAMPLES["node token revoke"].replace("5f3a90c1", identity))

    other = folder / "other"
    other.mkdir()
    text = (folder / "relay.toml").read_text()
    (other / "relay.toml").write_text(re.sub(r":96\d\d|/tcp/96\d\d", "", text))
    line = EXAMPLES["sync"].replace("192.0.2.7:9641", runtime.sync)
    line = line.replace("relay.toml", "other/relay.toml").replace(" --dry-run", "")
    terminal.type(line)
    assert terminal.type(f"{line} --dry-run")

    node = terminal.running.pop()
    node.terminate()
    assert node.wait(60) == 0
    (folder / "data").rename(folder / "relay-data")
    assert terminal.type(EXAMPLES["store stats"])
    terminal.type(EXAMPLES["store verify"])
    terminal.type(EXAMPLES["store gc"])
    terminal.type(EXAMPLES["store export"])
    assert (folder / "messages.jsonl").read_text().count("\n") == 1
    terminal.type(EXAMPLES["store repair"])
    terminal.type(EXAMPLES["store import"])
