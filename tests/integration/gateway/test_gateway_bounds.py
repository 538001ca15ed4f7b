"""Every bound of the gateway, reached; who may do what; hostile clients."""

import json
import os
import random
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from luxrelay.bus import SigningKey
from luxrelay.client import (
    NO_RETRY,
    LaneSigner,
    Live,
    Message,
    Query,
    RelayClient,
    Subscribe,
    subscribe,
)
from luxrelay.errors import ClientRefusedError, ClientUnreachableError, NodeError

from .conftest import PARENT, Stand, now_ms

pytestmark = pytest.mark.slow
Maker = Callable[..., Stand]
HOSTILE_REQUESTS = int(os.environ.get("LUXRELAY_HOSTILE_REQUESTS", "500"))
JSON = "application/json"
PING = b"\x81\x8f\x00\x00\x00\x00" + b'{"type":"ping"}'
"""A text frame, masked with zeros."""


def connect(stand: Stand, *, admin: bool = False) -> socket.socket:
    """Return a plain connection."""
    host, _, port = (stand.admin_address if admin else stand.address).rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def ended(stream: socket.socket) -> bytes:
    """Return what comes until the other side closes."""
    received = b""
    try:
        while part := stream.recv(65_536):
            received += part
    except ConnectionResetError:
        pass
    return received


def socket_of(stand: Stand, token: str = "") -> socket.socket:
    """Return a connection that has become a WebSocket."""
    stream = connect(stand)
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    stream.sendall(
        f"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n{bearer}Upgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
    )
    assert stream.recv(12) == b"HTTP/1.1 101"
    return stream


def test_connections_are_bounded(stand_with: Maker, eventually: Callable[..., Any]) -> None:
    """Above connections_max one that nobody gives way to is closed, and there is room later."""
    stand = stand_with(connections_max=3, connections_per_address_max=3)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(socket_of(stand))
        with connect(stand) as fourth:
            assert ended(fourth) == b""
    eventually(lambda: stand.service.public.connections == 0)

    assert stand.fetch("/v1/limits").status == 200
    assert stand.service.stats().public.refused == 1


def test_connections_of_one_address_are_bounded(stand_with: Maker) -> None:
    """One address cannot take every connection."""
    stand = stand_with(connections_per_address_max=1)
    with socket_of(stand), connect(stand) as second:
        assert ended(second) == b""


