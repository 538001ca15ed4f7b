"""Keeps as many peers as the node wants: dials out of the address book, asks peers for others.

Source: LP-6420 §1.2, §1.3; decisions G21, G22; requirements 20-02, 20-05, 20-06.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Sequence
from typing import Final

import trio

from luxrelay.errors import AddressError, NetError, RecordError
from luxrelay.gossip import PeerId
from luxrelay.net.addresses import parse_peer_address, peer_text
from luxrelay.net.book import AddressBook, Source
from luxrelay.net.config import NetConfig
from luxrelay.net.exchange import PeerExchange
from luxrelay.net.host import RelayHost
from luxrelay.net.links import DriverCounters
from luxrelay.net.records import CheckedRecord, check, told_by

_LOGGER: Final = logging.getLogger("luxrelay.net")


class Connector:
    """Decides whom to dial next, and dials.

    It keeps up `outbound_target` connections, and more while there are fewer than `peers_min` peers
    at all; a place is left for each configured peer that is away at present. A target of 0 turns it
    off.

    Args:
        host: Who dials.
        config: `bootstrap`, `outbound_target`, `peers_min`, `dials_max`, `upkeep_interval_s`.
        exchange: Whom to ask for more peers.
        rng: Chance of order and jitter.
        counters: Where dials are counted.
        kept: Configured peers, which are somebody else's to dial.
        refuses: Why a peer at an IP address would not be let in by the router; empty when it would.
        greeted: The connected peers that are of our network and may be asked for others.

    Raises:
        AddressError: A bootstrap address names no peer that can be dialled.

    """

    def __init__(
        self,
        host: RelayHost,
        config: NetConfig,
        exchange: PeerExchange,
        *,
        rng: random.Random,
        counters: DriverCounters,
        kept: Collection[PeerId],
        refuses: Callable[[str], str],
        greeted: Callable[[], Sequence[PeerId]],
    ) -> None:
        self._host = host
        self._config = config
        self._exchange = exchange
        self._rng = rng
        self._counters = counters
        self._kept = frozenset(kept)
        self.refuses = refuses
        """Why a peer at an IP address is not dialled now, empty when it is."""
        self._greeted = greeted
        self.on_kept: Callable[[PeerId, Sequence[str]], None] = lambda peer, texts: None  # noqa: ARG005
        """Told where the newest record of a configured peer says that it is."""
        self._dialling: set[PeerId] = set()
        self._extra = 0
        self._asked_for_more = trio.Event()
        self.book = AddressBook(config, rng)
        for text in config.bootstrap:
            peer = parse_peer_address(text)[1]
            if peer != host.peer_id:
                self.book.learn(peer, [text], Source.BOOTSTRAP)

    async def run(self) -> None:
        """Dials and asks until cancelled; asks once an interval, whatever an answer brings."""
        ask_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            while True:
                self._dial_more(nursery)
                now = trio.current_time()
                if self._config.exchange and now >= ask_at and (self.wanted() > 0 or self._away()):
                    ask_at = now + self._config.upkeep_interval_s
                    self._host.faults.start(nursery, "exchange", self._ask_somebody)
                with trio.move_on_after(self._config.upkeep_interval_s):
                    await self._asked_for_more.wait()
                self._asked_for_more = trio.Event()

    def discover(self, count: int) -> None:
        """So many peers more than the target are dialled, once (a rotation asks for them)."""
        self._extra = min(self._extra + count, self._config.outbound_max)
        self._asked_for_more.set()

    def suggest(self, peer: PeerId, record: bytes, by: PeerId) -> None:
        """A peer that gossip named is tried, if its record is in order."""
        try:
            self.learn(check(record, peer), Source.EXCHANGE, host=self._host.remote_host(by))
        except RecordError:
            self._exchange.counters.refused += 1
            return
        self._asked_for_more.set()

    def learn(self, record: CheckedRecord, source: Source, *, host: str) -> bool:
        """What a signed record says is in the book, as far as who is at ``host`` may say it.

        Returns:
            Whether the peer was known and is at an address now that was not.

        """
        if record.peer == self._host.peer_id:
            return False
        known = told_by(record, host)
        texts = [f"{address.text}/p2p/{peer_text(record.peer)}" for address in known.addresses]
        moved = self.book.learn(record.peer, texts, source, seq=record.seq)
        if (
            record.peer in self._kept
            and texts == list(self.book.addresses(record.peer))[: len(texts)]
        ):
            self.on_kept(record.peer, texts)
        if moved:
            self._asked_for_more.set()
        return moved

    def let_go(self, peer: PeerId) -> None:
        """A peer was disconnected on purpose and is not dialled at once."""
        self.book.postpone(peer, trio.current_time())

    def wanted(self) -> int:
        """Connections to dial for now: up to the target, and beyond it up to `peers_min` peers."""
        away = self._away()
        outbound = self._host.outbound_count()
        target = self._config.outbound_target + self._extra - outbound
        short = self._config.peers_min - len(self._host.connected())
        wanted = max(target, short) if self._config.outbound_target else target
        return min(wanted, self._config.outbound_max - away - outbound) - len(self._dialling)

    def _away(self) -> int:
        """Configured peers that are not here; another peer may know where they are now."""
        return sum(not self._host.is_connected(peer) for peer in self._kept)

    def _dial_more(self, nursery: trio.Nursery) -> None:
        room = self._config.dials_max - len(self._dialling)
        without = {*self._host.connected(), *self._dialling, *self._kept}
        count = min(self.wanted(), room)
        for peer in self.book.candidates(count, without, trio.current_time()):
            self._dialling.add(peer)
            nursery.start_soon(self._dial, peer)

    async def _dial(self, peer: PeerId) -> None:
        try:
            if not await self._host.faults.run(
                "connector", self._try, peer, self.book.addresses(peer)
            ):
                self.book.failed(peer, trio.current_time())
        finally:
            self._dialling.discard(peer)

    async def _try(self, peer: PeerId, addresses: Sequence[str]) -> None:
        reasons = {each: self.refuses(parse_peer_address(each)[0].host) for each in addresses}
        let_in = [address for address, reason in reasons.items() if not reason]
        reason = next(filter(None, reasons.values()), "it has no address")
        if let_in:
            try:
                await self._host.dial(*let_in, chosen=False)
            except (NetError, AddressError) as error:
                reason = str(error)
            else:
                self._counters.dials += 1
                if self._host.outbound_count() > self._config.outbound_target:
                    self._extra = max(0, self._extra - 1)
                self.book.reached(peer)
                return
        self._counters.dials_failed += 1
        failures = self.book.failed(peer, trio.current_time())
        fields = {"peer": peer_text(peer), "failures": failures, "reason": reason}
        _LOGGER.info("dial failed", extra={"fields": fields})

    async def _ask_somebody(self) -> None:
        peers = self._greeted()
        if not peers:
            return
        chosen = self._rng.choice(peers)
        host = self._host.remote_host(chosen)
        for record in await self._exchange.ask(chosen):
            self.learn(record, Source.EXCHANGE, host=host)
        self._asked_for_more.set()
