"""Which doors of the product a test went through: by the counters of what served it.

Theory of operation
-------------------
*Reads* counters that the product keeps anyway, before a test and when it has ended: those of a
node process from its own metrics, before it is ended; those of listeners in the test's process
from the objects that count; the bytes that the client's connections moved; the processes that were
started. *Decides* from their growth which doors carried something. Nothing declares a door.
*Does not see* what a node counted that ended by itself or serves no metrics: then a test may seem
to reach less, never more. *Keeps* the counters of what still lives, for the tests that share it.

A reading is a number for each door; a test went by a door when a number grew.
"""

from __future__ import annotations

import re
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from http.client import HTTPException
from pathlib import PurePath
from typing import Any, Final

GOSSIP, SYNC, NODE, HTTP = "gossip", "RelaySync", "RelayNode gRPC", "HTTP"
WEBSOCKET, COMMAND, CLIENT, ARCHIVE = "WebSocket", "command", "Python client", "archive"
DOORS: Final = (GOSSIP, SYNC, NODE, HTTP, WEBSOCKET, COMMAND, CLIENT, ARCHIVE)
"""In the order of the pages; gossip is all of libp2p, RelayNode gRPC all gRPC beside RelaySync."""
SYNC_METHODS: Final = frozenset(
    ("SyncNamespace", "GetMessages", "GetNamespaceHead", "ListHeads", "ListHeld", "GetDigests")
) | {"Reconcile", "GetBlob", "GetBlobParts"}
"""Calls of the service RelaySync; a test of the recorder compares them with the proto file."""
READ_S: Final = 3.0
"""Seconds that a node has for its metrics when it is to be ended."""
_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
Reading = Counter[str]


def of_metrics(text: str) -> Reading:
    """Return what a node's metrics say; the pages count, and the question for them with them."""
    found: Reading = Counter()
    for name, labels, value in _SAMPLE.findall(text):
        said, number = dict(_LABEL.findall(labels)), float(value)
        if name == "relay_sync_requests_total":
            found[SYNC if said["method"] in SYNC_METHODS else NODE] += int(number)
        elif name == "luxrelay_gateway_responses_total":
            found[WEBSOCKET if said["status"] == "101" else HTTP] += int(number)
        elif name == "luxrelay_pages_asked_total":
            found[HTTP] += int(number)
        elif name == "luxrelay_net_bytes_in_total":
            found[GOSSIP] += int(number)
        elif name == "luxrelay_gateway_archive_calls_total" and said["outcome"] == "answered":
            found[ARCHIVE] += int(number)
    return found


def of_process(arguments: object) -> Reading:
    """Return the door of a process that was started: one of our commands, or none."""
    words = [arguments] if isinstance(arguments, str | bytes) else list(_words(arguments))
    text = [word.decode() if isinstance(word, bytes) else str(word) for word in words]
    found: Reading = Counter()
    for at, word in enumerate(text):
        if PurePath(word).name == "luxrelay":
            said = text[at + 1 :]
        elif inside := re.search(r"(?:^|[\s/])luxrelay +([\w-]+)(?: +([\w-]+))?", word):
            said = [each for each in inside.groups() if each]
        else:
            continue
        if said[:2] != ["node", "run"]:  # that is the node itself
            found[COMMAND] = 1
            found[ARCHIVE] = int(said[:1] == ["archive"])
    return found


def _words(arguments: object) -> Iterable[object]:
    return arguments if isinstance(arguments, Sequence) else [arguments]


def _of_calls(counters: Any) -> Reading:
    found: Reading = Counter()
    for (method, _), count in counters.snapshot().requests.items():
        found[SYNC if method in SYNC_METHODS else NODE] += count
    return found


def _of_answers(counters: Any) -> Reading:
    upgraded = counters.answers.get(101, 0)
    return Counter({WEBSOCKET: upgraded, HTTP: sum(counters.answers.values()) - upgraded})


