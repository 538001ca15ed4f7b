"""Signed peer exchange: records of other peers, signed by themselves.

A peer of our network is asked for others on a stream of its own, and is given the signed records
of some of ours: those whose record names an address that answers at the IP the peer connects from,
and that are not banned. What comes is believed as far as its signatures go, and then only tried.
PRUNE carries the same records between gossip peers (`GossipParams.peer_exchange`).

Source: LP-6420 §1.2; decisions G21; requirement 20-03.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from luxrelay.errors import FrameError, NetError, RecordError
from luxrelay.gossip import PeerId
from luxrelay.net.config import NetConfig
from luxrelay.net.host import RelayHost
from luxrelay.net.records import RECORD_MAX, CheckedRecord, check
from luxrelay.net.streams import FrameDecoder, RelayStream, encode_frame

if TYPE_CHECKING:
    from random import Random

PEERS: Final = "/lux/relay/peers/1.0.0"
"""The asker opens the stream and says nothing; the answer is a frame a record, then the end, and
the asker ends the stream."""


@dataclass(slots=True, kw_only=True)
class ExchangeCounters:
    """Peer records on their way."""

    given: int = 0
    """Records given to others."""
    taken: int = 0
    """Records of others that were in order."""
    refused: int = 0
    """Records of others that were not."""
    hurried: int = 0
    """Askers who came too often; on a busy machine an honest one may seem to."""


class PeerExchange:
    """Keeps the records of connected peers, gives them out, and asks for others.

    Args:
        host: Whose peers these are.
        config: `exchange_records_max`, `exchange_interval_s`, `hello_timeout_s`.
        rng: Which records are given.

    """

    def __init__(self, host: RelayHost, config: NetConfig, rng: Random) -> None:
        self._host = host
        self._config = config
        self._rng = rng
        self._records: dict[PeerId, bytes] = {}
        self._answered: dict[PeerId, float] = {}
        self._asked: dict[PeerId, float] = {}
        self.counters = ExchangeCounters()

    async def vouch(self, peer: PeerId, record: bytes) -> CheckedRecord | None:
        """The record of a connected peer, if it is in order and the peer answers where it says.

        An address counts that has the IP the peer is connected from and takes a TCP connection;
        others are not tried, or a record would aim our connections at strangers.
        """
        try:
            checked = check(record, peer)
        except RecordError:
            self.counters.refused += 1
            return None
        host = self._host.remote_host(peer)
        for address in checked.addresses:
            if address.host == host and await self._answers(address.host, address.port):
                self._records[peer] = record
                return checked
        return None

    async def _answers(self, host: str, port: int) -> bool:
        with trio.move_on_after(self._config.handshake_timeout_s):
            try:
                stream = await trio.open_tcp_stream(host, port)
            except OSError:
                return False
            await stream.aclose()
            return True
        return False

    def gone(self, peer: PeerId) -> None:
        """The peer is not connected any more; nothing is kept of it but when it asked."""
        self._records.pop(peer, None)

    async def serve(self, stream: RelayStream) -> None:
        """The peer gets some of the records, about once in `exchange_interval_s` at most."""
        now = trio.current_time()
        self._forget_old(now)
        if stream.peer in self._answered or len(self._answered) >= self._config.book_max:
            self.counters.hurried += 1
            others = []
        else:
            self._answered[stream.peer] = now
            others = [peer for peer in self._records if peer != stream.peer]
        chosen = self._rng.sample(others, min(len(others), self._config.exchange_records_max))
        with trio.move_on_after(self._config.hello_timeout_s):
            try:
                await stream.send_all(b"".join(encode_frame(self._records[p]) for p in chosen))
                await stream.send_eof()
                while await stream.receive_some(1):
                    pass
            except trio.BrokenResourceError:
                return
            self.counters.given += len(chosen)

    async def ask(self, peer: PeerId) -> Sequence[CheckedRecord]:
        """What the peer knows; nothing when it was asked a moment ago or does not answer."""
        now = trio.current_time()
        self._forget_old(now)
        if peer in self._asked:
            return ()
        self._asked[peer] = now
        try:
            stream = await self._host.open_stream(peer, PEERS)
        except NetError:
            return ()
        records: list[bytes] = []
        try:
            with trio.move_on_after(self._config.hello_timeout_s):
                records = await self._read(stream)
        except trio.BrokenResourceError:
            pass  # cut, which says nothing about the peer
        except FrameError:
            self.counters.refused += 1
        finally:
            await stream.reset()
        return self._checked(records)

    async def _read(self, stream: RelayStream) -> list[bytes]:
        decoder = FrameDecoder(RECORD_MAX)
        wanted = self._config.exchange_records_max
        frames: list[bytes] = []
        while data := await stream.receive_some(4 * RECORD_MAX):
            decoder.feed(data)
            frames += decoder.take(wanted - len(frames))
            if len(frames) >= wanted:
                break
        return frames

    def _checked(self, records: Sequence[bytes]) -> list[CheckedRecord]:
        found = []
        for record in records:
            try:
                checked = check(record)
            except RecordError:
                self.counters.refused += 1
                continue
            self.counters.taken += 1
            found.append(checked)
        return found

    def _forget_old(self, now: float) -> None:
        """Askers are let in again a little before we ask again, so that clocks need not agree."""
        interval_s = self._config.exchange_interval_s
        for table, age_s in ((self._answered, 0.9 * interval_s), (self._asked, interval_s)):
            for peer, since in list(table.items()):
                if now - since >= age_s:
                    del table[peer]
