"""One HTTP/1.1 listener on trio: h11 for the protocol, everything else bounded here.

Theory of operation
-------------------
*Decides*: how many may connect, how long and how large a request may be, when a client that takes
nothing is let go. *Does not know* routes; `App` answers requests and takes over WebSockets.
*One task a connection*: head, admission by the app (route, token, rate), body, answer; then the
next request. A body is read only after its caller was admitted, and counts against
``bodies_bytes_max`` while it is held.
*Timers*: ``first_byte_ms`` for the first byte of a connection, ``idle_ms`` for that of a further
request, ``request_ms`` for a whole head or body (and for the TLS handshake), ``stall_ms`` for each
64 KiB that a client takes.
*Bounds*: ``connections_max``, ``connections_per_address_max``, ``newcomers_max``: who gives way for
whom, `seats` says; ``head_bytes_max``, ``body_bytes_max``, ``bodies_bytes_max``.
*Faults*: what h11 refuses is answered with 400 and closed; an error of ours with 500. Whatever a
connection or a WebSocket raises ends that one, is counted by kind and logged once a minute; the
listener accepts on, also when descriptors run out.

Answers that their clients have not taken yet, in bytes; who holds most loses its oldest. Pure.

A client that asks for pages and reads nothing leaves them with this node until ``stall_ms``. All
such answers have one budget, those of clients without token a quarter of it. An answer that finds
no room ends the oldest one of whoever holds most, which may be its own client: an honest reader
loses nothing beside one that hoards. One answer always fits.

Source: LP-6490; ADR 0004; docs/reference/http.md; architecture, rule 4.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final, Protocol
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

import h11
import trio

from luxrelay.errors import GatewayError, LuxRelayError, NodeError
from luxrelay.gate import Proxies
from luxrelay.listening import AcceptPace, listen_sorted
from luxrelay.net.guarded import Faults
from luxrelay.net.scopes import ReadyReport
from luxrelay.node.gateway.bounds import Bodies, Seat, Seats
from luxrelay.node.gateway.calls import Response, Stream
from luxrelay.node.gateway.config import GatewayConfig
from luxrelay.node.gateway.problem import failure
from luxrelay.node.logs import log
from luxrelay.node.stages.deliver import LatencyHistogram
from luxrelay.node.tls import server_context

_LOG: Final = logging.getLogger(__name__)


class _Answer:
    def __init__(self, owner: bytes, size: int, end: Callable[[], object]) -> None:
        self.owner = owner
        self.size = size
        self.end = end


class Unread:
    """Counts answers on their way."""

    def __init__(self, bytes_max: int) -> None:
        """Start with none of ``bytes_max``."""
        self._max = bytes_max
        self._answers: dict[_Answer, None] = {}
        self._of: dict[bytes, int] = {}
        """Bytes by owner."""
        self.ended = 0
        """Answers that made room for others."""

    @property
    def held(self) -> int:
        """Bytes held now."""
        return sum(self._of.values())

    @contextmanager
    def holding(self, owner: bytes, size: int, end: Callable[[], object]) -> Iterator[None]:
        """Count an answer of ``owner`` while it is taken; ``end`` is called if it loses its room.

        Units: bytes.
        """
        answer = _Answer(owner, size, end)
        self._of[owner] = self._of.get(owner, 0) + size
        while self._answers and self.held > self._max:
            self._make_room()
        self._answers[answer] = None
        try:
            yield
        finally:
            if answer in self._answers:
                self._leave(answer)

    def _make_room(self) -> None:
        holders = {each.owner for each in self._answers}
        most = max(holders, key=lambda owner: self._of[owner])
        oldest = next(each for each in self._answers if each.owner == most)
        self._leave(oldest)
        self.ended += 1
        oldest.end()

    def _leave(self, answer: _Answer) -> None:
        del self._answers[answer]
        self._of[answer.owner] -= answer.size
        if not self._of[answer.owner]:
            del self._of[answer.owner]


FREE_READS: Final = 4
"""Reads of a request that do not wait although its address owes: a head with a token comes in
fewer, and who is to be refused hears so at once."""
PAUSE_S: Final = 0.05
"""How long a connection is not read from at the least, once its payer owes."""


class PaidReads(trio.abc.Stream):
    """A client's socket; each read is charged, and further ones of a request wait while it owes.

    It stands below TLS, so that records which come byte by byte are paid for as well.
    """

    def __init__(self, raw: trio.SocketStream) -> None:
        """Read ``raw``; nobody pays before `begin` says who."""
        self._raw = raw
        self._free = FREE_READS
        self.paid: Callable[[int], float] = _nobody_pays
        """Charges reads, and returns the seconds until nothing is owed."""

    def begin(self, paid: Callable[[int], float]) -> None:
        """Begin a request, which nobody has asked yet as far as is known."""
        self._free = FREE_READS
        self.paid = paid

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what came, once it is paid for."""
        data = await self._raw.receive_some(max_bytes)
        if data:
            wait_s = self.paid(1)
            self._free -= 1
            while wait_s and self._free < 0:
                # To wake for each byte would cost more than the byte; meanwhile more of them come.
                await trio.sleep(min(max(wait_s, PAUSE_S), HELD_S))
                wait_s = self.paid(0)
        return data

    async def send_all(self, data: bytes | memoryview) -> None:
        """Send; what is sent is charged by whoever made it."""
        await self._raw.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait for room in the socket."""
        await self._raw.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the socket."""
        await self._raw.aclose()