WATCHED: Final[dict[tuple[str, str], Callable[[Any], Reading]]] = {
    ("luxrelay.sync.rpc.stats", "SyncCounters"): _of_calls,
    ("luxrelay.node.gateway.server", "ServerCounters"): _of_answers,
    ("luxrelay.net.transport", "TrafficCounters"): lambda made: Counter({GOSSIP: made.bytes_in}),
    ("luxrelay.client.waiting", "Patience"): lambda made: Counter({CLIENT: made._moved}),
    ("luxrelay.archive.batches", "BatchWriter"): lambda made: Counter(
        {ARCHIVE: sum(batch.messages for batch in made.batches)}
    ),
    ("subprocess", "Popen"): lambda made: of_process(getattr(made, "args", ())),
}
"""Classes that count in the test's process, and how they are read."""


class Node:
    """What a node process has counted, as it says itself."""

    def __init__(self, place: str) -> None:
        """``host:port`` of its pages."""
        self._place = place

    def read(self) -> Reading | None:
        """Return its counters; None when it does not answer, or when its port is another's by now.

        Whoever has the port of a node that ended may speak another protocol: a port of Spark's did.
        """
        try:
            with urllib.request.urlopen(f"http://{self._place}/metrics", timeout=READ_S) as answer:
                found = of_metrics(answer.read().decode())
        except (OSError, ValueError, HTTPException):
            return None
        found[HTTP] -= 1  # this question
        return found


class Recorder:
    """Notes the doors of one test after another."""

    def __init__(self) -> None:
        """Watch from now on what is made."""
        self._made: list[tuple[Any, Callable[[Any], Reading]]] = []
        self._nodes: dict[int, tuple[Node, Reading]] = {}
        self._before: dict[int, Reading] = {}
        self._reached: set[str] = set()
        self.unsure = False
        """Whether a node did not say what it has counted."""
        self._watched: set[tuple[str, str]] = set()

    def watch(self) -> None:
        """Notice what is made of the classes that are loaded; those watched already stay so."""
        for (module, name), read in WATCHED.items():
            if module in sys.modules and (module, name) not in self._watched:
                self._watched.add((module, name))
                self._notice(getattr(sys.modules[module], name), read)

    def _notice(self, kind: Any, read: Callable[[Any], Reading]) -> None:
        make = kind.__init__

        def made(new: Any, *arguments: Any, **named: Any) -> None:
            self._made.append((new, read))
            make(new, *arguments, **named)

        kind.__init__ = made

    def begin(self) -> None:
        """A test begins; what has grown so far is not its own."""
        self.watch()
        self._reached, self.unsure = set(), False
        self._before = {id(made): read(made) for made, read in self._made}
        for pid, (node, last) in list(self._nodes.items()):
            self._nodes[pid] = (node, node.read() or last)

    def started(self, pid: int, place: str) -> None:
        """A node process is ready, with its pages at ``place``."""
        if place:
            self._nodes[pid] = (Node(place), Counter())

    def ends(self, pid: int) -> None:
        """A node process is about to be ended: what it has counted so far is the test's."""
        if pid in self._nodes:
            self._ask(*self._nodes.pop(pid))

    def _ask(self, node: Node, last: Reading) -> Reading:
        now = node.read()
        if now is None:
            self.unsure = True
            return last
        self._grown(last, now)
        now[HTTP] += 1  # the question that was asked just now
        return now

    def _grown(self, before: Reading, now: Reading) -> None:
        self._reached |= {door for door in DOORS if now[door] != before[door]}

    def end(self) -> list[str]:
        """A test has ended with all that was made for it; return its doors."""
        for pid, (node, last) in list(self._nodes.items()):
            self._nodes[pid] = (node, self._ask(node, last))
        for made, read in self._made:
            self._grown(self._before.get(id(made), Counter()), read(made))
        # Ours, the loop's and the call's own are the references of what nobody else holds.
        self._made = [pair for pair in self._made if sys.getrefcount(pair[0]) > 2]
        return [door for door in DOORS if door in self._reached]


RECORDER: Final = Recorder()
"""That of this process."""
