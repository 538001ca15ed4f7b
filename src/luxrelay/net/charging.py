"""`Charges`: inbound connections on the node's one meter of cost, as HTTP and gRPC are.

Theory of operation
  Decides: when an inbound connection is read from.
  How: the tasks of a connection, from its handshake on, carry its `Account` in their context, and
    an instrument of the loop adds the CPU time of each of their steps to it: Noise, Yamux, every
    stream, the router. Before the next bytes are taken from the socket the account is settled with
    the meter; while the payer is in debt they stay where they are, and TCP tells the sender.
  Not charged: connections that we dialled, hosts that the operator has named, and what we write to
    a peer of our own accord.
  Bounds: an address overdraws by what 64 KiB of each of its connections cost, and what is owed is
    paid before more is read. `account.STEP_US` may be open on each connection.
  Counted: `held`; logged once a minute.

Source: decisions P33, P34; `luxrelay.net.account`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

import trio

from luxrelay.net.account import Account
from luxrelay.sync.cost import Payer

_LOG: Final = logging.getLogger("luxrelay.net")
_SAID_EVERY_S: Final = 60.0
_LOOK_S: Final = 0.25
"""Longest pause before a held connection looks again: it may have earned something."""
_LOOK_MIN_S: Final = 0.05
"""Shortest pause before it does, seconds."""
_ACCOUNT: ContextVar[Account | None] = ContextVar("luxrelay_account", default=None)


class Meter(Protocol):
    """The part of the meter that gossip needs; `luxrelay.sync.rpc.metering` has it."""

    pace: Callable[[], float]
    """How many times as long this machine takes as the one of the prices."""

    def take(self, payer: Payer, cost_us: float) -> float:
        """Charge, or return the seconds to wait."""
        ...

    def settle(self, payer: Payer, more_us: float) -> None:
        """Charge afterwards, or give back."""
        ...

    def limits(self, payer: Payer) -> bool:
        """Whether it is a stranger whose cost is limited."""
        ...


def account() -> Account | None:
    """Return the account of the connection that the running task belongs to."""
    return _ACCOUNT.get()


def without_account() -> None:
    """What the running task does from now on is charged to nobody."""
    _ACCOUNT.set(None)


class Charges(trio.abc.Instrument):
    """Accounts of the inbound connections of one host.

    Args:
        meter: Whom they are settled with; None when nothing is charged.
        clock: CPU time of the running thread, seconds.

    """

    def __init__(
        self, meter: Meter | None = None, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self.meter = meter
        self.accepted = 0
        """Messages that the node has accepted as new, or published."""
        self.held = 0
        """How often a connection was not read from for a while."""
        self._clock = clock
        self._of_peer: dict[bytes, Account] = {}
        self._running: Account | None = None
        self._began = 0.0
        self._say_at = float("-inf")

    @contextmanager
    def of(self, host: str) -> Iterator[Account | None]:
        """The task and those it starts work for a connection from the host; None when it is free.

        Args:
            host: IP address of the other end.

        """
        payer = Payer.at(host)
        if self.meter is None or not self.meter.limits(payer):
            yield None
            return
        opened = Account(payer, seen=self.accepted)
        token = _ACCOUNT.set(opened)
        try:
            yield opened
        finally:
            _ACCOUNT.reset(token)
            if self._of_peer.get(opened.peer) is opened:
                del self._of_peer[opened.peer]
            self.meter.settle(payer, opened.due())

    def prove(self, peer: bytes) -> None:
        """The running task's connection is the peer's."""
        opened = _ACCOUNT.get()
        if opened is not None:
            opened.peer = peer
            self._of_peer[peer] = opened

    def charge(self, peer: bytes) -> None:
        """What the running task does from now on is charged to the peer's inbound connection."""
        _ACCOUNT.set(self._of_peer.get(peer))

    async def turn(self, opened: Account, closed: Callable[[], bool]) -> None:
        """More may be read from the connection, or it is closed."""
        if not opened.fresh and opened.settled:
            return
        opened.fresh = False
        wait_s = self._wait_s(opened)
        if not wait_s:
            return
        self.held += 1
        self._say(opened.payer)
        opened.held = True
        # Waiting is free: charged at the pace of the looks, several connections of one address
        # would cost as much as it pays back, and owe for ever.
        token = _ACCOUNT.set(None)
        try:
            while wait_s and not closed():
                await trio.sleep(min(max(wait_s, _LOOK_MIN_S), _LOOK_S))
                wait_s = self._wait_s(opened)
        finally:
            _ACCOUNT.reset(token)
            opened.held = False

    def _wait_s(self, opened: Account) -> float:
        assert self.meter is not None
        self.meter.settle(opened.payer, opened.due())
        return self.meter.take(opened.payer, 0.0)

    def _say(self, payer: Payer) -> None:
        now = trio.current_time()
        if now >= self._say_at:
            self._say_at = now + _SAID_EVERY_S
            _LOG.warning("not read from for a while: gossip of %s costs too much", payer.name)

    # The loop's instrument.

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task goes on."""
        running = task.context.get(_ACCOUNT)
        if running is not None:
            self._running, self._began = running, self._clock()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """It waits again, or has ended."""
        del task
        running, self._running = self._running, None
        if running is not None:
            assert self.meter is not None  # or there were no accounts
            running.spend((self._clock() - self._began) / self.meter.pace())
