"""`Entrance`: takes the connections of a port that gRPC serves, and hands them on.

Theory of operation
===================

*Why*: gRPC for Python accepts whoever comes; it has no bound for one address, and each connection
that is begun and left costs it a millisecond. Here a thread of ours accepts, `Arrivals` decides,
and what may come in is joined byte by byte with a connection to gRPC over a Unix socket in a
private folder. TLS goes through as it is.

*Who it is*: our end of the Unix socket is bound to a name made of the client's address and port,
which gRPC shows as the peer of the call (`place_of`). The folder is 0700, so nobody else binds one.

*Not handed on*: connections that have said nothing. They have ten seconds, and their places go
first.

*Pace*: so many connections are accepted a second from each of the port's queues, into which the
system sorts them by address (`luxrelay.listening`); further ones wait: a flood of connections costs
what this many cost, and holds up nobody else.

*What comes in is paid for*: gRPC reads frames before anybody of ours sees a call, and tiny ones
cost it most; so a stranger's bytes are charged to its address as they are read, in pieces of
`STRANGER_BYTES` at most, and the smallest costs a read as well. While the address owes, its
connections are not read from: TCP tells the sender, and what waits comes in larger pieces. Of each
connection the first `FREE_BYTES` are read all the same, so that a token can be shown, and whoever
has shown one is not held.

*Bounds*: two times `CHUNK_BYTES` a connection, which are read only when the other side takes them;
the places of `Arrivals`; ``backlog``.

*Threads*: one, from `start` to `close`; `called` and `stats` are for any thread.

Source: docs/decisions/0007-entrance-before-grpc.md; P34.
"""

from __future__ import annotations

import heapq
import logging
import selectors
import shutil
import socket
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from luxrelay.errors import SyncUnreachableError
from luxrelay.listening import AcceptPace, listen_sorted
from luxrelay.sync.arrivals import Arrival, Arrivals, ArrivalsConfig, Rank

_LOG: Final = logging.getLogger("luxrelay.sync")
CHUNK_BYTES: Final = 256 * 1024
"""Bytes read at once from one side, and the most that wait for the other."""
STRANGER_BYTES: Final = 16 * 1024
"""Bytes read at once from a client that has shown no token."""
FREE_BYTES: Final = 1024
"""Bytes of a connection that are read although its address owes."""
_HELD_S: Final = 1.0
"""How long a connection is not read from before its account is looked at again."""
_CHUNKS: Final = 4
"""How often one side is read before the others have their turn."""
BACKLOG: Final = 256
"""Connections that wait in the system's queue."""
_PAUSE_S: Final = 0.05
"""How long nothing is accepted when the system refuses."""
_TICK_S: Final = 1.0
"""How often silent connections are looked for."""
_SAID_EVERY_S: Final = 60.0
_PORT_DIGITS: Final = 4


