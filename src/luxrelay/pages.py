"""A small HTTP server for whole answers to GET, in threads: the operator's pages, the archive's.

Theory of operation
-------------------
*Decides*: who has one of ``clients_max`` places, and how long. *Does not know* the pages.
*Places*: a connection *reads* until its request is whole, is then *answered*, and *takes* the
answer. When all places are taken, the oldest that reads goes, of the address that has most of them;
when none reads, the oldest that takes. One whose answer is being made stays.
*Timers*: ``timeout_s`` for the whole request, by however many bytes it comes, and again for each
64 KiB of the answer.
*Queues*: connections wait in queues by their source address, and each is emptied at a pace
(`luxrelay.listening`), so that a flood costs little and holds up nobody else.
*Browsers*: the gate is asked as soon as the headers are there, for every method and path.
*Faults*: a page that fails is a 500; want of descriptors at accept frees a place and pauses; what a
handler did not expect ends its connection. All are told to ``fault``.
*Cost*: with a `Toll`, a connection is charged when it comes, whatever it asks, and what its thread
spends afterwards. One whose address is in debt, or holds half of the places with answers that are
being made, is *held*: no thread, nothing read, until the debt is paid or `HOLD_S` is over (429).
`HELD_OF_ONE_MAX` of an address are held; a further one is refused at once. Those held take no place
from others.
*Shared*: `Shared` makes one page at a time; who comes meanwhile gets the next one, together.

Source: LP-6440, LP-6490, LP-6491.
"""

from __future__ import annotations

import json
import math
import selectors
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socket import SHUT_RDWR, socket
from types import MappingProxyType
from typing import Any, Final, Protocol

from luxrelay.gate import BrowserGate
from luxrelay.listening import AcceptPace, listen_sorted
from luxrelay.text import clean

Answer = tuple[int, str, bytes]
"""HTTP status, content type, and the whole body."""
CHUNK_BYTES: Final = 64 * 1024
"""Bytes sent at once."""
TOLD_MAX: Final = 20
"""Refusals a second that one address is told, while as many of its connections are held as may be;
further ones are closed without a word."""
TOLD_ADDRESSES_MAX: Final = 1_024
"""Addresses whose refusals are counted."""
ACCEPT_PAUSE_S: Final = 0.1
"""Seconds until the next connection is taken after one could not be."""
HOLD_S: Final = 2.0
"""Seconds until a connection whose address is in debt is refused."""
HELD_MAX: Final = 128
"""Connections held at once."""
HELD_OF_ONE_MAX: Final = 32
"""Of one address."""
CROWDED_S: Final = 0.1
"""Seconds until an address that has half of the places is looked at again."""
_POLL_S: Final = 0.1
_TEXT_MAX: Final = 200


