"""Prepaid quotas from the issuer's command to each door of running nodes (LP-6411 §2.9; S7)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from luxrelay.bus import MsgHeader, SigningKey, lane, sha3_commitment, topic_namespace
from luxrelay.bus.fee import FeeProof
from luxrelay.bus.prepaid import PrepaidPayer, SignedQuota
from luxrelay.channel.runtime.remote import RemoteMessaging
from luxrelay.cli.main import main
from luxrelay.cli.quotas import read_quotas
from luxrelay.client import AsyncRelayClient, LaneSigner, Outgoing, PublishStream, RelayClient
from luxrelay.errors import LuxRelayError, MessagingError, QuotaError
from luxrelay.node.gateway.tokens import TokenFile
from luxrelay.node.keyfile import read_key_file
from luxrelay.sync import PublishItem, RelaySyncClient

if TYPE_CHECKING:
    from tests.conftest import NodeProcess

    from luxrelay.node.folder import Runtime

pytestmark = pytest.mark.slow
TOPIC, OTHER = "/chat/1/room", "/chat/1/elsewhere"
PARENT = topic_namespace(TOPIC)
FEE_TOO_LOW = 1007
Run = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs a command that must succeed, and returns what it printed; keys lie in the folder."""

    def run(*arguments: object) -> str:
        assert main([str(each) for each in arguments]) == 0
        return capsys.readouterr().out.strip()

    for name in ("issuer", "alice", "stranger"):
        run("keys", "new", tmp_path / f"{name}.pem")
    return run


@pytest.fixture
def issue(said: Run, tmp_path: Path) -> Callable[..., Path]:
    """Issues a quota to alice by command, and returns its file."""

    def run(name: str, *arguments: object, issuer: str = "issuer") -> Path:
        owner = said("keys", "export-public", tmp_path / "alice.pem")
        place = () if "--anywhere" in arguments or "--topic" in arguments else ("--topic", TOPIC)
        line = said("fees", "issue", "--key", tmp_path / f"{issuer}.pem", "--network", "test",
                    "--owner", owner, *place, *arguments)  # fmt: skip
        (tmp_path / name).write_text(line + "\n")
        return tmp_path / name

    return run


def charging(node: NodeProcess, said: Run, folder: Path, *, free: bool = False) -> NodeProcess:
    """Return the node as one that honours the issuer's quotas, with all its doors."""
    issuer = said("keys", "export-public", folder / "issuer.pem")
    node.sections["fees"] = {"prepaid_issuers": [issuer[2:]], "free_tier": free}
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    node.sections["gateway"]["grpc_listen"] = "127.0.0.1:0"
    return node


@contextmanager
def client_of(node: NodeProcess, place: Runtime) -> Iterator[RelayClient]:
    """Give a client that may publish, once the node knows its token."""
    text, _ = TokenFile(node.folder / "data", 8).new("tester", ["read", "publish"], 0)
    with RelayClient(place.gateway, token=text) as client:
        yield client