def _nobody_pays(_: int) -> float:
    return 0.0


REFUSED_PAUSE_S: Final = 0.5
"""Seconds before a caller above its rate hears so: asking again at once would cost us more."""
CHUNK_BYTES: Final = 64 * 1024
"""Bytes sent and received at once."""
QUERY_FIELDS_MAX: Final = 64
"""Most parameters of one query."""
ACCEPT_PAUSE_S: Final = 0.1
"""Seconds until the next connection is taken after one could not be: descriptors may be back."""
HELD_S: Final = 1.0
"""How long a connection of an address that owes is held before it is let in, at the longest."""
HELD_OF_ONE_MAX: Final = 16
"""Connections of one such address that are held; further ones are closed."""
HELD_MAX: Final = 256
"""Of all such addresses."""
BACKLOG: Final = 256
"""Connections that wait in each queue of the system."""
SPARE_DESCRIPTORS: Final = 4
"""Connections that give way when descriptors have run out; other listeners want some too."""
HEADERS_MAX: Final = 100
"""Most headers of one request."""


_ODD_LINE: Final = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|\n[ \t]")
"""A line that does not end in CRLF, or goes on in the next (RFC 9112 §2.2, §5.2): a proxy in front
may see other headers there than we do."""
_TAIL_BYTES: Final = 4
"""Bytes of a head that are looked at again with those behind them."""
_HOST_TEXT: Final = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*", re.ASCII)
"""What `Host` may be made of (RFC 9112 §3.2)."""
_AT_END: Final = {h11.DONE, h11.MIGHT_SWITCH_PROTOCOL}  # type: ignore[attr-defined]  # not in __all__
"""States of a client whose request is read to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """A request without its body."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Lower-case names; a repeated one joined with commas."""
    address: bytes
    """What the client's connections are counted under."""
    version: str = "1.1"
    """Of HTTP: ``1.1`` or ``1.0``."""
    authority: str | None = None
    """Name and port of a target in absolute form; None otherwise."""


class Admission(Protocol):
    """A request that may be answered."""

    body_bytes_max: int
    """Largest body it may have; 0 for none."""

    async def answer(self, body: bytes) -> Response:
        """Return the answer; raises our errors."""

    async def take_over(self, stream: Stream, received: bytes) -> None:
        """Speak WebSocket until it is over; only called when ``upgrade`` is set."""

    upgrade: Response | None
    """The 101 to send before `take_over`; None for a plain request."""
    known: bool
    """Whether a valid token came with it."""

    def read(self, count: int) -> float:
        """Charge reads of its body or WebSocket; return the seconds until it owes nothing."""


class App(Protocol):
    """Answers requests."""

    def admit(self, head: RequestHead) -> Admission:
        """Return what answers it; raises our errors."""

    def charge(self, address: bytes) -> None:
        """Take one request of an address; raises our errors when it has none left."""

    def connected(self, host: str) -> float:
        """Charge a connection of an address; return the seconds until it owes nothing."""

    def proved(self, host: str) -> None:
        """Note that a connection of an address has shown a token, for the first time."""

    def read(self, host: str, count: int) -> float:
        """Charge reads of an address; return the seconds until it owes nothing."""

    def decorate(self, head: RequestHead, response: Response) -> None:
        """Add the headers that every answer has."""


