"""One story through the whole product, by the doors that its users have.

An owner makes a namespace with a list of writers, whose messages an issuer's quotas pay. Two of
them write, one with a TFHE sidecar; a validator, which hears of it on ``headers/global`` alone,
follows the ordered view and signs finality; a light node's user reads one sender; an archive takes
everything and proves it. Who may not write, who has not paid, who goes back in time and whose
sidecar was swapped is refused with the same code at every door, gossip among them; what gossip does
with a swapped sidecar stands in ``test_sidecars.py``, because no relay passes one on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from luxrelay.archive.proofs import InclusionProof
from luxrelay.bus import (
    CiphertextType,
    Code,
    MsgHeader,
    NamespaceId,
    SigningKey,
    TFHECiphertext,
    TFHESidecar,
    lane,
)
from luxrelay.bus.finality import FinalityState
from luxrelay.bus.prepaid import PrepaidPayer
from luxrelay.cli.main import main
from luxrelay.cli.quotas import read_quotas
from luxrelay.client import LaneSigner, Outgoing, PublishStream, RelayClient
from luxrelay.errors import LuxRelayError, QuotaError
from luxrelay.node.keyfile import read_key_file
from luxrelay.sync import PublishItem, RelaySyncClient

if TYPE_CHECKING:
    from tests.conftest import NodeProcess

    from luxrelay.node.folder import Runtime

pytestmark = [pytest.mark.slow, pytest.mark.spark]
PEOPLE = ("owner", "issuer", "alice", "bob", "stranger", "validator")
HEADERS = "/lux/test/relay/headers/global"
SECRET = TFHECiphertext(type=CiphertextType.U64, data=b"opaque " * 1000)
WRITES = 3
"""Messages of each writer; a quota pays one more, which the story needs later."""


def now_ms() -> int:
    """Return the wall clock."""
    return time.time_ns() // 1_000_000


@dataclass
class Story:
    """What has happened so far."""

    folder: Path
    said: Callable[..., str]
    """Runs a command that must succeed and returns what it printed."""
    failed: Callable[..., tuple[str, str]]
    """Runs a command that must fail and returns what it printed, and its errors."""
    eventually: Callable[..., Any]
    nodes: dict[str, NodeProcess] = field(default_factory=dict)
    places: dict[str, Runtime] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    namespace: NamespaceId = field(default_factory=lambda: NamespaceId(b""))
    policy_hash: str = ""

    def pem(self, name: str) -> Path:
        """Return somebody's key file."""
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> SigningKey:
        """Return somebody's key, as an application opens it."""
        return read_key_file(self.pem(name), None)

    def lane(self, name: str) -> NamespaceId:
        """Return somebody's lane in the namespace."""
        return lane(self.namespace, self.key(name).public_field)

    def payer(self, name: str) -> PrepaidPayer:
        """Return somebody's payer, as a new process has one: it has counted nothing."""
        return PrepaidPayer(self.key(name), read_quotas(self.folder / f"{name}.quota"))

    def signer(self, name: str, seq: int = 1) -> LaneSigner:
        """Return somebody's signer, whose next message has this sequence."""
        policy = bytes.fromhex(self.policy_hash[2:])
        fee = self.payer(name)
        return LaneSigner(
            self.key(name),
            self.namespace,
            policy_hash=policy,
            bound_network="test",
            next_seq=seq,
            fee=fee,
        )

    def client(self, node: str) -> RelayClient:
        """Return a client of a node's gateway with its token."""
        return RelayClient(self.places[node].gateway, token=self.tokens.get(node, ""))

    def publish(self, name: str, *words: object) -> list[object]:
        """Return the words of the command that publishes for somebody."""
        return ["publish", "--relay", self.places["relay"].sync, "--namespace",
                self.namespace.hex(), "--policy-hash", self.policy_hash, "--key", self.pem(name),
                "--quota", self.folder / f"{name}.quota", "--bound", "test", "--json",
                *words]  # fmt: skip

    def start(self, node: NodeProcess, **more: str | bool) -> Runtime:
        """Start a node that carries the namespace by the policy, and give it a token."""
        name = node.folder.name
        issuer = self.said("keys", "export-public", self.pem("issuer"))
        node.sections["fees"] = {
            "prepaid_issuers": [issuer],
        }
        node.sections["node"]["signing"] = "bound"
        node.sections["gateway"] = {
            "listen": "127.0.0.1:0", "grpc_listen": "127.0.0.1:0", "admin_listen": "",
        }  # fmt: skip
        if "relay" in self.places:
            node.sections["gossip"]["peers"] = list(self.places["relay"].gossip)
        carried = {"id": self.namespace.hex(), **more}
        node.topics, plain = [], node.write_config

        def write() -> None:
            plain()
            with node.config.open("a") as config:
                config.write("[[namespace]]\n")
                config.writelines(f"{key} = {json.dumps(text)}\n" for key, text in carried.items())

        node.write_config = write  # type: ignore[method-assign]
        self.nodes[name], self.places[name] = node, node.start()
        return self.places[name]

    def let_publish(self, node: str) -> None:
        """Make a token of a node."""
        file = self.folder / f"{node}.token"
        self.said("node", "token", "new", "--config", self.nodes[node].config, "--scope", "publish",
                  "--scope", "read", "--out", file, "tester")  # fmt: skip
        self.tokens[node] = file.read_text().strip()

    def counted(self, node: str, code: Code) -> float:
        """Return how many messages of peers a node has refused for a reason, as its page says."""
        with urllib.request.urlopen(
            f"http://{self.places[node].http}/metrics", timeout=30
        ) as answer:
            lines = answer.read().decode().splitlines()
        mark = f'luxrelay_verdicts_total{{code="{code.name.lower()}",door="gossip",verdict='
        return sum(float(line.split()[-1]) for line in lines if line.startswith(mark))


