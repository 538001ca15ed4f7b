"""Whatever stands behind the address that a command is given, the command comes to an end."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hanging_ports import GATEWAYS, RELAYS, Encrypted, Listener, opened

from luxrelay.bus import topic_namespace
from luxrelay.cli.main import build_parser
from luxrelay.client import (
    AsyncRelayClient,
    PublishStream,
    RelayClient,
    Retry,
    Subscribe,
    subscribe,
    subscribe_async,
)
from luxrelay.errors import ClientRemoteError, ClientUnreachableError, LuxRelayError
from luxrelay.sync import RelaySyncClient, SyncClientConfig
from luxrelay.sync.following import SubscribeWanted
from luxrelay.testing.certificates import TestAuthority

TOPIC = "/chat/1/room"
END_S = 90.0
"""Seconds in which a command has ended that waits for one: a bound for a hang, not for a machine
that is busy."""
AT_ONCE_S = 10.0
"""Seconds in which a signal has ended a command."""
ADDRESS_WORDS = ("HOST:PORT", "ADDRESS", "URL")
"""How the parser names what is an address; a command that takes one says so."""
LISTENS = {("archive", "serve")}
"""Commands whose address is their own."""
SPARK = {("archive", name) for name in ("ingest", "audit", "report")}
"""Commands that ask relays with Spark; they are tried one port each, for Spark takes its time."""
MASTER = "--master"
"""The address of a Spark cluster: Spark's own to wait for."""