def test_the_head_is_bounded(stand_with: Maker) -> None:
    """A request line or headers above head_bytes_max are answered with 431."""
    stand = stand_with(head_bytes_max=1024)

    answer = stand.raw(b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 431 ")


def test_too_many_headers_or_parameters(standing: Stand) -> None:
    """More than a hundred headers, or 64 parameters, are no request of ours."""
    headers = b"".join(b"x-%d: 1\r\n" % n for n in range(101))
    many = "&".join(f"a{n}=1" for n in range(65))

    assert b" 400 " in standing.raw(b"GET / HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n")[:16]
    assert standing.fetch(f"/v1/limits?{many}").status == 400


def test_the_body_is_bounded(stand_with: Maker) -> None:
    """A body above body_bytes_max is refused while it comes, declared or not."""
    stand = stand_with(body_bytes_max=4096)
    headers = {"Authorization": f"Bearer {stand.token('publish')}", "Content_Type": JSON}

    answer = stand.fetch("/v1/messages", method="POST", body=b" " * 5000, **headers)
    chunks = b"".join(b"400\r\n" + b" " * 1024 + b"\r\n" for _ in range(8))
    request = (
        b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Type: application/json\r\nAuthorization: "
        + headers["Authorization"].encode()
        + b"\r\n\r\n"
    )

    assert (answer.status, answer.json["code"]) == (413, "gateway.size")
    assert stand.raw(request + chunks).startswith(b"HTTP/1.1 413 ")


def test_a_stranger_uploads_nothing(stand_with: Maker) -> None:
    """Who may not publish is refused before the body is read."""
    stand = stand_with()
    with connect(stand) as stream:
        stream.sendall(
            b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 8000000\r\n"
            b"Content-Type: application/json\r\nExpect: 100-continue\r\n\r\n"
        )
        assert stream.recv(65_536).startswith(b"HTTP/1.1 401 ")


def test_bodies_together_are_bounded(stand_with: Maker) -> None:
    """What is being uploaded by all clients at once has a bound; beyond it 503."""
    stand = stand_with(bodies_bytes_max=4096)
    headers = {"Authorization": f"Bearer {stand.token('publish')}", "Content_Type": JSON}

    answer = stand.fetch("/v1/messages", method="POST", body=b" " * 5000, **headers)

    assert (answer.status, answer.json["code"]) == (503, "gateway.busy")
    assert answer.headers["Retry-After"] == "1"
    assert stand.fetch("/v1/messages", method="POST", body=b" ", **headers).status == 400


def test_messages_of_one_call_are_bounded(stand_with: Maker) -> None:
    """More than publish_items_max messages are refused as a whole, in either form."""
    stand = stand_with(publish_items_max=2)
    signer = LaneSigner(SigningKey.generate(), PARENT)
    messages = [signer.sign(b"x", now_ms()) for _ in range(3)]
    entries = [{"header": m.header.hex(), "parentId": PARENT.hex()} for m in messages]
    token = stand.token("publish")

    with (
        stand.client("publish") as client,
        pytest.raises(ClientRefusedError, match=r"gateway\.size"),
    ):
        client.publish(messages)
    answer = stand.fetch(
        "/v1/messages",
        method="POST",
        body=json.dumps({"messages": entries}).encode(),
        Authorization=f"Bearer {token}",
        Content_Type=JSON,
    )

    assert answer.status == 413
    assert stand.store.head(signer.namespace_id).messages == 0


def test_pages_and_heads_are_bounded(stand_with: Maker) -> None:
    """An answer holds no more than the configuration says, whatever is asked."""
    stand = stand_with(page_messages_max=3, page_bytes_max=1024, heads_max=2)
    signer = stand.store_line(5)
    big = LaneSigner(SigningKey.generate(), PARENT)
    stand.publish([big.sign(b"x" * 900, now_ms()) for _ in range(2)])
    with stand.client() as client:
        few = client.page(Query(namespace_id=signer.namespace_id, limit=1000))
        one = client.page(Query(namespace_id=big.namespace_id, limit=1000))
        every = list(client.heads())

    assert (len(few.messages), few.has_more) == (3, True)
    assert (len(one.messages), one.has_more) == (1, True)
    assert len(stand.fetch("/v1/namespaces?limit=1000").json["heads"]) == 2
    assert len({head.namespace_id for head in every}) == len(every) >= 2


def test_a_slow_request_is_ended(stand_with: Maker) -> None:
    """A request that does not come to its end gets 408, an idle connection nothing."""
    stand = stand_with(request_ms=200, first_byte_ms=300)
    with connect(stand) as slow, connect(stand) as idle:
        slow.sendall(b"GET /v1/limits HT")

        assert ended(slow).startswith(b"HTTP/1.1 408 ")
        assert ended(idle) == b""
    with connect(stand) as body:
        token = stand.token("publish").encode()
        body.sendall(
            b"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n"
            b"Content-Type: application/json\r\nAuthorization: Bearer " + token + b"\r\n\r\n{"
        )
        assert ended(body).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_takes_nothing_is_let_go(
    stand_with: Maker, eventually: Callable[..., Any]
) -> None:
    """Who asks and does not read is dropped after stall_ms."""
    stand = stand_with(stall_ms=300, page_bytes_max=16 * 1024 * 1024)
    signer = LaneSigner(SigningKey.generate(), PARENT)
    stand.publish([signer.sign(os.urandom(2_000_000), now_ms()) for _ in range(4)])
    path = f"/v1/namespaces/{signer.namespace_id.hex()}/messages"
    with connect(stand) as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(4):
            stream.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

        eventually(lambda: stand.service.stats().public.stalled)


def test_a_subscriber_that_takes_nothing_is_let_go(
    stand_with: Maker, eventually: Callable[..., Any]
) -> None:
    """A subscriber that does not read holds no memory and is dropped, and counted as slow."""
    stand = stand_with(stall_ms=300)
    signer = LaneSigner(SigningKey.generate(), PARENT)
    stand.publish([signer.sign(os.urandom(2_000_000), now_ms()) for _ in range(6)])
    path = f"/v1/stream?namespace={PARENT.hex()}&format=binary"
    with connect(stand) as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.sendall(handshake(path))

        eventually(lambda: stand.service.stats().streams.slow == 1)
    eventually(lambda: stand.service.stats().streams.open == 0)


def handshake(path: str, **headers: str) -> bytes:
    """Return the request of a WebSocket."""
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Upgrade: websocket",
        "Connection: keep-alive, Upgrade",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version: 13",
        *(f"{name.replace('_', '-')}: {text}" for name, text in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_a_subscriber_that_answers_no_ping_is_let_go(
    stand_with: Maker, eventually: Callable[..., Any]
) -> None:
    """A half-open connection is found out by its silence."""
    stand = stand_with(ping_ms=100)
    with connect(stand) as stream:
        stream.sendall(handshake("/v1/stream"))

        eventually(lambda: stand.service.stats().streams.slow == 1)


def test_websockets_are_bounded(stand_with: Maker, eventually: Callable[..., Any]) -> None:
    """Above subscribers_max a handshake is answered with 503."""
    stand = stand_with(subscribers_max=1)
    token = f"Bearer {stand.token('read')}"
    with connect(stand) as first, connect(stand) as second:
        first.sendall(handshake("/v1/stream", Authorization=token))
        assert first.recv(4096).startswith(b"HTTP/1.1 101 ")
        eventually(lambda: stand.service.stats().streams.open == 1)
        second.sendall(handshake("/v1/stream", Authorization=token))
        assert second.recv(4096).startswith(b"HTTP/1.1 503 ")


def test_a_websocket_message_is_bounded(stand_with: Maker) -> None:
    """A message above body_bytes_max ends the session with code 1009."""
    stand = stand_with(body_bytes_max=4096)
    with connect(stand) as stream:
        stream.sendall(handshake("/v1/stream"))
        head = stream.recv(4096)
        stream.sendall(b"\x82\xff" + (1 << 40).to_bytes(8, "big") + bytes(4) + bytes(8192))
        rest = ended(stream)

    assert head.startswith(b"HTTP/1.1 101 ")
    assert (1009).to_bytes(2, "big") in rest


def test_lanes_of_a_subscription_are_bounded(stand_with: Maker) -> None:
    """Lanes beyond subscription_lanes_max are told to be left out, not forgotten in silence."""
    stand = stand_with(subscription_lanes_max=2)
    for _ in range(4):
        stand.store_line(1)
    with stand.client() as client:
        events = subscribe(client, Subscribe(namespaces=[PARENT]), retry=NO_RETRY)
        found = [next(events) for _ in range(3)]

    assert sum(isinstance(each, Message) for each in found) == 1  # the parent itself is one of two
    assert any(isinstance(each, Live) for each in found)
    (dropped,) = [each for each in found if type(each).__name__ == "Dropped"]
    assert dropped.lanes >= 1  # type: ignore[union-attr]


def test_requests_of_a_caller_are_bounded(stand_with: Maker) -> None:
    """A caller that is too fast gets 429 and when to try again; another one is served."""
    stand = stand_with(requests_per_s=2)
    statuses = [stand.fetch("/v1/limits").status for _ in range(8)]
    token = stand.token("read")

    assert statuses[:6] == [200] * 6
    assert 429 in statuses
    answer = stand.fetch("/v1/limits")
    assert answer.status == 200 or answer.headers["Retry-After"] == "1"
    assert stand.fetch("/v1/limits", Authorization=f"Bearer {token}").status == 200


def test_every_door_keeps_the_same_clock(stand_with: Maker, eventually: Callable[..., Any]) -> None:
    """Who has spoken on a WebSocket and used up its requests over HTTP may soon ask again."""
    stand = stand_with(requests_per_s=2)
    with connect(stand) as stream:
        stream.sendall(handshake("/v1/stream"))
        assert stream.recv(4096).startswith(b"HTTP/1.1 101 ")
        stream.sendall(PING)
        assert b'"pong"' in stream.recv(4096)

        while stand.fetch("/v1/limits").status == 200:
            pass

        eventually(lambda: stand.fetch("/v1/limits").status == 200)


def test_a_token_may_have_a_rate_of_its_own(stand_with: Maker) -> None:
    """A token's own rates go before the gateway's."""
    stand = stand_with(requests_per_s=1, publish_bytes_per_s=1024)
    fast = stand.token("publish", requests_per_s=1000, publish_bytes_per_s=2**30)
    slow = stand.token("publish")
    signer = LaneSigner(SigningKey.generate(), PARENT)
    messages = [signer.sign(bytes(4096), now_ms()) for _ in range(5)]

    with (
        RelayClient(stand.address, token=slow) as client,
        pytest.raises(ClientRefusedError, match=r"gateway\.rate"),
    ):
        client.publish(messages[:1])
    with RelayClient(stand.address, token=fast) as client:
        assert all(client.publish([each])[0].stored for each in messages)


def test_work_is_bounded(stand_with: Maker, eventually: Callable[..., Any]) -> None:
    """Requests that would wait behind too many others are told to come back."""
    stand = stand_with(work_max=1, work_waiting_max=1)
    held, go_on = threading.Event(), threading.Event()
    slow_head = stand.store.head

    def head(namespace_id: Any) -> Any:
        held.set()
        assert go_on.wait(20)
        return slow_head(namespace_id)

    stand.store.head = head  # type: ignore[method-assign]
    path = f"/v1/namespaces/{PARENT.hex()}"
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(stand.fetch(path).status)) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: held.is_set() and statuses.count(503) == 4)
    finally:
        go_on.set()
        for thread in threads:
            thread.join(20)

    assert sorted(statuses) == [200, 200, 503, 503, 503, 503]
    assert stand.service.stats().busy == 4