@dataclass(slots=True, kw_only=True)
class ServerCounters:
    """What one listener has seen."""

    connections: int = 0
    """Connections taken."""
    refused: int = 0
    """Connections closed because there were too many."""
    held: int = 0
    """Connections that were let in later because their address had cost too much."""
    crowded: int = 0
    """Connections that gave their place to a newcomer."""
    requests: int = 0
    """Requests answered."""
    faults: int = 0
    """Answers of 500."""
    broken: int = 0
    """Requests that were no HTTP, too large or too slow."""
    stalled: int = 0
    """Connections closed because their client took nothing, or too little beside others."""
    open: int = 0
    """Connections open now."""
    answers: dict[int, int] = field(default_factory=dict)
    """Requests answered, by status; an opened WebSocket is 101."""
    taken: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From head to last byte taken, WebSockets apart."""

    def answered(self, status: int) -> None:
        """Count an answer."""
        self.answers[status] = self.answers.get(status, 0) + 1


class HttpServer:
    """Serves one address."""

    def __init__(
        self,
        listen: str,
        app: App,
        config: GatewayConfig,
        bodies: Bodies | None = None,
        *,
        pace: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """Keep the parts, ``bodies`` may be shared; `run` opens the port.

        ``pace`` is how many times as long this machine takes as the one of the prices.
        """
        self._pace = pace
        self._listen = listen
        self._app = app
        self._config = config
        self._seats = Seats(
            config.connections_max, config.connections_per_address_max, config.newcomers_max
        )
        self.bodies = bodies or Bodies(config.bodies_bytes_max)
        self.counters = ServerCounters()
        self.proxies = Proxies(config.trusted_proxies)
        """Those in front that are believed."""
        self._held: Counter[str] = Counter()
        """Connections of addresses that owe, which have no task and no place yet."""
        self._unread = Unread(config.answers_bytes_max)
        self._unread_strangers = Unread(max(1, config.answers_bytes_max // 4))
        self.faults = Faults(logger=logging.getLogger("luxrelay.node.gateway"))
        """What failed although nobody expected it, each with the connection that provoked it."""
        self.address = listen
        """Where it listens, with the port that the system chose."""

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._seats)

    async def run(self, *, task_status: ReadyReport[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; ``task_status`` gets the address.

        Raises:
            NodeError: the port or the certificate cannot be had.

        """
        context = self._tls()
        host, _, port = self._listen.rpartition(":")
        try:
            sockets = listen_sorted(host, int(port), BACKLOG)
        except OSError as error:
            raise NodeError(
                f"cannot open the HTTP port: {error.strerror or error}", where=self._listen
            ) from error
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in sockets]
        number = sockets[0].getsockname()[1]
        self.address = f"{host}:{number}"

        async def serve(stream: trio.SocketStream) -> None:
            # One client's doing ends its connection, and neither the listener nor the module.
            with self.faults.contained("http connection"):
                await self._serve(stream, context)

        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(self._accept, listener, nursery, serve)
            task_status.started(self.address)

    async def _accept(
        self,
        listener: trio.SocketListener,
        nursery: trio.Nursery,
        serve: Callable[[trio.SocketStream], Awaitable[None]],
    ) -> None:
        """Take connections for ever; neither a failing one nor a lack of descriptors ends this.

        A few that may give way are ended then, whoever wants the descriptors. They are taken at a
        pace from each queue (`luxrelay.listening`), so that a flood costs what so many cost.
        """
        pace = AcceptPace(self._config.accepts_per_s, slower=self._pace)
        async with listener:
            while True:
                if wait_s := pace.wait_s(trio.current_time()):
                    await trio.sleep(wait_s)
                try:
                    stream = await listener.accept()
                except OSError as error:
                    self.faults.note("accept", error)
                    for _ in range(SPARE_DESCRIPTORS):
                        self._seats.turn_out_one()
                    await trio.sleep(ACCEPT_PAUSE_S)
                    continue
                peer = _peer(stream)
                if not self.proxies.trusts(peer):  # its connections are those of many
                    pace.took(trio.current_time())
                await self._let_in(stream, peer, nursery, serve)

    async def _let_in(
        self,
        stream: trio.SocketStream,
        peer: str,
        nursery: trio.Nursery,
        serve: Callable[[trio.SocketStream], Awaitable[None]],
    ) -> None:
        """Serve a connection now, or later when its address owes, or close it."""
        wait_s = 0.0 if self.proxies.trusts(peer) else self._app.connected(peer)
        if not wait_s:
            nursery.start_soon(serve, stream)
        elif self._held[peer] < HELD_OF_ONE_MAX and self._held.total() < HELD_MAX:
            self._held[peer] += 1
            self.counters.held += 1
            nursery.start_soon(self._serve_later, stream, peer, min(wait_s, HELD_S), serve)
        else:
            self.counters.refused += 1
            await trio.aclose_forcefully(stream)

    async def _serve_later(
        self,
        stream: trio.SocketStream,
        peer: str,
        wait_s: float,
        serve: Callable[[trio.SocketStream], Awaitable[None]],
    ) -> None:
        """Serve a connection whose address owes, so that it can show a token or be told why."""
        try:
            await trio.sleep(wait_s)
        except trio.Cancelled:
            await trio.aclose_forcefully(stream)
            raise
        finally:
            self._held[peer] -= 1
            if not self._held[peer]:
                del self._held[peer]
        await serve(stream)

    def _tls(self) -> ssl.SSLContext | None:
        config = self._config
        if not config.tls_certificate:
            return None
        return server_context(config.tls_certificate, config.tls_key)

    async def _serve(self, raw: trio.SocketStream, context: ssl.SSLContext | None) -> None:
        peer = _peer(raw)
        scope = trio.CancelScope()
        seat = self._seats.enter(peer, scope.cancel, proxy=self.proxies.trusts(peer))
        self.counters.crowded = self._seats.crowded
        if seat is None:
            self.counters.refused += 1
            await trio.aclose_forcefully(raw)
            return
        self.counters.connections += 1
        self.counters.open += 1
        reads = PaidReads(raw)
        reads.begin(self.payer_of_heads(peer))
        stream: Stream = reads
        try:
            with scope:
                if context is not None:
                    stream = trio.SSLStream(reads, context, server_side=True, https_compatible=True)
                    with trio.fail_after(self._config.request_ms / 1000):
                        await stream.do_handshake()
                await _Connection(self, stream, peer, seat, reads=reads).run()
        except (
            trio.BrokenResourceError,
            trio.ClosedResourceError,
            trio.TooSlowError,
            h11.LocalProtocolError,  # the client broke the protocol while it was being answered
        ):
            self.counters.broken += 1
        finally:
            self.counters.open -= 1
            seat.leave()
            await trio.aclose_forcefully(raw)

    def payer_of_heads(self, peer: str) -> Callable[[int], float]:
        """Return what charges reads for a client: its address, or nobody for a proxy of many."""
        return _nobody_pays if self.proxies.trusts(peer) else partial(self._app.read, peer)

    def unread(self, *, known: bool) -> Unread:
        """Return where answers are counted that clients with or without token have to take."""
        return self._unread if known else self._unread_strangers

    @property
    def app(self) -> App:
        """Who answers."""
        return self._app

    @property
    def config(self) -> GatewayConfig:
        """The bounds."""
        return self._config


