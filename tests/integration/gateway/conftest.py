"""A gateway on a real store and real doors, in a thread of its own; libp2p stays away."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from luxrelay.bus import PolicyRegistry, SigningKey, topic_namespace
from luxrelay.bus.policy import default_policy
from luxrelay.bus.registry import RegistryConfig
from luxrelay.client import LaneSigner, Outgoing, RelayClient
from luxrelay.errors import AddressError
from luxrelay.gossip import GossipStats
from luxrelay.net import NetStats
from luxrelay.net.addresses import peer_id_from_text, peer_text
from luxrelay.net.bans import BanList
from luxrelay.net.host import HostStats
from luxrelay.net.links import DriverCounters
from luxrelay.net.swarm import SwarmCounters
from luxrelay.net.yamux import MuxCounters
from luxrelay.node.archive_fallback import OlderMessages
from luxrelay.node.carried import CarriedNamespace, CarriedNamespaces
from luxrelay.node.dashboard.live import Dashboard
from luxrelay.node.dashboard.state import DashboardSources
from luxrelay.node.gateway.admin import PeerControl
from luxrelay.node.gateway.bounds import Work
from luxrelay.node.gateway.config import GatewayConfig
from luxrelay.node.gateway.http import GatewayParts
from luxrelay.node.gateway.http_auth import Rates
from luxrelay.node.gateway.service import GatewayService
from luxrelay.node.gateway.tokens import TokenFile
from luxrelay.node.ingress import Doors
from luxrelay.node.missing_blobs import WantedBlobs
from luxrelay.node.node import first_error
from luxrelay.node.stages.deliver import Feed
from luxrelay.node.stages.verify import Judge, JudgeConfig, StoreKnowledge
from luxrelay.store import RelayStore, RelayStoreConfig
from luxrelay.sync import FairnessConfig, PublishItem, SyncClientConfig, SyncServerConfig

TOPIC = "/chat/1/room"
PARENT = topic_namespace(TOPIC)
TTL_MS = 3_600_000
GENEROUS = GatewayConfig(
    listen="127.0.0.1:0",
    admin_listen="127.0.0.1:0",
    requests_per_s=1_000_000,
    publish_bytes_per_s=2**40,
)


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Answer:
    """What a plain HTTP client got."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Stand:
    """A running gateway and what tests ask of it."""

    def __init__(self, folder: Path, config: GatewayConfig) -> None:
        """Start it."""
        self.config = config
        self.folder = folder
        self.store = RelayStore.open(
            folder / "store", RelayStoreConfig(cold_store_ttl_ms=TTL_MS), now_ms=now_ms()
        )
        policies = {PARENT: frozenset({default_policy(PARENT).policy_hash})}
        self.judge = Judge(StoreKnowledge(self.store), policies, JudgeConfig(ttl_ms=TTL_MS), now_ms)
        self.tokens = TokenFile(folder, config.tokens_max)
        self.address = self.admin_address = self.grpc = self.grpc_admin = ""
        self.fault: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="gateway", daemon=True)
        self._thread.start()
        assert self._ready.wait(30)
        if self.fault is not None:
            raise self.fault

    def _main(self) -> None:
        try:
            trio.run(self._serve)
        except BaseExceptionGroup as group:  # the test thread raises it
            self.fault = first_error(group)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self.feed = Feed(self._token.run_sync_soon, now_ms)
        self.doors = Doors(
            store=self.store,
            judge=self.judge,
            identity=SigningKey.generate(),
            network="test",
            inline_blob_max=1024,
            clock_ms=now_ms,
            spread=lambda items: [2] * len(items),
            wanted=WantedBlobs(ttl_ms=TTL_MS),
            deliver=self.feed.stored,
            completed=self.feed.completed,
        )
        # A busy machine is no archive that is away.
        patient = SyncClientConfig(call_s=60, page_s=60, connect_s=60)
        named = self.config.archive
        self.older = older = OlderMessages(named, config=patient) if named else None

        parts = GatewayParts(
            store=self.store,
            publish=self.doors.publish,
            blob=lambda commitment: self.store.get_blob(commitment, now_ms()),
            older=older,
            receipts=self.doors.receipts,
            quotas=self.doors.quotas,
            net=_no_net,
            explain=lambda peer: None,  # noqa: ARG005  there are no peers
            status=lambda: {"name": "stand"},
            carried=CarriedNamespaces(
                [
                    CarriedNamespace(
                        namespace_id=PARENT,
                        content_topic=TOPIC,
                        policy_hash=default_policy(PARENT).policy_hash,
                    ),
                ]
            ),
            registry=PolicyRegistry(RegistryConfig(network="test")),
            work=Work(self.config.work_max, self.config.work_waiting_max),
            rates=Rates(self.config),
            config=self.config,
            clock_ms=now_ms,
            in_order=self.judge.in_order,
            info={"name": "stand", "version": "1", "network": "test"},
            sync=SyncServerConfig(
                window_ms=TTL_MS,
                fairness=FairnessConfig(stall_s=3_600.0),  # what the gateway says must hold
            ),
        )
        sources = DashboardSources(
            store=self.store,
            counts=self.doors.counts,
            latency=self.doors.latency,
            net=_no_net,
            explain=lambda peer: None,  # noqa: ARG005  there are no peers
            status=parts.status,
            healthy=lambda: (True, {"fault": ""}),
            namespaces=parts.carried.entries,
            clock_ms=now_ms,
            info=parts.info,
        )
        self.dashboard = dashboard = Dashboard(sources, self.feed, parts.work, self.config)
        tokens = TokenFile(self.folder, self.config.tokens_max)
        self.service = GatewayService(parts, self.feed, dashboard, tokens, _control())
        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as nursery:
                places = await nursery.start(self.service.run)
                self.address, self.admin_address, self.grpc, self.grpc_admin = places
                self._ready.set()

    def stop(self) -> None:
        """End it."""
        if self._thread.is_alive():
            self._token.run_sync_soon(self._scope.cancel)
            self._thread.join(30)
        assert not self._thread.is_alive()
        self.judge.close()
        self.store.close()

    def on_loop(self, call: Callable[[], Any]) -> Any:
        """Return what a call on the gateway's loop returns."""
        return trio.from_thread.run_sync(call, trio_token=self._token)

    def token(self, *scopes: str, **more: Any) -> str:
        """Return a new token that the gateway knows already."""
        text, _ = self.tokens.new("tester", scopes, now_ms(), **more)
        app = self.service._public_app
        app._tokens._looked = float("-inf")
        return text

    def client(self, *scopes: str, **more: Any) -> RelayClient:
        """Return a client with a token of these scopes."""
        token = self.token(*scopes) if scopes else ""
        return RelayClient(self.address, token=token, timeout_s=20, **more)

    def fetch(
        self,
        path: str,
        *,
        method: str = "GET",
        body: bytes | None = None,
        admin: bool = False,
        **headers: str,
    ) -> Answer:
        """Return what a plain HTTP client gets; names of headers with _ for -."""
        address = self.admin_address if admin else self.address
        request = urllib.request.Request(
            f"http://{address}{path}",
            data=body,
            method=method,
            headers={name.replace("_", "-"): text for name, text in headers.items()},
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
                return Answer(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, dict(error.headers), error.read())

    def raw(self, data: bytes, *, seconds: float = 10.0, admin: bool = False) -> bytes:
        """Send bytes, close our side, and return all that comes until the end."""
        host, _, port = (self.admin_address if admin else self.address).rpartition(":")
        received = b""
        with socket.create_connection((host, int(port)), timeout=seconds) as stream:
            try:
                stream.sendall(data)
                stream.shutdown(socket.SHUT_WR)
                while part := stream.recv(65_536):
                    received += part
            except OSError:
                pass  # being cut off is an answer
        return received

    def store_line(
        self, count: int, *, key: SigningKey | None = None, first: int = 1
    ) -> LaneSigner:
        """Put messages of one lane through the publish door; return its signer."""
        signer = LaneSigner(key or SigningKey.generate(), PARENT, next_seq=first)
        self.publish(
            [signer.sign(b"message %d" % seq, now_ms()) for seq in range(first, first + count)]
        )
        return signer

    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Publish without HTTP; each must be stored."""
        receipts = self.doors.publish(
            [PublishItem(header=m.header, blob=m.blob, parent_id=m.parent) for m in messages]
        )
        assert all(receipt.stored for receipt in receipts), receipts


async def _nobody(peer: str) -> bool:
    """There are no peers to disconnect."""
    await trio.lowlevel.checkpoint()
    return not peer


def _control() -> PeerControl:
    """A real list of bans; there is nobody to disconnect."""
    bans = BanList(10)

    async def ban(text: str, seconds: int, reason: str) -> bool:
        await trio.lowlevel.checkpoint()
        try:
            bans.ban(peer_id_from_text(text), now_ms() + seconds * 1000, reason)
        except AddressError:
            return False
        return True

    def lift(text: str) -> bool:
        try:
            return bans.lift(peer_id_from_text(text))
        except AddressError:
            return False

    def shown() -> list[dict[str, Any]]:
        return [
            {"peerId": peer_text(peer), "untilMs": each.until_ms, "reason": each.reason}
            for peer, each in bans.all(now_ms()).items()
        ]

    return PeerControl(disconnect=_nobody, ban=ban, lift=lift, bans=shown)


def _no_net() -> NetStats:
    return NetStats(
        host=HostStats(
            inbound=0,
            outbound=0,
            peers=0,
            bytes_in=0,
            bytes_out=0,
            swarm=SwarmCounters(),
            mux=MuxCounters(),
        ),
        router=GossipStats(),
        driver=DriverCounters(),
        peers={},
    )


@pytest.fixture
def stand_with(tmp_path: Path) -> Iterator[Callable[..., Stand]]:
    """A maker of gateways whose configuration differs from a generous one."""
    stands: list[Stand] = []

    def make(**changes: Any) -> Stand:
        stand = Stand(tmp_path / f"stand{len(stands)}", replace(GENEROUS, **changes))
        stands.append(stand)
        return stand

    yield make
    for stand in stands:
        stand.stop()


@pytest.fixture
def stand(stand_with: Callable[..., Stand]) -> Stand:
    """A gateway that bounds nothing a test meets."""
    return stand_with()


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """One gateway for the tests of a module that only ask it things."""
    stand = Stand(tmp_path_factory.mktemp("standing"), GENEROUS)
    yield stand
    stand.stop()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A self-signed certificate for localhost and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(folder / "cert.pem"), str(folder / "key.pem")
