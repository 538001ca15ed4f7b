"""Sequences of hostile bytes at every door of a running node, which goes on serving."""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from hostile_bytes import Sequence
from hostile_peer import PeerAttack
from hostile_rpc import RpcAttack
from hostile_web import WebAttack
from siege import FAULT, OPENINGS, ByteSiege, Honest, Watch, now_ms, valid_messages

from luxrelay.node.gateway.tokens import TokenFile

# The clients' own sockets, cut off with the node or in the middle of a dial, are not what is tried.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SEED = int(os.environ.get("LUXRELAY_ADVERSARY_SEED", "15"))
SEQUENCES = int(os.environ.get("LUXRELAY_ADVERSARY_SEQUENCES", "600"))
CORPUS = Path(__file__).parent / "corpus"
FOUND = Path(os.environ.get("LUXRELAY_ADVERSARY_FOUND", CORPUS))
FULL = 20_000
"""Sequences from which the growth of memory says something."""
FULL_PEERS = 1000
"""Handshakes of the full form, at gossip and at reconcile."""
GROWTH_MAX_KIB = 16 * 1024
SLACK = {"fds": 8, "threads": 64, "tasks": 12}
"""What two looks at a resting node may differ by: pools that grow once, a connection that ends.

The threads of gRPC's pool are made when calls come at once, up to ``workers``, and stay: one
address may hold 64 of them with calls that wait for their message."""
WORKERS = 32
PEERS = 6


class Stand:
    """The node under attack, a second node, honest clients, and the log."""

    def __init__(self, new_node: Callable[[str], Any], eventually: Callable[..., Any]) -> None:
        self.eventually = eventually
        other = new_node("neighbour")
        other.sections["gossip"] |= {"exempt_loopback": True}
        neighbour = other.start()
        self.node = node = new_node("besieged")
        node.sections["gossip"] |= {
            "peers": [neighbour.gossip[0]],
            "exempt_loopback": True,
            "group_peers_max": 1000,
            "connections_max": 200,
        }
        node.sections["sync"] |= {"reconcile_interval_ms": 250, "allow_handoff": True}
        node.sections["gateway"] = {
            "listen": "127.0.0.1:0",
            "admin_listen": "127.0.0.1:0",
            "grpc_listen": "127.0.0.1:0",
            "grpc_admin_listen": "127.0.0.1:0",
            "requests_per_s": 1_000_000,
            "publish_bytes_per_s": 2**40,
            "idle_ms": 5000,
        }
        self.runtime = node.start()
        self.token, _ = TokenFile(node.folder / "data", 10).new(
            "tester", ("read", "publish", "admin"), now_ms(), requests_per_s=1_000_000
        )
        runtime = self.runtime
        self.watch = Watch(runtime.pid, runtime.http)
        self.honest = Honest(runtime.gateway, runtime.sync, neighbour.sync, self.token)
        self.messages = valid_messages(48)

    def places(self) -> dict[str, str]:
        """Every listener of bytes."""
        names = ("gateway", "admin", "http", "sync", "grpc", "grpc_admin")
        return {name: getattr(self.runtime, name) for name in names}

    def faults(self) -> list[str]:
        """Lines of the log that tell of a fault."""
        log = (self.node.folder / "log").read_text(errors="replace")
        return [line[:3000] for line in log.splitlines() if FAULT.search(line)]

    def check(self) -> None:
        """The node runs without a fault, and serves."""
        assert self.node.process.poll() is None, "the node has ended"
        assert not self.faults(), self.faults()[:5]
        self.honest.check()


@pytest.fixture
def stand(new_node: Callable[[str], Any], eventually: Callable[..., Any]) -> Stand:
    """A node under attack."""
    return Stand(new_node, eventually)


def corpus(door: str) -> list[Sequence]:
    """What once did harm at the door."""
    lines = [line for path in sorted(CORPUS.glob(f"{door}*.jsonl")) for line in path.open()]
    return [Sequence.of(line) for line in lines]


