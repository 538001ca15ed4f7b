"""HTTP/1.1 and the WebSocket handshake without I/O, as generators.

A generator yields bytes to send, or None to be given received bytes; it returns its result. A
driver is a loop of four lines, so the blocking and the asynchronous client share everything.

Source: RFC 9112; RFC 6455 §4; architecture, rule 2.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from hashlib import sha1
from typing import Final, TypeVar
from urllib.parse import urlsplit

import h11

from luxrelay.client.calls import Answer, Call, refused
from luxrelay.errors import ClientArgumentError, ClientRemoteError, ClientUnreachableError
from luxrelay.gate import is_loopback

Result = TypeVar("Result")
Steps = Generator[bytes | None, bytes, Result]
"""Yields what to send, or None to receive."""

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest answer that is taken."""
_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_HEAD_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a gateway is."""

    host: str
    port: int
    tls: bool
    token: str = ""

    @classmethod
    def of(cls, address: str, token: str = "", *, token_in_clear: bool = False) -> Endpoint:
        """Return the endpoint of ``host:port`` or of an http or https URL.

        Args:
            address: Where it is.
            token: Bearer token; empty for none.
            token_in_clear: Whether the token may leave this machine without TLS.

        Raises:
            ClientArgumentError: the address names no host and port, or the token cannot be sent.

        """
        text = address if "://" in address else f"http://{address}"
        try:
            split = urlsplit(text)
            port = split.port
        except ValueError:
            split, port = urlsplit(""), None
        if (
            split.scheme not in {"http", "https"}
            or not split.hostname
            or split.path not in {"", "/"}
        ):
            raise ClientArgumentError(
                "the gateway's address cannot be used",
                where=address[:100],
                hint="give host:port or https://host",
            )
        if not token.isascii() or any(c.isspace() for c in token):
            raise ClientArgumentError("the token holds other characters", where="token")
        tls = split.scheme == "https"
        if token and not tls and not token_in_clear and not is_loopback(split.hostname):
            raise ClientArgumentError(
                "the token would travel in the clear",
                where=address[:100],
                hint="begin the address with https://, or, where the way is protected otherwise, "
                "say token_in_clear=True (--token-in-clear)",
            )
        return cls(host=split.hostname, port=port or (443 if tls else 80), tls=tls, token=token)

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def place(self) -> str:
        """Host and port for the text of errors, the port also where none was given."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def headers(self, more: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return the headers of a request."""
        found = [("Host", self.authority), ("User-Agent", "luxrelay"), *more.items()]
        if self.token:
            found.append(("Authorization", f"Bearer {self.token}"))
        return found


class Exchanges:
    """Requests and answers on one connection."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Begin with a fresh connection."""
        self._endpoint = endpoint
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES_MAX)
        self.begun = False
        """True once an answer has begun to come on this connection."""
        self.came = bytearray()
        """The body of the newest answer as far as it came, if the node had not refused."""

    @property
    def reusable(self) -> bool:
        """True when another request may follow."""
        return self._http.our_state is h11.IDLE

    def request(self, call: Call[Result]) -> Steps[Result]:
        """Make one call.

        Raises:
            ClientRefusedError: the node refused.
            ClientRemoteError: the answer is no HTTP, too large, or cannot be used.
            ClientUnreachableError: the connection ended first.

        """
        self.begun = False
        headers = self._endpoint.headers(call.headers)
        if call.body:
            headers.append(("Content-Length", str(len(call.body))))
        head = h11.Request(method=call.method, target=call.target, headers=headers)
        data = self._http.send(head) or b""
        if call.body:
            data += self._http.send(h11.Data(data=call.body)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        yield data
        answer = yield from self._answer()
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        return call.result(answer)

    def _answer(self) -> Steps[Answer]:
        status, headers, body = 0, {}, bytearray()
        self.came = bytearray()
        while True:
            event = yield from self._event()
            if isinstance(event, h11.Response):
                status = event.status_code
                headers = {n.decode(): v.decode("latin-1") for n, v in event.headers}
                self.came = body if status in {200, 206} else self.came
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > ANSWER_BYTES_MAX:
                    raise ClientRemoteError(
                        f"an answer above {ANSWER_BYTES_MAX} bytes", where=self._endpoint.place
                    )
            elif isinstance(event, h11.EndOfMessage):
                return Answer(status, headers, bytes(body))
            elif isinstance(event, h11.ConnectionClosed):
                raise ClientUnreachableError(
                    "the connection ended before the answer", where=self._endpoint.place
                )

    def _event(self) -> Steps[h11.Event]:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                if (self.came or not self.begun) and self._http.trailing_data[1]:
                    where = "in" if self.came else "before"
                    raise ClientUnreachableError(
                        f"the connection ended {where} the answer", where=self._endpoint.place
                    ) from error
                raise ClientRemoteError(
                    f"the answer is not HTTP: {error}"[:200], where=self._endpoint.place
                ) from error
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]  # PAUSED does not occur for a client
            data = yield None
            self.begun = self.begun or bool(data)
            self._http.receive_data(data)

    def upgrade(self, path: str, key: bytes) -> Steps[bytes]:
        """Open a WebSocket; return what came behind the handshake.

        Raises:
            ClientRefusedError: the node refused.
            ClientRemoteError: it is no WebSocket.
            ClientUnreachableError: the connection ended first.

        """
        text = b64encode(key).decode()
        more = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": text,
            "Sec-WebSocket-Version": "13",
        }
        request = h11.Request(method="GET", target=path, headers=self._endpoint.headers(more))
        data = self._http.send(request) or b""
        yield data + (self._http.send(h11.EndOfMessage()) or b"")
        event = yield from self._event()
        while isinstance(event, h11.InformationalResponse) and event.status_code != 101:
            event = yield from self._event()
        if isinstance(event, h11.Response):
            answer = yield from self._rest(event)
            raise refused(answer)
        expected = b64encode(sha1(text.encode() + _MAGIC, usedforsecurity=False).digest())
        if not isinstance(event, h11.InformationalResponse) or (
            dict(event.headers).get(b"sec-websocket-accept") != expected
        ):
            raise ClientRemoteError("it is no WebSocket", where=self._endpoint.place)
        return self._http.trailing_data[0]

    def _rest(self, response: h11.Response) -> Steps[Answer]:
        answer = yield from self._answer()
        headers = {n.decode(): v.decode("latin-1") for n, v in response.headers}
        return Answer(response.status_code, headers, answer.body)