def test_tokens_open_what_their_scopes_say(standing: Stand) -> None:
    """Reading is open on loopback; publishing and admin calls need their scopes."""
    reader = f"Bearer {standing.token('read')}"
    admin = f"Bearer {standing.token('admin')}"

    def status(path: str, **headers: str) -> int:
        return standing.fetch(path, **headers).status

    assert status("/v1/status") == 200
    assert status("/v1/status", Authorization=admin) == 403
    assert status("/v1/status", Authorization="Bearer nonsense") == 401
    assert status("/v1/status", Authorization="Basic eDp5") == 401
    assert (
        standing.fetch("/v1/messages", method="POST", body=b"", Authorization=reader).status == 403
    )
    assert standing.fetch("/admin/v1/tokens", admin=True).status == 401
    assert standing.fetch("/admin/v1/tokens", admin=True, Authorization=reader).status == 403
    assert standing.fetch("/admin/v1/tokens", admin=True, Authorization=admin).status == 200
    assert standing.fetch("/admin/v1/tokens", Authorization=admin).status == 404
    unknown = standing.fetch("/v1/status", Authorization="Bearer lrt_00000000_" + "A" * 43)
    assert unknown.headers["WWW-Authenticate"] == "Bearer"


def test_nobody_reads_without_a_token_where_that_is_said(stand_with: Maker) -> None:
    """With anonymous = nobody a token is needed: it closes every call that reads."""
    stand = stand_with(anonymous="nobody")

    assert stand.fetch("/v1/status").status == 401
    assert stand.fetch("/v1/limits").status == 200
    assert stand.fetch("/v1/status", Authorization=f"Bearer {stand.token('read')}").status == 200