class Besieged:
    """One run: warm-up, half, whole; then everything is as before."""

    def __init__(self, stand: Stand, door: str, count: int) -> None:
        self.stand, self.door, self.count = stand, door, count
        self.recent: Callable[[], list[Sequence]] = list

    def run(self, play: Callable[[range], None]) -> None:
        """Play ranges of numbers through the door.

        Args:
            play: Plays the sequences of these numbers and returns when they are played.

        """
        stand, count = self.stand, self.count
        print(f"\n{self.door}: {count:,} sequences, seed {SEED}")
        begun = time.monotonic()
        try:
            play(range(count // 10))
            stand.check()
            before = stand.watch.settled()
            play(range(count // 10, count // 2))
            stand.check()
            half = stand.watch.rss_kib()
            play(range(count // 2, count))
            stand.check()
            growth = stand.watch.rss_kib() - half
            after: dict[str, int] = {}

            def rests() -> bool:
                after.update(stand.watch.held())
                return all(after[name] <= before[name] + SLACK[name] for name in before)

            waited = time.monotonic()
            while not rests() and time.monotonic() < waited + 90:
                time.sleep(1)
            stand.honest.end(stand.eventually)
            stand.check()
            assert rests(), f"before {before}, after {after}"
            full = count >= (FULL_PEERS if self.door in {"gossip", "reconcile"} else FULL)
            limit = GROWTH_MAX_KIB if full else 4 * GROWTH_MAX_KIB
            assert growth < limit, f"memory grew by {growth} KiB over the last half"
        except AssertionError:
            self._keep()
            raise
        waits = sorted(stand.honest.waits)
        took = time.monotonic() - begun
        print(
            f"  {took:.0f} s; memory {growth:+,} KiB over the last half of {half:,}; "
            f"before {before}, after {after}; honest: {stand.honest.published} messages, p50 "
            f"{waits[len(waits) // 2]:.3f} s, longest {waits[-1]:.2f} s"
        )
        contained = re.findall(
            r"^(luxrelay_\w*faults\w*\{.*)$", stand.watch.page("/metrics"), re.MULTILINE
        )
        print("  contained:", [each for each in contained if not each.endswith(" 0.0")])

    def _keep(self) -> None:
        recent = self.recent()
        for line in self.stand.faults()[:5]:
            print(" ", line)
        if recent:
            path = FOUND / f"{self.door}-seed{SEED}-{recent[-1].number}.jsonl"
            path.write_text("".join(each.line(SEED) + "\n" for each in recent))
            print(f"  the last {len(recent)} sequences are in {path}")


@pytest.mark.parametrize("door", ["http", "websocket", "grpc"])
def test_sequences_of_bytes_leave_the_node_serving(stand: Stand, door: str) -> None:
    """Whatever bytes come in whatever order, honest clients are served and nothing is kept."""
    web = WebAttack(SEED, stand.token, stand.messages)
    rpc = RpcAttack(SEED, stand.token, stand.messages)
    make = {"http": web.http, "websocket": web.websocket, "grpc": rpc.rpc}[door]
    siege = ByteSiege(SEED, door, stand.places(), make, OPENINGS.get(door) or _opening(door, web))
    old = corpus(door)
    again = ByteSiege(
        SEED,
        door,
        stand.places(),
        lambda number, _=1: old[number],
        OPENINGS.get(door) or _opening(door, web),
    )
    trio.run(again.run, iter(range(len(old))), 1)
    stand.check()
    besieged = Besieged(stand, door, SEQUENCES)
    besieged.recent = lambda: list(siege.recent)

    besieged.run(lambda numbers: trio.run(partial(_watched, stand, siege, iter(numbers))))

    print("  ", dict(siege.counts))
    assert siege.counts["answered"] > SEQUENCES // 20


def _opening(door: str, web: WebAttack) -> bytes:
    return web.handshake() if door == "websocket" else b""


async def _watched(stand: Stand, siege: ByteSiege, numbers: Iterator[int]) -> None:
    """Play, and stop early when the log tells of a fault."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_look, stand)
        await siege.run(numbers, WORKERS)
        nursery.cancel_scope.cancel()


async def _look(stand: Stand) -> None:
    while True:
        await trio.sleep(2)
        if stand.faults() or stand.honest.failures or stand.node.process.poll() is not None:
            raise AssertionError([*stand.faults()[:3], *stand.honest.failures])


@pytest.mark.parametrize("door", ["gossip", "reconcile"])
def test_lying_peers_leave_the_node_serving(stand: Stand, door: str) -> None:
    """Peers that lie, stall, reset and send the least cost a node their connection alone."""
    recent: list[Sequence] = []

    def tell(sequence: Sequence) -> None:
        recent.append(sequence)
        del recent[:-500]

    attack = PeerAttack(SEED, stand.runtime.gossip[0], stand.messages, tell)
    # 50,000 frames over 1,000 handshakes at each of the two in the full form.
    handshakes = max(20, SEQUENCES // 100)
    besieged = Besieged(stand, door, handshakes)
    besieged.recent = lambda: list(recent)

    further = [handshakes]

    async def peers(numbers: range) -> None:
        waiting = iter(numbers)

        async def some() -> None:
            for number in waiting:
                await attack.peer(door, number, 90)
            while besieged.count >= FULL_PEERS and attack.counts["frames"] < 50 * numbers.stop:
                further[0] += 1
                await attack.peer(door, further[0], 90)

        async with trio.open_nursery() as outer:
            outer.start_soon(_look, stand)
            async with trio.open_nursery() as nursery:
                for _ in range(PEERS):
                    nursery.start_soon(some)
            outer.cancel_scope.cancel()

    besieged.run(lambda numbers: trio.run(peers, numbers))

    gc.collect()  # here, where the warning is passed over
    print("  ", dict(attack.counts))
    assert attack.counts["handshakes"] >= handshakes // 2
    assert attack.counts["frames"] > 10 * handshakes
