"""What strangers leave with a gateway: half messages, answers that nobody takes, empty requests."""

import json
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from .conftest import PARENT, Stand
from .test_skin_trials import HOST, UPGRADE, all_of, connect, frame, websocket

pytestmark = [pytest.mark.slow, pytest.mark.trial]
Maker = Callable[..., Stand]
NS = PARENT.hex()
KIB = 1024


def subscribed(stand: Stand) -> socket.socket:
    """Return a WebSocket without token that has a subscription, and so no deadline of a guest."""
    stream = websocket(stand, path=f"/v1/stream?namespace={NS}&after=latest")
    received = b""
    while b"live" not in received and b"subscribed" not in received:
        received += stream.recv(4096)
    return stream


def test_half_messages_of_strangers_have_a_part_of_the_budget(
    stand_with: Maker, eventually: Callable[..., Any]
) -> None:
    """Beyond a quarter a socket is closed with 1013, and a token holder still publishes."""
    stand = stand_with(bodies_bytes_max=256 * KIB, asking_bytes_max=32 * KIB)
    bodies = stand.service.public.bodies
    with ExitStack() as kept:
        held = [kept.enter_context(subscribed(stand)) for _ in range(4)]
        for count, stream in enumerate(held, 1):
            stream.sendall(frame(1, b"x" * 16 * KIB, fin=False))
            assert eventually(lambda count=count: bodies.held == count * 16 * KIB)
        one_more = kept.enter_context(subscribed(stand))
        one_more.sendall(frame(1, b"x" * KIB, fin=False))
        received, closed = all_of(one_more)
        assert closed
        assert struct.pack(">H", 1013) in received
        assert bodies.held == 64 * KIB
        token = stand.token("publish")
        body = json.dumps({"messages": [], "more": "x" * 128 * KIB}).encode()
        answer = stand.fetch(
            "/v1/messages",
            method="POST",
            body=body,
            Authorization=f"Bearer {token}",
            Content_Type="application/json",
        )
        assert answer.status == 400, answer
    assert eventually(lambda: bodies.held == 0)


def test_who_may_not_publish_sends_small_messages(stand_with: Maker) -> None:
    """A question of eight megabytes is no question; a publisher's message may be as large."""
    stand = stand_with()
    long = b'{"type":[' + b"[]," * 300 * KIB + b"[]]}"
    assert stand.config.asking_bytes_max < len(long) < stand.config.body_bytes_max
    with subscribed(stand) as stream:
        stream.sendall(frame_of(long))
        received, closed = all_of(stream)
        assert closed
        assert struct.pack(">H", 1009) in received
    token = f"Authorization: Bearer {stand.token('publish')}\r\n".encode()
    with websocket(stand, token) as stream:
        stream.sendall(frame_of(long))
        assert b"gateway.request" in stream.recv(4096)


def test_a_message_has_an_end_whatever_keeps_coming(stand_with: Maker) -> None:
    """A byte every moment is a deadline of no frame, and still one of the message."""
    stand = stand_with(request_ms=1000)
    with subscribed(stand) as stream:
        began = time.monotonic()
        stream.sendall(frame(1, b"{", fin=False))
        stream.settimeout(0.05)
        received = b""
        while struct.pack(">H", 4408) not in received:
            assert time.monotonic() < began + 60
            try:
                stream.sendall(frame(0, b" ", fin=False))
                received += stream.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                break
        assert struct.pack(">H", 4408) in received


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /no/such/path HTTP/1.1\r\n" + HOST,
        b"PATCH /v1/messages HTTP/1.1\r\n" + HOST,
        b"OPTIONS /v1/messages HTTP/1.1\r\n" + HOST,
        b"GET /v1/limits HTTP/1.1\r\nHost: evil.example\r\n",
        b"GET /v1/limits#part HTTP/1.1\r\n" + HOST,
        b"GET /v1/limits HTTP/1.1\r\n" + HOST + b"Authorization: Basic eDp5\r\n",
        b"POST /v1/messages HTTP/1.1\r\nOrigin: http://evil.example\r\n" + HOST,
        b"GET /v1/stream HTTP/1.1\r\nOrigin: http://evil.example\r\n" + HOST + UPGRADE,
    ],
)
def test_a_request_that_is_refused_at_once_is_counted_too(
    stand_with: Maker, request_: bytes
) -> None:
    """No shape of a request is free of its address's rate."""
    stand = stand_with(requests_per_s=1)
    answers = []
    while b"429" not in answers and len(answers) < 8:
        with connect(stand) as stream:
            stream.sendall(request_ + b"Connection: close\r\n\r\n")
            answers.append(all_of(stream)[0][9:12])
    assert b"429" in answers


