"""Attackers in processes of their own, so that what they compute slows no honest client.

Each process plays every n-th number. It is told ranges over a pipe, answers with what it counted
and with its last sequences, and is told to stop when the node shows a fault.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

import trio
from hostile_bytes import Sequence
from hostile_peer import PeerAttack
from hostile_play import OPENINGS, ByteSiege, Order
from hostile_rpc import RpcAttack
from hostile_web import WebAttack

WORKERS = {"http": 32, "websocket": 32, "grpc": 32, "gossip": 10, "reconcile": 10}
"""Connections at once of one process."""
LOOK_S = 1.0
STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a process answers after a range of numbers."""

    counts: Counter[str]
    recent: tuple[Sequence, ...]
    cpu_s: float
    """CPU time that it has used."""
    leaks: tuple[str, ...]
    """What Python could not raise: sockets left open, above all."""


class _Bytes:
    def __init__(self, order: Order) -> None:
        web = WebAttack(order.seed, order.token, order.messages)
        rpc = RpcAttack(order.seed, order.token, order.messages)
        make = {"http": web.http, "websocket": web.websocket, "grpc": rpc.rpc}[order.door]
        opening = OPENINGS.get(order.door)
        if opening is None:
            opening = web.handshake()
        self._siege = ByteSiege(order, make, opening)
        self._workers = WORKERS[order.door]
        self.counts = self._siege.counts
        self.recent = self._siege.recent

    async def play(self, numbers: Iterator[int]) -> None:
        await self._siege.run(numbers, self._workers)


class _Peers:
    def __init__(self, order: Order) -> None:
        self._attack = PeerAttack(order.seed, order.places["gossip"], order.messages)
        self._door, self._frames = order.door, order.frames
        self.counts = self._attack.counts
        self.recent = self._attack.recent

    async def play(self, numbers: Iterator[int]) -> None:
        async def some() -> None:
            for number in numbers:
                await self._attack.peer(self._door, number, self._frames)
                self.counts["played"] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(WORKERS[self._door]):
                nursery.start_soon(some)


def _main(pipe: Connection, order: Order) -> None:
    """One process; what Python cannot raise is collected and told."""
    leaks: list[str] = []
    warnings.simplefilter("error", ResourceWarning)
    sys.unraisablehook = lambda what: leaks.append(f"{what.exc_value!r} of {what.object!r}"[:500])
    trio.run(_serve, pipe, order, leaks)


async def _serve(pipe: Connection, order: Order, leaks: list[str]) -> None:
    attack: Any = (_Peers if order.door in {"gossip", "reconcile"} else _Bytes)(order)
    while (numbers := await trio.to_thread.run_sync(pipe.recv)) is not None:
        if numbers != STOP:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_listen, pipe, nursery.cancel_scope)
                await attack.play(iter(numbers))
                nursery.cancel_scope.cancel()
        gc.collect()
        told = Told(
            counts=Counter(attack.counts),
            recent=tuple(attack.recent),
            cpu_s=time.process_time(),
            leaks=tuple(leaks),
        )
        await trio.to_thread.run_sync(pipe.send, told)


async def _listen(pipe: Connection, scope: trio.CancelScope) -> None:
    """Stop when there is word of it."""
    await trio.lowlevel.wait_readable(pipe.fileno())
    scope.cancel()


class Crew:
    """The processes of one attack; a context manager."""

    def __init__(self, orders: list[Order]) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._orders = orders
        self._hands: list[tuple[Any, Connection]] = []
        self._told: dict[int, Told] = {}

    def __enter__(self) -> Self:
        """Start them."""
        for order in self._orders:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_main, args=(theirs, order), daemon=True)
            process.start()
            theirs.close()
            self._hands.append((process, ours))
        return self

    def __exit__(self, *_: object) -> None:
        """End them."""
        for process, pipe in self._hands:
            if process.is_alive():
                pipe.send(None)
            process.join(20)
            process.kill()
            process.join()
            pipe.close()
            process.close()

    def play(self, numbers: range, check: Callable[[], None]) -> None:
        """Play the numbers.

        Args:
            numbers: Each process takes every n-th.
            check: Called every second; when it raises, the attack is stopped.

        Raises:
            AssertionError: ``check`` raised it, or a process ended.

        """
        try:
            self._ask([numbers[place :: len(self._hands)] for place in self._places()], check)
        except AssertionError:
            self._stop()
            raise

    def _places(self) -> range:
        return range(len(self._hands))

    def _ask(self, several: list[Any], check: Callable[[], None]) -> None:
        for (_, pipe), each in zip(self._hands, several, strict=True):
            pipe.send(each)
        waiting = set(self._places())
        while waiting:
            for place in sorted(waiting):
                process, pipe = self._hands[place]
                if process.is_alive() and pipe.poll(LOOK_S / len(waiting)):
                    self._told[place] = pipe.recv()
                    waiting.remove(place)
                assert process.is_alive(), f"attacker {place} ended with {process.exitcode}"
            check()

    def _stop(self) -> None:
        """Have the last sequences of those that still can tell them."""
        for process, pipe in self._hands:
            if process.is_alive():
                pipe.send(STOP)
        for place, (_, pipe) in enumerate(self._hands):
            while pipe.poll(10):
                try:
                    self._told[place] = pipe.recv()
                except EOFError:
                    break
                if not pipe.poll(1):
                    break

    @property
    def counts(self) -> Counter[str]:
        """What all of them counted."""
        return sum((each.counts for each in self._told.values()), Counter())

    @property
    def recent(self) -> list[Sequence]:
        """The last sequences of all of them."""
        return [sequence for each in self._told.values() for sequence in each.recent]

    @property
    def cpu_s(self) -> float:
        """CPU time of all of them."""
        return sum(each.cpu_s for each in self._told.values())

    @property
    def leaks(self) -> list[str]:
        """What they left open."""
        return [leak for each in self._told.values() for leak in each.leaks]
