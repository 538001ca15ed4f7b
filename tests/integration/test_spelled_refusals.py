"""Refusals say why, how much is allowed and when again, at every door of a whole node."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import SigningKey, topic_namespace
from luxrelay.cli.main import main
from luxrelay.client import (
    Beyond,
    LaneSigner,
    Outgoing,
    PublishStream,
    RelayClient,
    Subscribe,
    subscribe,
)
from luxrelay.sync import PublishItem, RelaySyncClient
from luxrelay.sync.following import FollowedBeyond, SubscribeWanted

pytestmark = [pytest.mark.slow, pytest.mark.trial]
TOPIC = "/chat/1/room"
NAMESPACE = topic_namespace(TOPIC)
RATE, BURST = 2, 6
WORDS = "the sender's rate is used up: 2 messages/s, burst 6; again in "


class Door:
    """A node whose senders have a small rate, with all its doors."""

    def __init__(self, node: Any, capsys: pytest.CaptureFixture[str]) -> None:
        node.sections["limits"]["sender_messages_per_s"] = RATE
        node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
        node.sections["gateway"]["grpc_listen"] = "127.0.0.1:0"
        self.node = node
        self.runtime = node.start()
        self.token_file = node.folder / "token"
        made = ["node", "token", "new", "--config", str(node.config), "--scope", "publish"]
        assert main([*made, "--scope", "read", "--out", str(self.token_file), "tester"]) == 0
        self.token = self.token_file.read_text().strip()
        capsys.readouterr()

    def client(self) -> RelayClient:
        """Return a client that may publish."""
        return RelayClient(self.runtime.gateway, token=self.token, timeout_s=60)

    def publish(self, *words: str, lines: str = "") -> subprocess.CompletedProcess[str]:
        """Run the command with lines on its standard input."""
        key = self.node.folder / "alice.pem"
        if not key.exists():
            main(["keys", "new", str(key)])
        return subprocess.run(
            [
                *(sys.executable, "-m", "luxrelay", "publish", "--relay", self.runtime.sync),
                *("--topic", TOPIC, "--key", str(key), *words),
            ],
            input=lines,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture
def door(new_node: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> Door:
    """A node with a small rate."""
    return Door(new_node("relay-1"), capsys)


def signed(count: int) -> list[Outgoing]:
    """Return messages of a fresh sender."""
    signer = LaneSigner(SigningKey.generate(), NAMESPACE)
    now_ms = time.time_ns() // 1_000_000
    return [signer.sign(b"m%d" % n, now_ms) for n in range(count)]


def post(door: Door, messages: list[Outgoing]) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Return what plain HTTP answers to a publication."""
    request = urllib.request.Request(
        f"http://{door.runtime.gateway}/v1/messages",
        data=b"".join(each.encode() for each in messages),
        headers={
            "Authorization": f"Bearer {door.token}",
            "Content-Type": "application/vnd.luxrelay.messages",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status, dict(answer.headers), json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), json.load(error)


def items(messages: list[Outgoing]) -> list[PublishItem]:
    """Return messages as gRPC takes them."""
    return [PublishItem(header=m.header, blob=m.blob, parent_id=m.parent) for m in messages]


def test_a_publication_above_a_rate_is_told_whose_how_much_and_when_again(door: Door) -> None:
    """The same numbers over HTTP, the WebSocket, the client and gRPC of both ports."""
    status, headers, problem = post(door, signed(BURST * 4))
    assert status == 429
    assert problem["detail"].startswith(WORDS)
    assert 1 <= problem["retryAfterMs"] <= 1000 / RATE
    assert headers["Retry-After"] == "1"
    refused = [each for each in problem["receipts"] if not each["stored"]]
    assert refused
    assert all(0 < each["retryAfterMs"] <= 1000 / RATE for each in refused)

    with door.client() as client:
        last = client.publish(signed(BURST * 4))[-1]
        assert last.reason.startswith(WORDS)
        assert last.retry_after is not None
        assert 0 < last.retry_after <= 1 / RATE
        with PublishStream(client) as stream:
            last = stream.publish(signed(BURST * 4))[-1]
            assert last.reason.startswith(WORDS)
            assert last.retry_after_ms > 0

    for address, token in ((door.runtime.sync, ""), (door.runtime.grpc, door.token)):
        with RelaySyncClient(address, token=token) as relay:
            receipt = relay.publish(items(signed(BURST * 4)))[-1]
        assert receipt.reason.startswith(WORDS)
        assert 0 < receipt.retry_after_ms <= 1000 / RATE


def test_what_the_store_has_no_room_for_is_told_with_its_bytes(
    new_node: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A full quota says which and how full, to HTTP, a WebSocket, the sync port and the command."""
    node = new_node("relay-1")
    node.sections["store"] |= {"when_full": "refuse", "namespace_quota_bytes": 2_000}
    door = Door(node, capsys)
    signer = LaneSigner(SigningKey.generate(), NAMESPACE)

    def sign() -> Outgoing:
        return signer.sign(bytes(500), time.time_ns() // 1_000_000)

    with door.client() as client, PublishStream(client) as stream:
        while (receipt := client.publish([sign()])[0]).stored:
            assert signer.next_seq < 9
        told = [receipt.reason, stream.publish([sign()])[0].reason]
    with RelaySyncClient(door.runtime.sync) as sync:
        message = sign()
        (taken,) = sync.publish(
            [PublishItem(header=message.header, blob=message.blob, parent_id=NAMESPACE)]
        )
    ran = door.publish(lines="x" * 500 + "\n")

    told += [taken.reason, ran.stderr]
    for each in told:
        assert "its namespace holds 1," in each
        assert "of 2,000 bytes, the message takes" in each
    assert ran.returncode == 1


def test_the_limits_page_shows_the_rates_of_messages(door: Door) -> None:
    """Whoever reads it first need not be refused."""
    url = f"http://{door.runtime.gateway}/v1/limits"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {door.token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        limits = json.load(answer)
    assert limits["senderMessagesPerS"] == RATE
    assert limits["senderBurstMessages"] == BURST
    assert limits["peerMessagesPerS"] == limits["namespaceMessagesPerS"] == 0


def test_a_pipe_above_the_rate_is_stored_to_its_last_line(door: Door) -> None:
    """The command waits as the relay says, and keeps the order of the lines."""
    lines = [f"line {n}" for n in range(1, 16)]
    done = door.publish("--json", lines="\n".join(lines) + "\n")
    assert (done.returncode, done.stderr) == (0, "")
    receipts = json.loads(done.stdout)
    assert [each["seq"] for each in receipts] == list(range(1, 16))
    assert all(each["stored"] for each in receipts)


def test_what_was_not_stored_is_told_with_the_line_to_go_on_from(door: Door) -> None:
    """Without waiting the rest is refused: the reason is in the row and on stderr."""
    done = door.publish("--no-wait", lines="x\n" * 40)
    assert done.returncode == 1
    stored = done.stdout.count("accept")
    assert BURST <= stored < 40
    assert f"{40 - stored} of 40 not stored: {WORDS}" in done.stderr
    assert f"send again from line {BURST + 1}" in done.stderr
    assert WORDS in done.stdout


def test_nothing_to_publish_is_said(door: Door) -> None:
    """An empty standard input is no silent success."""
    done = door.publish()
    assert done.returncode == 0
    assert "standard input is empty" in done.stderr


def test_a_refused_time_says_direction_difference_and_tolerance(door: Door) -> None:
    """A sender sees whether its clock is ahead or behind, and by how much."""
    signer = LaneSigner(SigningKey.generate(), NAMESPACE)
    now_ms = time.time_ns() // 1_000_000
    for off_ms, side in ((41_000, "ahead of"), (-3_600_000, "behind")):
        with door.client() as client:
            (receipt,) = client.publish([signer.sign(b"late", now_ms + off_ms)])
        assert f" s {side} our clock, at most 30 s are allowed" in receipt.reason


def test_a_place_above_what_the_node_holds_is_told(door: Door, tmp_path: Path) -> None:
    """A node that lost its store says up to where it holds, over each door, and goes on."""
    assert door.publish("one", "two").returncode == 0
    with RelaySyncClient(door.runtime.sync) as relay:
        lanes = {head.namespace_id: head.latest_seq for head in relay.list_heads(NAMESPACE)}
        (lane,) = (each for each, latest in lanes.items() if latest == 2)
        events = relay.subscribe(SubscribeWanted(namespaces=[NAMESPACE], positions={lane: 3}))
        assert next(each for each in events if isinstance(each, FollowedBeyond)) == FollowedBeyond(
            lane, 2, 3
        )
        events.close()
    place = tmp_path / "place.json"
    place.write_text(json.dumps({lane.hex(): 3}))
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "luxrelay", "subscribe", "--gateway", door.runtime.gateway),
            *("--token-file", str(door.token_file), "--topic", TOPIC, "--place", str(place)),
            *("--count", "1"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stderr is not None
        assert f"this node holds up to 2 of {lane.hex()[:12]}, you are at 3" in next(
            iter(following.stderr)
        )
        assert "live" in next(iter(following.stderr))
        assert door.publish("three", "four").returncode == 0
        shown, _ = following.communicate(timeout=120)
    assert " 4  four" in shown
    with door.client() as client:
        wanted = Subscribe(namespaces=[NAMESPACE], after=99_999)
        for event in subscribe(client, wanted):
            if isinstance(event, Beyond) and event.namespace_id == lane:
                break
        assert (event.held, event.position) == (4, 99_999)


def test_the_command_publishes_through_a_gateway_with_a_token_file(door: Door) -> None:
    """Without the token the port refuses and says what it lacks."""
    relay = ["--relay", door.runtime.grpc]
    assert door.publish(*relay, "--token-file", str(door.token_file), "hello").returncode == 0
    refused = door.publish(*relay, "hello")
    assert refused.returncode != 0
    assert "token" in refused.stderr
