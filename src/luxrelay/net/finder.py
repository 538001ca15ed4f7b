"""Finding peers by a Kademlia distributed hash table; off by default.

Theory of operation
  Decides: whose records are kept and given out, and when a lookup begins. Whom to dial for good is
    decided by the connector, from the records that lookups bring.
  The lookup is py-libp2p's (`libp2p.kad_dht.peer_routing`), on a host that shows it as much as it
    needs (`_LookupHost`): our protocol instead of ``/ipfs/kad/1.0.0``, which the library does not
    let one choose; a peer store of its own, which is thrown away afterwards, because the library
    writes into it whatever it is told; dials within a bound, by our rules.
  The answering half is ours, because the library's keeps what strangers send: 50,000 values of a
    MiB each, and providers without any bound. It answers FIND_NODE with the closest peers that have
    said hello here and answered where their signed record says; other questions end the stream. So
    there is no storing of values or providers, and no rendezvous by namespace.
  What comes back is believed as far as its signatures go: peers without a signed record of their
    own are passed over.
  Bounds: the ``dht_…`` fields of `NetConfig`; a lookup takes `LOOKUP_S` at most.

Source: LP-6420 §1.2; decisions G21; requirement 20-04.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

import trio
from libp2p.custom_types import TProtocol
from libp2p.host.exceptions import StreamFailure
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from multiaddr import Multiaddr

from luxrelay.bus.limits import LimitConfig, Rate, RateLimiter
from luxrelay.errors import AddressError, FrameError, NetError, RecordError
from luxrelay.gossip import PeerId
from luxrelay.net.addresses import peer_text
from luxrelay.net.book import Source
from luxrelay.net.config import NetConfig
from luxrelay.net.host import RelayHost
from luxrelay.net.records import CheckedRecord, check, nearness, told_by
from luxrelay.net.scopes import ReadyReport
from luxrelay.net.streams import FrameDecoder, RelayStream, encode_frame

if TYPE_CHECKING:
    from random import Random

    from libp2p.abc import INetStream

    from luxrelay.net.connector import Connector

ANSWER_MAX: Final = 20
"""Peers in one answer: Kademlia's k."""
REQUEST_MAX: Final = 8 * 1024
"""Bytes of one question; a signed record is in it."""
LOOKUP_S: Final = 30.0
"""Seconds after which a lookup is over, whatever it has found."""
LEARNED_MAX: Final = 64
"""Peers taken from one lookup."""
_KEY_MAX: Final = 128
_QUESTIONS_MAX: Final = 8


@dataclass(slots=True, kw_only=True)
class FinderCounters:
    """What the hash table cost and brought; the numbers only grow."""

    lookups: int = 0
    """Lookups that ran to their end."""
    found: int = 0
    """Signed records that they brought."""
    dialled: int = 0
    """Peers dialled to be asked."""
    answered: int = 0
    """Questions of others, answered."""
    refused: int = 0
    """Questions of others that were no FIND_NODE, or came too often."""


def distance_key(name: bytes) -> int:
    """The place of a peer id or of another key in Kademlia's space: its SHA-256."""
    return int.from_bytes(hashlib.sha256(name).digest())