def test_admin_makes_lists_and_revokes_tokens(stand: Stand, eventually: Callable[..., Any]) -> None:
    """A token made over the admin listener works, is listed without its secret, and ends."""
    admin = {"Authorization": f"Bearer {stand.token('admin')}", "admin": True}
    body = json.dumps({"name": "phone", "scopes": ["read", "publish"], "days": 1}).encode()

    made = stand.fetch("/admin/v1/tokens", method="POST", body=body, Content_Type=JSON, **admin)
    phone = {"Authorization": f"Bearer {made.json['token']}"}
    eventually(lambda: stand.fetch("/v1/status", **phone).status == 200)
    listed = stand.fetch("/admin/v1/tokens", **admin).json["tokens"]
    path = f"/admin/v1/tokens/{made.json['id']}"
    revoked = stand.fetch(path, method="DELETE", **admin)
    again = stand.fetch(path, method="DELETE", **admin)
    eventually(lambda: stand.fetch("/v1/status", **phone).status == 401)

    assert (made.status, revoked.status, again.status) == (201, 200, 404)
    assert [(t["name"], t["scopes"]) for t in listed][1] == ("phone", ["read", "publish"])
    assert made.json["token"] not in json.dumps(listed)
    assert made.json["token"] not in (stand.folder / "tokens.json").read_text()
    assert (stand.folder / "tokens.json").stat().st_mode & 0o777 == 0o600
    gone = stand.fetch("/admin/v1/connections/12D3Koo", method="DELETE", **admin)
    assert gone.status == 404
    assert "GET /admin/v1/tokens" in again.json["hint"]
    assert "/v1/peers" in gone.json["hint"]


