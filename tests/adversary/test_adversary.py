"""Sequences of hostile bytes at every door of a running node, which goes on serving."""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from crew import Crew
from hostile_bytes import Sequence
from hostile_play import OPENINGS, ByteSiege, Order
from hostile_rpc import half_open, one_call_each
from hostile_web import WebAttack
from siege import FAULT, Honest, Watch, now_ms, valid_messages

from luxrelay.node.gateway.tokens import TokenFile

pytestmark = pytest.mark.slow
SEED = int(os.environ.get("LUXRELAY_ADVERSARY_SEED", "15"))
SEQUENCES = int(os.environ.get("LUXRELAY_ADVERSARY_SEQUENCES", "600"))
CORPUS = Path(__file__).parent / "corpus"
FOUND = Path(os.environ.get("LUXRELAY_ADVERSARY_FOUND", CORPUS))
FULL = 20_000
"""Sequences from which the growth of memory says something."""
HANDS = 2
"""Processes that attack at once."""
PER_HANDSHAKE = 50
"""Frames of one handshake."""
GROWTH_MAX_KIB = 16 * 1024
SLACK = {"fds": 8, "threads": 8, "tasks": 12}
"""What two looks at a resting node may differ by: pools that grow once, a connection that ends."""
HALF_OPEN = 8
"""Addresses that begin 150 calls each: twice as many as a listener has threads."""
CALLERS = 4200
"""More than the 4,096 callers that a listener remembers (`peers_max`, `rate_keys_max`)."""
ANSWERS_BYTES = 200
"""More than the settings of a connection: an answer has come."""
UNBOUNDED = {"stranger_ms_per_s": 0, "known_ms_per_s": 0}
"""Nobody waits for the meter of cost, so that a node of two cores takes 100,000 sequences."""


class Stand:
    """The node under attack, a second node, honest clients, and the log.

    Args:
        new_node: Makes node processes.
        eventually: Waits for a condition.
        strict: Whether rates and the meter of cost stay as they are by default; they make the
            attackers wait, and those who bring no token.

    """

    def __init__(
        self, new_node: Callable[[str], Any], eventually: Callable[..., Any], *, strict: bool
    ) -> None:
        self.eventually = eventually
        other = new_node("neighbour")
        other.sections["gossip"] |= {"exempt_loopback": True}
        # The one who looks there and the besieged node share an address, and so a budget.
        other.sections["sync"] |= UNBOUNDED
        neighbour = other.start()
        self.node = node = new_node("besieged")
        node.sections["gossip"] |= {
            "peers": [neighbour.gossip[0]],
            "exempt_loopback": True,
            "connections_max": 200,
        }
        node.sections["sync"] |= {"reconcile_interval_ms": 250, "allow_handoff": True}
        node.sections["gateway"] = {
            "listen": "127.0.0.1:0",
            "admin_listen": "127.0.0.1:0",
            "grpc_listen": "127.0.0.1:0",
            "grpc_admin_listen": "127.0.0.1:0",
            "idle_ms": 5000,
        }
        if not strict:
            node.sections["gossip"] |= {"group_peers_max": 1000}
            node.sections["sync"] |= UNBOUNDED
            node.sections["gateway"] |= {
                "requests_per_s": 1_000_000,
                "publish_bytes_per_s": 2**40,
            }
        self.runtime = runtime = node.start()
        tokens = TokenFile(node.folder / "data", 10)
        rate = 100 if strict else 1_000_000
        scopes = ("read", "publish") if strict else ("read", "publish", "admin")
        self.token, _ = tokens.new("attacker", scopes, now_ms(), requests_per_s=rate)
        honest, _ = tokens.new("honest", ("read", "publish"), now_ms())
        self.watch = Watch(runtime.pid, runtime.http, eventually)
        self.honest = Honest(
            runtime.gateway, "" if strict else runtime.sync, neighbour.sync, honest
        )
        self.messages = tuple(valid_messages(48, SEED))

    def order(self, door: str) -> Order:
        """What attackers are told."""
        return Order(
            door=door,
            seed=SEED,
            token=self.token,
            messages=self.messages,
            places=self.places(),
            frames=2 * PER_HANDSHAKE,
        )

    def places(self) -> dict[str, str]:
        """Every listener."""
        names = ("gateway", "admin", "http", "sync", "grpc", "grpc_admin")
        places = {name: getattr(self.runtime, name) for name in names}
        return places | {"gossip": self.runtime.gossip[0]}

    def faults(self) -> list[str]:
        """Lines of the log that tell of a fault."""
        log = (self.node.folder / "log").read_text(errors="replace")
        return [line[:3000] for line in log.splitlines() if FAULT.search(line)]

    def contained(self) -> dict[str, float]:
        """Failures that nobody expected and that ended a connection or a round, by metric."""
        found = re.findall(
            r"^(luxrelay_\w*(?:faults|contained)\w*(?:\{.*\})?) (\S+)$",
            self.watch.page("/metrics"),
            re.MULTILINE,
        )
        return {
            name: float(value)
            for name, value in found
            if float(value) and not name.partition("{")[0].endswith("_created")
        }

    def check(self) -> None:
        """The node runs without a fault, and serves."""
        assert self.node.process.poll() is None, "the node has ended"
        assert not self.faults(), self.faults()[:5]
        self.honest.check()


