"""What outsiders found in the skin of the gateway: one failure, one gate, one framing."""

import json
import re
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import PARENT, Stand

pytestmark = [pytest.mark.slow, pytest.mark.trial]
Maker = Callable[..., Stand]
HOST = b"Host: 127.0.0.1\r\n"
UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
NEXT = b"GET /v1/smuggled HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
END = b"0\r\n\r\n"
NS = PARENT.hex()


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    """Return a client's frame, masked with zeros."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack(">H", size)
    return bytes([(0x80 if fin else 0) | opcode]) + length + bytes(4) + payload


def connect(stand: Stand, source: str = "127.0.0.1") -> socket.socket:
    """Return a plain connection."""
    host, _, port = stand.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20, source_address=(source, 0))


def all_of(stream: socket.socket, seconds: float = 20) -> tuple[bytes, bool]:
    """Return what comes, and whether the other side closed."""
    stream.settimeout(seconds)
    received = b""
    try:
        while part := stream.recv(65_536):
            received += part
    except TimeoutError:
        return received, False
    except ConnectionResetError:
        pass
    return received, True


def websocket(stand: Stand, *headers: bytes, path: str = "/v1/stream") -> socket.socket:
    """Return a connection after a handshake that was taken."""
    stream = connect(stand)
    stream.sendall(f"GET {path} HTTP/1.1\r\n".encode() + HOST + UPGRADE + b"".join(headers))
    stream.sendall(b"\r\n")
    received = b""
    while b"\r\n\r\n" not in received:
        received += stream.recv(1)
    assert received.startswith(b"HTTP/1.1 101 "), received
    return stream


SUBSCRIBE: dict[str, Any] = {"type": "subscribe", "namespaces": [NS]}
MESSAGES = {
    "list-format": SUBSCRIBE | {"format": []},
    "object-format": SUBSCRIBE | {"format": {}},
    "list-namespace": SUBSCRIBE | {"namespaces": [[]]},
    "list-after": SUBSCRIBE | {"after": []},
    "list-lanes": SUBSCRIBE | {"lanes": [1]},
    "list-positions": SUBSCRIBE | {"positions": []},
    "list-position": SUBSCRIBE | {"positions": {NS: []}},
    "object-wait": SUBSCRIBE | {"gapWaitMs": {}},
    "surrogate-name": {"type": "subscribe", "\ud800": 1},
    "surrogate-type": {"type": "\ud800"},
    "surrogate-position": SUBSCRIBE | {"positions": {NS: "\ud800"}},
    "surrogate-namespace": SUBSCRIBE | {"positions": {"\ud800": 1}},
    "list-type": {"type": []},
    "list-id": {"type": "publish", "id": [], "messages": []},
    "list-messages": {"type": "publish", "messages": [[]]},
    "list": [[]],
    "null": None,
}


def test_no_message_of_a_websocket_ends_more_than_its_session(standing: Stand) -> None:
    """Members of wrong types and lone surrogates are answered; nobody else notices."""
    for name, value in MESSAGES.items():
        with websocket(standing) as stream:
            stream.sendall(frame(1, json.dumps(value).encode()) + frame(8, struct.pack(">H", 1000)))
            received, closed = all_of(stream)
        assert closed, name
        assert b'"error"' in received, (name, received)
    deep = b'{"type":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    with websocket(standing) as stream:
        stream.sendall(frame(1, deep) + frame(8))
        assert b'"error"' in all_of(stream)[0]

    assert standing.service.stats().contained == {}
    assert standing.fetch("/v1/limits").status == 200


SEQUENCES = {
    "ping-close": frame(9, b"x") + frame(8, struct.pack(">H", 1000)),
    "close-ping": frame(8) + frame(9),
    "close-close": frame(8) + frame(8),
    "message-close": frame(1, b'{"type":"ping"}') + frame(8),
    "many-pings-close": frame(9) * 50 + frame(8),
    "reserved-opcode": frame(3),
    "continuation-first": frame(0, b"x"),
    "text-in-text": frame(1, b"a", fin=False) + frame(1, b"b"),
    "fragmented-ping": frame(9, fin=False),
    "close-of-one-byte": frame(8, b"\x03"),
    "close-code-0": frame(8, bytes(2)),
    "close-code-1005": frame(8, struct.pack(">H", 1005)),
    "close-code-4999": frame(8, struct.pack(">H", 4999)),
    "close-reason-not-text": frame(8, struct.pack(">H", 1000) + b"\xff"),
    "text-not-utf-8": frame(1, b"\xff\xfe"),
    "unmasked": b"\x81\x02{}",
    "reserved-bit": b"\xc1\x80" + bytes(4),
    "long-form-of-short": b"\x81\xfe\x00\x01" + bytes(4) + b"x",
    "longest": b"\x81\xff" + b"\xff" * 8 + bytes(4),
}


@pytest.mark.parametrize("path", ["/v1/stream", "/dashboard/live"])
def test_no_sequence_of_frames_ends_more_than_its_socket(standing: Stand, path: str) -> None:
    """Frames in any order, in one segment or byte by byte, end the socket with a close frame."""
    for name, data in SEQUENCES.items():
        for size in (len(data), 1):
            with websocket(standing, path=path) as stream:
                try:
                    for start in range(0, len(data), size):
                        stream.sendall(data[start : start + size])
                except OSError:
                    pass  # it was ended before the last byte
                received, closed = all_of(stream)
            assert closed, name
            # What was not read any more resets the connection, which may overtake the close frame.
            assert b"\x88" in received or size == 1 or name == "close-close", (name, received)

    assert standing.service.stats().contained == {}
    assert standing.fetch("/v1/limits").status == 200


def test_a_session_that_fails_unexpectedly_ends_with_1011(stand: Stand) -> None:
    """A fault of ours in a session is told to its client, counted, and ends nothing else."""

    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    stand.feed.follow = broken  # type: ignore[method-assign]
    with websocket(stand) as stream:
        stream.sendall(frame(1, json.dumps(SUBSCRIBE).encode()))
        received, closed = all_of(stream)

    assert closed
    assert struct.pack(">H", 1011) in received
    assert stand.service.stats().streams.faults == 1
    assert stand.fetch("/v1/limits").status == 200


EVIL = (b"evil.example", b"evil.example:80", b"EVIL.example.", b"127.0.0.1.evil.example")
OURS = (b"127.0.0.1", b"127.0.0.1:1", b"localhost", b"LOCALHOST:9", b"localhost.", b"[::1]:9")
PATHS = ("/v1/limits", "/v1/status", "/", "/dashboard/live", "/v1/stream", "/openapi.json")


def test_every_route_of_every_listener_is_behind_the_gate(stand_with: Maker) -> None:
    """A name that was made to lead here is refused on each path, page, socket and admin call."""
    stand = stand_with()

    def status(path: str, host: bytes, *, admin: bool = False, extra: bytes = b"") -> int:
        request = f"GET {path} HTTP/1.1\r\n".encode() + b"Host: " + host + b"\r\n" + extra + b"\r\n"
        return int(stand.raw(request, admin=admin)[9:12])

    for path in PATHS:
        for host in EVIL:
            origin = b"Origin: http://" + host + b"\r\n"
            assert status(path, host, extra=origin + UPGRADE) == 403, (path, host)
            assert status(path, host) == 403, (path, host)
    for host in EVIL:
        assert status("/admin/v1/tokens", host, admin=True) == 403
        assert status("/openapi.json", host, admin=True) == 403
    for host in OURS:
        assert status("/v1/limits", host) == 200, host
        assert status("/openapi.json", host, admin=True) == 200, host
    for origin in (b"null", b"http://127.0.0.1:1", b"https://evil.example", b"file://", b"*"):
        own = b"Origin: " + origin + b"\r\n"
        assert status("/v1/stream", b"127.0.0.1", extra=own + UPGRADE) == 403, origin
    for host in (b"", b"a b", b"a,b", b"[zz]", b"a:b", b"a@b", b"[::1].evil", b"127.0.0.1@evil"):
        assert status("/v1/limits", host) in {400, 403}, host


def test_a_target_in_absolute_form_goes_before_host(standing: Stand) -> None:
    """RFC 9112 §3.2.2: the target's name is the one that counts."""

    def status(target: bytes) -> int:
        return int(standing.raw(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n")[9:12])

    assert status(b"http://evil/v1/limits") == 403
    assert status(b"http://127.0.0.1/v1/limits") == 200
    assert status(b"//v1/limits") == 404
    assert status(b"/v1/limits#x") == 400


def test_a_request_of_http_1_0_may_come_without_host(standing: Stand) -> None:
    """No browser sends one; a health check does."""
    assert standing.raw(b"GET /v1/limits HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def post(headers: bytes, body: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    """Return a request with a body, and one more behind it."""
    return b"POST /v1/messages " + version + b"\r\n" + HOST + headers + b"\r\n" + body + NEXT


CHUNKED = b"Transfer-Encoding: chunked\r\n"
SMUGGLED = {
    "length-and-chunks": post(b"Content-Length: 5\r\n" + CHUNKED, END),
    "chunks-and-length": post(CHUNKED + b"Content-Length: 5\r\n", END),
    "two-lengths": post(b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello"),
    "length-list": post(b"Content-Length: 5, 6\r\n", b"hello"),
    "length-plus": post(b"Content-Length: +5\r\n", b"hello"),
    "length-minus": post(b"Content-Length: -1\r\n", b""),
    "length-hex": post(b"Content-Length: 0x5\r\n", b"hello"),
    "length-underscore": post(b"Content-Length: 0_5\r\n", b"hello"),
    "length-arabic": post("Content-Length: ٥\r\n".encode(), b"hello"),
    "length-huge": post(b"Content-Length: " + b"9" * 30 + b"\r\n", b"hello"),
    "length-empty": post(b"Content-Length: \r\n", b"hello"),
    "xchunked": post(b"Transfer-Encoding: xchunked\r\n", END),
    "chunked-identity": post(b"Transfer-Encoding: chunked, identity\r\n", END),
    "identity-chunked": post(b"Transfer-Encoding: identity, chunked\r\n", END),
    "chunked-twice": post(CHUNKED + CHUNKED, END),
    "space-before-colon": post(b"Transfer-Encoding : chunked\r\n", END),
    "vertical-tab": post(b"Transfer-Encoding:\x0bchunked\r\n", END),
    "quoted": post(b'Transfer-Encoding: "chunked"\r\n', END),
    "chunks-of-1.0": post(CHUNKED + b"Connection: keep-alive\r\n", END, b"HTTP/1.0"),
    "gzip-chunked": post(b"Transfer-Encoding: gzip, chunked\r\n", END),
    "folded": post(b"Transfer-Encoding:\r\n chunked\r\n", END),
    "folded-by-tab": post(b"X: y\r\n\tContent-Length: 5\r\n", b"hello"),
    "bare-lf": post(b"X: y\nTransfer-Encoding: chunked\r\n", END),
    "bare-lf-ends-the-head": b"GET /v1/limits HTTP/1.1\r\n" + HOST + b"X: y\n\r\n" + NEXT,
    "lf-only": b"GET /v1/limits HTTP/1.1\nHost: 127.0.0.1\n\n" + NEXT,
    "first-header-with-space": b"GET /v1/limits HTTP/1.1\r\n X: y\r\n" + HOST + b"\r\n" + NEXT,
    "bare-cr-ends-a-line": post(b"X: a\rContent-Length: 5\r\n", b"hello"),
    "leading-lines": b"\r\n\r\n" + NEXT,
    "lower-case-version": b"GET /v1/limits http/1.1\r\n" + HOST + b"\r\n" + NEXT,
    "nul-in-target": b"GET /v1/li\0mits HTTP/1.1\r\n" + HOST + b"\r\n" + NEXT,
    "host-with-space": b"GET /v1/limits HTTP/1.1\r\nHost: a b\r\n\r\n" + NEXT,
    "host-with-user": b"GET /v1/limits HTTP/1.1\r\nHost: a@127.0.0.1\r\n\r\n" + NEXT,
    "no-host": b"GET /v1/limits HTTP/1.1\r\n\r\n" + NEXT,
    "equal-lengths-unread": post(b"Content-Length: 5\r\nContent-Length: 5\r\n", b"hello"),
    "close-with-length": post(b"Connection: close, content-length\r\nContent-Length: 2\r\n", b"{}"),
    "head-of-17-kb": b"GET /v1/limits HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 17_000 + b"\r\n\r\n",
    "bare-cr": post(b"X: a\rTransfer-Encoding: chunked\r\n", b""),
    "nul": post(b"X: a\0b\r\n", b""),
    "name-with-space": post(b"X Y: a\r\n", b""),
    "get-with-body": b"GET /v1/limits HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 5\r\n\r\nhello"
    + NEXT,
    "two-hosts": b"GET /v1/limits HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + NEXT,
    "connect": b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n" + HOST + b"\r\n" + NEXT,
    "http-2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + NEXT,
    "http-2.0": b"GET /v1/limits HTTP/2.0\r\n" + HOST + b"\r\n" + NEXT,
    "http-0.9": b"GET /v1/limits\r\n\r\n" + NEXT,
    "http-11.1": b"GET /v1/limits HTTP/11.1\r\n" + HOST + b"\r\n" + NEXT,
    "two-spaces": b"GET  /v1/limits HTTP/1.1\r\n" + HOST + b"\r\n" + NEXT,
    "tabs": b"GET\t/v1/limits\tHTTP/1.1\r\n" + HOST + b"\r\n" + NEXT,
    "not-ascii": b"GET /v1/\xff HTTP/1.1\r\n" + HOST + b"\r\n",
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_what_two_readers_could_take_differently_is_refused_and_closed(
    standing: Stand, name: str
) -> None:
    """RFC 9112 §6: one answer that refuses, and the connection is closed."""
    for size in (len(SMUGGLED[name]), 7):
        with connect(standing) as stream:
            try:
                for start in range(0, len(SMUGGLED[name]), size):
                    stream.sendall(SMUGGLED[name][start : start + size])
            except OSError:
                pass  # it was ended before the last byte
            received, closed = all_of(stream)

        statuses = [int(each) for each in re.findall(rb"HTTP/1\.1 (\d+) ", received)]
        assert closed
        # What was not read any more resets the connection, which may overtake the answer.
        assert len(statuses) == 1 or (size == 7 and not statuses), received
        assert all(400 <= status < 600 for status in statuses)


def test_a_head_may_come_in_any_pieces(standing: Stand) -> None:
    """Its lines are looked at across segments, and a body and the next head are told apart."""
    token = f"Authorization: Bearer {standing.token('publish')}\r\n".encode()
    body = b"x\n y\r z\n\tv\r\n\r\n\n"
    length = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    data = b"POST /v1/messages HTTP/1.1\r\n" + HOST + token + length + b"\r\n" + body
    data += b"GET /v1/limits HTTP/1.1\r\n" + HOST + b"\r\n"
    for size in (*range(1, 12), len(data)):
        with connect(standing) as stream:
            for start in range(0, len(data), size):
                stream.sendall(data[start : start + size])
            received = b""
            while received.count(b"HTTP/1.1 ") < 2:
                received += stream.recv(65_536)
        assert re.findall(rb"HTTP/1\.1 (\d+) ", received) == [b"400", b"200"], received


LAWFUL = {
    "two-pipelined": (b"GET /v1/limits HTTP/1.1\r\n" + HOST + b"\r\n") * 2,
    "upper-case-chunked": post(b"Transfer-Encoding: CHUNKED\r\n", END),
    "trailer-with-length": post(CHUNKED, b"0\r\nContent-Length: 50\r\n\r\n"),
    "http-1.2": b"GET /v1/limits HTTP/1.2\r\n" + HOST + b"\r\n" + NEXT,
    "trace": b"TRACE /v1/limits HTTP/1.1\r\n" + HOST + b"\r\n" + NEXT,
    "options-of-all": b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n" + NEXT,
    "fragment": b"GET /v1/limits#x HTTP/1.1\r\n" + HOST + b"\r\n" + NEXT,
    "many-headers": b"GET /v1/limits HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 2000 + b"\r\n" + NEXT,
    "upwards": b"GET /v1/../admin/v1/tokens HTTP/1.1\r\n" + HOST + b"\r\n" + NEXT,
    "upwards-escaped": b"GET /dashboard/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n"
    + HOST
    + b"\r\n"
    + NEXT,
}
STATUSES = {
    "two-pipelined": [200, 200],
    "upper-case-chunked": [401, 404],
    "trailer-with-length": [401, 404],
    "http-1.2": [200, 404],
    "trace": [405, 404],
    "options-of-all": [404, 404],
    "fragment": [400, 404],
    "many-headers": [400, 404],
    "upwards": [404, 404],
    "upwards-escaped": [404, 404],
}


@pytest.mark.parametrize("name", LAWFUL)
def test_what_every_reader_takes_alike_keeps_its_connection(standing: Stand, name: str) -> None:
    """The request behind it is answered as its own."""
    with connect(standing) as stream:
        stream.sendall(LAWFUL[name])
        received = b""
        while received.count(b"HTTP/1.1 ") < 2:
            received += stream.recv(65_536)
    assert [int(each) for each in re.findall(rb"HTTP/1\.1 (\d+) ", received)] == STATUSES[name]


def test_http_1_0_is_answered_once(standing: Stand) -> None:
    """Kept alive only where it is asked for and allowed: here it is closed."""
    request = b"GET /v1/limits HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    with connect(standing) as stream:
        stream.sendall(request * 2)
        received, closed = all_of(stream)
    assert closed
    assert received.count(b"HTTP/1.1 200 ") == 1


@pytest.mark.parametrize("expect", [b"100-continue", b"200-ok"])
def test_what_is_expected_without_a_token_is_refused(standing: Stand, expect: bytes) -> None:
    """No body is asked for."""
    with connect(standing) as stream:
        stream.sendall(post(b"Content-Length: 2\r\nExpect: " + expect + b"\r\n", b"{}"))
        received, closed = all_of(stream)
    assert closed
    assert re.findall(rb"HTTP/1\.1 (\d+) ", received) == [b"401"]


BROKEN_CHUNKS = {
    "hex": b"0x5\r\nhello\r\n",
    "plus": b"+5\r\nhello\r\n",
    "underscore": b"0_5\r\nhello\r\n",
    "space": b" 5\r\nhello\r\n",
    "longer": b"5\r\nhelloXX\r\n",
    "no-end": b"5\r\nhelloXX",
    "overflow": b"10000000000000005\r\nhello\r\n",
    "extension-with-lf": b"5;a\nb\r\nhello\r\n",
    "line-ends-in-lf": b"5\nhello\r\n",
    "trailers-of-100-kb": b"0\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("name", BROKEN_CHUNKS)
def test_broken_chunks_are_refused_and_closed(standing: Stand, name: str) -> None:
    """From a caller whose body is read."""
    token = f"Authorization: Bearer {standing.token('publish')}\r\n".encode()
    headers = token + CHUNKED + b"Content-Type: application/json\r\n"
    with connect(standing) as stream:
        stream.sendall(post(headers, BROKEN_CHUNKS[name] + END))
        received, closed = all_of(stream)

    assert closed
    answers = re.findall(rb"HTTP/1\.1 (\d)\d\d ", received)
    # What was not read any more resets the connection, which may overtake the answer.
    assert answers == [b"4"] or (not answers and len(BROKEN_CHUNKS[name]) > 10_000), received


def test_a_handshake_is_a_get_of_http_1_1_without_a_body(standing: Stand) -> None:
    """Anything else gets no 101."""
    for line, more in (
        (b"GET /v1/stream HTTP/1.1", b"Content-Length: 3\r\n"),
        (b"GET /v1/stream HTTP/1.1", b"Content-Length: 0\r\n"),
        (b"GET /v1/stream HTTP/1.1", CHUNKED),
        (b"HEAD /v1/stream HTTP/1.1", b""),
        (b"POST /v1/stream HTTP/1.1", b""),
        (b"GET /v1/stream HTTP/1.0", b""),
    ):
        with connect(standing) as stream:
            stream.sendall(line + b"\r\n" + HOST + UPGRADE + more + b"\r\nabc")
            status = int(stream.recv(12)[9:12])
        assert 400 <= status < 500, (line, more)


def test_a_refused_get_keeps_its_connection(stand_with: Maker) -> None:
    """Without a token, of no path, of a wrong method and too fast: the next one is answered."""
    stand = stand_with(anonymous="nobody")
    with connect(stand) as stream:
        for line, status in (
            (b"GET /v1/status", 401),
            (b"GET /v1/nothing", 404),
            (b"DELETE /v1/messages", 405),
            (b"GET /v1/stream", 400),
            (b"GET /v1/limits", 200),
        ):
            stream.sendall(line + b" HTTP/1.1\r\n" + HOST + b"\r\n")
            received = b""
            while b"\r\n\r\n" not in received:
                received += stream.recv(1)
            assert int(received[9:12]) == status
            length = re.search(rb"Content-Length: (\d+)", received)
            assert length is not None
            assert b"Connection: close" not in received
            for _ in range(int(length[1])):
                stream.recv(1)


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(standing: Stand) -> None:
    """By its length, with and without `Expect`, and for a bad token: no `100 Continue`."""
    good = f"Authorization: Bearer {standing.token('publish')}\r\n".encode()
    bad = b"Authorization: Bearer lrt_bad\r\n"
    expect = b"Expect: 100-continue\r\n"
    for size in (10**9, standing.config.body_bytes_max + 1, 2**63, 2**64, 10**19):
        for token in (good, bad):
            for more in (b"", expect):
                with connect(standing) as stream:
                    stream.sendall(
                        b"POST /v1/messages HTTP/1.1\r\n" + HOST + token + more +
                        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % size
                    )  # fmt: skip
                    received, closed = all_of(stream)
                assert closed
                assert int(received[9:12]) == (413 if token is good else 401), received


def test_lone_surrogates_are_refused_at_every_door_for_text(standing: Stand) -> None:
    """In a body, as a name, in a query and in a path."""
    token = f"Bearer {standing.token('publish')}"
    for body in (
        b'{"messages":["\\ud800"]}',
        b'{"\\udfff":1}',
        b'{"messages":[{"header":"\\ud83d"}]}',
    ):
        answer = standing.fetch(
            "/v1/messages",
            method="POST",
            body=body,
            Authorization=token,
            Content_Type="application/json",
        )
        assert answer.status == 400
    for path in ("/v1/topics?content_topic=%ed%a0%80", "/v1/%ed%a0%80", "/v1/limits?%ed%a0%80=1"):
        assert standing.fetch(path).status == 400
    assert standing.service.stats().public.faults == 0


def test_sockets_that_prove_nothing_keep_no_token_holder_out(
    stand_with: Maker, eventually: Callable[..., Any]
) -> None:
    """Whoever opens them, from however many networks; the token holder stays."""
    stand = stand_with(anonymous="nobody", subscribers_max=8, guest_ms=600_000)
    token = f"Authorization: Bearer {stand.token('read')}\r\n".encode()
    request = b"GET /v1/stream HTTP/1.1\r\n" + HOST + UPGRADE
    held = []
    for network in range(4):
        for _ in range(4):
            stream = connect(stand, f"127.{network + 7}.0.1")
            stream.sendall(request + b"\r\n")
            assert stream.recv(12) == b"HTTP/1.1 101"
            held.append(stream)
    eventually(lambda: stand.service.stats().streams.open == 8)
    held += [websocket(stand, token) for _ in range(8)]
    eventually(lambda: stand.service.stats().streams.open == 8)
    assert stand.service.stats().streams.crowded == 16
    with connect(stand, "127.99.0.1") as late:
        late.sendall(request + b"\r\n")
        assert late.recv(12) == b"HTTP/1.1 503"
    held[-1].sendall(frame(1, b'{"type":"ping"}'))
    assert b"pong" in held[-1].recv(4096)
    for stream in held:
        stream.close()


def test_a_socket_that_subscribes_nothing_is_closed(stand_with: Maker) -> None:
    """A guest has guest_ms; whoever has subscribed stays."""
    stand = stand_with(guest_ms=300)
    with websocket(stand) as idle, websocket(stand, path=f"/v1/stream?namespace={NS}") as reader:
        received, closed = all_of(idle)
        assert closed
        assert struct.pack(">H", 4408) in received
        reader.sendall(frame(1, b'{"type":"ping"}'))
        told = b""
        while b"pong" not in told:
            told += reader.recv(4096)


def test_behind_a_proxy_sockets_without_token_are_counted_by_client(stand_with: Maker) -> None:
    """A quarter of the places for one network of clients, IPv6 by /32; the oldest of it goes."""
    stand = stand_with(subscribers_max=8, guest_ms=600_000, trusted_proxies=("127.0.0.0/8",))

    def of(client: str) -> socket.socket:
        return websocket(stand, f"Forwarded: for=192.0.2.1, for={client}\r\n".encode())

    streams = [of(f'"[2001:db8:{number}::1]:1"') for number in range(2)]
    others = [of('"[2001:db9::1]"'), of("203.0.113.1"), of("198.51.100.1")]
    streams.append(of('"[2001:db8:ffff::1]"'))
    received, closed = all_of(streams[0])
    assert closed
    assert struct.pack(">H", 1013) in received
    streams.pop(0).close()
    for stream in (*streams, *others):
        stream.sendall(frame(1, b'{"type":"ping"}'))
        assert b"pong" in stream.recv(4096)
        stream.close()


def test_behind_a_proxy_the_client_is_the_last_hop_that_is_not_trusted(stand_with: Maker) -> None:
    """Rates are those of clients; what a client wrote itself counts nothing."""
    stand = stand_with(requests_per_s=1, trusted_proxies=("127.0.0.0/8",))

    def spent(*hops: str) -> bool:
        return any(
            stand.fetch("/v1/limits", X_Forwarded_For=hop).status == 429 for hop in hops * 12
        )

    assert spent("203.0.113.1")
    assert stand.fetch("/v1/limits", X_Forwarded_For="203.0.113.2").status == 200
    assert spent("198.51.100.1, 203.0.113.3, 127.0.0.9", "198.51.100.2, 203.0.113.3")
    assert spent("unknown", "_hidden", "", ",,,", "[::1", "1.2.3.4.5")
    stand = stand_with(requests_per_s=1, trusted_proxies=("127.0.0.0/8",))

    def described(*hops: str) -> bool:
        return any(stand.fetch("/v1/limits", Forwarded=hop).status == 429 for hop in hops * 12)

    assert described('for="[2001:db8::1]:4711";proto=https')
    assert stand.fetch("/v1/limits", Forwarded="for=203.0.113.1").status == 200
    assert described("for=192.0.2.1, for=203.0.113.2", "for=192.0.2.2, for=203.0.113.2")
    assert described("for=unknown", "for=_hidden", 'for="', "")
    assert any(
        stand.fetch(
            "/v1/limits", X_Forwarded_For=f"203.0.113.{n}", Forwarded=f"for=198.51.100.{n}"
        ).status
        == 429
        for n in range(12)
    )
    direct = stand_with(requests_per_s=1)
    assert any(
        direct.fetch("/v1/limits", X_Forwarded_For=f"203.0.113.{n}").status == 429
        for n in range(12)
    )