def test_a_path_of_the_other_port_is_told_where_it_is(stand: Stand) -> None:
    """Admin calls at the public port, and the other way round: the hint names the key."""
    admin = {"Authorization": f"Bearer {stand.token('admin')}"}
    found = [
        stand.fetch("/admin/v1/tokens", **admin),
        stand.fetch("/admin/v1/nothing", method="OPTIONS"),
        stand.fetch("/v1/status", admin=True, **admin),
        stand.fetch("/v1/nothing", **admin),
    ]

    assert {each.status for each in found} == {404}
    hints = [each.json["hint"] for each in found]
    for hint, key in zip(
        hints,
        ("gateway.admin_listen", "gateway.admin_listen", "gateway.listen", "openapi.json"),
        strict=True,
    ):
        assert key in hint
    assert not any("expired" in hint for hint in hints)


def test_admin_bans_and_lifts(stand: Stand) -> None:
    """A ban is made, listed and lifted; what is no peer id or no time is named."""
    peer = "12D3KooWGGZge4cnNezVKmNfyTU6QKrdSJiTtRqEZwAo5xGfYwa9"
    admin = {"Authorization": f"Bearer {stand.token('admin')}", "admin": True}

    def post(path: str, body: object) -> Any:
        text = json.dumps(body).encode()
        return stand.fetch(path, method="POST", body=text, Content_Type=JSON, **admin)

    def ban(**changes: object) -> int:
        body = {"peerId": peer, "seconds": 60, "reason": "spam", **changes}
        status: int = post("/admin/v1/bans", body).status
        return status

    assert ban() == 204
    (listed,) = stand.fetch("/admin/v1/bans", **admin).json["bans"]
    assert (listed["peerId"], listed["reason"]) == (peer, "spam")
    assert listed["untilMs"] > now_ms()
    assert [ban(peerId="0OIl"), ban(seconds=0), ban(reason=""), ban(extra=1)] == [400] * 4
    assert stand.fetch(f"/admin/v1/bans/{peer}", method="DELETE", **admin).status == 204
    assert stand.fetch(f"/admin/v1/bans/{peer}", method="DELETE", **admin).status == 404
    wrong = post("/admin/v1/bans", {"peer": peer, "seconds": 60, "reason": "spam"}).json
    lacks = post("/admin/v1/bans", {"peerId": peer, "seconds": 60}).json
    other = post("/admin/v1/tokens", {"name": "t", "scope": ["read"]}).json
    assert (wrong["detail"], wrong["hint"]) == (
        "there is no member 'peer'", "the members are peerId, seconds, reason"
    )  # fmt: skip
    assert lacks["detail"] == "the member 'reason' is missing"
    assert other["detail"] == "there is no member 'scope'"