class _Connection:
    """Requests and answers of one client."""

    def __init__(
        self, server: HttpServer, stream: Stream, peer: str, seat: Seat, *, reads: PaidReads
    ) -> None:
        self._server = server
        self._stream = stream
        self._reads = reads
        """The socket below it."""
        self._peer = peer
        self._seat = seat
        self._owner = client_key(peer), False
        """Who asked last, and whether with a token."""
        self._config = server.config
        self._http = h11.Connection(
            h11.SERVER, max_incomplete_event_size=server.config.head_bytes_max
        )
        self._proved = False
        """Whether a token came with a request."""
        self._in_head = False
        """Whether bytes that come belong to a head."""
        self._tail = b""
        """Its last bytes."""

    async def run(self) -> None:
        """Answer requests until either side has enough."""
        wait_ms = self._config.first_byte_ms
        while True:
            try:
                with trio.fail_after(wait_ms / 1000):
                    event = await self._first_bytes()
                if event is None:
                    return
                with trio.fail_after(self._config.request_ms / 1000):
                    request = event if isinstance(event, h11.Request) else await self._event()
            except trio.TooSlowError:
                # An idle connection ends in silence, a request that never ends with a word.
                if self._http.trailing_data[0]:
                    await self._complain(self._too_slow())
                return
            except h11.RemoteProtocolError as error:
                try:
                    self._server.app.charge(client_key(self._peer))
                except LuxRelayError:
                    await trio.sleep(REFUSED_PAUSE_S)
                await self._complain(_malformed(error, self._config.head_bytes_max))
                return
            if not isinstance(request, h11.Request) or not await self._one(request):
                return
            if (
                self._http.our_state is h11.MUST_CLOSE
                or self._http.states[h11.CLIENT] is not h11.DONE
            ):
                return
            self._seat.rests()
            self._reads.begin(self._reader())
            wait_ms = self._config.idle_ms
            self._http.start_next_cycle()

    def _reader(self) -> Callable[[int], float]:
        """Return who pays for reading the next head: the address, unless a token came from it."""
        return _nobody_pays if self._proved else self._server.payer_of_heads(self._peer)

    def _address(self, request: h11.Request) -> bytes:
        """Return what the client of a request is counted under."""

        def all_of(wanted: bytes) -> list[str]:
            return [value.decode("latin-1") for name, value in request.headers if name == wanted]

        proxies = self._server.proxies
        return client_key(
            proxies.client(self._peer, all_of(b"x-forwarded-for"), all_of(b"forwarded"))
        )

    def _head(self, request: h11.Request) -> RequestHead:
        """Return the head of a request; one that is none of ours costs its address a request."""
        address = self._address(request)
        try:
            return _head(request, address, self._config.head_bytes_max)
        except (GatewayError, h11.RemoteProtocolError):
            self._server.app.charge(address)
            raise

    def _take(self, data: bytes) -> None:
        """Hand on what came.

        Raises:
            h11.RemoteProtocolError: a line of a head is none to every reader.

        """
        if self._in_head:
            self._check_lines(data)
        self._http.receive_data(data)

    def _check_lines(self, data: bytes) -> None:
        text = self._tail + data
        end = text.find(b"\r\n\r\n")
        # What the tail begins with was looked at with what stood before it.
        if _ODD_LINE.search(
            text, len(self._tail) // _TAIL_BYTES, len(text) if end < 0 else end + 2
        ):
            raise h11.RemoteProtocolError("lines of a head end in CRLF, and none goes on")
        self._in_head = end < 0
        self._tail = text[-_TAIL_BYTES:]

    async def _first_bytes(self) -> h11.Event | None:
        self._in_head, self._tail = True, b""
        self._check_lines(self._http.trailing_data[0])
        event = self._http.next_event()
        while event is h11.NEED_DATA and not self._http.trailing_data[0]:
            data = await self._stream.receive_some(CHUNK_BYTES)
            if not data:
                return None
            self._seat.spoke()
            self._take(data)
            event = self._http.next_event()
        return event  # type: ignore[return-value]  # NEED_DATA: a part of the head is there

    async def _event(self) -> h11.Event:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._take(await self._stream.receive_some(CHUNK_BYTES))
        return event  # type: ignore[return-value]  # never NEED_DATA

    async def _one(self, request: h11.Request) -> bool:
        """Answer one request; False when the connection is over."""
        self._server.counters.requests += 1
        self._seat.asked()
        begun = trio.current_time()
        head: RequestHead | None = None
        try:
            head = self._head(request)
            admission = self._server.app.admit(head)
            self._owner = head.address, admission.known
            self._reads.paid = admission.read
            if admission.known:
                self._seat.proved()
                if not self._proved:
                    self._proved = True
                    self._server.app.proved(self._peer)
            if admission.upgrade is None:
                response = await self._with_body(admission, head)
            else:
                await self._upgrade(admission.upgrade, head)
                self._seat.stays()
                # Here the request is over, and so is HTTP: a failure is the session's own.
                with self._server.faults.contained("websocket"):
                    await admission.take_over(self._stream, self._http.trailing_data[0])
                return False
        except LuxRelayError as error:
            if error.code == "gateway.rate":
                await trio.sleep(REFUSED_PAUSE_S)
            response = failure(error)
        except (h11.RemoteProtocolError, trio.TooSlowError) as error:
            slow = isinstance(error, trio.TooSlowError)
            await self._complain(
                self._too_slow() if slow else _malformed(error, self._config.head_bytes_max)
            )
            return False
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise
        except Exception as error:  # noqa: BLE001  one bad answer must not stop the listener
            self._server.counters.faults += 1
            self._server.faults.note("http call", error)
            response = failure(GatewayError("see the node's log", code="gateway.fault"))
        if head is not None:
            self._server.app.decorate(head, response)
        try:
            return await self._send(response, with_body=request.method != b"HEAD")
        finally:
            took_ms = round(1000 * (trio.current_time() - begun))
            self._server.counters.taken.observe(took_ms)
            _log_answer(request, head, response, took_ms)

    async def _with_body(self, admission: Admission, head: RequestHead) -> Response:
        held = 0
        body = bytearray()
        declared = int(head.headers.get("content-length", "0"))
        if declared > admission.body_bytes_max:  # before `100 Continue`: nothing of it is sent then
            raise GatewayError(
                f"the body is above {admission.body_bytes_max} bytes",
                where="Content-Length",
                code="gateway.size",
            )
        try:
            with trio.fail_after(self._config.request_ms / 1000):
                if self._http.they_are_waiting_for_100_continue and admission.body_bytes_max:
                    await self._write(
                        self._http.send(h11.InformationalResponse(status_code=100, headers=[]))
                    )
                while not isinstance(event := await self._event(), h11.EndOfMessage):
                    if not isinstance(event, h11.Data):
                        raise h11.RemoteProtocolError("the client went away")
                    if len(body) + len(event.data) > admission.body_bytes_max:
                        raise GatewayError(
                            f"the body is above {admission.body_bytes_max} bytes",
                            where="body",
                            code="gateway.size",
                        )
                    self._server.bodies.hold(len(event.data))
                    held += len(event.data)
                    body += event.data
            return await admission.answer(bytes(body))
        finally:
            self._server.bodies.let_go(held)

    async def _upgrade(self, response: Response, head: RequestHead) -> None:
        """Send the 101 of a request that has no body."""
        with trio.fail_after(self._config.request_ms / 1000):
            if not isinstance(await self._event(), h11.EndOfMessage):
                raise h11.RemoteProtocolError("a handshake has no body")
        self._server.app.decorate(head, response)
        self._server.counters.answered(101)
        await self._write(
            self._http.send(
                h11.InformationalResponse(status_code=101, headers=list(response.headers))
            )
        )

    def _too_slow(self) -> GatewayError:
        allowed_s = self._config.request_ms / 1000
        why = f"the request did not come whole within {allowed_s:g} s"
        return GatewayError(why, code="gateway.timeout")

    async def _complain(self, error: LuxRelayError) -> None:
        """Answer what is no request, if HTTP still allows it."""
        self._server.counters.broken += 1
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            cause, status = error.__cause__, None
            if isinstance(cause, h11.RemoteProtocolError):
                status = cause.error_status_hint or 400
            response = failure(error, status)
            await self._send(response, with_body=True, close=True)

    async def _send(self, response: Response, *, with_body: bool, close: bool = False) -> bool:
        self._server.counters.answered(response.status)
        headers = [
            ("Content-Length", str(len(response.body))),
            ("Server", "luxrelay"),
            *response.headers,
        ]
        if response.body or response.status not in {204, 304}:
            headers.insert(0, ("Content-Type", response.content_type))
        if self._http.their_state is h11.SEND_BODY:
            # A request without a body that was refused by its head is at its end all the same.
            with suppress(h11.RemoteProtocolError):
                self._http.next_event()
        # Whoever still sends a body is not read to its end.
        if close or self._http.their_state not in _AT_END:
            close = True
            headers.append(("Connection", "close"))
        data = self._http.send(h11.Response(status_code=response.status, headers=headers)) or b""
        if not with_body or response.status in {204, 304}:
            await self._write(data)
        elif len(response.body) <= CHUNK_BYTES:
            await self._write(data + (self._http.send(h11.Data(data=response.body)) or b""))
        else:
            await self._write_long(data, response.body)
        self._http.send(h11.EndOfMessage())
        return not close

    async def _write_long(self, head: bytes, body: bytes) -> None:
        """Send an answer in pieces; it may lose its room to others, and then its connection ends.

        Raises:
            trio.BrokenResourceError: it has.

        """
        owner, known = self._owner
        scope = trio.CancelScope()
        unread = self._server.unread(known=known)
        with scope, unread.holding(owner, len(body), scope.cancel):
            await self._write(head)
            view = memoryview(body)
            for start in range(0, len(view), CHUNK_BYTES):
                part = self._http.send(h11.Data(data=bytes(view[start : start + CHUNK_BYTES])))
                await self._write(part)
        if scope.cancelled_caught:
            self._server.counters.stalled += 1
            raise trio.BrokenResourceError

    async def _write(self, data: bytes | None) -> None:
        try:
            with trio.fail_after(self._config.stall_ms / 1000):
                await self._stream.send_all(data or b"")
        except trio.TooSlowError as error:
            self._server.counters.stalled += 1
            raise trio.BrokenResourceError from error