def leaves(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Yield each command with its parser."""
    groups = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not groups:
        yield path, parser
    for group in groups:
        for name, child in group.choices.items():
            yield from leaves(child, (*path, name))


def asking(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options of a command that are addresses to ask."""
    return [
        each.option_strings[0]
        for each in parser._actions
        if each.metavar in ADDRESS_WORDS and MASTER not in each.option_strings
    ]


def command(path: tuple[str, ...], address: str, folder: Path) -> list[str]:
    """Return the words of a command that asks ``address``, with a second for each wait."""
    key = folder / "key.pem"
    config = folder / "relay.toml"
    file = folder / "file"
    of_topic = ["--topic", TOPIC]
    wait = ["--timeout-s", "1"]
    relay, gateway = ["--relay", address, *wait], ["--gateway", address, *wait]
    once = ["--connect-s", "1"]
    spark = ["--relay", address, "--out", str(folder / "archive"), "--tasks", "1"]
    words = {
        ("publish",): [*relay, *of_topic, "--key", str(key), "hello"],
        ("query",): [*relay, *of_topic, "--lanes"],
        ("head",): [*relay, *of_topic],
        ("sync",): [*relay, "--config", str(config)],
        ("subscribe",): [*gateway, *of_topic, *once],
        ("peers",): gateway,
        ("doctor",): gateway,
        ("namespace", "follow"): [*gateway, *of_topic],
        ("namespace", "followed"): gateway,
        ("namespace", "unfollow"): [*gateway, *of_topic],
        ("fees", "show"): [*gateway, str(folder / "quota")],
        ("channel", "chat"): [
            "room", *gateway, *of_topic, "--key", str(key), *once, "--no-state"
        ],
        ("channel", "send"): [
            str(file), *gateway, *of_topic, "--key", str(key), "--channel", "room", *once,
            "--no-state",
        ],
        ("archive", "ingest"): spark,
        ("archive", "audit"): spark,
        ("archive", "report"): spark,
    }  # fmt: skip
    return [*path, *words[path]]


COMMANDS = {path: asking(parser) for path, parser in leaves(build_parser()) if asking(parser)}
ASKING = sorted(set(COMMANDS) - LISTENS - SPARK)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A key, a file to send, a node's configuration."""
    run("keys", "new", str(tmp_path / "key.pem"))
    key = ["--key", str(tmp_path / "key.pem")]
    whose = ["--network", "test", "--owner", "11" * 20, "--messages", "1", "--topic", TOPIC]
    issued = start("fees", "issue", *key, *whose)
    (tmp_path / "quota").write_text(issued.communicate()[0])
    (tmp_path / "file").write_bytes(b"hello")
    (tmp_path / "relay.toml").write_text(
        f'[node]\nname = "relay"\nnetwork = "test"\ndata_dir = "data"\n'
        f"[[namespace]]\ncontent_topic = {json.dumps(TOPIC)}\n"
    )
    return tmp_path


def start(*words: str) -> subprocess.Popen[str]:
    """Start the command; its input stays open and empty."""
    return subprocess.Popen(
        [sys.executable, "-m", "luxrelay", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONFAULTHANDLER": ""},
    )


def run(*words: str, end_s: float = END_S) -> tuple[int, str]:
    """Return a command's exit code and what it said of errors; -9 for one that did not end."""
    process = start(*words)
    try:
        process.wait(end_s)
    except subprocess.TimeoutExpired:
        process.kill()
    _, said = process.communicate()
    return process.returncode, said


def test_every_command_that_takes_an_address_is_tried() -> None:
    """A new one is found by its parser; its words are then to be written down here."""
    for path in COMMANDS:
        if path not in LISTENS:
            assert command(path, "127.0.0.1:1", Path("nowhere"))[: len(path)] == list(path)
    for path, parser in leaves(build_parser()):
        for each in parser._actions:
            named = {"relay", "gateway", "address", "host", "url", "peer_address"} & {each.dest}
            if named and path != ("store", "export"):
                assert each.metavar in ADDRESS_WORDS, (path, each.dest)


def ports_for(path: tuple[str, ...], folder: Path) -> dict[str, Callable[[], Listener]]:
    """Return the ports that a command meets, by kind."""
    certificate, key = folder / "node.pem", folder / "node-key.pem"
    shown = TestAuthority("test", at_ms=time.time_ns() // 1_000_000).sign("node")
    certificate.write_bytes(shown.certificate)
    key.write_bytes(shown.key)
    ports = GATEWAYS if "--gateway" in COMMANDS[path] else RELAYS
    return {**ports, "TLS": lambda: Encrypted(certificate, key)}


@pytest.mark.trial
@pytest.mark.slow
@pytest.mark.parametrize("path", ASKING, ids=" ".join)
def test_a_command_ends_and_says_what_it_waited_for(path: tuple[str, ...], folder: Path) -> None:
    """Exit code 1, the address, no traceback; of a silent port how long it was waited for."""
    kinds = ports_for(path, folder)
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        places = {kind: stack.enter_context(opened(make)).address for kind, make in kinds.items()}
        if "--gateway" in COMMANDS[path]:
            places["silence, TLS"] = f"https://{places['silence']}"
            places["clear, TLS"] = f"https://{places['garbage']}"
        cases = {kind: command(path, place, folder) for kind, place in places.items()}
        if path == ("sync",):  # one process at a time has a store
            for number, words in enumerate(cases.values()):
                own = folder / f"relay-{number}.toml"
                text = (folder / "relay.toml").read_text()
                own.write_text(text.replace('"data"', f'"data-{number}"'))
                words[words.index("--config") + 1] = str(own)
        ended = list(pool.map(lambda words: run(*words), cases.values()))
    for kind, (code, said) in zip(cases, ended, strict=True):
        assert code == 1, (kind, code, said)
        assert "Traceback" not in said, (kind, said)
        assert places[kind].removeprefix("https://") in said, (kind, said)
        if kind in {"silence", "a black hole", "a body that drips", "bytes that drip"}:
            assert "--timeout-s" in said, (kind, said)
            assert " s" in said, (kind, said)


@pytest.mark.trial
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
@pytest.mark.parametrize("path", ASKING, ids=" ".join)
def test_a_signal_ends_a_waiting_command_at_once(
    path: tuple[str, ...],
    number: signal.Signals,
    folder: Path,
    eventually: Callable[..., Any],
) -> None:
    """Whatever it waits for; exit code 130 after Ctrl-C, and no traceback."""
    with opened(GATEWAYS["silence"]) as port:
        words = command(path, port.address, folder)
        for option in ("--timeout-s", "--connect-s"):
            if option in words:
                words[words.index(option) + 1] = "3600"
        process = start(*words)
        try:
            eventually(lambda: port.taken or process.poll() is not None)
            process.send_signal(number)
            began = time.monotonic()
            process.wait(AT_ONCE_S)
        finally:
            process.kill()
            _, said = process.communicate()
    assert time.monotonic() - began < AT_ONCE_S
    assert process.returncode in ({130} if number == signal.SIGINT else {-15, 130, 143}), said
    assert "Traceback" not in said


def publish_nothing(client: RelayClient) -> None:
    """Wait for the receipts of no message."""
    with PublishStream(client) as stream:
        stream.publish([])


GATEWAY_CALLS: dict[str, Callable[[RelayClient], object]] = {
    "head": lambda client: client.head(topic_namespace(TOPIC)),
    "peers": lambda client: client.described("/v1/peers"),
    "blob": lambda client: client.blob(bytes(32)),
    "subscribe": lambda client: list(
        subscribe(client, WANTED, retry=Retry(first_contact_s=0.5, first_s=0.01))
    ),
    "publish stream": publish_nothing,
}
WANTED = Subscribe(namespaces=[topic_namespace(TOPIC)])


@pytest.mark.trial
@pytest.mark.slow
@pytest.mark.parametrize("kind", GATEWAYS)
def test_a_call_of_the_blocking_client_ends(kind: str) -> None:
    """Each in an error of the client's, in a time that what comes makes longer, and no drip."""
    with opened(GATEWAYS[kind]) as port:
        for name, call in GATEWAY_CALLS.items():
            with RelayClient(port.address, timeout_s=0.5) as client:
                began = time.monotonic()
                with pytest.raises((ClientUnreachableError, ClientRemoteError)) as caught:
                    call(client)
                assert time.monotonic() - began < END_S, name
                if isinstance(caught.value, ClientUnreachableError) and kind == "silence":
                    assert "was waited for 0.5 s" in str(caught.value), name


@pytest.mark.trial
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("kind", GATEWAYS)
def test_a_call_of_the_asynchronous_client_ends(kind: str, backend: str) -> None:
    """As a blocking one does."""

    async def ask(address: str) -> None:
        async with AsyncRelayClient(address, timeout_s=0.5) as client:
            with anyio.fail_after(END_S):
                with pytest.raises((ClientUnreachableError, ClientRemoteError)):
                    await client.head(topic_namespace(TOPIC))
                retry = Retry(first_contact_s=0.5, first_s=0.01)
                with pytest.raises((ClientUnreachableError, ClientRemoteError)):
                    async for _ in subscribe_async(client, WANTED, retry=retry):
                        pass

    with opened(GATEWAYS[kind]) as port:
        anyio.run(ask, port.address, backend=backend)


RELAY_CALLS: dict[str, Callable[[RelaySyncClient], object]] = {
    "head": lambda client: client.get_head(bytes(20)),
    "page": lambda client: client.sync_page(bytes(20)),
    "heads": lambda client: list(client.list_heads()),
    "subscribe": lambda client: next(
        client.subscribe(SubscribeWanted(namespaces=[topic_namespace(TOPIC)]))
    ),
}


@pytest.mark.trial
@pytest.mark.slow
@pytest.mark.parametrize("kind", RELAYS)
def test_a_call_of_a_sync_client_ends(kind: str) -> None:
    """Each in an error of ours, a subscription as well."""
    patience = replace(SyncClientConfig.waiting(0.5), silence_s=0.5)
    with opened(RELAYS[kind]) as port:
        for name, call in RELAY_CALLS.items():
            with RelaySyncClient(port.address, config=patience) as client:
                began = time.monotonic()
                with pytest.raises(LuxRelayError):
                    call(client)
                assert time.monotonic() - began < END_S, name
