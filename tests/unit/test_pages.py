"""The small HTTP server of the operator's and the archive's pages."""

import contextlib
import errno
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from luxrelay.gate import BrowserGate
from luxrelay.pages import HELD_OF_ONE_MAX, Answer, PageRules, PageServer, Shared, Toll

pytestmark = pytest.mark.trial
ASK = b"GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
Maker = Callable[..., PageServer]


class Failures:
    """What a server told that nobody expected."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, BaseException]] = []

    def __call__(self, kind: str, error: BaseException) -> None:
        """Keep it."""
        self.seen.append((kind, error))


@pytest.fixture
def failures() -> Failures:
    """Nothing so far."""
    return Failures()


@pytest.fixture
def serve(failures: Failures) -> Iterator[Maker]:
    """A maker of servers with few places."""
    servers: list[PageServer] = []

    def make(
        answer: Callable[[str], Answer],
        *,
        clients: int = 4,
        seconds: float = 600.0,
        toll: Toll | None = None,
    ) -> Any:
        rules = PageRules(
            gate=BrowserGate(),
            hints={"Host": "h", "Origin": "o"},
            clients_max=clients,
            timeout_s=seconds,
            fault=failures,
            toll=toll,
        )
        server = PageServer(("127.0.0.1", 0), answer, rules, name="pages of a test")
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.stop()


def short(_: str) -> Answer:
    """Return a short answer."""
    return 200, "text/plain", b"ok"


def connect(server: PageServer, source: str = "127.0.0.1") -> socket.socket:
    """Return a connection from an address of this machine."""
    return socket.create_connection(("127.0.0.1", server.port), 60, source_address=(source, 0))


def rest(stream: socket.socket) -> bytes:
    """Return what comes until the end."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := stream.recv(65_536):
            received += part
    return received


def test_the_address_that_has_most_makes_room(serve: Maker, eventually: Callable[..., Any]) -> None:
    """An older connection of an address that has one only keeps its place."""
    server = serve(short)
    with contextlib.ExitStack() as stack:
        honest = stack.enter_context(connect(server, "127.0.0.9"))
        for number in range(12):
            stack.enter_context(connect(server, "127.0.0.7"))
            eventually(lambda n=number: server.cut >= n - 2)
        eventually(lambda: server.cut == 9)
        honest.sendall(ASK)
        assert rest(honest).endswith(b"ok")


@pytest.mark.parametrize("method", ["POST", "PUT", "HEAD", "BREW"])
def test_another_method_is_answered_like_all_else(serve: Maker, method: str) -> None:
    """As JSON with what the page takes, and without a body for HEAD; a broken request as JSON."""
    server = serve(short)
    found = []
    for line in (f"{method} /status HTTP/1.1", "GET /a b HTTP/1.1"):
        with connect(server) as stream:
            stream.sendall(line.encode() + b"\r\nHost: 127.0.0.1\r\n\r\n")
            found.append(rest(stream).partition(b"\r\n\r\n"))
    (head, _, body), (broken, _, why) = found

    assert head.startswith(b"HTTP/1.0 405 ")
    assert b"Allow: GET\r\n" in head
    assert b"application/json" in head
    assert (not body) if method == "HEAD" else "GET" in json.loads(body)["hint"]
    assert broken.startswith(b"HTTP/1.0 400 ")
    assert "Bad request" in json.loads(why)["error"]


@pytest.mark.parametrize("line", [b"GET", b"GET /status", b"GET / HTTP/9.9", b"\x00\xff"])
def test_what_is_no_request_gets_a_status_line(serve: Maker, line: bytes) -> None:
    """Also what a client of 1992 would send, and a version that is none."""
    with connect(serve(short)) as stream:
        stream.sendall(line + b"\r\n\r\n")
        assert rest(stream).startswith(b"HTTP/1.0 ")


