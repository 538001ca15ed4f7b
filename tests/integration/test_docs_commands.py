"""What the documentation tells people to type works, in the order in which it tells them.

Ports and the peer id are the only things that differ: a test may not count on a port being free.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, sha3_commitment
from luxrelay.bus.finality import FinalityRow, FinalityState, FinalityStatement
from luxrelay.errors import SyncUnreachableError
from luxrelay.node.folder import read_runtime
from luxrelay.node.keyfile import read_shared_key
from luxrelay.store import IncomingMessage, RelayStore
from luxrelay.sync import RelaySyncServer, SyncServerConfig
from luxrelay.sync.rpc.client import RelaySyncClient

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
LUXRELAY = f"{shlex.quote(sys.executable)} -m luxrelay"
OTHER_PORTS = '[http]\nlisten = "127.0.0.1:0"\n[gossip]\nlisten = ["/ip4/127.0.0.1/tcp/0"]\n'
ASKING = ("publish", "query", "head")
"""Commands that ask the relay of the usual port unless they are told another."""


def typed(page: str) -> list[str]:
    """Return the lines of a page's indented blocks, without their remarks."""
    text = (ROOT / page).read_text().replace("\\\n", " ")
    lines = re.findall(
        r"^ {4}((?:LUXRELAY_.*)?luxrelay .*|echo .*|curl .*|openssl .*)$", text, re.MULTILINE
    )
    return [re.sub(r"\s+#.*", "", line) for line in lines]


