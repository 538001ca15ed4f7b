"""The gateway over gRPC: the answers, tokens, scopes and bounds of HTTP."""

from __future__ import annotations

import json
import os
import pickle
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from luxrelay.bus import MsgHeader, SigningKey, sender_address
from luxrelay.bus.policy import default_policy
from luxrelay.client import LaneSigner
from luxrelay.errors import SyncRemoteError
from luxrelay.sync import PublishItem, RelaySyncClient
from luxrelay.sync.following import Followed, SubscribeWanted
from luxrelay.sync.rpc import relay_gateway_pb2 as pb
from luxrelay.sync.rpc import relay_node_pb2 as node_pb
from luxrelay.sync.rpc import relay_sync_pb2 as sync_pb
from luxrelay.sync.rpc.grpc_auth import scope_of
from luxrelay.sync.rpc.relay_gateway_pb2_grpc import RelayAdminStub, RelayGatewayStub
from luxrelay.sync.rpc.relay_node_pb2_grpc import RelayNodeStub
from luxrelay.sync.rpc.relay_sync_pb2_grpc import RelaySyncStub

from .conftest import GENEROUS, PARENT, TOPIC, Stand, now_ms

pytestmark = pytest.mark.slow
Maker = Callable[..., Stand]
PEER = "12D3KooWGjMCwRmPn6Jm9zHRuVwDCFuBe3gcHNpcDpKHg6P8m7dS"
WAIT: dict[str, Any] = {"timeout": 20}
HOSTILE = int(os.environ.get("LUXRELAY_HOSTILE_REQUESTS", "200"))


@contextmanager
def channel(stand: Stand, *, admin: bool = False) -> Iterator[grpc.Channel]:
    """A connection to one of the listeners."""
    with grpc.insecure_channel(stand.grpc_admin if admin else stand.grpc) as opened:
        yield opened


def shown(token: str) -> dict[str, Any]:
    """The metadata that shows a token."""
    return {**WAIT, "metadata": [("authorization", f"Bearer {token}")]}


