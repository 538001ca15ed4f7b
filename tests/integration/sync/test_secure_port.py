"""TLS, mutual TLS, health and reflection over real gRPC."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from luxrelay.errors import SyncUnreachableError
from luxrelay.sync import (
    ClientTls,
    FairnessConfig,
    RelaySyncClient,
    RelaySyncServer,
    ServerTls,
    SyncClientConfig,
    SyncServerConfig,
)
from luxrelay.sync.rpc.callers import key_fingerprint
from luxrelay.testing.certificates import TestAuthority

if TYPE_CHECKING:
    from tests.integration.sync.conftest import Harbour

AUTHORITY = TestAuthority("ca", at_ms=time.time_ns() // 1_000_000)
STRANGERS = TestAuthority("strangers", at_ms=time.time_ns() // 1_000_000)
RELAY = AUTHORITY.sign("relay.example")
CLIENT = AUTHORITY.sign("client")
QUICK = SyncClientConfig(call_s=5.0)


def secured(
    harbour: Harbour, *, client_ca: bytes = b"", config: SyncServerConfig | None = None
) -> str:
    """Serve a store with two messages over TLS; return the address."""
    store = harbour.store(harbour.author().messages([1, 2]))
    tls = ServerTls(certificate=RELAY.certificate, key=RELAY.key, client_ca=client_ca)
    server = RelaySyncServer(
        store, config or SyncServerConfig(port=0), clock_ms=lambda: harbour.base_ms, tls=tls
    )
    harbour.servers.append(server)
    return f"127.0.0.1:{server.start()}"


def client(harbour: Harbour, address: str, tls: ClientTls | None) -> RelaySyncClient:
    """Return a client that gives up soon."""
    found = RelaySyncClient(address, config=QUICK, tls=tls)
    harbour.clients.append(found)
    return found


def test_serve_over_tls(harbour: Harbour) -> None:
    """P37: a client that believes the authority is served, by address and by name."""
    address = secured(harbour)
    namespace = harbour.author().lane

    plain = client(harbour, address, ClientTls(ca=AUTHORITY.certificate))
    named = ClientTls(ca=AUTHORITY.certificate, server_name="relay.example")

    assert len(plain.sync_page(namespace).messages) == 2
    assert client(harbour, address, named).get_head(namespace).latest_seq == 2


@pytest.mark.parametrize(
    "tls",
    [
        None,
        ClientTls(ca=STRANGERS.certificate),
        ClientTls(ca=AUTHORITY.certificate, server_name="another.example"),
    ],
    ids=["in the clear", "another authority", "another name"],
)
def test_no_word_without_trust(harbour: Harbour, tls: ClientTls | None) -> None:
    """A client that speaks in the clear, or does not believe the relay, gets nothing."""
    with pytest.raises(SyncUnreachableError) as caught:
        client(harbour, secured(harbour), tls).get_head(bytes(20))

    assert tls is None or "TLS or not" in str(caught.value)


def test_mutual_tls_lets_known_clients_in(harbour: Harbour) -> None:
    """P37: with an authority of clients, nobody without its certificate is answered."""
    address = secured(harbour, client_ca=AUTHORITY.certificate)
    ca = AUTHORITY.certificate
    stranger = STRANGERS.sign("client")

    known = ClientTls(ca=ca, certificate=CLIENT.certificate, key=CLIENT.key)
    assert client(harbour, address, known).get_head(harbour.author().lane).latest_seq == 2
    for tls in (
        ClientTls(ca=ca),
        ClientTls(ca=ca, certificate=stranger.certificate, key=stranger.key),
    ):
        with pytest.raises(SyncUnreachableError):
            client(harbour, address, tls).get_head(bytes(20))


def test_a_validator_is_known_by_its_key_alone(harbour: Harbour) -> None:
    """21-41, P33: a proven key gets the weight of a validator; without the proof nobody does."""
    key = key_fingerprint(x509.load_pem_x509_certificate(CLIENT.certificate))
    fairness = FairnessConfig(peer_requests_per_s=1, burst_s=2.0)
    config = SyncServerConfig(
        port=0, validators=frozenset({key}), fairness=fairness, limit_local=True
    )
    address = secured(harbour, client_ca=AUTHORITY.certificate, config=config)
    server = harbour.servers[-1]
    tls = ClientTls(ca=AUTHORITY.certificate, certificate=CLIENT.certificate, key=CLIENT.key)
    weights: list[float] = []
    weigh = type(config.fairness).weight

    def note(self: FairnessConfig, **kind: bool) -> float:
        weights.append(weigh(self, **kind))
        return weights[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FairnessConfig, "weight", note)
        client(harbour, address, tls).sync_page(harbour.author().lane)
        other = AUTHORITY.sign("other")
        unproven = ClientTls(ca=AUTHORITY.certificate, certificate=other.certificate, key=other.key)
        client(harbour, address, unproven).sync_page(harbour.author().lane)

    assert weights == [4.0, 1.0]
    assert server.stats().requests[("SyncNamespace", "OK")] == 2


def test_health_and_reflection(harbour: Harbour) -> None:
    """P37: any gRPC tool can ask whether the relay serves, and read its contract."""
    address = harbour.serve(harbour.store())
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "lux.relay.v1.RelaySync", "lux.relay.v1.RelayNode"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        described = ProtoReflectionDescriptorDatabase(channel)
        assert "lux.relay.v1.RelaySync" in described.get_services()
        file = described.FindFileContainingSymbol("lux.relay.v1.RelaySync")
        assert file.name.endswith("relay_sync.proto")
