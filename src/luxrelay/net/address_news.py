"""Addresses that change: our own, told to the peers we have; those of others, followed and told on.

Theory of operation
  Decides: when our own record is another one, whose newer record is followed, and who hears it.
  Does not know: how peers are dialled; the redialler and the connector do.
  Our own: once an interval the addresses that a record of ours would name are looked at. When they
    changed, each greeted peer is sent the new record on a stream of its own; who speaks no such
    protocol hears of it by the next hello. Connections from an address that this machine no longer
    has are closed at once: nothing comes over them any more, and the next ones come from the new
    address.
  Others': a record with a higher number than the last one of that peer, whoever brought it, is
    taken for peers that the configuration names or the address book knows. Signature and peer id
    are its own, so the bringer can lie about nothing but its age. When its addresses are news here,
    the other greeted peers are told once, and a configured peer is dialled there at once; if it
    seems to be connected still from elsewhere, over what may be a dead link, that is asked for a
    sign of life first. The old addresses stay as a fallback.
  Bounds: one record a stream; `exchange_records_max` records of one bringer in
    `exchange_interval_s`; one telling of a peer's news in that time; numbers of `book_max` peers.

Source: LP-6420 §1.2; decisions G21, G40.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

import trio

from luxrelay.errors import FrameError, NetError, RecordError
from luxrelay.gossip import PeerId
from luxrelay.net.addresses import parse_address, peer_text
from luxrelay.net.book import Source
from luxrelay.net.config import NetConfig
from luxrelay.net.connector import Connector
from luxrelay.net.host import RelayHost
from luxrelay.net.links import NewsCounters
from luxrelay.net.records import RECORD_MAX, CheckedRecord, check
from luxrelay.net.scopes import ReadyReport
from luxrelay.net.streams import RelayStream, encode_frame, read_frame

MOVED: Final = "/lux/relay/moved/1.0.0"
"""Who has news opens the stream, sends one signed record and ends it; nothing is answered."""
PROBE_S: Final = 1.0
"""Seconds for a sign of life over the connection with a peer that says it is elsewhere now."""
_LOGGER: Final = logging.getLogger("luxrelay.net")


class AddressNews:
    """One node's part in telling new addresses.

    Args:
        host: Whose addresses are watched.
        config: `exchange_interval_s`, `exchange_records_max`, `book_max`, `upkeep_interval_s`.
        connector: Where records are learnt.
        kept: The configured peers.
        greeted: The connected peers of our network.
        follow: Told the new addresses of a configured peer.

    """

    def __init__(
        self,
        host: RelayHost,
        config: NetConfig,
        *,
        connector: Connector,
        kept: Collection[PeerId],
        greeted: Callable[[], Sequence[PeerId]],
        follow: Callable[[PeerId, Sequence[str]], None],
    ) -> None:
        self.counters = NewsCounters()
        self._host = host
        self._config = config
        self._connector = connector
        self._kept = frozenset(kept)
        self._greeted = greeted
        self._follow = follow
        self._numbers: dict[PeerId, int] = {}
        self._told_at: dict[PeerId, float] = {}
        self._brought: dict[PeerId, int] = {}
        self._until = 0.0
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: ReadyReport[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watches our own addresses until cancelled."""
        own = self._host.own_record()
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started(None)
                while True:
                    await trio.sleep(self._config.upkeep_interval_s)
                    await self._host.leave_gone_addresses()
                    record = self._host.own_record()
                    if own and record and record != own:
                        self.counters.own += 1
                        _LOGGER.info("own address changed")
                        self._spread(record, without=())
                    own = record or own
        finally:
            self._nursery = None

    async def serve(self, stream: RelayStream) -> None:
        """A peer's news is taken, or not."""
        try:
            with trio.fail_after(self._config.hello_timeout_s):
                record = await read_frame(stream, RECORD_MAX)
        except (trio.TooSlowError, trio.BrokenResourceError):
            return
        except FrameError:
            self.counters.refused += 1
            return
        if not self._may_bring(stream.peer):
            self.counters.refused += 1
            return
        try:
            checked = check(record)
        except RecordError:
            self.counters.refused += 1
            return
        source = Source.HELLO if checked.peer == stream.peer else Source.EXCHANGE
        if not self.take(checked, record, source, by=stream.peer):
            self.counters.refused += 1

    def take(self, checked: CheckedRecord, record: bytes, source: Source, *, by: PeerId) -> bool:
        """Whether a record is newer than the last one of a peer that is known here.

        Args:
            checked: What it says.
            record: Its bytes, for others.
            source: Whether the peer itself brought it.
            by: Who did.

        """
        peer, now = checked.peer, trio.current_time()
        known = peer in self._kept or peer in self._connector.book
        newer = checked.seq > self._numbers.get(peer, -1)
        if not (known and newer) and source is not Source.HELLO:
            return False
        moved = self._connector.learn(checked, source, host=self._host.remote_host(by))
        if newer:
            self._numbers.pop(peer, None)
            self._numbers[peer] = checked.seq
            if len(self._numbers) > self._config.book_max:
                del self._numbers[next(iter(self._numbers))]
        if newer and moved:
            self.counters.followed += 1
            _LOGGER.info("peer has a new address", extra={"fields": {"peer": peer_text(peer)}})
            if now - self._told_at.get(peer, float("-inf")) >= self._config.exchange_interval_s:
                self._told_at[peer] = now
                self._spread(record, without=(peer, by))
        return newer

    def learnt(self, peer: PeerId, texts: Sequence[str]) -> None:
        """A configured peer is dialled at other addresses than before, if it is not here."""
        self._follow(peer, texts)
        here = self._host.remote_host(peer)
        if any(parse_address(text).host == here for text in texts):
            return  # it is where it says
        if self._nursery is not None and self._host.is_connected(peer):
            probe = partial(self._host.close_if_silent, peer, PROBE_S)
            self._host.faults.start(self._nursery, "probe", probe)

    def _may_bring(self, peer: PeerId) -> bool:
        now = trio.current_time()
        if now >= self._until:
            self._until = now + self._config.exchange_interval_s
            self._brought.clear()
            old = now - self._config.exchange_interval_s
            self._told_at = {peer: at for peer, at in self._told_at.items() if at > old}
        self._brought[peer] = self._brought.get(peer, 0) + 1
        return self._brought[peer] <= self._config.exchange_records_max

    def _spread(self, record: bytes, *, without: Collection[PeerId]) -> None:
        if self._nursery is None:
            return
        for peer in self._greeted():
            if peer not in without:
                self._host.faults.start(self._nursery, "news", self._tell, peer, record)

    async def _tell(self, peer: PeerId, record: bytes) -> None:
        try:
            stream = await self._host.open_stream(peer, MOVED)
        except NetError:
            self.counters.untold += 1  # it is of an earlier version, or gone
            return
        told = False
        try:
            with trio.move_on_after(self._config.hello_timeout_s):
                await stream.send_all(encode_frame(record))
                await stream.send_eof()
                await stream.receive_some(1)  # the end: it was taken
                told = True
        except trio.BrokenResourceError:
            pass
        finally:
            await stream.reset()
        self.counters.told += told
        self.counters.untold += not told