def refused(call: Callable[[], Any]) -> grpc.StatusCode:
    """Return the status of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    code: grpc.StatusCode = caught.value.code()
    return code


@pytest.fixture
def opened(stand_with: Maker) -> Stand:
    """A gateway that answers over gRPC too."""
    return stand_with(grpc_listen="127.0.0.1:0", grpc_admin_listen="127.0.0.1:0")


@pytest.fixture(scope="module")
def standing_grpc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """One gateway for tests that only ask it things."""
    stand = Stand(tmp_path_factory.mktemp("grpc"), replace(GENEROUS, grpc_listen="127.0.0.1:0"))
    yield stand
    stand.stop()


def test_both_doors_tell_the_same(opened: Stand) -> None:
    """Peers, policies, status, limits, gaps and searches over gRPC are those of HTTP."""
    signer = opened.store_line(3)
    opened.store_line(2, key=SigningKey.generate(), first=4)
    late = SigningKey.generate()
    opened.store_line(1, key=late, first=1)

    with channel(opened) as line:
        gateway = RelayGatewayStub(line)
        peers = gateway.ListPeers(pb.ListPeersRequest(), **WAIT)
        policies = gateway.ListPolicies(pb.ListPoliciesRequest(), **WAIT)
        one = gateway.ListPolicies(pb.ListPoliciesRequest(namespace_id=PARENT), **WAIT)
        told = gateway.DescribeNode(pb.DescribeRequest(), **WAIT)
        gaps = gateway.ListGaps(pb.GapsRequest(namespace_id=signer.namespace_id), **WAIT)
        by_sender = gateway.SearchMessages(
            pb.SearchRequest(sender=sender_address(late.public_field)), **WAIT
        )
        first = gateway.SearchMessages(pb.SearchRequest(limit=4), **WAIT)
        rest = gateway.SearchMessages(pb.SearchRequest(cursor=first.next_cursor), **WAIT)

    assert list(peers.peers) == opened.fetch("/v1/peers").json["peers"] == []
    clock = opened.fetch("/v1/peers").json["clock"]
    assert (peers.clock.known, peers.clock.peers, peers.clock.offset_ms) == (False, 0, 0)
    assert clock == {"known": False, "offsetMs": 0, "spreadMs": 0, "peers": 0}
    assert policies == one
    assert policies.namespaces[0].content_topic == TOPIC
    assert policies.namespaces[0].namespace_id == PARENT
    assert list(policies.namespaces[0].policy_hashes) == [default_policy(PARENT).policy_hash]
    assert json.loads(told.status_json) == opened.fetch("/v1/status").json
    assert json.loads(told.limits_json) == opened.fetch("/v1/limits").json
    assert not gaps.gaps
    assert (gaps.contiguous_seq, gaps.latest_seq) == (3, 3)
    assert [MsgHeader.decode(each.header).sender_pub_key for each in by_sender.messages] == [
        late.public_field
    ]
    assert first.has_more
    assert not rest.has_more
    assert len(first.messages) == 4
    assert len({each.header for each in (*first.messages, *rest.messages)}) == 6


def test_publish_subscribe_and_read(opened: Stand) -> None:
    """A token with both scopes publishes, follows and reads ranges, each message once."""
    text = opened.token("read", "publish")
    signer = LaneSigner(SigningKey.generate(), PARENT)
    sent = [signer.sign(b"blob %d" % seq, now_ms()) for seq in range(1, 4)]
    items = [node_pb.PublishItem(header=m.header, blob=m.blob, parent_id=m.parent) for m in sent]

    with channel(opened) as line:
        node, gateway = RelayNodeStub(line), RelayGatewayStub(line)
        (answer,) = node.Publish(iter([node_pb.PublishRequest(items=items)]), **shown(text))
        digests = [each.digest for each in answer.receipts]
        again = node.GetReceipts(node_pb.ReceiptsRequest(digests=digests), **shown(text))
        wanted = node_pb.SubscribeRequest(namespaces=[PARENT])
        told = []
        for frame in node.Subscribe(wanted, **shown(text)):
            told += [e.message.message.header for e in frame.events if e.HasField("message")]
            if len(told) == 3:
                break
        (page, status) = RelaySyncStub(line).SyncNamespace(
            sync_pb.SyncRequest(namespace_id=signer.namespace_id, max_frame_messages=10),
            **shown(text),
        )
        commitment = MsgHeader.decode(sent[1].header).blob_commitment
        whole = gateway.ReadBlob(pb.ReadBlobRequest(commitment=commitment), **shown(text))
        part = gateway.ReadBlob(
            pb.ReadBlobRequest(commitment=commitment, offset=2, length=3), **shown(text)
        )
        beyond = gateway.ReadBlob(
            pb.ReadBlobRequest(commitment=commitment, offset=6, length=2**63), **shown(text)
        )
        codes = [
            refused(partial(gateway.ReadBlob, request, **shown(text)))
            for request in (
                pb.ReadBlobRequest(commitment=commitment, offset=7),
                pb.ReadBlobRequest(commitment=bytes(32)),
                pb.ReadBlobRequest(commitment=b"short"),
            )
        ]

    assert all(each.stored for each in (*answer.receipts, *again.receipts))
    assert told == [each.header for each in sent]
    assert [each.header for each in page.batch] == told
    assert status.status.complete
    assert (whole.data, part.data, beyond.data) == (b"blob 2", b"ob ", b"")
    assert part.size_bytes == 6
    assert codes == [
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INVALID_ARGUMENT,
    ]


def test_the_client_shows_its_token(stand_with: Maker) -> None:
    """`RelaySyncClient` with a token reads, publishes and follows; without one it is refused."""
    stand = stand_with(grpc_listen="127.0.0.1:0", anonymous="nobody")
    signer = LaneSigner(SigningKey.generate(), PARENT)
    message = signer.sign(b"hello", now_ms())
    item = PublishItem(header=message.header, blob=message.blob, parent_id=message.parent)

    client = RelaySyncClient(stand.grpc, token=stand.token("read", "publish"))
    with pickle.loads(pickle.dumps(client)) as travelled:  # noqa: S301  our own bytes
        (receipt,) = travelled.publish([item])
        page = travelled.sync_page(signer.namespace_id)
        events = travelled.subscribe(SubscribeWanted(namespaces=[PARENT]))
        first = next(events)
        events.close()
    with RelaySyncClient(stand.grpc) as stranger, pytest.raises(SyncRemoteError, match="token"):
        stranger.get_head(PARENT)

    assert receipt.stored
    assert [each.blob for each in page.messages] == [b"hello"]
    assert isinstance(first, Followed)
    assert "lrt_" not in repr(client)


def test_scopes_hold(stand_with: Maker) -> None:
    """Nobody reads or publishes without the scope for it; admin calls have their own listener."""
    stand = stand_with(
        grpc_listen="127.0.0.1:0", grpc_admin_listen="127.0.0.1:0", anonymous="nobody"
    )
    reader, writer = stand.token("read"), stand.token("publish")
    ruler = stand.token("admin")
    unauthenticated, denied = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED

    with channel(stand) as line, channel(stand, admin=True) as private:
        heads = RelaySyncStub(line).ListHeads
        publish = RelayNodeStub(line).Publish
        watermarks = RelayNodeStub(line).SetWatermarks
        bans = RelayAdminStub(private).ListBans
        nothing = node_pb.PublishRequest()

        list(heads(sync_pb.ListHeadsRequest(), **shown(reader)))
        list(publish(iter([nothing]), **shown(writer)))
        bans(pb.ListBansRequest(), **shown(ruler))
        codes = [
            refused(lambda: list(heads(sync_pb.ListHeadsRequest(), **WAIT))),
            refused(lambda: list(heads(sync_pb.ListHeadsRequest(), **shown("lrt_x")))),
            refused(
                lambda: list(
                    heads(
                        sync_pb.ListHeadsRequest(),
                        metadata=[("authorization", f"Basic {reader}")],
                        **WAIT,
                    )
                )
            ),
            refused(lambda: list(heads(sync_pb.ListHeadsRequest(), **shown(writer)))),
            refused(lambda: list(publish(iter([nothing]), **shown(reader)))),
            refused(lambda: watermarks(node_pb.WatermarksRequest(), **shown(writer))),
            refused(lambda: bans(pb.ListBansRequest(), **WAIT)),
            refused(lambda: bans(pb.ListBansRequest(), **shown(reader))),
            refused(lambda: RelayAdminStub(line).ListBans(pb.ListBansRequest(), **shown(ruler))),
            refused(lambda: list(RelaySyncStub(private).ListHeads(sync_pb.ListHeadsRequest()))),
        ]

    assert codes == [
        unauthenticated, unauthenticated, unauthenticated, denied, denied, denied,
        unauthenticated, denied, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNIMPLEMENTED,
    ]  # fmt: skip


def test_a_method_that_is_not_listed_needs_admin() -> None:
    """A call that the table forgets is not open; health is, and reflection for readers."""
    assert scope_of("/lux.relay.v1.RelayNode/SetWatermarks") == "admin"
    assert scope_of("/lux.relay.v1.RelaySyncX/GetBlob") == "admin"
    assert scope_of("/other.v1.RelaySync/GetBlob") == "admin"
    assert scope_of("/lux.relay.v1.RelaySync/GetBlob") == "read"
    assert scope_of("/grpc.health.v1.Health/Check") == ""
    assert scope_of("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo") == "read"


def test_admin_calls(opened: Stand) -> None:
    """Bans and tokens over gRPC are those of HTTP, refusals included."""
    ruler = shown(opened.token("admin"))
    bearer = {"Authorization": ruler["metadata"][0][1]}

    with channel(opened, admin=True) as line:
        admin = RelayAdminStub(line)
        admin.Ban(pb.BanRequest(peer_id=PEER, seconds=60, reason="floods"), **ruler)
        (ban,) = admin.ListBans(pb.ListBansRequest(), **ruler).bans
        told = opened.fetch("/admin/v1/bans", admin=True, **bearer).json["bans"]
        admin.LiftBan(pb.PeerRequest(peer_id=PEER), **ruler)
        made = admin.NewToken(
            pb.NewTokenRequest(name="phone", scopes=["read"], days=1, requests_per_s=7), **ruler
        )
        listed = {t.id: t for t in admin.ListTokens(pb.ListTokensRequest(), **ruler).tokens}
        ended = admin.RevokeToken(pb.TokenRequest(id=made.id), **ruler)
        left = {t.id for t in admin.ListTokens(pb.ListTokensRequest(), **ruler).tokens}
        codes = [
            refused(lambda: admin.LiftBan(pb.PeerRequest(peer_id=PEER), **ruler)),
            refused(lambda: admin.Disconnect(pb.PeerRequest(peer_id=PEER), **ruler)),
            refused(lambda: admin.Ban(pb.BanRequest(peer_id=PEER, reason="x"), **ruler)),
            refused(lambda: admin.Ban(pb.BanRequest(peer_id="?", seconds=1, reason="x"), **ruler)),
            refused(lambda: admin.NewToken(pb.NewTokenRequest(name="x", scopes=["y"]), **ruler)),
            refused(lambda: admin.RevokeToken(pb.TokenRequest(id=made.id), **ruler)),
        ]

    assert (ban.peer_id, ban.reason) == (PEER, "floods")
    assert told == [{"peerId": PEER, "untilMs": ban.until_ms, "reason": "floods"}]
    assert not opened.fetch("/admin/v1/bans", admin=True, **bearer).json["bans"]
    assert made.token.startswith(f"lrt_{made.id}_")
    assert listed[made.id].requests_per_s == 7
    assert not any(each.token for each in listed.values())
    assert ended.id == made.id
    assert made.id not in left
    assert codes == [grpc.StatusCode.NOT_FOUND] * 2 + [grpc.StatusCode.INVALID_ARGUMENT] * 3 + [
        grpc.StatusCode.NOT_FOUND
    ]


def test_rates_are_those_of_http(stand_with: Maker) -> None:
    """A token that has used up its requests over HTTP has none left over gRPC, and bytes too."""
    stand = stand_with(grpc_listen="127.0.0.1:0")
    slow = stand.token("read", requests_per_s=1)
    heavy = stand.token("publish", publish_bytes_per_s=1000)
    statuses = [stand.fetch("/v1/status", Authorization=f"Bearer {slow}").status for _ in range(12)]
    signer = LaneSigner(SigningKey.generate(), PARENT)
    large = signer.sign(bytes(5000), now_ms())
    request = node_pb.PublishRequest(
        items=[node_pb.PublishItem(header=large.header, blob=large.blob, parent_id=large.parent)]
    )

    with channel(stand) as line:
        none_left = refused(
            lambda: RelayGatewayStub(line).ListPeers(pb.ListPeersRequest(), **shown(slow))
        )
        too_heavy = refused(
            lambda: list(RelayNodeStub(line).Publish(iter([request]), **shown(heavy)))
        )

    assert 429 in statuses
    assert none_left == too_heavy == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_revoked_token_ends_its_subscription(
    opened: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream ends by itself, at the next beat at the latest."""
    monkeypatch.setattr("luxrelay.node.subscription_messages.BEAT_S", 0.2)
    text = opened.token("read")

    with channel(opened) as line:
        frames = RelayNodeStub(line).Subscribe(
            node_pb.SubscribeRequest(namespaces=[PARENT], latest=True),
            metadata=shown(text)["metadata"],
        )
        next(frames)
        opened.tokens.revoke(text.split("_")[1])
        code = refused(lambda: list(frames))

    assert code == grpc.StatusCode.UNAUTHENTICATED