def _malformed(error: Exception, head_bytes_max: int) -> GatewayError:
    hint = getattr(error, "error_status_hint", 0)
    if hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
        refused = GatewayError(f"the head is above {head_bytes_max:,} bytes", code="gateway.size")
    else:
        why = str(error)
        # The library's words show the bytes as Python writes them.
        shown = "it is no request of HTTP/1.1" if "bytearray(" in why else why
        refused = GatewayError(f"not HTTP: {shown}"[:200])
    refused.__cause__ = error
    return refused


def _head(request: h11.Request, address: bytes, bytes_max: int) -> RequestHead:
    size = sum(len(name) + len(value) for name, value in request.headers)
    if len(request.target) + size > bytes_max:
        raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)
    if len(request.headers) > HEADERS_MAX:
        raise GatewayError(f"more than {HEADERS_MAX} headers", where="headers")
    _check_framing(request)
    try:
        authority, path_text, query_text = _target(request.target.decode("ascii"))
        path = unquote_to_bytes(path_text).decode()
        fields = parse_qsl(
            query_text,
            keep_blank_values=True,
            strict_parsing=bool(query_text),
            errors="strict",
            max_num_fields=QUERY_FIELDS_MAX,
        )
    except (ValueError, UnicodeDecodeError) as error:
        raise GatewayError("the target is no path with a query", where="request line") from error
    query = dict(fields)
    if len(query) != len(fields):
        raise GatewayError("a parameter is given twice", where="query")
    headers: dict[str, str] = {}
    for name, value in request.headers:
        key, text = name.decode("ascii"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return RequestHead(
        method=request.method.decode("ascii"),
        path=path,
        query=query,
        headers=headers,
        address=address,
        version=request.http_version.decode("ascii"),
        authority=authority,
    )


def _check_framing(request: h11.Request) -> None:
    """Refuse what two readers could take for two different requests.

    Raises:
        h11.RemoteProtocolError: a length beside chunks, or chunks of HTTP/1.0 (RFC 9112 §6.1), a
            `Host` that is none, or a version that this is none of; the connection is closed after
            the answer.

    """
    names = {name for name, _ in request.headers}
    for name, value in request.headers:
        if name == b"host" and not _HOST_TEXT.fullmatch(value.decode("latin-1")):
            raise h11.RemoteProtocolError("Host is none")
    if request.method == b"CONNECT":
        raise h11.RemoteProtocolError("no tunnels here", error_status_hint=501)
    if not request.http_version.startswith(b"1."):
        raise h11.RemoteProtocolError("expected HTTP/1.1", error_status_hint=505)
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            raise h11.RemoteProtocolError("Content-Length beside Transfer-Encoding")
        if request.http_version == b"1.0":
            raise h11.RemoteProtocolError("Transfer-Encoding in HTTP/1.0")


def _target(target: str) -> tuple[str | None, str, str]:
    """Return authority, path and query of a target, in origin form or in absolute form.

    Raises:
        ValueError: it has another form (RFC 9112 §3.2).

    """
    if target.startswith("/"):
        path, _, query = target.partition("?")
        authority = None
    elif target == "*":
        return None, "*", ""
    else:
        split = urlsplit(target)
        if split.scheme not in {"http", "https"} or not split.netloc:
            raise ValueError("neither a path nor an address")
        authority, path, query = split.netloc, split.path or "/", split.query
    if "#" in target:
        raise ValueError("a fragment")
    return authority, path, query


def _peer(stream: trio.SocketStream) -> str:
    try:
        return str(stream.socket.getpeername()[0])
    except (OSError, IndexError):
        return ""


def client_key(text: str) -> bytes:
    """Return what a client is counted under: its IPv4 address, or the /64 of its IPv6 one."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return b"?"
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped.packed if mapped is not None else address.packed[:8]


def _log_answer(
    request: h11.Request, head: RequestHead | None, response: Response, took_ms: int
) -> None:
    if not _LOG.isEnabledFor(logging.DEBUG):
        return
    path = "" if head is None else head.path[:200]  # never the query: it may hold anything
    log(logging.DEBUG, "answered", method=request.method[:20].decode("latin-1"),
        path=path, status=response.status, ms=took_ms)  # fmt: skip