def publish(place: Runtime, key: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run the command with a sender's key."""
    return subprocess.run(
        [sys.executable, "-m", "luxrelay", "publish", "--relay", place.sync, "--topic", TOPIC,
         "--key", str(key), *map(str, words)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def now_ms() -> int:
    """Return the wall clock."""
    return time.time_ns() // 1_000_000


def test_a_quota_from_the_issuer_to_the_last_message(
    new_node: Callable[[str], NodeProcess],
    said: Run,
    issue: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """`fees issue`, `publish --quota`, `fees show`: spent is said before a sequence is used."""
    node = charging(new_node("relay"), said, tmp_path)
    place = node.start()
    quota, alice = issue("alice.quota", "--messages", 3, "--bytes", 100), tmp_path / "alice.pem"

    free = publish(place, alice, "hello")
    assert free.returncode == 1
    assert "needs a fee proof of kind 1" in free.stderr
    assert "(code 1007)" in free.stderr

    first = publish(place, alice, "--quota", quota, "one", "two")
    assert first.returncode == 0, first.stderr
    (shown,) = json.loads(said("fees", "show", quota, "--gateway", place.gateway))
    assert shown["valid"]
    assert shown["namespaceId"] == "0x" + PARENT.hex()
    assert shown["node"] == {
        "honoured": True, "messagesUsed": 2, "messagesLeft": 1, "bytesUsed": 6, "bytesLeft": 94,
    }  # fmt: skip

    # Another process, which asks the node what is left, and a third that finds nothing.
    second = publish(place, alice, "--quota", quota, "three", "four")
    assert second.returncode == 1
    assert "first line that is not known as stored: 2" in second.stderr
    assert "0 of 3 messages and 89 of 100 bytes are left" in second.stderr
    third = publish(place, alice, "--quota", quota, "four")
    assert "0 of 3 messages" in third.stderr
    more = issue("more.quota", "--messages", 1)
    assert publish(place, alice, "--quota", quota, "--quota", more, "four").returncode == 0
    lane = json.loads(said("namespace", "derive", "--topic", TOPIC, "--lane",
                           said("keys", "export-public", alice)))["lane"]  # fmt: skip
    with RelayClient(place.gateway) as client:
        head = client.head(bytes.fromhex(lane[2:]))  # type: ignore[arg-type]
        assert (head.latest_seq, head.contiguous_seq) == (4, 4)  # no sequence was burned

    # What was used is not forgotten.
    node.stop()
    place = node.start()
    (shown,) = json.loads(said("fees", "show", quota, "--gateway", place.gateway))
    assert shown["node"]["messagesLeft"] == 0


def test_each_refusal_has_its_code_and_numbers_at_every_door(
    new_node: Callable[[str], NodeProcess],
    eventually: Callable[..., Any],
    said: Run,
    issue: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """HTTP, WebSocket and gRPC of both ports; a client that does not look is told by the node."""
    node = charging(new_node("relay"), said, tmp_path)
    place = node.start()
    alice = read_key_file(tmp_path / "alice.pem", None)
    soon = now_ms() + 1
    (good,) = read_quotas(issue("good", "--messages", 1))
    (ended,) = read_quotas(issue("ended", "--messages", 1, "--expires-ms", soon))
    (elsewhere,) = read_quotas(issue("elsewhere", "--messages", 1, "--topic", OTHER))
    (unknown,) = read_quotas(issue("unknown", "--messages", 1, issuer="stranger"))
    eventually(lambda: now_ms() > soon)

    def paid(quota: SignedQuota | None, payer: SigningKey = alice) -> Outgoing:
        """Return a message of a fresh sender with a proof that nobody has looked at."""
        fee = None if quota is None else Careless(payer, quota)
        return LaneSigner(SigningKey.generate(), PARENT, fee=fee).sign(b"hello", now_ms())  # type: ignore[arg-type]

    with client_of(node, place) as client:

        def spent() -> bool:
            try:
                return client.publish([paid(good)])[0].stored
            except LuxRelayError:
                return False  # the token is not known yet

        eventually(spent, seconds=30)
        left = "0 of 1 messages and 1,019 of 1,024 bytes are left, the message takes 1 and 5"
        other, here = topic_namespace(OTHER).hex(), PARENT.hex()
        owner = f"not the quota's owner {alice.public_field.hex()}"
        refused = [
            (lambda: paid(None), "no free tier: the message needs a fee proof of kind 1"),
            (lambda: paid(good), left),
            (lambda: paid(ended), f"the quota ended at {soon} (Unix ms), "),
            (lambda: paid(elsewhere), f"for namespace {other}, the message is in {here}"),
            (lambda: paid(unknown), "none of the 1 that this node honours"),
            (lambda: paid(good, SigningKey.generate()), owner),
        ]
        for make, words in refused:
            for receipt in receipts(client, place, make):
                assert not receipt.stored
                assert receipt.code == FEE_TOO_LOW
                assert words in receipt.reason
        assert client.quota(good.account).messages_used == 1
        assert not client.quota(ended.account).charged
        with RelaySyncClient(place.sync) as relay:
            uses = relay.get_quotas([ended.account, good.account])
        assert [(use.messages_limit, use.messages_used, use.bytes_used) for use in uses] == [
            (0, 0, 0),
            (1, 1, 5),
        ]
        limits = client.described("/v1/limits")
        assert limits["freeTier"] is False
        assert limits["prepaidIssuers"] == [said("keys", "export-public", tmp_path / "issuer.pem")]


def test_a_policy_wants_what_is_free_elsewhere_prepaid(
    new_node: Callable[[str], NodeProcess],
    said: Run,
    issue: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """`customParams.prepaidIssuers`: a node with a free tier takes nothing unpaid there (S7)."""
    alice = tmp_path / "alice.pem"
    form = json.dumps(
        {
            "owner": {"type": "raw_key", "value": said("keys", "export-public", alice)},
            "customParams": {
                "prepaidIssuers": [said("keys", "export-public", tmp_path / "issuer.pem")]
            },
        }
    )
    node = charging(new_node("relay"), said, tmp_path, free=True)
    node.policy = said(
        "policy", "sign", form, "--key", alice, "--network", "test", "--topic", TOPIC
    )
    place = node.start()
    bound = ("--policy-hash", said("policy", "encode", form, "--hash"))

    free = publish(place, alice, *bound, "hello")
    assert free.returncode == 1
    assert "prepaid quota of one of 1 issuers, the message has a fee proof of kind 0" in free.stderr
    assert "(code 1007)" in free.stderr
    paid = publish(place, alice, *bound, "--quota", issue("quota", "--messages", 1), "hello")
    assert paid.returncode == 0, paid.stderr


def test_what_a_channel_sends_is_paid(
    new_node: Callable[[str], NodeProcess],
    eventually: Callable[..., Any],
    said: Run,
    issue: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """`RemoteMessaging(fee=…)`: a second process finds the quota spent before it sends."""
    node = charging(new_node("relay"), said, tmp_path)
    place = node.start()
    with client_of(node, place) as client:
        text = client.endpoint.token

        def known() -> bool:
            try:
                return bool(client.described("/v1/status"))
            except LuxRelayError:
                return False

        eventually(known, seconds=30)
    alice = read_key_file(tmp_path / "alice.pem", None)
    quotas = read_quotas(issue("quota", "--messages", 2))

    async def send(*payloads: bytes) -> None:
        async with AsyncRelayClient(place.gateway, token=text) as client:
            messaging = RemoteMessaging(client, alice, fee=PrepaidPayer(alice, quotas))
            for payload in payloads:
                assert (await messaging.send(TOPIC, payload)).stored

    trio.run(send, b"one", b"two")
    with pytest.raises(MessagingError, match="0 of 2 messages and 2,042 of 2,048") as refused:
        trio.run(send, b"three")
    assert refused.value.code == "channel.refused"
    with RelayClient(place.gateway) as client:
        assert client.head(lane(PARENT, alice.public_field)).latest_seq == 2


class Careless:
    """Attaches a proof from a quota without looking whether it pays."""

    def __init__(self, key: SigningKey, quota: SignedQuota) -> None:
        """Pay with a quota that may be somebody else's."""
        self._key, self._quota = key, quota

    def pay(self, header: MsgHeader, sender: bytes) -> MsgHeader:
        """Return the header of an Ed25519 sender, which has no flags, with a proof."""
        ready = replace(header, sender_pub_key=sender)
        proof = FeeProof.signed(self._quota.quota, ready, self._key, self._quota.network)
        return replace(ready, fee_proof=proof.encode())

    def sent(self, header: MsgHeader) -> None:
        """Count nothing."""


def receipts(client: RelayClient, place: Runtime, make: Callable[[], Outgoing]) -> Iterator[Any]:
    """Yield the receipt of a message at each door, a new one for each."""
    yield client.publish([make()])[0]
    with PublishStream(client) as stream:
        yield stream.publish([make()])[0]
    token = client.endpoint.token
    for address, shown in ((place.sync, ""), (place.grpc, token)):
        with RelaySyncClient(address, token=shown) as relay:
            each = make()
            item = PublishItem(header=each.header, blob=each.blob, parent_id=each.parent)
            yield relay.publish([item])[0]


def test_gossip_refuses_what_is_not_paid(
    new_node: Callable[[str], NodeProcess],
    eventually: Callable[..., Any],
    said: Run,
    issue: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """A peer that takes a message for free, or has not seen a quota spent, convinces nobody."""
    strict = charging(new_node("strict"), said, tmp_path)
    strict.topics = [TOPIC, OTHER]
    place = strict.start()
    alice = read_key_file(tmp_path / "alice.pem", None)
    (quota,) = read_quotas(issue("quota", "--anywhere", "--messages", 1))
    with client_of(strict, place) as client:
        spender = LaneSigner(
            SigningKey.generate(), topic_namespace(OTHER), fee=PrepaidPayer(alice, [quota])
        )
        message = spender.sign(b"x", now_ms())

        def spent() -> bool:
            try:
                return client.publish([message])[0].stored
            except LuxRelayError:
                return False

        eventually(spent, seconds=30)
    loose = charging(new_node("loose"), said, tmp_path, free=True)
    loose.sections["gossip"]["peers"] = list(place.gossip)
    there = loose.start()

    def ignored() -> float:
        with urllib.request.urlopen(f"http://{place.http}/metrics", timeout=10) as page:
            text = page.read().decode()
        name = 'luxrelay_verdicts_total{code="fee_too_low",door="gossip",verdict="ignore"} '
        return sum(float(line[len(name) :]) for line in text.splitlines() if line.startswith(name))

    with client_of(loose, there) as client:

        def counted(fee: PrepaidPayer | None) -> Callable[[], bool]:
            before = ignored()
            lane = LaneSigner(SigningKey.generate(), PARENT, fee=fee)

            def look() -> bool:
                try:
                    message = lane.sign(b"x", now_ms())
                    assert client.publish([message])[0].stored
                except QuotaError:
                    pass  # it was published already; the other node hears of it when it is meshed
                except LuxRelayError:
                    return False
                return ignored() > before

            return look

        eventually(counted(None), seconds=60)
        eventually(counted(PrepaidPayer(alice, [quota])), seconds=60)
    with RelayClient(place.gateway) as client:
        assert client.quota(quota.account).messages_used == 1


def test_proofs_by_command(
    new_node: Callable[[str], NodeProcess],
    eventually: Callable[..., Any],
    said: Run,
    issue: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """`header sign --quota` and `fees attach` make headers that a charging node takes."""
    node = charging(new_node("relay"), said, tmp_path)
    place = node.start()
    quota, alice = issue("quota", "--messages", 2), tmp_path / "alice.pem"
    field = said("keys", "export-public", alice)
    ids = json.loads(said("namespace", "derive", "--topic", TOPIC, "--lane", field))
    (tmp_path / "blob").write_bytes(b"hello")
    texts = []
    for seq, words in ((1, ["--quota", quota]), (2, [])):
        header = {
            "namespaceId": ids["lane"], "seq": seq, "timestamp": now_ms(),
            "policyHash": ids["defaultPolicyHash"],
        }  # fmt: skip
        (tmp_path / "header.json").write_text(json.dumps(header))
        texts.append(said("header", "sign", tmp_path / "header.json", "--key", alice,
                          "--blob", tmp_path / "blob", *words))  # fmt: skip
    texts[1] = said("fees", "attach", texts[1], "--quota", quota, "--key", alice)
    messages = [
        Outgoing(header=bytes.fromhex(text[2:]), blob=b"hello", parent=PARENT) for text in texts
    ]
    with client_of(node, place) as client:

        def stored() -> bool:
            try:
                return all(each.stored for each in client.publish(messages))
            except LuxRelayError:
                return False

        eventually(stored, seconds=30)
        assert client.quota(read_quotas(quota)[0].account).messages_used == 2


def test_a_blob_that_comes_after_the_last_message_is_kept(
    new_node: Callable[[str], NodeProcess],
    said: Run,
    issue: Callable[..., Path],
    eventually: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """Large blobs follow their headers: a quota that is used up by then has paid for them."""
    first, second = (charging(new_node(name), said, tmp_path) for name in ("relay", "other"))
    entry = first.start()
    second.sections["gossip"]["peers"] = [entry.gossip[0]]
    other = second.start()
    with client_of(second, other) as client:
        eventually(lambda: client.described("/v1/peers")["peers"], seconds=60)
    alice = read_key_file(tmp_path / "alice.pem")
    quota = issue("quota", "--messages", 3, "--bytes", 300_000)
    signer = LaneSigner(alice, PARENT, fee=PrepaidPayer(alice, read_quotas(quota)))
    messages = [signer.sign(bytes([n]) * 100_000, now_ms()) for n in range(3)]
    with client_of(first, entry) as client:

        def stored() -> bool:
            try:
                return all(each.stored for each in client.publish(messages))
            except LuxRelayError:
                return False  # the token is not known yet

        eventually(stored, seconds=30)
    with RelaySyncClient(other.sync) as relay:
        for each in messages:
            blob = eventually(
                lambda each=each: relay.get_blob(sha3_commitment(each.blob)), seconds=60
            )
            assert blob == each.blob


def test_what_a_command_cannot_do_is_refused(
    said: Run, issue: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody else's quota, a header that is not signed, a file that holds none, wrong words."""
    quota, alice = str(issue("quota", "--messages", 2)), str(tmp_path / "alice.pem")
    stranger = str(tmp_path / "stranger.pem")
    ids = json.loads(said("namespace", "derive", "--topic", TOPIC))
    header = json.dumps({"namespaceId": ids["namespaceId"], "seq": 1,
                         "policyHash": ids["defaultPolicyHash"]})  # fmt: skip
    forged = said("header", "sign", header, "--key", alice).replace(
        ids["namespaceId"][2:], "11" * 20
    )
    (tmp_path / "none").write_text("# nothing yet\n\n")
    issued = ["fees", "issue", "--key", alice, "--messages", "1", "--anywhere"]
    for words, part in (
        (["header", "sign", header, "--key", stranger, "--quota", quota], "the payer is"),
        (["fees", "attach", forged, "--quota", quota, "--key", alice], "header sign --quota"),
        (["fees", "show", alice], "alice.pem:1"),
        (["fees", "show", str(tmp_path / "none")], "it holds no quota"),
        (["fees", "show", str(tmp_path / "absent")], "cannot read it"),
        (["publish", "--topic", TOPIC, "--key", alice, "--payer", alice, "x"], "nothing to pay"),
        ([*issued, "--network", "\u00e9", "--owner", "11" * 20], "a network has"),
        ([*issued, "--network", "test", "--owner", "11" * 21], "raw key"),
    ):
        assert main(words) != 0
        assert part in capsys.readouterr().err, words