@pytest.fixture
def stand(
    request: pytest.FixtureRequest, new_node: Callable[[str], Any], eventually: Callable[..., Any]
) -> Iterator[Stand]:
    """A node under attack, with the bounds of the parameter."""
    made = Stand(new_node, eventually, strict=getattr(request, "param", "raised") == "strict")
    yield made
    made.honest.close()


def corpus(door: str, token: str) -> list[Sequence]:
    """What once did harm at the door."""
    files = sorted(CORPUS.glob(f"{door}*.jsonl"))
    return [Sequence.of(line, token) for path in files for line in path.read_text().splitlines()]


class Besieged:
    """One run: warm-up, half, whole; then everything is as before."""

    def __init__(self, stand: Stand, door: str, count: int, *, full: bool) -> None:
        self.stand, self.door, self.count, self.full = stand, door, count, full

    def run(self, crew: Crew, frames: int = 0) -> None:
        """Play numbers through the door.

        Args:
            crew: Plays them.
            frames: At least so many frames, by further numbers.

        """
        count = self.count
        print(f"\n{self.door}: {count:,} sequences, seed {SEED}")
        try:
            self._run(crew, frames)
        except AssertionError:
            self._keep(crew)
            raise
        assert not crew.leaks, crew.leaks

    def _run(self, crew: Crew, frames: int) -> None:
        stand, count = self.stand, self.count
        begun = time.monotonic()
        if self.door == "grpc":
            self._fill_pools()
            if self.full:
                self._fill_tables()
        crew.play(range(count // 10), stand.check)
        before = stand.watch.settled()
        memory = {1: stand.watch.rss_kib()}
        parts = tuple(range(1, 11)) if self.full else (1, 5, 10)
        for since, until in itertools.pairwise(parts):
            crew.play(range(count * since // 10, count * until // 10), stand.check)
            memory[until] = stand.watch.rss_kib()
        half = memory[5]
        number = count
        while crew.counts["frames"] < frames:
            crew.play(range(number, number + 20), stand.check)
            number += 20
        growth = stand.watch.rss_kib() - half
        played = time.monotonic() - begun
        after = self._rested(before)
        rested = time.monotonic() - begun - played
        stand.honest.end(stand.eventually)
        stand.check()
        waits = sorted(stand.honest.waits)
        print(
            f"  {played:.0f} s and {rested:.0f} s of rest; CPU {stand.watch.cpu_s():.0f} s of the "
            f"node, {crew.cpu_s:.0f} s of the attackers; "
            f"memory {growth:+,} KiB over the last half of {half:,}\n"
            f"  before {before}, after {after}\n"
            f"  honest: {stand.honest.published} messages, p50 {waits[len(waits) // 2]:.3f} s, "
            f"longest {waits[-1]:.2f} s\n"
            f"  memory by tenths, MiB: {[each // 1024 for each in memory.values()]}, "
            f"at rest {stand.watch.rss_kib() // 1024}\n"
            f"  contained: {stand.contained()}\n  {dict(crew.counts)}"
        )
        limit = GROWTH_MAX_KIB if self.full else 4 * GROWTH_MAX_KIB
        assert growth < limit, f"memory grew by {growth} KiB over the last half"
        assert not self._more(before, after), f"before {before}, after {after}"
        assert not (contained := stand.contained()), contained

    def _fill_pools(self) -> None:
        """Have the threads made that gRPC makes for calls that come at once, and keeps."""
        threads = self.stand.watch.held()["threads"]
        with ExitStack() as held:
            for name in ("sync", "grpc", "grpc_admin"):
                host, _, port = self.stand.places()[name].rpartition(":")
                for rank in range(HALF_OPEN):
                    line = held.enter_context(socket.socket())
                    line.bind((f"127.200.{rank}.1", 0))
                    line.connect((host, int(port)))
                    line.sendall(half_open(rank))
            while (now := self.stand.watch.held()["threads"]) > threads:
                threads = now
                time.sleep(1)
        print(f"  {threads} threads when every pool is full")

    def _fill_tables(self) -> None:
        """Have the node remember as many callers as it will: what comes later takes no more."""
        said = one_call_each()
        for name in ("sync", "grpc"):
            host, _, port = self.stand.places()[name].rpartition(":")
            for number in range(CALLERS):
                with socket.socket() as line, suppress(TimeoutError):
                    line.settimeout(2)
                    line.bind((f"127.201.{number // 250}.{1 + number % 250}", 0))
                    line.connect((host, int(port)))
                    line.sendall(said)
                    heard = 0
                    while heard < ANSWERS_BYTES and (data := line.recv(65_536)):
                        heard += len(data)
        print(f"  {CALLERS} callers are remembered")

    def _more(self, before: dict[str, int], after: dict[str, int]) -> list[str]:
        return [name for name in before if after[name] > before[name] + SLACK[name]]

    def _rested(self, before: dict[str, int]) -> dict[str, int]:
        """What the node holds once it is as before, or after a minute and a half."""
        deadline = time.monotonic() + 90
        while (more := self._more(before, after := self.stand.watch.held())) and (
            time.monotonic() < deadline
        ):
            print("  not at rest:", *(f"{after[each]} {each}" for each in more))
            time.sleep(3)
        return after

    def _keep(self, crew: Crew) -> None:
        for line in self.stand.faults()[:5]:
            print(" ", line)
        if recent := crew.recent:
            path = FOUND / f"{self.door}-seed{SEED}-{recent[-1].number}.jsonl"
            lines = [each.line(SEED, self.stand.token) + "\n" for each in recent]
            path.write_text("".join(lines))
            print(f"  the last {len(recent)} sequences are in {path}")


def again(stand: Stand, door: str) -> None:
    """Play what once did harm."""
    old = corpus(door, stand.token)
    opening = OPENINGS.get(door, WebAttack(SEED, stand.token, stand.messages).handshake())
    siege = ByteSiege(stand.order(door), lambda number, _=1: old[number], opening)
    trio.run(siege.run, iter(range(len(old))), 1)
    stand.check()


@pytest.mark.parametrize("stand", ["raised", "strict"], indirect=True)
@pytest.mark.parametrize("door", ["http", "websocket", "grpc"])
def test_sequences_of_bytes_leave_the_node_serving(
    request: pytest.FixtureRequest, stand: Stand, door: str
) -> None:
    """Whatever bytes come in whatever order, honest clients are served and nothing is kept."""
    strict = "strict" in request.node.callspec.params.values()
    count = min(SEQUENCES, 600) if strict else SEQUENCES
    again(stand, door)
    with Crew([stand.order(door)] * HANDS) as crew:
        Besieged(stand, door, count, full=count >= FULL).run(crew)

        assert crew.counts["played"] == count
        assert strict or crew.counts["answered"] > count // 20


@pytest.mark.parametrize("door", ["gossip", "reconcile"])
def test_lying_peers_leave_the_node_serving(stand: Stand, door: str) -> None:
    """Peers that lie, stall, reset and send the least cost a node their connection alone."""
    # 50,000 frames over 1,000 handshakes at each of the two in the full form.
    handshakes = max(20, SEQUENCES // 100)
    full = SEQUENCES >= FULL
    with Crew([stand.order(door)] * HANDS) as crew:
        besieged = Besieged(stand, door, handshakes, full=full)
        besieged.run(crew, frames=PER_HANDSHAKE * handshakes if full else 0)

        assert crew.counts["handshakes"] >= handshakes // 2
        assert crew.counts["frames"] > 10 * handshakes