def name_of(host: str, port: int) -> str:
    """Return the name under which gRPC sees a client: its address and port, hexadecimal."""
    address = ip_address(host.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    return f"{address.packed.hex()}{port:0{_PORT_DIGITS}x}"


def place_of(name: str) -> tuple[str, str]:
    """Return address and port from a name of `name_of`; empty for any other."""
    try:
        packed, port = bytes.fromhex(name[:-_PORT_DIGITS]), int(name[-_PORT_DIGITS:], 16)
        return str(ip_address(packed)), str(port)
    except ValueError:
        return "", ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntranceStats:
    """What came; all but `open` only grow."""

    open: int = 0
    """Connections now."""
    refused: int = 0
    """Connections closed at once: too many of their address."""
    crowded: int = 0
    """Connections that gave their place to a newcomer."""
    silent: int = 0
    """Connections closed because they said nothing in time."""
    faults: int = 0
    """Failures that nobody expected."""


@dataclass(slots=True, eq=False)
class _Half:
    """One direction of a connection."""

    source: socket.socket
    sink: socket.socket
    left: memoryview | None = None
    """What the sink has not taken yet."""
    over: bool = False
    """The source has said its last."""
    held: bool = False
    """The source's address owes; nothing is read from it."""


@dataclass(slots=True, eq=False)
class _Line:
    """One connection."""

    client: socket.socket
    name: str
    arrival: Arrival | None = None
    inner: socket.socket | None = None
    halves: list[_Half] = field(default_factory=list)
    closed: bool = False
    read_bytes: int = 0
    """What its client has sent, as far as it was read."""


class Entrance:
    """Listens in gRPC's place; see the theory above.

    Args:
        config: Places and rates.
        silence_s: How long a connection may say nothing, seconds.
        accepts_per_s: Connections accepted a second from one queue (`luxrelay.listening`).
        pace: How many times as long this machine takes as the one of the prices.
        came: Told the address of each connection that is handed on, in the thread of the entrance.
        paid: Told the address and the bytes of each piece that a client without a token has sent;
            returns in how many seconds more of its bytes may be read.

    """

    def __init__(
        self,
        config: ArrivalsConfig,
        *,
        silence_s: float = 10.0,
        accepts_per_s: float = 100.0,
        pace: Callable[[], float] = lambda: 1.0,
        came: Callable[[str], None] = lambda _: None,
        paid: Callable[[str, int], float] = lambda _host, _size: 0.0,
    ) -> None:
        self._arrivals = Arrivals(config)
        self._silence_s = silence_s
        self._accepts_per_s = accepts_per_s
        self._pace = pace
        self._came = came
        self._paid = paid
        self._listeners: dict[socket.socket, AcceptPace] = {}
        self._paused: set[socket.socket] = set()
        """Queues that are not looked at before their pace allows it; at first all of them."""
        self._selector = selectors.DefaultSelector()
        self._lines: set[_Line] = set()
        self._silent: OrderedDict[_Line, float] = OrderedDict()
        self._due: list[tuple[float, int, _Line]] = []
        """Connections that are to be handed on, or read from again, and when."""
        self._count = 0
        self._lock = threading.Lock()
        self._ranks: dict[str, Arrival] = {}
        self._refused = self._crowded = self._late = self._faults = 0
        self._say_at = self._fault_at = float("-inf")
        self._ending = False
        self._wake, self._woken = socket.socketpair()
        self._buffer = bytearray(CHUNK_BYTES)
        self._folder = ""
        self._thread: threading.Thread | None = None

    def listen(self, host: str, port: int) -> int:
        """Open the port; return its number, chosen by the system when ``port`` is 0.

        Raises:
            SyncUnreachableError: it cannot be opened (``sync.port``); says why.

        """
        where = f"{host}:{port}"
        try:
            for listener in listen_sorted(host, port, BACKLOG):
                self._listeners[listener] = AcceptPace(self._accepts_per_s, slower=self._pace)
                self._paused.add(listener)
                port = int(listener.getsockname()[1])
            self._folder = tempfile.mkdtemp(prefix="lux-")
        except OSError as error:
            self.close()
            raise SyncUnreachableError(
                f"the sync port cannot be opened: {error.strerror}", where=where, code="sync.port"
            ) from error
        return port

    @property
    def inner(self) -> str:
        """What gRPC listens on."""
        return f"unix:{self._path('grpc')}"

    def start(self) -> None:
        """Let connections in; gRPC listens already."""
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="luxrelay-entrance", daemon=True)
        self._thread.start()

    def shut(self) -> None:
        """Let nobody in any more; those that are there stay."""
        self._ending = True
        with suppress(OSError):
            self._wake.send(b"x")

    def close(self) -> None:
        """Close everything and end the thread; may be called twice."""
        self.shut()
        self._wake.close()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for listener in self._listeners:
            listener.close()
        self._woken.close()
        self._selector.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def call(self, peer: str, *, known: bool) -> Iterator[None]:
        """Learn that a call of a connection was let in, and when it is over.

        Args:
            peer: Whose it is, as gRPC names it.
            known: It came with a token or a proven certificate.

        """
        with self._lock:
            arrival = self._ranks.get(peer.rpartition("/")[2])
            if arrival is not None:
                arrival.shown = max(arrival.shown, Rank.KNOWN if known else Rank.CALLED)
                arrival.calls += 1
        try:
            yield
        finally:
            if arrival is not None:
                with self._lock:
                    arrival.calls -= 1

    def stats(self) -> EntranceStats:
        """Return the counters as they stand."""
        return EntranceStats(
            open=len(self._arrivals),
            refused=self._refused,
            crowded=self._crowded,
            silent=self._late,
            faults=self._faults,
        )

    # The thread.

    def _run(self) -> None:
        while True:
            try:
                if not self._turn(time.monotonic()):
                    break
            except Exception:  # noqa: BLE001  this is the place for the unexpected
                # Nothing that one connection causes may shut the port.
                if self._fault_is_new():
                    _LOG.exception("the entrance of a sync port failed")
                time.sleep(_PAUSE_S)
        for line in list(self._lines):
            self._end(line)

    def _turn(self, now: float) -> bool:
        """Do what is due and what has come; return False when the thread shall end."""
        self._hand_on_due(now)
        self._end_silent(now)
        self._watch_listeners(now)
        for key, events in self._selector.select(self._patience(now)):
            assert isinstance(key.fileobj, socket.socket)
            if key.fileobj is self._woken:
                if not self._woken.recv(64):
                    return False
            elif key.data is None:
                self._accept(key.fileobj)
            elif not key.data.closed:
                self._heed(key.data, key.fileobj, events)
        return True

    def _heed(self, line: _Line, at: socket.socket, events: int) -> None:
        """Do what one connection asks for; a failure ends it alone."""
        try:
            if line.inner is None:
                self._first_byte(line)
            else:
                self._move(line, at, events)
        except OSError:
            self._end(line)
        except Exception:  # noqa: BLE001  it ends this connection alone
            if self._fault_is_new():
                _LOG.exception("a connection to a sync port failed")
            self._end(line)

    def _fault_is_new(self) -> bool:
        """Count a failure that nobody expected; return whether it is to be told."""
        self._faults += 1
        now = time.monotonic()
        told = now < self._fault_at
        if not told:
            self._fault_at = now + _SAID_EVERY_S
        return not told

    def _patience(self, now: float) -> float:
        due = [now + _TICK_S]
        if self._due:
            due.append(self._due[0][0])
        if self._silent:
            due.append(next(iter(self._silent.values())))
        if not self._ending:
            due += [
                now + wait_s
                for each in self._paused
                if (wait_s := self._listeners[each].wait_s(now))
            ]
        return max(0.0, min(due) - now)

    def _watch_listeners(self, now: float) -> None:
        """Look at queues again whose pace allows it; close all of them at the end."""
        if self._ending:
            for listener in self._listeners:
                with suppress(KeyError, ValueError):
                    self._selector.unregister(listener)
                listener.close()
            self._listeners.clear()
            self._paused.clear()
            return
        for listener in [each for each in self._paused if not self._listeners[each].wait_s(now)]:
            self._paused.discard(listener)
            self._selector.register(listener, selectors.EVENT_READ)

    def _accept(self, listener: socket.socket) -> None:
        pace = self._listeners.get(listener)
        if pace is None:
            return
        while not pace.wait_s(now := time.monotonic()):
            try:
                client, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._say(now, "a connection that the system cannot accept:", error.strerror)
                pace.pause(now, _PAUSE_S)
                break
            # A flood is taken at its pace, the rest of it waits in the system's queue.
            pace.took(now)
            self._enter(client, str(address[0]), int(address[1]), now)
        self._paused.add(listener)
        self._selector.unregister(listener)

    def _enter(self, client: socket.socket, host: str, port: int, now: float) -> None:
        line = _Line(client, name_of(host, port))
        line.arrival, crowded = self._arrivals.enter(host, lambda: self._end(line))
        self._crowded += crowded
        if line.arrival is None:
            self._refused += 1
            client.close()
            return
        client.setblocking(False)
        with suppress(OSError):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines.add(line)
        self._silent[line] = now + self._silence_s
        self._selector.register(client, selectors.EVENT_READ, line)

    def _first_byte(self, line: _Line) -> None:
        """See who speaks, and hand it on now, later, or not at all."""
        try:
            here = line.client.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            here = b""
        if not here:
            self._end(line)
            return
        self._silent.pop(line, None)
        assert line.arrival is not None
        now = time.monotonic()
        wait = self._arrivals.pause(line.arrival, now)
        if wait is None:
            self._refused += 1
            self._say(now, f"connections of {line.arrival.host}:", "too many a second")
            self._end(line)
        elif wait:
            self._selector.unregister(line.client)
            self._count += 1
            heapq.heappush(self._due, (now + wait, self._count, line))
        else:
            self._hand_on(line)

    def _hand_on_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            _, _, line = heapq.heappop(self._due)
            if line.closed:
                continue
            if line.inner is None:
                self._selector.register(line.client, selectors.EVENT_READ, line)
                self._hand_on(line)
            else:
                self._read_again(line, now)

    def _end_silent(self, now: float) -> None:
        while self._silent and next(iter(self._silent.values())) <= now:
            line, _ = self._silent.popitem(last=False)
            self._late += 1
            self._end(line)

    def _hand_on(self, line: _Line) -> None:
        inner = socket.socket(socket.AF_UNIX)
        path = Path(self._path(line.name))
        try:
            path.unlink(missing_ok=True)
            inner.bind(str(path))
            inner.setblocking(False)
            inner.connect(self._path("grpc"))
        except OSError:
            inner.close()
            self._refused += 1
            self._end(line)
            return
        finally:
            path.unlink(missing_ok=True)
        line.inner = inner
        line.halves = [_Half(line.client, inner), _Half(inner, line.client)]
        assert line.arrival is not None
        with self._lock:
            self._ranks[line.name] = line.arrival
        self._came(line.arrival.host)
        self._selector.register(inner, selectors.EVENT_READ, line)

    def _move(self, line: _Line, at: socket.socket, events: int) -> None:
        """Move what has come, and what was left, in the directions that ``at`` is part of."""
        for half in line.halves:
            if half.sink is at and events & selectors.EVENT_WRITE and half.left is not None:
                self._flush(half)
            if half.source is at and events & selectors.EVENT_READ and half.left is None:
                self._pump(line, half)
        if all(half.over and half.left is None for half in line.halves):
            self._end(line)
        else:
            self._watch(line)

    def _read_again(self, line: _Line, now: float) -> None:
        """Read from a client that was held, if its address has paid."""
        half = line.halves[0]
        half.held = False
        self._charge(line, half, 0, now)
        self._watch(line)

    def _charge(self, line: _Line, half: _Half, size: int, now: float) -> None:
        """Charge a stranger's bytes; hold the connection while its address owes."""
        assert line.arrival is not None
        if line.arrival.shown is Rank.KNOWN:
            return
        line.read_bytes += size
        wait_s = self._paid(line.arrival.host, size)
        if wait_s > 0 and line.read_bytes > FREE_BYTES:
            half.held = True
            self._count += 1
            heapq.heappush(self._due, (now + min(wait_s, _HELD_S), self._count, line))

    def _pump(self, line: _Line, half: _Half) -> None:
        assert line.arrival is not None
        stranger = half is line.halves[0] and line.arrival.shown is not Rank.KNOWN
        most = STRANGER_BYTES if stranger else CHUNK_BYTES
        if stranger and line.read_bytes < FREE_BYTES:
            most = FREE_BYTES
        buffer = memoryview(self._buffer)[:most]
        for _ in range(_CHUNKS):
            if half.over or half.held:
                return
            try:
                size = half.source.recv_into(buffer)
            except BlockingIOError:
                return
            if not size:
                half.over = True
                half.sink.shutdown(socket.SHUT_WR)
                return
            if stranger:
                self._charge(line, half, size, time.monotonic())
            try:
                sent = half.sink.send(buffer[:size])
            except BlockingIOError:
                sent = 0
            if sent < size:
                half.left = memoryview(bytes(buffer[sent:size]))
                return

    @staticmethod
    def _flush(half: _Half) -> None:
        assert half.left is not None
        try:
            sent = half.sink.send(half.left)
        except BlockingIOError:
            return
        half.left = half.left[sent:] if sent < len(half.left) else None

    def _watch(self, line: _Line) -> None:
        """Ask the system for what can be moved next."""
        forth, back = line.halves
        for reading, writing in ((forth, back), (back, forth)):
            events = 0
            if not reading.over and not reading.held and reading.left is None:
                events |= selectors.EVENT_READ
            if writing.left is not None:
                events |= selectors.EVENT_WRITE
            known = self._selector.get_map().get(reading.source)
            if known is None:
                if events:
                    self._selector.register(reading.source, events, line)
            elif not events:
                self._selector.unregister(reading.source)
            elif known.events != events:
                self._selector.modify(reading.source, events, line)

    def _end(self, line: _Line) -> None:
        if line.closed:
            return
        line.closed = True
        self._lines.discard(line)
        self._silent.pop(line, None)
        if line.arrival is not None:
            self._arrivals.leave(line.arrival)
            with self._lock:
                if self._ranks.get(line.name) is line.arrival:
                    del self._ranks[line.name]
        for each in (line.client, line.inner):
            if each is not None:
                with suppress(KeyError, ValueError):
                    self._selector.unregister(each)
                each.close()

    def _path(self, name: str) -> str:
        return str(Path(self._folder) / name)

    def _say(self, now: float, what: str, why: object) -> None:
        if now >= self._say_at:
            self._say_at = now + _SAID_EVERY_S
            _LOG.warning("refused: %s %s", what, why)