def test_what_is_no_request_is_counted_too(stand_with: Maker) -> None:
    """After four of them their address has no request left."""
    stand = stand_with(requests_per_s=1)
    for _ in range(4):
        with connect(stand) as stream:
            stream.sendall(b"GET /v1/limits HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
            assert all_of(stream)[0][9:12] == b"400"
    assert stand.fetch("/v1/limits").status == 429


def test_answers_that_nobody_takes_are_bounded_and_hoarders_lose_first(
    stand_with: Maker, eventually: Callable[..., Any]
) -> None:
    """The oldest answer of whoever has most ends; who reads gets his."""
    size = 40 * KIB
    stand = stand_with(answers_bytes_max=4 * 1024 * KIB)
    room = stand.config.answers_bytes_max // 4
    signer = stand.store_line(1)
    stand.publish([signer.sign(b"x" * size, int(time.time() * 1000)) for _ in range(16)])
    path = f"/v1/namespaces/{signer.namespace_id.hex()}/messages?limit=100"
    unread = stand.service.public.unread(known=False)
    with ExitStack() as kept:
        for number in range(6):
            stream = kept.enter_context(small_window(stand, "127.9.0.1"))
            stream.sendall(f"GET {path} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
            eventually(lambda number=number: asked(stand) == number + 1)
        assert eventually(lambda: unread.held + unread.ended)
        assert unread.held <= max(room, 2 * 16 * size)
        assert unread.ended >= 4
        answer = stand.fetch(path)
        assert len(answer.json["messages"]) == 17
        told = stand.fetch(path, Authorization=f"Bearer {stand.token('read')}")
        assert len(told.json["messages"]) == 17
    assert eventually(lambda: unread.held == 0)


def asked(stand: Stand) -> int:
    """Return how many pages were answered."""
    return stand.service.stats().public.answers.get(200, 0)


def small_window(stand: Stand, source: str) -> socket.socket:
    """Return a connection whose system takes little for it."""
    host, _, port = stand.address.rpartition(":")
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stream.settimeout(20)
    stream.bind((source, 0))
    stream.connect((host, int(port)))
    return stream


def frame_of(payload: bytes) -> bytes:
    """Return a long text frame, masked with zeros."""
    return b"\x81\xff" + struct.pack(">Q", len(payload)) + bytes(4) + payload


def test_dashboards_without_token_keep_no_token_holder_out(
    stand_with: Maker, eventually: Callable[..., Any]
) -> None:
    """All places of the dashboard are held from one address: it loses its oldest, and then more."""
    stand = stand_with()
    token = f"Authorization: Bearer {stand.token('read')}\r\n".encode()
    with ExitStack() as kept:
        for network in range(6):
            for _ in range(8):
                kept.enter_context(watching(stand, f"127.{network + 7}.0.1"))
        holders = [kept.enter_context(watching(stand, "127.0.0.1", token)) for _ in range(8)]
        assert holders
        assert eventually(lambda: stand.dashboard.watchers <= 32)


def watching(stand: Stand, source: str, *headers: bytes) -> socket.socket:
    """Return a dashboard's WebSocket, open or refused with 503 for one without token."""
    stream = connect(stand, source)
    request = b"GET /dashboard/live HTTP/1.1\r\n" + HOST + UPGRADE + b"".join(headers)
    stream.sendall(request + b"\r\n")
    status = stream.recv(12)[9:]
    assert status == b"101" or (status == b"503" and not headers)
    return stream
