"""Hostile sequences for HTTP and WebSocket."""

from __future__ import annotations

import base64
import itertools
import random
import struct
from collections.abc import Sequence as Several
from typing import Any

from hostile_bytes import Sequence, any_value, dice, json_text, odd_json, steps_of

from luxrelay.bus import MsgHeader
from luxrelay.client import Outgoing

PATHS = (
    "/v1/messages", "/v1/messages?limit=3", "/v1/namespaces", "/v1/peers", "/v1/policies",
    "/v1/status", "/v1/limits", "/v1/topics?content_topic=/chat/1/room", "/v1/openapi.json",
    "/v1/namespaces/{ns}", "/v1/namespaces/{ns}/messages", "/v1/namespaces/{ns}/gaps",
    "/v1/namespaces/{ns}/policy", "/v1/messages/{id}", "/v1/receipts/{id}", "/v1/blobs/{id}",
    "/admin/v1/tokens", "/admin/v1/bans", "/", "/dashboard/script.js", "/dashboard/live",
    "/v1/stream", "/healthz", "/metrics",
)  # fmt: skip
METHODS = ("GET",) * 6 + ("POST", "HEAD", "OPTIONS", "DELETE", "PUT", "PRI", "get", "G\x00T", "")
ODD_HEADERS = (
    "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Content-Length: 5",
    "Content-Length: -1", "Content-Length: 99999999999999999999", "Content-Length: 5, 5",
    "Expect: 100-continue", "Range: bytes=0-", "Range: bytes=5-2", "Range: bytes=-0",
    "Range: bytes=1-99999999999999999999", "If-None-Match: *", "Host: evil.example",
    "Host:", "Host: a, b", "Origin: https://evil.example", "Origin: null", "Connection: close",
    "Connection: Upgrade", "Upgrade: websocket", "Upgrade: h2c", "Sec-WebSocket-Version: 12",
    "Sec-WebSocket-Key: x", "Authorization: Basic YTpi", "Authorization: Bearer \xff",
    "Authorization: Bearer lrt_" + "0" * 64, "Accept: application/vnd.luxrelay.messages",
    "Content-Encoding: gzip", "X: " + "y" * 900, "Forwarded: for=1.2.3.4", "Cookie: a=b",
    "X-Forwarded-For: 127.0.0.1, ::1, x", " folded: line", ": nameless", "Range: bytes=0-0,2-3",
    "Content-Type: application/json; charset=utf-16", "Accept-Encoding: identity;q=0",
)  # fmt: skip
NUMBERS = ("0", "1", "-1", "18446744073709551615", "18446744073709551616", "٣", "1e3", "", "0x1")


def entry(message: Outgoing, *, whole: bool = True) -> dict[str, Any]:
    """A message as JSON."""
    header: Any = MsgHeader.decode(message.header).to_json() if whole else message.header.hex()
    return {
        "header": header,
        "blob": base64.b64encode(message.blob).decode(),
        "parentId": message.parent.hex(),
    }


