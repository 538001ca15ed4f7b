"""What the gateway refuses before it is a request has status, code and numbers as any other."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Stand
from .test_gateway_stream import speak

pytestmark = [pytest.mark.slow, pytest.mark.trial]
Maker = Callable[..., Stand]
HOST = b"Host: 127.0.0.1\r\n"


def problem_of(answer: bytes) -> tuple[int, dict[str, Any]]:
    """Return status line and problem of a raw answer."""
    found = re.match(rb"HTTP/1\.1 (\d+) ", answer)
    assert found, answer
    return int(found[1]), json.loads(answer.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize(
    ("data", "status", "code", "detail"),
    [
        (b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", 505, "gateway.request", "HTTP/1.1"),
        (b"GET\r\n" + HOST + b"\r\n", 400, "gateway.request", "it is no request of HTTP/1.1"),
        (
            b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 20_000 + b"\r\n\r\n",
            431,
            "gateway.size",
            "the head is above 16,384 bytes",
        ),
        (
            b"POST /v1/messages HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n"
            b"Content-Type: application/json\r\n\r\nzz\r\n",
            400,
            "gateway.request",
            "it is no request of HTTP/1.1",
        ),
    ],
    ids=["version", "line", "head", "chunk"],
)
def test_line_and_problem_say_the_same(
    standing: Stand, data: bytes, status: int, code: str, detail: str
) -> None:
    """The status of the line, ours and no library's words, and the bound that was passed."""
    if b"chunked" in data:
        data = data.replace(
            HOST, HOST + f"Authorization: Bearer {standing.token('publish')}\r\n".encode()
        )
    line, told = problem_of(standing.raw(data))

    assert line == told["status"] == status
    assert told["code"] == code
    assert detail in told["detail"]
    assert "bytearray" not in told["detail"]


def test_a_request_that_comes_too_slowly_is_told_its_time(stand_with: Maker) -> None:
    """The number of the configuration, in seconds."""
    host, _, port = stand_with(request_ms=700).address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as stream:
        stream.sendall(b"GET /v1/status HTTP/1.1\r\nHo")
        answer = b"".join(iter(lambda: stream.recv(65_536), b""))
    line, told = problem_of(answer)

    assert line == told["status"] == 408
    assert told["detail"] == "the request did not come whole within 0.7 s"


def test_an_error_on_a_websocket_names_the_publication(stand_with: Maker) -> None:
    """With several under way its client knows which it was; an id that is none is not repeated."""
    stand = stand_with()
    said = speak(
        stand,
        stand.token("publish"),
        [
            json.dumps({"type": "publish", "id": "b", "messages": []}),
            json.dumps({"type": "publish", "id": 7, "messages": []}),
            json.dumps({"type": "nonsense"}),
        ],
        3,
    )

    assert [each["type"] for each in said] == ["error"] * 3
    assert [each.get("id", "none") for each in said] == ["b", None, "none"]