def test_tls_on_both_listeners(stand_with: Maker, certificate: tuple[str, str]) -> None:
    """With the gateway's certificate gRPC is answered over TLS only."""
    chain, key = certificate
    stand = stand_with(
        grpc_listen="127.0.0.1:0", grpc_admin_listen="127.0.0.1:0",
        tls_certificate=chain, tls_key=key,
    )  # fmt: skip
    trusted = grpc.ssl_channel_credentials(Path(chain).read_bytes())
    options = [("grpc.ssl_target_name_override", "localhost")]

    with grpc.secure_channel(stand.grpc, trusted, options=options) as line:
        told = RelayGatewayStub(line).DescribeNode(pb.DescribeRequest(), **WAIT)
    with channel(stand) as clear, channel(stand, admin=True) as private:
        codes = {
            refused(lambda: RelayGatewayStub(clear).DescribeNode(pb.DescribeRequest(), **WAIT)),
            refused(lambda: RelayAdminStub(private).ListBans(pb.ListBansRequest(), **WAIT)),
        }

    assert json.loads(told.status_json)["name"] == "stand"
    assert codes == {grpc.StatusCode.UNAVAILABLE}


def test_hostile_bytes_leave_it_serving(opened: Stand) -> None:
    """Whatever bytes come to either listener, the next call is answered."""
    rng = random.Random(20_261_128)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for number in range(HOSTILE):
        address = opened.grpc if number % 2 else opened.grpc_admin
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as stream:
            data = rng.choice([b"", preface]) + rng.randbytes(rng.randint(0, 400))
            try:
                stream.sendall(data)
                if number % 3:
                    stream.shutdown(socket.SHUT_WR)
                    while stream.recv(4096):
                        pass
            except OSError:
                continue  # being cut off is an answer

    with channel(opened) as line, channel(opened, admin=True) as private:
        RelayGatewayStub(line).ListPeers(pb.ListPeersRequest(), wait_for_ready=True, **WAIT)
        code = refused(lambda: RelayAdminStub(private).ListBans(pb.ListBansRequest(), **WAIT))
    assert code == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "call", ["ListPeers", "ListPolicies", "SearchMessages", "ListGaps", "ReadBlob", "DescribeNode"]
)
def test_hostile_requests_have_an_answer(standing_grpc: Stand, call: str) -> None:
    """Any bytes as a request get an answer or a status that says whose fault it is."""
    rng = random.Random(call)
    good = {
        grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.INTERNAL,  # gRPC's own word for bytes that are no message
    }  # fmt: skip
    with channel(standing_grpc) as line:
        ask = line.unary_unary(f"/lux.relay.v1.RelayGateway/{call}")
        failed = [answer for _ in range(60) if (answer := failure(ask, bytes_of_request(rng)))]

    assert {each.code() for each in failed} <= good, failed
    assert not any("fault of this relay" in (each.details() or "") for each in failed)


def failure(ask: Callable[..., Any], data: bytes) -> Any:
    """Return how a call failed; None when it was answered."""
    try:
        ask(data, timeout=20)
    except grpc.RpcError as error:
        return error
    return None


def bytes_of_request(rng: random.Random) -> bytes:
    """Return fields of random numbers, kinds and contents; sometimes just noise."""
    if rng.random() < 0.2:
        return rng.randbytes(rng.randint(0, 40))
    out = bytearray()
    for _ in range(rng.randint(0, 4)):
        number = rng.randint(1, 6)
        if rng.random() < 0.5:
            out += bytes([number << 3]) + rng.choice([b"\x00", b"\x01", b"\xff" * 9 + b"\x01"])
        else:
            size = rng.choice([0, 1, 20, 20, 32, 32, 60])
            out += bytes([number << 3 | 2, size]) + rng.randbytes(size)
    return bytes(out)