@pytest.fixture
def story(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], eventually: Callable[..., Any]
) -> Story:
    """A folder with everybody's keys."""

    def run(*words: object) -> int:
        capsys.readouterr()
        return main([str(each) for each in words])

    def said(*words: object) -> str:
        code = run(*words)
        out, errors = capsys.readouterr()
        assert code == 0, errors
        return out.strip()

    def failed(*words: object) -> tuple[str, str]:
        assert run(*words) == 1
        return tuple(capsys.readouterr())

    told = Story(tmp_path, said, failed, eventually)
    for name in PEOPLE:
        said("keys", "new", told.pem(name))
    return told


def test_the_story(story: Story, new_node: Callable[[str], NodeProcess]) -> None:
    """From the owner's key to the archive's proof (LP-6410, LP-6411, LP-6420, LP-6421)."""
    the_owner_makes_a_namespace(story)
    four_nodes_carry_it(story, new_node)
    two_writers_publish(story)
    a_validator_finalizes(story)
    a_light_node_reads_one_sender(story)
    bad = dict(bad_messages(story))
    for (name, code), message in (*bad.items(), *swapped_sidecars(story)):
        refused_at_every_door(story, message, code, name)
    the_command_refuses(story)
    gossip_refuses(story, new_node, bad)
    an_archive_proves_it(story)


def the_owner_makes_a_namespace(story: Story) -> None:
    """Derive the id, sign the policy, issue the quotas: all by command."""
    shown = json.loads(story.said("keys", "show", story.pem("owner"), "--json"))
    derived = json.loads(
        story.said(
            "namespace", "derive", "--owner", shown["address"], "--salt", "5a" * 32, "--block", 7
        )
    )
    story.namespace = NamespaceId(bytes.fromhex(derived["namespaceId"][2:]))
    fields = {name: story.said("keys", "export-public", story.pem(name)) for name in PEOPLE}
    policy = json.dumps(
        {
            "owner": {"type": "raw_key", "value": fields["owner"]},
            "writers": {
                "mode": "allowlist",
                "list": [
                    {"type": "raw_key", "value": value}
                    for value in sorted((fields["alice"], fields["bob"]))
                ],
            },
            "encryptionMode": "tfhe",
            "customParams": {"prepaidIssuers": [fields["issuer"]]},
            "rateLimit": {
                "messagesPerSecond": 1000, "bytesPerSecond": 10**6, "burstMessages": 1000,
            },
        }
    )  # fmt: skip
    story.policy_hash = story.said("policy", "encode", policy, "--hash")
    signed = story.said("policy", "sign", policy, "--key", story.pem("owner"), "--network", "test",
                        "--namespace", story.namespace.hex())  # fmt: skip
    (story.folder / "room.policy").write_text(signed + "\n")
    (story.folder / "statements.hex").write_text("")
    for name in ("alice", "bob", "stranger"):
        quota = story.said("fees", "issue", "--key", story.pem("issuer"), "--network", "test",
                           "--owner", fields[name], "--messages", WRITES, "--namespace",
                           story.namespace.hex())  # fmt: skip
        (story.folder / f"{name}.quota").write_text(quota + "\n")