def test_clients_that_take_no_answer_make_room(
    serve: Maker, eventually: Callable[..., Any]
) -> None:
    """All places held by clients that asked and read nothing: the next one is answered."""
    asked: list[str] = []

    def long(target: str) -> Answer:
        asked.append(target)
        return 200, "text/plain", bytes(64 * 1024 * 1024 if len(asked) <= 4 else 2)

    server = serve(long)
    with contextlib.ExitStack() as stack:
        for number in range(4):
            held = stack.enter_context(connect(server))
            held.sendall(ASK)
            eventually(lambda n=number: len(asked) > n)
            held.recv(1)
        with connect(server) as honest:
            honest.sendall(ASK)
            assert rest(honest).startswith(b"HTTP/1.0 200 ")
    assert server.cut == 1


def test_one_whose_answer_is_being_made_keeps_its_place(serve: Maker) -> None:
    """When nobody else may go, a newcomer is closed."""
    goes_on, begun = threading.Event(), threading.Semaphore(0)

    def slow(_: str) -> Answer:
        begun.release()
        assert goes_on.wait(60)
        return 200, "text/plain", b"ok"

    server = serve(slow)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server)) for _ in range(4)]
        for client in clients:
            client.sendall(ASK)
            assert begun.acquire(timeout=60)
        with connect(server) as late:
            assert rest(late) == b""
        goes_on.set()
        for client in clients:
            assert rest(client).endswith(b"ok")
    assert server.cut == 0


def test_a_page_that_fails_is_500_and_told(serve: Maker, failures: Failures) -> None:
    """And the next one is answered."""

    def broken(target: str) -> Answer:
        if target == "/x":
            raise RuntimeError("a fault of ours")
        return short(target)

    server = serve(broken)
    with connect(server) as client:
        client.sendall(ASK)
        assert rest(client).startswith(b"HTTP/1.0 500 ")
    with connect(server) as client:
        client.sendall(ASK.replace(b"/x", b"/y"))
        assert rest(client).startswith(b"HTTP/1.0 200 ")
    assert [kind for kind, _ in failures.seen] == ["page"]


def test_want_of_descriptors_frees_a_place_and_ends_nothing(
    serve: Maker,
    failures: Failures,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Any],
) -> None:
    """It is told, the oldest that reads goes, and the listener takes the next one."""
    server = serve(short)
    listener = server._server
    with connect(server) as idle:
        eventually(lambda: listener._places)
        accept = socket.socket.accept
        doors = {door.socket for door in listener._doors}
        left = [2]

        def poor(self: socket.socket) -> Any:
            if self in doors and left[0]:
                left[0] -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return accept(self)

        monkeypatch.setattr(socket.socket, "accept", poor)
        with connect(server) as client:
            client.sendall(ASK)
            assert rest(client).endswith(b"ok")
        idle.settimeout(5)
        assert rest(idle) == b""
    assert [kind for kind, _ in failures.seen] == ["accept", "accept"]
    assert server.cut == 1


def test_a_request_that_drips_has_an_end(serve: Maker) -> None:
    """However often a byte comes."""
    server = serve(short, seconds=0.5)
    with connect(server) as drips:
        drips.sendall(ASK[:-2] + b"X: ")
        drips.settimeout(0.05)
        for _ in range(600):
            try:
                drips.sendall(b"a")
                if drips.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it was never cut off")
    assert server.cut == 1


class Purse:
    """What addresses may cost in these tests: those in ``owing`` nothing."""

    def __init__(self) -> None:
        self.owing: set[str] = set()
        self.taken: list[str] = []
        self.settled: list[str] = []

    def take(self, host: str) -> float:
        """Charge, or let an hour be waited for."""
        if host in self.owing:
            return 3_600.0
        self.taken.append(host)
        return 0.0

    def settle(self, host: str, spent_us: float) -> None:
        """Keep who paid."""
        if spent_us > 0:
            self.settled.append(host)

    def refuse(self, host: str, wait_s: float) -> str:
        """Say why."""
        return f"{host} owes; ask again in {wait_s:.0f} s"