class Toll(Protocol):
    """What requests of one address may cost; called by any thread."""

    def take(self, host: str) -> float:
        """Charge a connection and return 0, or return the seconds to wait and charge nothing."""

    def settle(self, host: str, spent_us: float) -> None:
        """Charge the CPU time that its answer has cost, microseconds."""

    def refuse(self, host: str, wait_s: float) -> str:
        """Return why a connection is refused, with numbers and when to ask again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRules:
    """Who may ask a `PageServer`, and how long that may take."""

    gate: BrowserGate
    """Which browsers' pages may ask."""
    hints: Mapping[str, str]
    """What to do about a refused ``Host`` or ``Origin``."""
    clients_max: int
    """Connections at once."""
    timeout_s: float
    """Seconds for a whole request, and for each 64 KiB of the answer."""
    fault: Callable[[str, BaseException], object]
    """Told what failed although nobody expected it: what, and how."""
    toll: Toll | None = None
    """What one address may cost; None charges nothing."""
    accepts_per_s: float = 100.0
    """Connections taken from one queue a second."""
    pace: Callable[[], float] = lambda: 1.0
    """How many times as long this machine takes as the one of the prices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageStats:
    """What a `PageServer` did; `held` is of now, the others only grow."""

    asked: int = 0
    """Connections that were given a place."""
    cut: int = 0
    """Clients that were cut off: too slow, or others wanted the place."""
    waited: int = 0
    """Connections that were held until their address had paid."""
    refused: int = 0
    """Connections refused because their address had cost too much."""
    held: int = 0
    """Connections held now."""


class Shared:
    """One page, made by one thread at a time.

    Whoever asks while it is made gets the next one, which is made once for all of them: it is never
    older than the question.
    """

    def __init__(self, make: Callable[[], Answer]) -> None:
        """Call ``make`` for each page."""
        self._make = make
        self._turn = threading.Condition()
        self._running = False
        self._begun = self._made = 0
        self._last: Answer | None = None

    def __call__(self) -> Answer:
        """Return the page; raises what making it raises, to the thread that made it."""
        with self._turn:
            wanted = self._begun + 1
            while self._running and self._made < wanted:
                self._turn.wait()
            if self._last is not None and self._made >= wanted:
                return self._last
            self._running = True
            self._begun += 1
            number = self._begun
        answer = None
        try:
            answer = self._make()
        finally:
            with self._turn:
                self._running = False
                if answer is not None:
                    self._last, self._made = answer, number
                self._turn.notify_all()
        return answer


class PageServer:
    """Answers GET until it is stopped.

    Args:
        address: Where it listens; port 0 lets the system choose.
        answer: Called with the target of the request, path and parameters, by any thread.
        rules: Who may ask.
        name: Of its thread.

    Raises:
        OSError: the port cannot be had.
        OverflowError: there is no such port.

    """

    def __init__(
        self,
        address: tuple[str, int],
        answer: Callable[[str], Answer],
        rules: PageRules,
        *,
        name: str,
    ) -> None:
        self._server = _Server(address, answer, rules)
        self.port: int = self._server.server_address[1]
        """Where it listens."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name=name, daemon=True
        )
        self._thread.start()

    @property
    def cut(self) -> int:
        """Clients that were cut off: too slow, or others wanted the place."""
        return self._server.cut

    def stats(self) -> PageStats:
        """Return the counters as they stand."""
        server = self._server
        return PageStats(
            asked=server.asked_in_all,
            cut=server.cut,
            waited=server.waited,
            refused=server.refused,
            held=len(server.held),
        )

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Phase(Enum):
    READS = auto()
    ANSWERED = auto()
    TAKES = auto()


@dataclass(slots=True)
class _Place:
    """One client's connection."""

    client: socket
    address: bytes
    """What it is counted under."""
    until: float
    """When it is cut off, monotonic seconds."""
    phase: _Phase = _Phase.READS


@dataclass(slots=True)
class _Told:
    """Refusals of one address in one second."""

    until: float
    count: int = 0


@dataclass(slots=True)
class _Held:
    """A connection whose address is in debt."""

    client: socket
    came_from: Any
    key: bytes
    look_at: float
    until: float