def four_nodes_carry_it(story: Story, new_node: Callable[[str], NodeProcess]) -> None:
    """A relay, and a validator, a light node and a store of its own kind behind it."""
    policy = str(story.folder / "room.policy")
    signer = story.said("keys", "export-public", story.pem("validator"))
    listed = {
        "validators": {"keys": [signer]},
        "finality": {"file": str(story.folder / "statements.hex"), "refresh_ms": 200},
    }
    relay = new_node("relay")
    relay.sections |= listed
    story.start(relay, policy_file=policy)
    story.let_publish("relay")
    others = [new_node(name) for name in ("validator", "light", "store")]
    for node in others:
        node.sections["node"]["profile"] = node.folder.name
        node.sections |= listed
        if node.folder.name == "validator":
            node.sections["sync"]["reconcile_interval_ms"] = 0
        else:
            node.sections["sync"]["peers"] = [story.places["relay"].sync]

    def start(node: NodeProcess) -> None:
        story.start(node, policy_file=policy, headers_only=node.folder.name == "validator")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(start, others))
    with story.client("relay") as client:
        story.eventually(
            lambda: client.described("/v1/peers")["mesh"].get(HEADERS, 0) >= 2, seconds=60
        )


def two_writers_publish(story: Story) -> None:
    """Alice by command, in two runs, and bob by the client, each paid by a quota."""
    for words in (["hello"], [f"hello {n}" for n in range(2, WRITES + 1)]):
        receipts = json.loads(story.said(*story.publish("alice", *words)))
        assert all(each["stored"] for each in receipts)
    signer = story.signer("bob")
    with story.client("relay") as client:
        messages = [
            signer.sign(b"bob %d" % n, now_ms(), ciphertext=SECRET if n == 1 else None)
            for n in range(WRITES)
        ]

        def stored() -> bool:
            try:
                return all(each.stored for each in client.publish(messages))
            except LuxRelayError:
                return False  # the token is not known yet

        story.eventually(stored, seconds=30)
    shown = json.loads(
        story.said(
            "fees", "show", story.folder / "alice.quota", "--gateway", story.places["relay"].gateway
        )
    )
    assert shown[0]["node"]["messagesLeft"] == 0


def told(story: Story, node: str, count: int, *words: object) -> list[dict[str, Any]]:
    """Return messages that `luxrelay subscribe` is told at a node."""
    text = story.said("subscribe", "--gateway", story.places[node].gateway, "--namespace",
                      story.namespace.hex(), "--bound", "test", "--json", "--count", count,
                      *words)  # fmt: skip
    return [json.loads(line) for line in text.splitlines()]


def a_validator_finalizes(story: Story) -> None:
    """What the ordered view of its node tells, it signs; every node then knows it."""
    seen = told(story, "validator", 2 * WRITES, "--ordered")
    headers = [MsgHeader.from_json(each["header"]) for each in seen]
    for name in ("alice", "bob"):
        mine = [each for each in headers if each.namespace_id == story.lane(name)]
        assert [each.seq for each in mine] == [*range(1, WRITES + 1)]
        assert mine == sorted(mine, key=lambda each: each.timestamp)
    assert all(each["blob"] is None for each in seen)  # headers alone
    with story.client("validator") as client:
        assert HEADERS in client.described("/v1/peers")["mesh"]
        assert story.namespace.hex() not in str(client.described("/v1/peers")["mesh"])
    rows = [f"{h.namespace_id.hex()}:{h.seq}:{h.header_hash.hex()}" for h in headers]
    line = story.said("finality", "sign", "--key", story.pem("validator"), "--network", "test",
                      "--number", 1, *rows)  # fmt: skip
    with (story.folder / "statements.hex").open("a") as file:
        file.write(line + "\n")
    for node in ("relay", "validator", "store"):
        with story.client(node) as client:
            for name in ("alice", "bob"):
                story.eventually(
                    lambda client=client, name=name: (
                        client.head(story.lane(name)).finalized_seq == WRITES
                    ),
                    seconds=60,
                )