class WebAttack:
    """Makes sequences for HTTP and for WebSocket.

    Args:
        seed: Of the run.
        token: A token with the scopes read and publish.
        messages: Valid messages to spoil.

    """

    def __init__(self, seed: int, token: str, messages: Several[Outgoing]) -> None:
        self._seed = seed
        self._token = token
        self._messages = messages

    def _publish(self, rng: random.Random) -> tuple[bytes, str]:
        chosen = rng.choices(self._messages, k=rng.choice((1, 1, 2, 5)))
        if rng.random() < 0.3:
            return b"".join(each.encode() for each in chosen), "application/vnd.luxrelay.messages"
        value: Any = {"messages": [entry(each, whole=rng.random() < 0.6) for each in chosen]}
        for _ in range(rng.choice((0, 1, 1, 2))):
            value = odd_json(rng, value)
        return json_text(rng, value), "application/json"

    def _target(self, rng: random.Random) -> str:
        path = rng.choice(PATHS)
        held = rng.choice(self._messages)
        namespace = held.parent.hex() if rng.random() < 0.8 else rng.choice(("0x", "zz", "0" * 39))
        path = path.format(ns=namespace, id=rng.randbytes(32).hex())
        if rng.random() < 0.4:
            path += "&" if "?" in path else "?"
            name = rng.choice(("limit", "cursor", "from_ms", "to_ms", "after_seq", "sender", "x"))
            path += f"{name}={rng.choice((*NUMBERS, rng.randbytes(80).hex(), '%ff%00', '%ud800'))}"
        if rng.random() < 0.06:
            path = rng.choice(
                ("*", "http://a/" + path, "//" + path, "/" + "a" * 9000, "/%", "/../")
            )
        return path

    def _request(self, rng: random.Random) -> bytes:
        method = rng.choice(METHODS)
        body = b""
        headers = ["Host: 127.0.0.1"] if rng.random() < 0.95 else []
        if rng.random() < 0.6:
            headers.append(f"Authorization: Bearer {self._token}")
        target = self._target(rng)
        if rng.random() < 0.3:
            method, target = "POST", "/v1/messages"
            body, kind = self._publish(rng)
            headers.append(f"Content-Type: {kind}")
            if rng.random() < 0.3:
                headers.append("Transfer-Encoding: chunked")
                size = rng.choice((b"%x" % len(body), b"%x;x=y" % len(body), b"ffffffff", b"-1"))
                body = size + b"\r\n" + body + b"\r\n0\r\n\r\n"
            else:
                length = len(body) + rng.choice((0, 0, 0, 0, 1, -1, 7))
                headers.append(f"Content-Length: {length}")
        headers += rng.choices(ODD_HEADERS, k=rng.choice((0, 0, 1, 2, 4)))
        if rng.random() < 0.01:
            headers += ["a: b"] * 150
        rng.shuffle(headers)
        version = rng.choice(("HTTP/1.1",) * 20 + ("HTTP/1.0", "HTTP/2.0", "HTTP/1.9", ""))
        end = "\r\n" if rng.random() < 0.97 else "\n"
        text = end.join([f"{method} {target} {version}", *headers, "", ""])
        return text.encode("latin-1", "replace") + body

    def http(self, number: int) -> Sequence:
        """One to four requests of a client."""
        rng = dice(self._seed, "http", number)
        where = rng.choices(("gateway", "admin", "http"), (85, 8, 7))[0]
        requests = [self._request(rng) for _ in range(rng.choice((1, 1, 2, 4)))]
        return Sequence("http", where, number, steps_of(rng, requests))

    # WebSocket

    def handshake(self, rng: random.Random | None = None) -> bytes:
        """The request that opens a socket; with chance, one that is not quite right."""
        lines = [
            "GET /v1/stream HTTP/1.1", "Host: 127.0.0.1", "Connection: Upgrade",
            "Upgrade: websocket", "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", f"Authorization: Bearer {self._token}",
        ]  # fmt: skip
        if rng is not None:
            place = rng.randrange(1, len(lines))
            lines[place] = rng.choice(("X: y", lines[place].upper(), lines[place] + ", x"))
            lines += rng.choices(ODD_HEADERS, k=2)
            query = f"namespace={self._messages[0].parent.hex()}&after={rng.choice(NUMBERS)}"
            lines[0] = f"GET /v1/stream?{query} HTTP/1.1"
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")

    def _said(self, rng: random.Random) -> bytes:
        if rng.random() < 0.25:
            body, _ = self._publish(rng)
            return body
        chosen = rng.choice(self._messages)
        value: Any = rng.choice(
            (
                {"type": "ping"},
                {
                    "type": "subscribe",
                    "namespaces": [chosen.parent.hex()],
                    "after": rng.choice((0, "latest", 5)),
                    "lanes": True,
                    "format": rng.choice(("json", "binary")),
                    "positions": {chosen.parent.hex(): 1},
                    "gapWaitMs": 0,
                },
                {"type": "publish", "id": "a", "messages": [entry(chosen)]},
                any_value(rng),
            )
        )
        for _ in range(rng.choice((0, 1, 1, 3))):
            value = odd_json(rng, value)
        return json_text(rng, value)

    def _frame(self, rng: random.Random, code: int, data: bytes, *, last: bool = True) -> bytes:
        first = (0x80 if last else 0) | code
        odd = rng.random()
        if odd < 0.03:
            first |= rng.choice((0x10, 0x20, 0x40))
        masked = 0 if 0.03 < odd < 0.06 else 0x80
        size = len(data)
        if 0.06 < odd < 0.09:
            size = rng.choice((0, 125, 126, 65_535, 2**31, 2**63 - 1, 2**63))
        if size < 126 and rng.random() < 0.97:
            head = bytes([first, masked | size])
        elif size < 65_536 and rng.random() < 0.97:
            head = bytes([first, masked | 126]) + struct.pack(">H", size)
        else:
            head = bytes([first, masked | 127]) + struct.pack(">Q", size)
        if not masked:
            return head + data
        mask = rng.choice((bytes(4), rng.randbytes(4)))
        key = (mask * (len(data) // 4 + 1))[: len(data)]
        mixed = (int.from_bytes(data) ^ int.from_bytes(key)).to_bytes(len(data))
        return head + mask + mixed

    def _close(self, rng: random.Random) -> bytes:
        code = rng.choice((1000, 1001, 1002, 1005, 1006, 1015, 2999, 3000, 4999, 0, 999, 65_535))
        text = rng.choice((b"", b"bye", b"\xff\xfe", "\ud800".encode("utf-8", "surrogatepass")))
        return rng.choice((b"", b"\x03", struct.pack(">H", code) + text, b"\x03\xe8" + bytes(123)))

    def _frames(self, rng: random.Random) -> list[bytes]:
        kind = rng.random()
        if kind < 0.12:
            control = rng.choice((0x8, 0x9, 0xA))
            data = self._close(rng) if control == 8 else rng.randbytes(rng.choice((0, 4, 125, 126)))
            return [self._frame(rng, control, data) for _ in range(rng.choice((1, 1, 2, 30)))]
        if kind < 0.18:
            # The order that once ended the listeners: a ping behind a close.
            frames = [self._frame(rng, 0x9, b""), self._frame(rng, 0x8, self._close(rng))]
            frames.append(self._frame(rng, 0x1, self._said(rng)))
            rng.shuffle(frames)
            return frames
        if kind < 0.22:
            return [self._frame(rng, rng.randrange(16), rng.randbytes(rng.randrange(40)))]
        said, code = self._said(rng), 1
        if rng.random() < 0.2:
            code, said = 2, b"".join(m.encode() for m in rng.choices(self._messages, k=2))
        if rng.random() < 0.7:
            return [self._frame(rng, code, said)]
        places = [0, *sorted(rng.randrange(len(said) + 1) for _ in range(3)), len(said)]
        parts = [said[a:b] for a, b in itertools.pairwise(places)]
        frames = []
        for index, part in enumerate(parts):
            frames.append(
                self._frame(rng, code if index == 0 else 0, part, last=index == len(parts) - 1)
            )
            if rng.random() < 0.3:
                frames.append(self._frame(rng, rng.choice((0x9, 0xA)), b"between"))
        return frames

    def websocket(self, number: int) -> Sequence:
        """Some frames of a client; at times with the handshake in the same segment."""
        rng = dice(self._seed, "websocket", number)
        frames = [each for _ in range(rng.choice((1, 1, 2, 4))) for each in self._frames(rng)]
        chance = rng.random()
        if chance < 0.04:
            odd = self.handshake(rng if chance < 0.02 else None)
            return Sequence("websocket", "handshake", number, steps_of(rng, [odd, *frames]))
        return Sequence("websocket", "open", number, steps_of(rng, frames))