def test_pages_of_other_origins_are_kept_out(stand_with: Maker) -> None:
    """Another site's page may neither change anything nor open a WebSocket, unless it is listed."""
    stand = stand_with(cors_origins=("https://chat.example.org",))
    token = f"Bearer {stand.token('publish')}"

    def post(origin: str) -> int:
        return stand.fetch(
            "/v1/messages", method="POST", body=b"", Authorization=token, Origin=origin
        ).status

    listed = stand.fetch("/v1/limits", Origin="https://chat.example.org")
    other = stand.fetch("/v1/limits", Origin="https://evil.example.org")
    preflight = stand.fetch(
        "/v1/messages",
        method="OPTIONS",
        Origin="https://chat.example.org",
        Access_Control_Request_Method="POST",
    )

    assert post("https://evil.example.org") == 403
    assert post("https://chat.example.org") == 415
    assert post(f"http://{stand.address}") == 415
    assert listed.headers["Access-Control-Allow-Origin"] == "https://chat.example.org"
    assert "Access-Control-Allow-Origin" not in other.headers
    assert (preflight.status, preflight.headers["Access-Control-Allow-Methods"]) == (
        204,
        "GET, POST",
    )
    evil = stand.raw(handshake("/v1/stream", Origin="https://evil.example.org"))
    assert evil.startswith(b"HTTP/1.1 403 ")


def test_a_name_that_leads_here_is_not_enough(stand_with: Maker) -> None:
    """DNS rebinding: a strange name is refused, with a token too, and told which key to set."""
    stand = stand_with(hosts=("relay.example.org",))

    assert stand.fetch("/v1/status", Host="evil.example.org").status == 403
    assert stand.fetch("/v1/status", Host="relay.example.org:80").status == 200
    assert stand.fetch("/v1/status", Host="localhost:9643").status == 200
    assert stand.fetch("/v1/status", Host="[::1]:9643").status == 200
    token = f"Bearer {stand.token('read')}"
    refused = stand.fetch("/v1/status", Host="evil.example.org", Authorization=token)
    assert refused.status == 403
    assert refused.json["hint"] == "add it to gateway.hosts"
    assert stand.fetch("/v1/status", Host="relay.example.org", Authorization=token).status == 200


def test_wrong_methods_and_paths(standing: Stand) -> None:
    """Another method is 405 with what is allowed, another path 404."""
    wrong = standing.fetch("/v1/messages", method="PUT", body=b"")

    asked = standing.fetch("/v1/messages", method="OPTIONS")

    assert (wrong.status, wrong.headers["Allow"]) == (405, "GET, HEAD, OPTIONS, POST")
    assert (asked.status, asked.headers["Allow"]) == (204, wrong.headers["Allow"])
    assert wrong.json["hint"] == "use GET or HEAD or POST"
    assert standing.fetch("/v1/nothing").status == 404
    assert standing.fetch("/v1/stream").status == 400