def a_light_node_reads_one_sender(story: Story) -> None:
    """Its user is told bob's messages and no others; the sidecar is kept at the store as well."""
    seen = told(story, "light", WRITES, "--sender", story.key("bob").public_field.hex())
    assert [b64decode(each["blob"]) for each in seen] == [b"bob %d" % n for n in range(WRITES)]
    header = MsgHeader.from_json(seen[1]["header"])
    assert header.tfhe_sidecar is not None
    commitment = header.tfhe_sidecar.commitment
    with RelaySyncClient(story.places["store"].sync) as store:  # which asks nobody for it
        story.eventually(lambda: store.get_blob(commitment), seconds=60)
    with story.client("store") as client:
        container = TFHESidecar.decode(client.sidecar(header))
    assert container.ciphertext == SECRET.data


def bad_messages(story: Story) -> Iterator[tuple[tuple[str, Code], Outgoing]]:
    """Yield messages that are each wrong in one way only, with the code of that."""
    stranger = story.signer("stranger").sign(b"let me in", now_ms())
    yield ("an unlisted writer", Code.POLICY_VIOLATION), stranger
    spent = story.signer("alice", WRITES + 1).sign(b"once more", now_ms())
    yield ("a spent quota", Code.FEE_TOO_LOW), spent
    # A process with a clock that was set back, which has not asked for the head.
    back = story.signer("bob", WRITES + 1).sign(b"yesterday", now_ms() - 20_000)
    yield ("a regressed timestamp", Code.TIMESTAMP_INVALID), back


def swapped_sidecars(story: Story) -> Iterator[tuple[tuple[str, Code], Outgoing]]:
    """Yield bob's message with another container, and with a reference to another one."""
    mine, other = (
        story.signer("bob", WRITES + 1).sign(
            b"with a secret", now_ms(), ciphertext=TFHECiphertext(type=CiphertextType.U8, data=data)
        )
        for data in (b"mine", b"other")
    )
    yield ("a swapped sidecar", Code.SIDECAR_INVALID), replace(mine, sidecar=other.sidecar)
    header = MsgHeader.decode(mine.header)
    reference = MsgHeader.decode(other.header).tfhe_sidecar
    swapped = replace(header, tfhe_sidecar=reference).encode()
    wrong = replace(mine, header=swapped, sidecar=other.sidecar)
    yield ("a swapped reference", Code.INVALID_SIGNATURE), wrong


WORDS: Mapping[Code, str] = {
    Code.POLICY_VIOLATION: "does not let this sender write",
    Code.FEE_TOO_LOW: f"0 of {WRITES} messages",
    Code.TIMESTAMP_INVALID: "before",
    Code.SIDECAR_INVALID: "sidecar",
    Code.INVALID_SIGNATURE: "signature",
}
"""What the reason says."""


def refused_at_every_door(story: Story, message: Outgoing, code: Code, name: str) -> None:
    """HTTP, WebSocket, the client, and gRPC at the sync port and at the gateway."""
    place = story.places["relay"]
    status, problem = post(story, message)
    assert status == 422, name
    (receipt,) = problem["receipts"]
    found = [(receipt["code"], receipt["stored"], receipt["reason"])]
    with story.client("relay") as client:
        answers = [*client.publish([message])]
        with PublishStream(client) as stream:
            answers += stream.publish([message])
    found += [(each.code, each.stored, each.reason) for each in answers]
    item = PublishItem(
        header=message.header,
        blob=message.blob,
        parent_id=message.parent,
        sidecar=message.sidecar,
    )
    for address, token in ((place.sync, ""), (place.grpc, story.tokens["relay"])):
        with RelaySyncClient(address, token=token) as relay:
            (each,) = relay.publish([item])
        found.append((each.code, each.stored, each.reason))
    assert [(each[0], each[1]) for each in found] == [(code, False)] * 5, (name, found)
    assert all(WORDS[code] in each[2] for each in found), (name, found)


