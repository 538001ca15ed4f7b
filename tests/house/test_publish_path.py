"""How many files of ours a published message passes, from HTTP to the disk and a peer's stream."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any

import pytest

from luxrelay.bus import SignatureScheme, SigningKey, topic_namespace
from luxrelay.client import LaneSigner, RelayClient
from luxrelay.errors import LuxRelayError
from luxrelay.node.folder import Runtime, read_runtime
from luxrelay.node.gateway.tokens import TokenFile

if TYPE_CHECKING:
    from tests.conftest import NodeProcess

FILES_MAX = 50
"""Files that a publish may pass (ADR 0008); this goes down only."""
ROUNDS, ROUNDS_MAX = 8, 40
"""Publishes at least and at most; what only some of them passed was something else that ran
meanwhile, on a slow machine in many of them."""
TRACED = """
import json, sys, threading
from pathlib import Path
import luxrelay

root = str(Path(luxrelay.__file__).parent)
seen, on = set(), False

def note(frame, event, _):
    if on and event == "call" and frame.f_code.co_filename.startswith(root):
        seen.add(frame.f_code.co_filename[len(root) + 1 :])

def heed():
    global on
    for line in sys.stdin:
        on = line.strip() == "on"
        if on:
            seen.clear()
        print(json.dumps(sorted(seen)), flush=True)

threading.Thread(target=heed, daemon=True).start()
threading.setprofile(note)
sys.setprofile(note)
from luxrelay.cli.main import main
sys.exit(main(["node", "run", "--config", sys.argv[1]]))
"""


@contextmanager
def traced(node: NodeProcess) -> Iterator[tuple[Runtime, Callable[[str], list[str]]]]:
    """Run a node that says which of our files it calls while it is told to look."""
    node.write_config()
    with (node.folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", TRACED, str(node.config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    said: IO[str] = process.stdin
    heard: IO[str] = process.stdout

    def tell(word: str) -> list[str]:
        said.write(word + "\n")
        said.flush()
        while not (line := heard.readline()).startswith("["):
            assert line, (node.folder / "log").read_text()
        return list(json.loads(line))

    try:
        until = time.monotonic() + 120
        while (place := read_runtime(node.folder / "data")) is None or place.pid != process.pid:
            assert time.monotonic() < until
            assert process.poll() is None, (node.folder / "log").read_text()
            process.poll()
        yield place, tell
    finally:
        process.terminate()
        process.wait(30)
        said.close()
        heard.close()


@pytest.mark.slow
def test_a_publish_passes_few_files(
    new_node: Callable[[str], NodeProcess], eventually: Callable[..., Any]
) -> None:
    """From the request to the receipt, and until a peer has it."""
    names = {"gateway": {"listen": "127.0.0.1:0", "admin_listen": ""}}
    other, node = new_node("other"), new_node("traced")
    for each in (other, node):
        each.sections |= names
        each.sections["sync"] |= {"interval_ms": 600_000, "stranger_ms_per_s": 0}
        each.sections["gossip"] |= {"heartbeat_ms": 2_000}
    place = other.start()
    node.sections["gossip"]["peers"] = list(place.gossip)
    parent = topic_namespace(node.topics[0])
    signer = LaneSigner(SigningKey.from_seed(SignatureScheme.ED25519, b"\5" * 32), parent)
    passed: list[set[str]] = []
    with ExitStack() as stack:
        here, tell = stack.enter_context(traced(node))
        token, _ = TokenFile(node.folder / "data", 8).new("tester", ["read", "publish"], 0)
        client = stack.enter_context(RelayClient(here.gateway, token=token))
        peer = stack.enter_context(RelayClient(place.gateway))

        def has(seq: int) -> bool:
            try:
                return peer.head(signer.namespace_id).latest_seq >= seq
            except LuxRelayError:
                return False

        def publish() -> int:
            seq = signer.next_seq
            message = signer.sign(b"x", time.time_ns() // 1_000_000)
            (receipt,) = client.publish([message])
            assert receipt.stored, receipt
            return seq

        def arrived() -> bool:
            try:
                return has(publish())
            except LuxRelayError:
                return False  # the token is not known yet

        eventually(arrived)  # until the two are in one mesh
        while len(passed) < ROUNDS_MAX:
            tell("on")
            seq = publish()
            eventually(lambda seq=seq: has(seq))
            passed.append(set(tell("off")))
            common = sorted(set.intersection(*passed))
            if len(passed) >= ROUNDS and len(common) <= FILES_MAX:
                break
    print(f"{len(common)} files:", *common, sep="\n  ")
    assert "store/rocks.py" in common
    assert "gossip/router.py" in common
    assert len(common) <= FILES_MAX