class Terminal:
    """A folder in which commands are typed."""

    def __init__(self, folder: Path) -> None:
        """Begin in an empty folder."""
        self.folder = folder
        self.ports: dict[str, str] = {}
        self.running: list[subprocess.Popen[bytes]] = []

    def moved(self, text: str) -> str:
        """Return a text with ports of this test in the place of the usual ones."""
        return re.sub(
            r"(127\.0\.0\.1[:/](?:tcp/)?)(96\d\d)",
            lambda match: match[1] + self.port(match[2]),
            text,
        )

    def port(self, usual: str) -> str:
        """Return the port that stands for a usual one."""
        while usual not in self.ports:
            with socket.create_server(("127.0.0.1", 0)) as free:
                found = str(free.getsockname()[1])
            if found not in self.ports.values():  # the system may give a closed one out again
                self.ports[usual] = found
        return self.ports[usual]

    def end(self) -> None:
        """End what runs, and close what it was told by."""
        for process in self.running:
            process.kill()
            process.wait()
            if process.stdin is not None:
                with suppress(OSError):
                    process.stdin.close()

    def type(self, line: str) -> str:
        """Run a line in a shell, which must succeed; return what it printed."""
        words = shlex.split(line)
        if any(f"luxrelay {each} " in line for each in ASKING) and "--relay" not in words:
            line = re.sub(r"luxrelay (\w+)", r"luxrelay \1 --relay 127.0.0.1:9641", line)
        done = subprocess.run(
            ["/bin/sh", "-c", self.moved(re.sub(r"\bluxrelay ", f"{LUXRELAY} ", line))],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def begin(self, line: str) -> subprocess.Popen[bytes]:
        """Run a line that does not end by itself."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "luxrelay", *shlex.split(self.moved(line))[1:]],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.running.append(process)
        return process

    def move_listeners(self) -> None:
        """Have the node of ``relay.toml`` listen on this test's ports instead of the usual ones."""
        path = self.folder / "relay.toml"
        told = re.sub(r"^#: (listen = .*96\d\d.*)$", r"\1", path.read_text(), flags=re.MULTILINE)
        path.write_text(self.moved(told))

    def run_node(
        self,
        line: str,
        folder: Path,
        eventually: Callable[..., Any],
        variables: dict[str, str] | None = None,
    ) -> Any:
        """Start a node by its line and return where it listens."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "luxrelay", *shlex.split(line)[1:]],
                cwd=self.folder,
                env={**os.environ, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self.running.append(process)

        def ready() -> Any:
            assert process.poll() is None, (self.folder / "log").read_text()
            return read_runtime(folder / "data")

        return eventually(ready)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A folder whose processes end with the test."""
    opened = Terminal(tmp_path)
    yield opened
    opened.end()


def test_the_tutorial(terminal: Terminal, eventually: Callable[..., Any]) -> None:
    """Whoever follows it sees on the second relay what was said to the first."""
    page = "docs/tutorial/three-relays.md"
    configs = re.findall(r"```toml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    lines = typed(page)
    check, run, keys, publish, query, head, query_two, again, status, metrics = lines
    one, two = terminal.folder / "one", terminal.folder / "two"
    for folder, config in zip((one, two), configs, strict=True):
        folder.mkdir()
        (folder / "relay.toml").write_text(terminal.moved(config))

    terminal.type(check)
    runtime = terminal.run_node(run, one, eventually)
    terminal.type(keys)
    assert "yes" in terminal.type(publish)
    assert "is anybody here?" in terminal.type(query)
    assert terminal.type(head)
    text = (two / "relay.toml").read_text()
    text = re.sub(r"/p2p/\w+", f"/p2p/{runtime.peer_id}", text)
    (two / "relay.toml").write_text(text)
    terminal.run_node(run.replace("one/", "two/"), two, eventually)
    eventually(lambda: "is anybody here?" in terminal.type(query_two))
    terminal.type(again)
    eventually(lambda: "good morning" in terminal.type(query_two))
    assert json.loads(terminal.type(status))["name"] == "one"
    assert "relay_store_messages 3.0" in terminal.type(metrics)


def test_the_readme(terminal: Terminal, eventually: Callable[..., Any]) -> None:
    """Its quick start: a node of its own making, a message published and read."""
    init, run, keys, publish, query, simulate, doctor = typed("README.md")

    terminal.type(init)
    terminal.move_listeners()
    terminal.run_node(run, terminal.folder, eventually)
    terminal.type(keys)
    terminal.type(publish)
    assert "hello" in terminal.type(query)
    assert terminal.type(f"{simulate} --nodes 40")
    terminal.type(doctor)


def test_how_to_simulate(terminal: Terminal) -> None:
    """Every command of the page, with fewer nodes; the page's own scenario too."""
    page = "docs/how-to/simulate.md"
    (config,) = re.findall(r"```toml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (terminal.folder / "slow-and-lossy.toml").write_text(config)

    for line in typed(page):
        short = re.sub(r" --nodes \d+", "", line)
        said = terminal.type(f"{short} --nodes 20" if " sim run " in line else line)
        assert said

    assert (terminal.folder / "sim-out").is_dir()
    assert (terminal.folder / "before" / "churn.json").exists()


def test_how_to_operate(terminal: Terminal, eventually: Callable[..., Any]) -> None:
    """The page's commands on a node of a first configuration, backed up while it runs."""
    terminal.type("luxrelay node init --topic /chat/1/room")
    terminal.move_listeners()
    gateway = {
        "LUXRELAY_GATEWAY_LISTEN": terminal.moved("127.0.0.1:9643"),
        "LUXRELAY_GATEWAY_ADMIN_LISTEN": terminal.moved("127.0.0.1:9644"),
    }
    for line in typed("docs/how-to/operate.md"):
        if " node run" in line:
            terminal.run_node(line, terminal.folder, eventually, gateway)
        elif " namespace " in line:
            terminal.type(f"{line} --gateway 127.0.0.1:9644")
        else:
            terminal.type(line)


def test_how_to_write_a_policy(terminal: Terminal, eventually: Callable[..., Any]) -> None:
    """The friend whom the policy lists publishes, a stranger is refused, and a version follows."""
    page = "docs/how-to/write-a-policy.md"
    (form,) = re.findall(r"```json\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    lines = typed(page)
    keys, (encode, sign, name, check, run, publish, query, update, recheck) = lines[:3], lines[3:]
    for line in keys:
        terminal.type(line)
    fields = {
        who: terminal.type(f"luxrelay keys export-public {who}.pem").strip()
        for who in ("owner", "friend")
    }
    first = form.replace("OWNER", fields["owner"]).replace("FRIEND", fields["friend"])
    policy = json.loads(first)
    policy["writers"]["list"].sort(key=lambda each: each["value"])
    (terminal.folder / "policy.json").write_text(json.dumps(policy))
    (terminal.folder / "policy-2.json").write_text(json.dumps({**policy, "version": 2}))
    terminal.type("luxrelay node init --profile messenger --topic /chat/1/room")
    terminal.move_listeners()

    for line in (encode, sign, name, check):
        terminal.type(line)
    terminal.run_node(run, terminal.folder, eventually)
    terminal.type(publish)
    assert "hello" in terminal.type(query)
    terminal.type("luxrelay keys new stranger.pem")
    refused = terminal.moved(publish.replace("friend", "stranger")).removeprefix("luxrelay ")
    done = subprocess.run(
        ["/bin/sh", "-c", f"{LUXRELAY} {refused} --relay {terminal.moved('127.0.0.1:9641')}"],
        cwd=terminal.folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "write" in done.stdout + done.stderr
    terminal.type(update)
    terminal.type(recheck)


def test_how_to_take_prepaid_quotas(terminal: Terminal, eventually: Callable[..., Any]) -> None:
    """The page's quota pays its owner's messages, and the node tells what is left."""
    page = "docs/how-to/prepaid.md"
    (config,) = re.findall(r"```toml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    new, public, check, run, alice, owner, issue, show, publish, left = typed(page)
    terminal.type("luxrelay node init --profile messenger --topic /chat/1/room")
    terminal.move_listeners()
    for line in (new, public):
        terminal.type(line)
    issuer = (terminal.folder / "issuer.pub").read_text().strip()
    told = (terminal.folder / "relay.toml").read_text()
    told = told.replace("[fees]\n", config.replace("ISSUER", issuer))
    gateway = terminal.moved('[gateway]\nlisten = "127.0.0.1:9643"\nadmin_listen = ""\n')
    told = told.replace("[gateway]\n", gateway)
    (terminal.folder / "relay.toml").write_text(told)
    terminal.type(check)
    terminal.run_node(run, terminal.folder, eventually)
    terminal.type(alice)
    issue = issue.replace("OWNER", terminal.type(owner).strip())
    for line in (issue, show, publish):
        terminal.type(line)
    (shown,) = json.loads(terminal.type(left))
    assert shown["node"]["honoured"]
    assert shown["node"]["messagesLeft"] == shown["messagesLimit"] - 2


def test_how_to_secure(terminal: Terminal, eventually: Callable[..., Any]) -> None:
    """The certificates that the page makes let its own command in, and nobody without one."""
    page = "docs/how-to/secure.md"
    config, *_ = re.findall(r"```toml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    local = terminal.moved(config.replace("0.0.0.0:", "127.0.0.1:"))
    (terminal.folder / "relay.toml").write_text(local + OTHER_PORTS)

    for line in typed(page):
        if " node run" in line:
            terminal.run_node(line, terminal.folder, eventually)
        else:
            terminal.type(line)
    line = terminal.moved("--relay 127.0.0.1:9641 --tls-ca ca.pem --topic /chat/1/room")
    done = subprocess.run(
        ["/bin/sh", "-c", f"{LUXRELAY} head {line}"],
        cwd=terminal.folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1


def test_how_to_use_a_channel(terminal: Terminal, eventually: Callable[..., Any]) -> None:
    """The keys that the page makes open the chat that it opens."""
    shared, keys, chat = typed("docs/how-to/use-a-channel.md")
    for line in (shared, keys, "luxrelay node init --profile messenger --topic /chat/1/room"):
        terminal.type(line)
    assert len(read_shared_key(terminal.folder / "room.key")) == 32
    terminal.move_listeners()
    run = "luxrelay node run --config relay.toml"
    admin = {"LUXRELAY_GATEWAY_ADMIN_LISTEN": "127.0.0.1:0"}
    gateway = {"LUXRELAY_GATEWAY_LISTEN": "127.0.0.1:0", **admin}
    runtime = terminal.run_node(run, terminal.folder, eventually, gateway)
    scopes = "--scope read --scope publish"
    terminal.type(f"luxrelay node token new --config relay.toml {scopes} --out alice.token alice")
    rest = f"--gateway {runtime.gateway} --token-file alice.token --max-retransmissions 1"

    said = terminal.type(f"echo hello | {chat} {rest} --acknowledgement-timeout-ms 100")

    events = [json.loads(line) for line in said.splitlines()]
    assert [each["event"] for each in events][::2] == ["sending", "reliable:message:send-error"]


def test_two_terminals(terminal: Terminal, eventually: Callable[..., Any]) -> None:
    """The chat of the tutorial: what alice types bob reads, and the other way round."""
    init, run, keys, token, chat = typed("docs/tutorial/chat.md")
    terminal.type(init)
    terminal.move_listeners()
    variable, _, run = run.partition(" ")
    name, _, address = terminal.moved(variable).partition("=")
    runtime = terminal.run_node(
        run,
        terminal.folder,
        eventually,
        {name: address, "LUXRELAY_GATEWAY_ADMIN_LISTEN": "127.0.0.1:0"},
    )
    assert runtime.gateway == address

    def join(who: str) -> subprocess.Popen[bytes]:
        for line in (keys, token):
            terminal.type(line.replace("alice", who))
        words = shlex.split(chat.replace("alice", who))[1:]
        with (terminal.folder / f"{who}.said").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "luxrelay", *words, "--gateway", address],
                cwd=terminal.folder,
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        terminal.running.append(process)
        return process

    def reads(who: str, text: str) -> bool:
        said = (terminal.folder / f"{who}.said").read_text()
        assert talking[who].poll() is None, said
        return text in said

    talking = {who: join(who) for who in ("alice", "bob")}
    for who in talking:
        eventually(lambda who=who: reads(who, "in friends"))
    for who, other in (("alice", "bob"), ("bob", "alice")):
        line = talking[who].stdin
        assert line is not None
        line.write(f"hello from {who}\n".encode())
        line.flush()
        eventually(lambda who=who, other=other: reads(other, f"hello from {who}"))
    for process in talking.values():
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def _archived(stack: ExitStack, terminal: Terminal, line: str) -> tuple[str, str]:
    """Serve messages of two namespaces on two relays; return consensus' key and the other name.

    One of the namespaces is that of the page's question by namespace, and a message of it is final.
    """
    key, consensus = (
        SigningKey.from_seed(SignatureScheme.ED25519, bytes([number]) * 32) for number in (41, 42)
    )
    (name,) = re.findall(r"--namespace (\w+)", line)
    now = time.time_ns() // 1_000_000
    headers = [
        key.sign_header(
            MsgHeader(
                namespace_id=NamespaceId(bytes.fromhex(each)),
                seq=seq,
                timestamp=now - 9_000 + seq,
                blob_commitment=sha3_commitment(b"as the page says"),
                blob_len=16,
                policy_hash=b"p" * 32,
            )
        )
        for each in (name, "0b" * 20)
        for seq in (1, 2, 3)
    ]
    for port in ("9641", "9642"):
        store = RelayStore.open(terminal.folder / port, now_ms=now)
        stack.callback(store.close)
        store.put_many(
            [
                IncomingMessage(
                    header=header,
                    blob=b"as the page says",
                    parent=header.namespace_id,
                    received_at=now,
                )
                for header in headers
            ],
            now,
        )
        server = RelaySyncServer(
            store,
            SyncServerConfig(port=int(terminal.port(port))),
            clock_ms=lambda: now,
            handoff=store,
        )
        server.start()
        stack.callback(server.stop, 0)
    final = FinalityRow(headers[0].namespace_id, 1, headers[0].header_hash, FinalityState.FINALIZED)
    said = FinalityStatement(network="main", number=1, issued_ms=now, rows=(final,))
    text = said.signed_by(consensus).encode().hex() + "\n"
    (terminal.folder / "statements.hex").write_text(text)
    return consensus.public_field.hex(), "0b" * 20


@pytest.mark.spark
@pytest.mark.long
def test_how_to_archive(terminal: Terminal, eventually: Callable[..., Any]) -> None:
    """Every command of the page but those of a cluster (test_archive_cluster.py types them)."""
    lines = [line for line in typed("docs/how-to/archive.md") if "--master" not in line]
    doctor, read, finality, audit, one, by_time, sql, restore, serve, follow, *upkeep = lines
    compact, retain, erase, report = upkeep
    with ExitStack() as stack:
        signer, other = _archived(stack, terminal, one)
        terminal.type(doctor)
        assert re.search(r"messages +6\b", terminal.type(read))
        assert re.search(r"messages +1\b", terminal.type(finality.replace("HEX", signer)))
        assert "gaps" not in terminal.type(audit).lower()
        asked = json.loads(terminal.type(f"{one} --json"))
        assert [row["seq"] for row in asked["messages"]] == [1, 2, 3]
        assert all(row["proof"] for row in asked["messages"])
        window = re.sub(r"--from-ms \d+ --to-ms \d+", f"--from-ms 0 --to-ms {2**62}", by_time)
        assert len(json.loads(terminal.type(f"{window} --json"))["messages"]) == 6
        assert "6" in terminal.type(sql)
        terminal.type(restore)
        serving = terminal.begin(serve.replace("9651", terminal.port("9651")))
        address = f"127.0.0.1:{terminal.port('9651')}"

        def served() -> bool:
            try:
                with RelaySyncClient(address) as client:
                    return len(list(client.list_heads())) == 2
            except SyncUnreachableError:
                return False

        eventually(served)
        following = terminal.begin(follow.replace("9464", terminal.port("9464")))
        page = f"http://127.0.0.1:{terminal.port('9464')}/metrics"
        eventually(lambda: _shows(page, "luxrelay_archive_runs_total"), 400)
        for process in (following, serving):
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0, (terminal.folder / "log").read_text()
        terminal.type(compact)
        terminal.type(retain)
        assert re.search(r"messages +3\b", terminal.type(erase.replace("HEX", other)))
        terminal.type(report)
    assert (terminal.folder / "archive.html").read_text().startswith("<!doctype html>")


def _shows(page: str, metric: str) -> bool:
    """Return whether a page of metrics has one that is above zero."""
    try:
        with urllib.request.urlopen(page, timeout=10) as answer:  # noqa: S310  our own address
            text = answer.read().decode()
    except OSError:
        return False
    found = re.search(rf"^{metric}(?:{{.*}})? ([0-9.]+)$", text, re.MULTILINE)
    return found is not None and float(found[1]) > 0
