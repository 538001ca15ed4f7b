"""An address costs the operator's pages what the configuration allows; others are answered."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import NodeProcess

pytestmark = pytest.mark.trial
ATTACKER = "127.0.0.7"
PROBER = "127.77.0.9"
BURST_S = 0.05
RATE = 0.002


@pytest.fixture
def paged(new_node: Callable[[str], NodeProcess]) -> NodeProcess:
    """A node whose budget for whoever asks its pages is used up soon."""
    node = new_node("paged")
    node.sections["http"] |= {"stranger_ms_per_s": 2, "stranger_burst_ms": 50}
    node.sections["sync"] |= {"known_hosts": [PROBER]}
    return node


def ask(place: str, path: str, source: str, method: str = "GET") -> tuple[int, Any, bytes]:
    """Return status, headers and body."""
    line = http.client.HTTPConnection(place, timeout=60, source_address=(source, 0))
    try:
        line.request(method, path)
        answer = line.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        line.close()


def metric(place: str, name: str) -> float:
    """Return one number of the node's metrics, seen from the prober's address."""
    text = ask(place, "/metrics", PROBER)[2].decode()
    return float(next(each for each in text.splitlines() if each.startswith(name + " ")).split()[1])


def cpu_s(node: NodeProcess) -> float:
    """Return the CPU time of the node's process, seconds."""
    assert node.process is not None
    text = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def flood(place: str, path: str, method: str = "GET", threads: int = 8) -> Any:
    """Ask from one address as fast as answers come; gives the statuses and what 429 said."""
    over, seen, said = threading.Event(), [0], list[tuple[Any, bytes]]()

    def work() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, headers, body = ask(place, path, ATTACKER, method)
                seen[0] += 1
                if status == 429:
                    said.append((headers, body))

    workers = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for each in workers:
        each.start()
    try:
        yield seen, said
    finally:
        over.set()
        for each in workers:
            each.join(60)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/metrics"),
        ("GET", "/status"),
        ("GET", "/healthz"),
        ("GET", "/nothing"),
        ("POST", "/healthz"),
    ],
)
def test_an_address_costs_the_pages_its_budget(
    paged: NodeProcess, eventually: Callable[..., Any], method: str, path: str
) -> None:
    """Whatever it asks: it waits, then is told why and when again; another one is answered."""
    place = paged.start().http
    began, before = time.monotonic(), cpu_s(paged)
    with flood(place, path, method) as (_, said):
        eventually(lambda: len(said) >= 3)
        assert ask(place, "/healthz", PROBER)[0] == 200
        took, spent = time.monotonic() - began, cpu_s(paged) - before
    headers, body = said[0]
    assert int(headers["Retry-After"]) >= 1
    assert f"the address {ATTACKER} costs more than 2 ms of CPU time a second".encode() in body
    assert b"ask again in" in body
    # What the node does for itself beside it is not a quarter of a core.
    assert spent < BURST_S + RATE * took + 0.25 * took + 0.3
    assert metric(place, "luxrelay_pages_refused_total") >= 3
    assert metric(place, "luxrelay_pages_waited_total") >= 3


def test_connections_that_ask_nothing_are_paid_too(
    paged: NodeProcess, eventually: Callable[..., Any]
) -> None:
    """Connecting and leaving costs an address as asking does; the next one has to wait."""
    place = paged.start().http
    host, _, port = place.rpartition(":")
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                socket.create_connection((host, int(port)), 5, (ATTACKER, 0)).close()

    worker = threading.Thread(target=come_and_go, daemon=True)
    worker.start()
    try:
        eventually(lambda: metric(place, "luxrelay_pages_waited_total") >= 1)
        assert ask(place, "/healthz", PROBER)[0] == 200
    finally:
        over.set()
        worker.join(60)


def test_what_an_address_owes_elsewhere_is_not_asked_at_the_pages(
    new_node: Callable[[str], NodeProcess],
) -> None:
    """A client without token on the machine does not make its health check fail."""
    node = new_node("elsewhere")
    node.sections["sync"] |= {"stranger_ms_per_s": 1, "stranger_burst_ms": 1}
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    place = node.start()
    statuses = [ask(str(place.gateway), "/v1/status", PROBER)[0] for _ in range(20)]
    assert 429 in statuses
    assert ask(place.http, "/healthz", PROBER)[0] == 200


def test_known_hosts_ask_the_pages_as_often_as_they_like(
    paged: NodeProcess,
) -> None:
    """An address in sync.known_hosts has the budget of a token."""
    paged.sections["sync"] |= {"known_hosts": [ATTACKER, PROBER]}
    place = paged.start().http
    assert [ask(place, "/metrics", ATTACKER)[0] for _ in range(40)] == [200] * 40
    assert metric(place, "luxrelay_pages_waited_total") == 0