def post(story: Story, message: Outgoing) -> tuple[int, dict[str, Any]]:
    """Return what plain HTTP answers to a publication."""
    request = urllib.request.Request(
        f"http://{story.places['relay'].gateway}/v1/messages",
        data=message.encode(),
        headers={
            "Authorization": f"Bearer {story.tokens['relay']}",
            "Content-Type": "application/vnd.luxrelay.messages",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def the_command_refuses(story: Story) -> None:
    """An unlisted writer and a spent quota; its own stamps never go back."""
    out, errors = story.failed(*story.publish("stranger", "let me in"))
    assert json.loads(out)[0]["code"] == Code.POLICY_VIOLATION
    assert "(code 1003)" in errors
    _, errors = story.failed(*story.publish("alice", "once more"))
    assert f"0 of {WRITES} messages" in errors
    assert "code 1007" in errors
    payer = story.payer("alice")
    with story.client("relay") as client:
        use = client.quota(payer.quotas[0].account)
    payer.follow(use.account, use.messages_used, use.bytes_used)
    signer = LaneSigner(story.key("alice"), story.namespace, bound_network="test", fee=payer)
    with pytest.raises(QuotaError, match="code 1007"):
        signer.sign(b"once more", now_ms())


def gossip_refuses(
    story: Story,
    new_node: Callable[[str], NodeProcess],
    bad: Mapping[tuple[str, Code], Outgoing],
) -> None:
    """A careless relay that knows neither writers nor history passes them on to nobody."""
    careless = new_node("careless")
    careless.sections["sync"] |= {"reconcile_interval_ms": 3_600_000}
    story.start(careless, policy_hash=story.policy_hash)
    story.let_publish("careless")
    with story.client("careless") as client:
        story.eventually(
            lambda: any(
                story.namespace.hex() in each and peers
                for each, peers in client.described("/v1/peers")["mesh"].items()
            ),
            seconds=60,
        )
        for (name, code), message in reversed(bad.items()):
            before = story.counted("relay", code)

            def taken(message: Outgoing = message, name: str = name) -> bool:
                try:
                    (receipt,) = client.publish([message])
                except LuxRelayError:
                    return False  # the token is not known yet
                assert receipt.stored, (name, receipt)
                return True

            story.eventually(taken, seconds=30)
            story.eventually(
                lambda code=code, before=before: story.counted("relay", code) > before, seconds=30
            )
    for node in ("relay", "validator", "light", "store"):
        with story.client(node) as client:
            latest = [client.head(story.lane(name)).latest_seq for name in ("alice", "bob")]
            assert latest == [WRITES, WRITES], node
            assert client.head(story.lane("stranger")).latest_seq == 0


def an_archive_proves_it(story: Story) -> None:
    """Spark reads the store's node; the answers have proofs and finality, and need no Spark."""
    out = story.folder / "archive"
    signer = story.said("keys", "export-public", story.pem("validator"))
    done = subprocess.run(
        [sys.executable, "-m", "luxrelay", "archive", "ingest", "--relay",
         story.places["store"].sync, "--out", str(out), "--policies",
         str(story.folder / "room.policy"), "--network", "test", "--bound", "--finality",
         str(story.folder / "statements.hex"), "--finality-signer", signer, "--json",
         "--spark", "spark.sql.codegen.wholeStage=false",  # a few rows are not worth compiling
         "--spark", "spark.sql.codegen.factoryMode=NO_CODEGEN"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    def query(*words: object) -> Any:
        return json.loads(story.said("archive", "query", "--out", out, *words, "--json"))

    roots = {row["root"] for row in query("--sql", "SELECT root FROM roots")}
    for name in ("alice", "bob"):
        mine = story.lane(name)
        found = query("--namespace", mine.hex(), "--proof")["messages"]
        assert [each["seq"] for each in found] == [*range(1, WRITES + 1)]
        for each in found:
            assert each["finality"] == FinalityState.FINALIZED
            told = each["proof"]
            assert told["root"] in roots
            path = tuple(bytes.fromhex(step[2:]) for step in told["path"])
            content, root = bytes.fromhex(each["contentId"][2:]), bytes.fromhex(told["root"][2:])
            day = {"day": told["day"], "count": told["count"], "index": told["index"]}
            proof = InclusionProof(namespace=mine, path=path, **day)
            assert proof.holds(each["seq"], content, root)
    assert query("--sql", "SELECT count(*) AS n FROM messages") == [{"n": 2 * WRITES}]