def test_who_owes_is_held_and_told_when_to_ask_again(
    serve: Maker, eventually: Callable[..., Any]
) -> None:
    """More of its connections than there are places take no place from another address."""
    purse = Purse()
    purse.owing.add("127.0.0.7")
    server = serve(short, toll=purse)
    with contextlib.ExitStack() as stack:
        owing = [stack.enter_context(connect(server, "127.0.0.7")) for _ in range(8)]
        for each in owing:
            each.sendall(ASK)
        eventually(lambda: server.stats().held == 8)
        with connect(server, "127.0.0.9") as honest:
            honest.sendall(ASK)
            assert rest(honest).endswith(b"ok")
        for each in owing:
            answer = rest(each)
            assert answer.startswith(b"HTTP/1.0 429 ")
            assert b"\r\nRetry-After: 3600\r\n" in answer
            assert b"127.0.0.7 owes; ask again in 3600 s" in answer
    stats = server.stats()
    assert (stats.asked, stats.waited, stats.refused, stats.held) == (1, 8, 8, 0)
    eventually(lambda: purse.settled == ["127.0.0.9"], 20.0)


def test_who_has_paid_is_answered_after_all(serve: Maker, eventually: Callable[..., Any]) -> None:
    """One that waited looks no different from one that did not."""
    purse = Purse()
    purse.owing.add("127.0.0.7")
    server = serve(short, toll=purse)
    with connect(server, "127.0.0.7") as client:
        client.sendall(ASK)
        eventually(lambda: server.stats().held == 1)
        purse.owing.clear()
        assert rest(client).endswith(b"ok")


def test_an_address_holds_no_more_than_its_share(
    serve: Maker, eventually: Callable[..., Any]
) -> None:
    """Beyond `HELD_OF_ONE_MAX` it is refused at once."""
    purse = Purse()
    purse.owing.add("127.0.0.7")
    server = serve(short, toll=purse)
    with contextlib.ExitStack() as stack:
        for _ in range(HELD_OF_ONE_MAX + 1):
            stack.enter_context(connect(server, "127.0.0.7"))
        eventually(lambda: server.stats().refused >= 1)
        assert server.stats().waited == HELD_OF_ONE_MAX


def test_an_address_has_half_of_the_places_with_answers_that_are_made(
    serve: Maker, eventually: Callable[..., Any]
) -> None:
    """So that another one is answered beside slow pages."""
    goes_on, begun = threading.Event(), threading.Semaphore(0)

    def slow(target: str) -> Answer:
        if target == "/x":
            begun.release()
            assert goes_on.wait(60)
        return short(target)

    server = serve(slow, toll=Purse())
    with contextlib.ExitStack() as stack:
        for number in range(2):
            client = stack.enter_context(connect(server, "127.0.0.7"))
            client.sendall(ASK)
            assert begun.acquire(timeout=60), number
        stack.enter_context(connect(server, "127.0.0.7")).sendall(ASK)
        eventually(lambda: server.stats().waited == 1, 20.0)
        with connect(server, "127.0.0.9") as honest:
            honest.sendall(ASK.replace(b"/x", b"/y"))
            assert rest(honest).endswith(b"ok")
        goes_on.set()


def test_who_asks_while_a_page_is_made_shares_the_next_one(
    eventually: Callable[..., Any],
) -> None:
    """It is made once for all of them, and is not older than their questions."""
    goes_on, begun = threading.Event(), threading.Event()
    made: list[int] = []

    def make() -> Answer:
        made.append(len(made) + 1)
        number = made[-1]
        begun.set()
        assert goes_on.wait(60)
        return 200, "text/plain", str(number).encode()

    page = Shared(make)
    got: list[bytes] = []
    first = threading.Thread(target=lambda: got.append(page()[2]))
    first.start()
    assert begun.wait(60)
    others = [threading.Thread(target=lambda: got.append(page()[2])) for _ in range(6)]
    for each in others:
        each.start()
    eventually(lambda: len(page._turn._waiters) == 6)  # type: ignore[attr-defined]
    goes_on.set()
    for each in [first, *others]:
        each.join(60)
    assert sorted(got) == [b"1"] + [b"2"] * 6
    assert made == [1, 2]


def test_a_page_that_fails_is_made_again_for_the_next() -> None:
    """Nobody gets the failure of another one, nor an old page."""
    answers: list[Answer | None] = [short(""), None, (200, "text/plain", b"new")]

    def make() -> Answer:
        answer = answers.pop(0)
        if answer is None:
            raise RuntimeError("a fault of ours")
        return answer

    page = Shared(make)
    assert page()[2] == b"ok"
    with pytest.raises(RuntimeError):
        page()
    assert page()[2] == b"new"
