"""One dialler a peer: a set of addresses, one task, one result for all callers.

Theory of operation
  Decides: which addresses of a peer are tried, one after another, and when a dial is over.
  Does not know: whom to dial, and when again; callers do.
  Whoever dials a peer that is being dialled adds its address to the set and waits for the same
    result. The task belongs to the host, so a caller that is cancelled takes nothing from the
    others; when the last one has left, the dial is over. Whoever waited looks again, because a
    connection may have come, or gone, between the result and its waking.
  Bounds: `dial_addresses_max` addresses a dial, `dial_timeout_s` for each, `outbound_max`
    connections and dials together.

Source: LP-6420 §1.3; decisions G21.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio
from libp2p.exceptions import BaseLibp2pError

from luxrelay.errors import NetError
from luxrelay.gossip import PeerId
from luxrelay.net.addresses import TcpAddress
from luxrelay.net.config import NetConfig
from luxrelay.net.guarded import Faults


@dataclass(slots=True)
class _Failure:
    """Why one address, or a whole dial, brought no connection."""

    text: str
    hint: str = ""
    cause: BaseException | None = None


@dataclass(slots=True, eq=False)
class _Dial:
    """One peer that is being dialled."""

    targets: dict[str, tuple[TcpAddress, bool]] = field(default_factory=dict)
    """Addresses in the order of trying, and whether somebody here chose the peer."""
    tried: set[str] = field(default_factory=set)
    waiting: int = 0
    """Callers that wait for the result."""
    failure: _Failure | None = None
    """The last one; None once there is a connection."""
    over: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def next_target(self) -> tuple[TcpAddress, bool] | None:
        """The next address that was not tried."""
        for text, target in self.targets.items():
            if text not in self.tried:
                self.tried.add(text)
                return target
        return None


class Dialler:
    """Dials each peer once at a time.

    Args:
        config: `dial_timeout_s`, `dial_addresses_max` and `outbound_max`.
        connect: Opens a connection with the peer at an address, or raises.
        is_connected: Whether there is a live connection.
        outbound: Open outbound connections.
        refusal: Why the address of a peer is not dialled now, and what to do; empty when it is.
        faults: Where unexpected failures are noted.

    """

    def __init__(
        self,
        config: NetConfig,
        *,
        connect: Callable[[TcpAddress, PeerId], Awaitable[object]],
        is_connected: Callable[[PeerId], bool],
        outbound: Callable[[], int],
        refusal: Callable[[TcpAddress, PeerId, bool], str],
        faults: Faults,
    ) -> None:
        self._config = config
        self._connect = connect
        self._is_connected = is_connected
        self._outbound = outbound
        self._refusal = refusal
        self._faults = faults
        self._under_way: dict[PeerId, _Dial] = {}
        self.nursery: trio.Nursery | None = None
        """Where dials run; None while the host does not."""

    def __len__(self) -> int:
        """Peers that are being dialled."""
        return len(self._under_way)

    async def dial(self, addresses: Sequence[TcpAddress], peer: PeerId, *, chosen: bool) -> None:
        """There is a connection with the peer, by one of these addresses or of the same dial.

        Args:
            addresses: Where the peer may be, at least one.
            peer: Who has to answer there.
            chosen: False for a peer that nobody here named.

        Raises:
            NetError: No address that was tried brought a connection, or it was over at once.

        """
        await trio.lowlevel.checkpoint()
        if self._is_connected(peer):
            return
        dial = self._join(addresses, peer, chosen=chosen)
        dial.waiting += 1
        try:
            await dial.over.wait()
        finally:
            dial.waiting -= 1
            if not dial.waiting and not dial.over.is_set():
                self._leave(peer, dial)  # who dials the peer next does not wait for this one
                dial.scope.cancel()
        if self._is_connected(peer):
            return
        failure = dial.failure or _Failure("The connection was over at once")
        where = ", ".join(address.text for address in addresses)
        raise NetError(failure.text, where=where, hint=failure.hint) from failure.cause

    def _join(self, addresses: Sequence[TcpAddress], peer: PeerId, *, chosen: bool) -> _Dial:
        dial = self._under_way.get(peer)
        if dial is None:
            where = addresses[0].text
            if self.nursery is None:
                raise NetError("The host is not running", where=where)
            if self._outbound() + len(self._under_way) >= self._config.outbound_max:
                refused = self._refusal(addresses[0], peer, chosen)
                raise NetError(
                    refused or "All outbound connections are taken",
                    where=where,
                    hint="" if refused else "raise outbound_max or disconnect a peer",
                )
            dial = self._under_way[peer] = _Dial()
            self.nursery.start_soon(self._run, peer, dial)
        for address in addresses:
            known = dial.targets.get(address.text)
            if known is not None:
                dial.targets[address.text] = address, known[1] or chosen
            elif len(dial.targets) < self._config.dial_addresses_max:
                dial.targets[address.text] = address, chosen
        return dial

    def _leave(self, peer: PeerId, dial: _Dial) -> None:
        if self._under_way.get(peer) is dial:
            del self._under_way[peer]

    async def _run(self, peer: PeerId, dial: _Dial) -> None:
        dial.failure = _Failure("The dial was given up")
        try:
            with dial.scope, self._faults.contained("dial"):
                while (target := dial.next_target()) is not None:
                    dial.failure = await self._attempt(*target, peer)
                    if self._is_connected(peer):  # by this dial, or because the peer came to us
                        dial.failure = None
                        return
        finally:
            self._leave(peer, dial)
            dial.over.set()

    async def _attempt(self, address: TcpAddress, chosen: bool, peer: PeerId) -> _Failure | None:
        refused = self._refusal(address, peer, chosen)
        if refused:
            return _Failure(refused)
        try:
            with trio.fail_after(self._config.dial_timeout_s):
                await self._connect(address, peer)
        except (BaseLibp2pError, trio.TooSlowError, OSError, ValueError) as error:
            return _Failure("The peer cannot be reached", cause=error)
        return None