class PeerFinder:
    """One node's part in the hash table.

    Args:
        host: Whose peers these are.
        config: The ``dht_…`` fields, `network`, `hello_timeout_s`.
        rng: Where lookups aim.
        connector: Told each signed record that a lookup brought; says how many more peers are
            wanted, and whose address is not let in now.

    """

    def __init__(
        self,
        host: RelayHost,
        config: NetConfig,
        *,
        rng: Random,
        connector: Connector,
    ) -> None:
        self.counters = FinderCounters()
        self.protocol = f"/lux/{config.network}/kad/1.0.0"
        self._host = host
        self._config = config
        self._rng = rng
        self._connector = connector
        self._known: dict[PeerId, tuple[int, bytes]] = {}
        if config.dht:
            import_module("libp2p.kad_dht")  # seconds: now, not while messages wait
        rate = Rate(config.dht_requests_per_s)
        self._limits = RateLimiter(LimitConfig(peer=rate, keys_max=config.dht_peers_max))

    def __len__(self) -> int:
        return len(self._known)

    def know(self, peer: PeerId, record: bytes) -> None:
        """Give out the signed record of a peer that has said hello and answers where it says."""
        if self._config.dht and peer != self._host.peer_id:
            self._known.pop(peer, None)
            self._known[peer] = distance_key(peer), record
            if len(self._known) > self._config.dht_peers_max:
                del self._known[next(iter(self._known))]

    def closest(self, key: bytes, without: PeerId) -> list[PeerId]:
        """Up to `ANSWER_MAX` known peers next to a key, the nearest first."""
        place = distance_key(key)
        near = sorted(self._known, key=lambda peer: self._known[peer][0] ^ place)
        return [peer for peer in near[: ANSWER_MAX + 1] if peer != without][:ANSWER_MAX]

    async def run(self, *, task_status: ReadyReport[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Looks for peers while more are wanted: at ourselves and at a random place, in turn."""
        task_status.started(None)
        own = True
        while True:
            await trio.sleep(self._config.dht_interval_s * (0.75 + self._rng.random() / 2))
            if self._connector.wanted() > 0 and self._host.connected():
                await self.look_up(self._host.peer_id if own else self._rng.randbytes(32))
                own = not own

    async def look_up(self, key: bytes) -> int:
        """Ask the network for the peers next to a key; how many signed records came."""
        from libp2p.kad_dht.peer_routing import PeerRouting  # noqa: PLC0415 - slow, rarely needed
        from libp2p.kad_dht.routing_table import RoutingTable  # noqa: PLC0415

        # Who of those that are asked names a peer is not told; the nearest of them may.
        hosts = [self._host.remote_host(peer) for peer in self._host.connected()]
        near = max(hosts, key=lambda each: nearness(each) or 0, default="")
        host = _LookupHost(self._host, self._config, self.protocol, self._connector.refuses, near)
        seeds = {*self.closest(key, self._host.peer_id), *self._host.connected()}
        for peer in seeds & self._known.keys():
            host.store.take(self._known[peer][1])
        library_host = cast("Any", host)
        table = RoutingTable(host.get_id(), library_host)
        for peer in seeds:
            addresses = host.store.addresses(ID(peer))
            if addresses:
                await table.add_peer(ID(peer), skip_server_mode_check=True)
        routing = PeerRouting(library_host, table)
        with trio.move_on_after(LOOKUP_S):
            await routing.find_closest_peers_network(key, ANSWER_MAX)
        self.counters.lookups += 1
        self.counters.dialled += host.dialled
        found = [record for record in host.store.records() if record.peer not in seeds]
        for record in found[:LEARNED_MAX]:
            self._connector.learn(record, Source.EXCHANGE, host=near)
        self.counters.found += len(found[:LEARNED_MAX])
        return len(found[:LEARNED_MAX])

    async def serve(self, stream: RelayStream) -> None:
        """The peer's questions are answered until it ends the stream, breaks a rule or waits."""
        decoder = FrameDecoder(REQUEST_MAX)
        timeout_s = self._config.hello_timeout_s
        try:
            while True:
                questions: list[bytes] = []
                with trio.fail_after(timeout_s):
                    while not questions:
                        data = await stream.receive_some(REQUEST_MAX)
                        if not data:
                            return
                        decoder.feed(data)
                        questions = decoder.take(_QUESTIONS_MAX)
                for question in questions:
                    answer = self._answer(question, stream.peer)
                    if not answer:
                        self.counters.refused += 1
                        return
                    with trio.fail_after(timeout_s):
                        await stream.send_all(encode_frame(answer))
                    self.counters.answered += 1
        except (trio.TooSlowError, trio.BrokenResourceError):
            return
        except FrameError:
            self.counters.refused += 1

    def _answer(self, question: bytes, asker: PeerId) -> bytes:
        """The answer to a question, empty when it gets none."""
        from google.protobuf.message import DecodeError  # noqa: PLC0415 - only with the table
        from libp2p.kad_dht.pb.kademlia_pb2 import Message  # noqa: PLC0415

        try:
            request = Message.FromString(question)
        except DecodeError:
            return b""
        fits = request.type == Message.MessageType.FIND_NODE and 0 < len(request.key) <= _KEY_MAX
        if not fits or not self._limits.admit_peer(asker, 0, trio.current_time()):
            return b""
        answer = Message(type=Message.MessageType.FIND_NODE)
        for peer in self.closest(request.key, asker):
            answer.closerPeers.add(id=bytes(peer), signedRecord=self._known[peer][1])
        return bytes(answer.SerializeToString())


class _LookupStore(PeerStore):
    """What one lookup is told: signed records only, of so many peers."""

    def __init__(self, peers_max: int) -> None:
        super().__init__()
        self._peers_max = peers_max

    def take(self, record: bytes) -> None:
        """The record of a peer we know is here."""
        from libp2p.peer.envelope import consume_envelope  # noqa: PLC0415
        from libp2p.peer.peer_record import PEER_RECORD_ENVELOPE_DOMAIN  # noqa: PLC0415

        envelope, _ = consume_envelope(record, PEER_RECORD_ENVELOPE_DOMAIN)
        self.consume_peer_record(envelope, round(LOOKUP_S * 2))

    def consume_peer_record(self, envelope: Any, ttl: int) -> bool:
        """Whether a signed record is taken; none of a further peer above the bound."""
        peer = envelope.record().peer_id
        if peer not in self.peer_record_map and len(self.peer_record_map) >= self._peers_max:
            return False
        return super().consume_peer_record(envelope, ttl)

    def add_addrs(self, peer_id: ID, addrs: Sequence[Multiaddr], ttl: int = 0) -> None:
        """Addresses are taken from signed records; what others say of a peer is passed over."""
        if peer_id in self.peer_record_map:
            super().add_addrs(peer_id, addrs, ttl)

    def addresses(self, peer: ID) -> list[str]:
        """Where a peer's own record says that it is."""
        return [
            f"{address.text}/p2p/{peer_text(record.peer)}"
            for record in self.records(peer)
            for address in record.addresses
        ]

    def records(self, peer: ID | None = None) -> Iterator[CheckedRecord]:
        """The records that are in order and can be dialled, of one peer or of all."""
        states = self.peer_record_map
        chosen = list(states.values()) if peer is None else [states[peer]] if peer in states else []
        for state in chosen:
            try:
                record = check(bytes(state.envelope.marshal_envelope()))
            except RecordError:
                continue
            if record.addresses:
                yield record


class _LookupHost:
    """The part of a library host that a lookup uses."""

    def __init__(
        self,
        host: RelayHost,
        config: NetConfig,
        protocol: str,
        refuses: Callable[[str], str],
        near: str,
    ) -> None:
        self.store = _LookupStore(config.dht_peers_max)
        self.dialled = 0
        self._host = host
        self._dials_max = config.dht_dials_max
        self._protocol = protocol
        self._refuses = refuses
        self._near = near

    def get_id(self) -> ID:
        """Our peer id."""
        return ID(self._host.peer_id)

    def get_private_key(self) -> Any:
        """Our key: the library signs a record of ours for each question."""
        return self._host.keys.private_key

    def get_addrs(self) -> list[Multiaddr]:
        """What that record says: nothing, since who asks is known by hello."""
        return []

    def get_peerstore(self) -> PeerStore:
        """What this lookup is told."""
        return self.store

    def get_connected_peers(self) -> list[ID]:
        """Who can be asked without a dial."""
        return [ID(peer) for peer in self._host.connected()]

    async def new_stream(self, peer_id: ID, protocols: Sequence[TProtocol]) -> INetStream:
        """A stream of our protocol, whatever the library's is called; dials within the bound.

        Raises:
            StreamFailure: There is none.

        """
        del protocols
        peer = PeerId(peer_id.to_bytes())
        try:
            if not self._host.is_connected(peer):
                await self._dial(peer_id)
            return (await self._host.open_stream(peer, self.protocol)).raw
        except NetError as error:
            raise StreamFailure(str(error)) from error

    @property
    def protocol(self) -> str:
        """The name of our hash table."""
        return self._protocol

    async def _dial(self, peer_id: ID) -> None:
        for record in self.store.records(peer_id):
            for address in told_by(record, self._near).addresses:
                if self.dialled >= self._dials_max:
                    raise NetError("This lookup has dialled enough", where=str(peer_id))
                if self._refuses(address.host):
                    continue
                self.dialled += 1
                try:
                    await self._host.dial(
                        f"{address.text}/p2p/{peer_text(record.peer)}", chosen=False
                    )
                except (NetError, AddressError):
                    continue
                return
        raise NetError("The peer cannot be reached", where=str(peer_id))