class _Door:
    """One queue of the port."""

    __slots__ = ("pace", "socket")

    def __init__(self, listener: socket, rules: PageRules) -> None:
        self.socket = listener
        self.pace = AcceptPace(rules.accepts_per_s, slower=rules.pace)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(
        self, address: tuple[str, int], answer: Callable[[str], Answer], rules: PageRules
    ) -> None:
        self.held: list[_Held] = []
        """The accepting thread's; there before the port is asked for, which may be refused."""
        super().__init__(address, _Handler, bind_and_activate=False)
        self.socket.close()
        sockets = listen_sorted(*address, self.request_queue_size)
        self._doors = [_Door(each, rules) for each in sockets]
        self.server_address = sockets[0].getsockname()[:2]
        self._paused = set(self._doors)
        """Queues that are not looked at before their pace allows it; at first all of them."""
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self.answer = answer
        self.rules = rules
        self._lock = threading.Lock()
        self._places: dict[int, _Place] = {}
        """Open connections by the id of their socket, the oldest first."""
        self.cut = self.asked_in_all = self.waited = self.refused = 0
        self._told: dict[bytes, _Told] = {}

    def serve_forever(self, poll_interval: float = _POLL_S) -> None:
        """Take connections from every queue until `shutdown`."""
        try:
            with selectors.DefaultSelector() as selector:
                while not self._stopping.is_set():
                    self._turn(selector, poll_interval)
        finally:
            self._stopped.set()

    def shutdown(self) -> None:
        """Have `serve_forever` return, and wait until it has."""
        self._stopping.set()
        self._stopped.wait()

    def _turn(self, selector: selectors.BaseSelector, patience_s: float) -> None:
        """Take what has come, and do what is due."""
        now = time.monotonic()
        for door in list(self._paused):
            wait_s = door.pace.wait_s(now)
            if wait_s:
                patience_s = min(patience_s, wait_s)
            else:
                self._paused.discard(door)
                selector.register(door.socket, selectors.EVENT_READ, door)
        for key, _ in selector.select(patience_s):
            self._take(key.data)
            if key.data.pace.wait_s(time.monotonic()):
                self._paused.add(key.data)
                selector.unregister(key.data.socket)
        self.service_actions()

    def _take(self, door: _Door) -> None:
        """Take what waits in a queue, as far as its pace allows."""
        while not door.pace.wait_s(now := time.monotonic()):
            try:
                request, client_address = door.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptors: one makes room, and we wait a little
                self.rules.fault("accept", error)
                with self._lock:
                    self._make_room()
                door.pace.pause(now, ACCEPT_PAUSE_S)
                return
            door.pace.took(now)
            request.setblocking(True)
            try:
                self.process_request(request, client_address)
            except Exception:  # noqa: BLE001  one connection's fault ends no listener
                self.handle_error(request, client_address)
                self.shutdown_request(request)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Let a connection in when its address may cost that, hold it, or refuse it."""
        key = _key(client_address[0])
        told = self._told.get(key)
        if told is not None and told.count >= TOLD_MAX and time.monotonic() < told.until:
            self.refused += 1  # it has been told often enough for now, and words cost us
            request.close()
            return
        wait_s = self._wait_s(client_address[0], key)
        if not wait_s:
            self._admit(request, client_address, key)
            return
        same = sum(each.key == key for each in self.held)
        if same >= HELD_OF_ONE_MAX or len(self.held) >= HELD_MAX:
            self._note_told(key, time.monotonic())
            self._refuse(request, client_address[0], wait_s)
            return
        now = time.monotonic()
        self.waited += 1
        self.held.append(
            _Held(request, client_address, key, now + min(wait_s, HOLD_S), now + HOLD_S)
        )

    def _note_told(self, key: bytes, now: float) -> None:
        """Count a refusal of an address that asks although many of its connections are held."""
        told = self._told.get(key)
        if told is None or told.until <= now:
            if len(self._told) >= TOLD_ADDRESSES_MAX:
                self._told.clear()
            told = self._told[key] = _Told(now + 1.0)
        told.count += 1

    def _wait_s(self, host: str, key: bytes) -> float:
        """Charge a connection and return 0, or return in how many seconds to look again."""
        if self.rules.toll is None:
            return 0.0
        with self._lock:
            busy = sum(
                place.address == key and place.phase is _Phase.ANSWERED
                for place in self._places.values()
            )
        if busy >= max(1, self.rules.clients_max // 2):
            return CROWDED_S
        return self.rules.toll.take(host)

    def _admit(self, request: Any, client_address: Any, key: bytes) -> None:
        """Give a connection a place and a thread, or close it."""
        with self._lock:
            room = len(self._places) < self.rules.clients_max or self._make_room()
            if room:
                until = time.monotonic() + self.rules.timeout_s
                self._places[id(request)] = _Place(request, key, until)
        if not room:
            self.shutdown_request(request)
            return
        self.asked_in_all += 1
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread can be had
            self._leave(request)
            raise

    def _refuse(self, request: Any, host: str, wait_s: float) -> None:
        """Say why and when again, without reading what was asked, and close."""
        self.refused += 1
        why = self.rules.toll.refuse(host, wait_s) if self.rules.toll else ""
        body = json.dumps({"error": clean(why, _TEXT_MAX)}).encode() + b"\n"
        head = (
            "HTTP/1.0 429 Too Many Requests\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nRetry-After: {max(1, math.ceil(wait_s))}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        with suppress(OSError):
            request.setblocking(False)
            with suppress(BlockingIOError):  # unread bytes would reset the connection
                request.recv(CHUNK_BYTES)
            request.send(head.encode() + body)
        self.shutdown_request(request)

    def _look_at_held(self, now: float) -> None:
        """Let in whose address has paid, and refuse who has waited long enough."""
        for each in [held for held in self.held if held.look_at <= now]:
            wait_s = self._wait_s(each.came_from[0], each.key)
            if wait_s and now < each.until:
                each.look_at = min(now + wait_s, each.until)
                continue
            self.held.remove(each)
            try:
                if wait_s:
                    self._refuse(each.client, each.came_from[0], wait_s)
                else:
                    self._admit(each.client, each.came_from, each.key)
            except Exception as error:  # noqa: BLE001  one connection's fault ends no listener
                self.rules.fault("connection", error)
                self.shutdown_request(each.client)

    def server_close(self) -> None:
        """Free the port, and let go who is held."""
        for door in self._doors:
            door.socket.close()
        while self.held:
            self.shutdown_request(self.held.pop().client)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its thread, and charge what that cost."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)
            if self.rules.toll is not None:
                self.rules.toll.settle(client_address[0], time.thread_time() * 1e6)

    def service_actions(self) -> None:
        """Cut off who has had its time; called several times a second."""
        now = time.monotonic()
        with self._lock:
            for number, place in list(self._places.items()):
                if place.until <= now:
                    self._cut(number)
        self._look_at_held(now)

    def asked(self, request: socket) -> None:
        """Note that a whole request is there: the place is safe while the answer is made."""
        self._enter(request, _Phase.ANSWERED, float("inf"))

    def takes(self, request: socket) -> None:
        """Note that a client took a part of its answer, and may take the next one."""
        self._enter(request, _Phase.TAKES, time.monotonic() + self.rules.timeout_s)

    def _enter(self, request: socket, phase: _Phase, until: float) -> None:
        with self._lock:
            place = self._places.get(id(request))
            if place is not None:
                place.phase, place.until = phase, until

    def _leave(self, request: Any) -> None:
        with self._lock:
            self._places.pop(id(request), None)

    def _make_room(self) -> bool:
        for phase in (_Phase.READS, _Phase.TAKES):
            there = [(n, place) for n, place in self._places.items() if place.phase is phase]
            if there:
                most = Counter(place.address for _, place in there).most_common(1)[0][0]
                self._cut(next(n for n, place in there if place.address == most))
                return True
        return False

    def _cut(self, number: int) -> None:
        """Let a client go; its thread finds the end of the stream and ends."""
        self.cut += 1
        with suppress(OSError):  # it went by itself
            self._places.pop(number).client.shutdown(SHUT_RDWR)

    def handle_error(self, request: socket | Any, client_address: Any) -> None:
        """Drop a client that broke off, which is not worth a line; tell what is no such thing."""
        del request, client_address
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            self.rules.fault("connection", error)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "luxrelay"
    sys_version = ""
    default_request_version = "HTTP/1.0"
    """What is no request, or one of HTTP/0.9, is answered with a status line all the same."""

    def setup(self) -> None:
        """Bound each single read and write as well."""
        self.request.settimeout(self.server.rules.timeout_s)
        super().setup()

    def parse_request(self) -> bool:
        """Return whether a request is to be answered: HTTP, and past the gate."""
        if not super().parse_request():
            return False
        self.server.asked(self.connection)
        hosts = self.headers.get_all("Host") or []
        origins = self.headers.get_all("Origin")
        host = ", ".join(hosts) if hosts else None  # two of them are no name
        refusal = self.server.rules.gate.refusal(
            host, None if origins is None else ", ".join(origins)
        )
        if refusal is None:
            return True
        shown = {
            "error": clean(refusal.why, _TEXT_MAX),
            "hint": self.server.rules.hints[refusal.where],
        }
        self._reply(HTTPStatus.FORBIDDEN, "application/json", json.dumps(shown).encode() + b"\n")
        return False

    def do_GET(self) -> None:
        """Answer one page."""
        try:
            answer = self.server.answer(self.path)
        except Exception as error:  # noqa: BLE001  a page that fails must not look empty
            self.server.rules.fault("page", error)
            text = json.dumps({"error": "see the log"}).encode() + b"\n"
            answer = (HTTPStatus.INTERNAL_SERVER_ERROR, "application/json", text)
        self._reply(*answer)

    def _reply(
        self, status: int, kind: str, body: bytes, more: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.send_response(status)
        for name, value in more.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.server.takes(self.connection)
        self.end_headers()
        view = memoryview(body)
        for start in range(0, len(view), CHUNK_BYTES):
            self.wfile.write(view[start : start + CHUNK_BYTES])
            self.server.takes(self.connection)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no GET, or no request, in the form of all other answers."""
        del explain
        shown = {"error": clean(message or HTTPStatus(code).phrase, _TEXT_MAX)}
        more = {}
        if code == HTTPStatus.NOT_IMPLEMENTED:  # it knows the path, and no method but one
            code, more = HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET"}
            shown["hint"] = "these pages are read with GET"
        body = b"" if self.command == "HEAD" else json.dumps(shown).encode() + b"\n"
        self._reply(code, "application/json", body, more)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name there
        """Requests of monitors are not worth a line each."""


def _key(text: str) -> bytes:
    """Return what a client is counted under: its IPv4 address, or the /64 of its IPv6 one."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return b""
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped.packed if mapped is not None else address.packed[:8]