def test_tls(stand_with: Maker, certificate: tuple[str, str]) -> None:
    """With a certificate both listeners speak TLS, and nothing else."""
    stand = stand_with(tls_certificate=certificate[0], tls_key=certificate[1])
    context = ssl.create_default_context(cafile=certificate[0])
    port = stand.address.rpartition(":")[2]
    with RelayClient(f"https://localhost:{port}", tls=context) as client:
        assert client.described("/v1/status") == {"name": "stand"}
        assert isinstance(next(subscribe(client, Subscribe(namespaces=[PARENT]))), Live)
    with RelayClient(stand.address) as plain, pytest.raises(ClientUnreachableError):
        plain.described("/v1/status")
    with RelayClient(f"https://localhost:{port}") as wary, pytest.raises(ClientUnreachableError):
        wary.described("/v1/status")


def test_a_certificate_that_cannot_be_read_is_named(stand_with: Maker) -> None:
    """A missing certificate stops the start with its path."""
    with pytest.raises(NodeError, match=r"/nowhere/cert\.pem"):
        stand_with(tls_certificate="/nowhere/cert.pem", tls_key="/nowhere/key.pem")


@pytest.mark.parametrize("admin", [False, True], ids=["public", "admin"])
def test_hostile_requests_leave_it_serving(stand: Stand, *, admin: bool) -> None:
    """Whatever bytes come, to HTTP or inside a WebSocket, the next request is served."""
    rng = random.Random(20_261_128)
    token = stand.token("read", "publish", "admin")
    paths = list(json.loads(stand.fetch("/openapi.json", admin=admin).body)["paths"])
    for number in range(HOSTILE_REQUESTS):
        data = hostile(rng, paths, token)
        with connect(stand, admin=admin) as stream:
            try:
                stream.sendall(data)
                if number % 3:
                    stream.shutdown(socket.SHUT_WR)
                    ended(stream)
            except OSError:
                continue  # being cut off is an answer

    assert stand.fetch("/openapi.json", admin=admin).status == 200
    counters = stand.service.admin.counters if admin else stand.service.public.counters
    assert counters.faults == 0
    assert counters.broken > 0


def hostile(rng: random.Random, paths: list[str], token: str) -> bytes:
    """Return bytes that begin like a request, more or less."""
    path = rng.choice(
        [*paths, "/" + "../" * 20, "/%00", "/\x7f", "*", "http://x/", "/" + "a" * 9000]
    )
    path = path.replace("{namespace}", rng.choice([PARENT.hex(), "zz", "%2e%2e", "0" * 40]))
    method = rng.choice(["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "BREW", "get", ""])
    lines = [f"{method} {path}{rng.choice(['', '?x=1', '?limit=-1', '?%', '?&&='])} HTTP/1.1"]
    pool = [
        "Host: 127.0.0.1", "Host: a\tb", f"Authorization: Bearer {token}", "Authorization: x",
        "Content-Length: 5", "Content-Length: -1", "Content-Length: 99999999999999999999",
        "Transfer-Encoding: chunked", "Transfer-Encoding: gzip", "Expect: 100-continue",
        "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Content-Type: application/json",
        "Content-Type: application/vnd.luxrelay.messages", "Range: bytes=5-", "Accept: */*",
        "X: \xff\x00", "Bad Header", ": empty", "Origin: null", "Cookie: " + "c" * 2000,
    ]  # fmt: skip
    lines += rng.sample(pool, rng.randint(0, len(pool)))
    data = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    data += rng.choice(
        [b"", b"{}", b"5\r\nhello\r\n0\r\n\r\n", rng.randbytes(rng.randint(1, 2000))]
    )
    if rng.random() < 0.3:
        data = handshake("/v1/stream") + rng.randbytes(rng.randint(1, 500))
    elif rng.random() < 0.3:
        place = rng.randrange(len(data))
        data = data[:place] + rng.randbytes(rng.randint(0, 5)) + data[place + 1 :]
    return data
