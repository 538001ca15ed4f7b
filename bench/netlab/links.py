"""`PacketSchedule`: what becomes of a packet on its way between two nodes, without I/O.

Theory of operation
-------------------
*Decides* whether a packet is lost, changed, sent twice or held back, and when it leaves towards its
receiver. *Does not know* devices, clocks or where chance comes from: the caller hands in the packet
and the time, and asks what is due.
*The way of a packet*: the sender's uplink (`PortRates.up_bits_s`, a queue that drops at its tail),
the link's faults and delay, the receiver's downlink (the same). Packets of one direction keep their
order unless `LinkState.reorder` picks one, which leaves without delay.
*Bounds*: a queue of a rate has `queue_bytes`; a link without a rate holds what its delay holds.
"""

from __future__ import annotations

import heapq
import random
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final

QUEUE_BYTES: Final = 65_536
"""Queue of a rate when a scenario does not say, bytes."""
FORGED_BYTES_MIN: Final = 120
"""Shorter packets are never forged: they carry acknowledgements alone."""
_TCP: Final = 6
_IP_HEADER: Final = 20
_PAST_HEADERS: Final = 80


@dataclass(slots=True, kw_only=True)
class LinkState:
    """How packets of one direction fare; every share is of the packets, from 0 to 1."""

    delay_ms: float = 0.0
    """One way, milliseconds."""
    jitter_ms: float = 0.0
    """Uniform, added or taken away, milliseconds."""
    loss: float = 0.0
    """Share that is lost."""
    duplicate: float = 0.0
    """Share that arrives twice."""
    reorder: float = 0.0
    """Share that overtakes: it leaves without delay."""
    corrupt: float = 0.0
    """Share in which one bit is changed; the receiver's kernel sees it by the checksum."""
    forge: float = 0.0
    """Share in which one bit of the payload is changed and the TCP checksum made right again."""
    drop: bool = False
    """Nothing passes."""


LINK_FIELDS: Final = frozenset(each.name for each in fields(LinkState))


@dataclass(slots=True, kw_only=True)
class LinkCount:
    """What one direction has carried."""

    packets: int = 0
    """Packets that the sender gave to it."""
    octets: int = 0
    """Their bytes, IP headers included."""
    lost: int = 0
    """Packets that its loss or its cut took."""


@dataclass(slots=True, kw_only=True)
class PortRates:
    """The access link of one node."""

    up_bits_s: float = 0.0
    """Uplink, bits a second; 0 is without limit."""
    down_bits_s: float = 0.0
    """Downlink, bits a second; 0 is without limit."""
    queue_bytes: int = QUEUE_BYTES
    """Bytes that wait for either of them; what comes on top is dropped."""


RATE_FIELDS: Final = frozenset(each.name for each in fields(PortRates))


@dataclass(slots=True)
class _Port:
    name: str
    ip: bytes
    rates: PortRates
    up_busy: float = 0.0
    down_busy: float = 0.0
    tail_drops: int = 0


@dataclass(slots=True)
class _Link:
    state: LinkState
    count: LinkCount
    last_due: float = 0.0


def repair_checksum(packet: bytearray) -> None:
    """Write the right TCP checksum into an IPv4 packet; others stay as they are (RFC 9293 §3.1)."""
    if packet[9] != _TCP:
        return
    begin = (packet[0] & 15) * 4
    total = int.from_bytes(packet[2:4], "big")
    packet[begin + 16 : begin + 18] = b"\0\0"
    segment = bytes(packet[begin:total])
    pseudo = bytes(packet[12:20]) + struct.pack(">BBH", 0, _TCP, len(segment))
    struct.pack_into(">H", packet, begin + 16, ones_complement(pseudo + segment))


def ones_complement(data: bytes) -> int:
    """Return the Internet checksum of some bytes (RFC 1071)."""
    padded = data + b"\0" * (len(data) % 2)
    value: int = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while value >> 16:
        value = (value & 0xFFFF) + (value >> 16)
    return ~value & 0xFFFF


class PacketSchedule:
    """The links between some nodes; see the theory above.

    Args:
        rng: The only source of chance.

    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._ports: dict[str, _Port] = {}
        self._by_ip: dict[bytes, _Port] = {}
        self._links: dict[tuple[str, str], _Link] = {}
        self._heap: list[tuple[float, int, bool, _Port, bytes]] = []
        self._pushed = 0
        self.strays = 0
        """Packets of or to an address that no node has."""

    def add_node(self, name: str, ip: str) -> None:
        """There is a node with this address."""
        port = _Port(name, socket.inet_aton(ip), PortRates())
        self._ports[name] = self._by_ip[port.ip] = port

    def set_address(self, name: str, ip: str) -> None:
        """The node has another address from now on; packets to the old one are strays."""
        port = self._ports[name]
        self._by_ip.pop(port.ip, None)
        port.ip = socket.inet_aton(ip)
        self._by_ip[port.ip] = port

    def set_rates(self, name: str, values: Mapping[str, float]) -> None:
        """Change a node's access link; what is queued already leaves when it would have."""
        port = self._ports[name]
        for key, value in values.items():
            _require(key, RATE_FIELDS)
            setattr(port.rates, key, value)

    def set_links(
        self, sources: Iterable[str], targets: Iterable[str], values: Mapping[str, float | bool]
    ) -> None:
        """Change the direction from each source to each target; packets under way arrive."""
        for key in values:
            _require(key, LINK_FIELDS)
        both = [(source, target) for source in sources for target in targets if source != target]
        for source, target in both:
            state = self._link(self._ports[source].name, self._ports[target].name).state
            for key, value in values.items():
                setattr(state, key, value)

    def take(self, name: str, packet: bytes, now: float) -> None:
        """A node has sent a packet."""
        source = self._ports[name]
        if len(packet) < _IP_HEADER or packet[0] >> 4 != 4:
            return
        target = self._by_ip.get(packet[16:20])
        if target is None or packet[12:16] != source.ip:
            self.strays += 1
            return
        link = self._link(source.name, target.name)
        link.count.packets += 1
        link.count.octets += len(packet)
        state = link.state
        if state.drop or self._by_chance(state.loss):
            link.count.lost += 1
            return
        sent = self._through(source, "up", len(packet), now)
        if sent is None:
            return
        self._travel(link, target, self._spoilt(state, packet), sent)

    def due(self, now: float) -> list[tuple[str, bytes]]:
        """Return the packets that arrive by now, each with its receiver."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            at, _, arrived, port, packet = heapq.heappop(self._heap)
            if arrived or not port.rates.down_bits_s:
                found.append((port.name, packet))
                continue
            # From when it came, not from when somebody looked: a late look costs no rate.
            out = self._through(port, "down", len(packet), at)
            if out is not None:
                self._push(out, port, packet, arrived=True)
        return found

    def next_due(self) -> float | None:
        """Return when the next packet wants attention; None when there is none."""
        return self._heap[0][0] if self._heap else None

    def counts(self) -> dict[str, LinkCount]:
        """Return what each direction has carried, by ``source>target``."""
        return {f"{source}>{target}": x.count for (source, target), x in self._links.items()}

    def tail_drops(self) -> dict[str, int]:
        """Return how many packets each node's rates have dropped."""
        return {port.name: port.tail_drops for port in self._ports.values()}

    def _link(self, source: str, target: str) -> _Link:
        return self._links.setdefault((source, target), _Link(LinkState(), LinkCount()))

    def _by_chance(self, share: float) -> bool:
        return bool(share) and self._rng.random() < share

    def _through(self, port: _Port, side: str, octets: int, now: float) -> float | None:
        """Return when a packet has left an access link; None when its queue is full."""
        rate = port.rates.up_bits_s if side == "up" else port.rates.down_bits_s
        if not rate:
            return now
        busy = port.up_busy if side == "up" else port.down_busy
        left = max(now, busy) + octets * 8 / rate
        if (left - now) * rate / 8 > port.rates.queue_bytes + octets:
            port.tail_drops += 1
            return None
        if side == "up":
            port.up_busy = left
        else:
            port.down_busy = left
        return left

    def _spoilt(self, state: LinkState, packet: bytes) -> bytes:
        """Return the packet as the link's corruption leaves it."""
        if self._by_chance(state.corrupt) and len(packet) > _IP_HEADER:
            packet = self._flipped(packet, _IP_HEADER)
        if len(packet) > FORGED_BYTES_MIN and self._by_chance(state.forge):
            forged = bytearray(self._flipped(packet, _PAST_HEADERS))
            repair_checksum(forged)
            packet = bytes(forged)
        return packet

    def _flipped(self, packet: bytes, begin: int) -> bytes:
        spoilt = bytearray(packet)
        spoilt[self._rng.randrange(begin, len(packet))] ^= 1 << self._rng.randrange(8)
        return bytes(spoilt)

    def _travel(self, link: _Link, target: _Port, packet: bytes, sent: float) -> None:
        """Put a packet on its way."""
        state = link.state
        if self._by_chance(state.reorder):
            self._push(sent, target, packet)
        else:
            spread = state.jitter_ms * (2 * self._rng.random() - 1) if state.jitter_ms else 0.0
            link.last_due = max(sent + (state.delay_ms + spread) / 1000, link.last_due)
            self._push(link.last_due, target, packet)
        if self._by_chance(state.duplicate):
            self._push(sent + state.delay_ms / 1000, target, packet)

    def _push(self, at: float, port: _Port, packet: bytes, *, arrived: bool = False) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at, self._pushed, arrived, port, packet))


def _require(key: str, known: frozenset[str]) -> None:
    if key not in known:
        raise ValueError(f"unknown {key!r}; known are {', '.join(sorted(known))}")
