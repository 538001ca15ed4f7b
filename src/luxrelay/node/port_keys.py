"""The keys of the bounds of the gossip port: deadlines, rates and sizes of one connection.

Each is one number of `luxrelay.net.NetConfig`; a time is in milliseconds here and in seconds there.

Source: LP-6420 §1.3, LP-6422 §6; decisions G21, G29, G32; requirements 20-56, 20-58.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from luxrelay.node.checks import Key, whole

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS


@dataclass(frozen=True, slots=True)
class PortKey:
    """One bound: its name in the file, its name in the network room, and what it may be."""

    name: str
    field: str
    default: int
    unit: str
    span: tuple[int, int]
    sentence: str

    @property
    def key(self) -> Key:
        """The key of the section ``gossip``."""
        return Key("gossip", self.name, self.default, self.unit, whole(*self.span), self.sentence)

    def value(self, given: int) -> float | int:
        """The number as the network room takes it."""
        return given / 1000 if self.field.endswith("_s") and self.unit == "milliseconds" else given


def _ms(name: str, field: str, default: int, span: tuple[int, int], sentence: str) -> PortKey:
    return PortKey(name, field, default, "milliseconds", span, sentence)


def _count(name: str, default: int, unit: str, span: tuple[int, int], sentence: str) -> PortKey:
    return PortKey(name, name, default, unit, span, sentence)


BOUNDS: Final = (
    # The handshake, and what comes at once after it.
    _ms(
        "first_byte_ms",
        "first_byte_timeout_s",
        3_000,
        (50, _MINUTE_MS),
        "Time until the first byte of an inbound connection, within handshake_ms.",
    ),
    _ms(
        "handshake_ms",
        "handshake_timeout_s",
        5_000,
        (100, _MINUTE_MS),
        "Time for Noise and Yamux on a new connection, and for the protocol of a new stream.",
    ),
    _ms(
        "speak_ms",
        "speak_timeout_s",
        15_000,
        (100, 10 * _MINUTE_MS),
        "Time after the handshake in which a stream for a protocol of ours has to be opened, by "
        "either side, or the inbound connection is closed.",
    ),
    _ms(
        "hello_ms",
        "hello_timeout_s",
        5_000,
        (100, _MINUTE_MS),
        "Time for one hello and its answer, and for one answer with records of peers.",
    ),
    _count(
        "hello_attempts_max",
        3,
        "streams",
        (1, 100),
        "Streams that may break before a peer is let go without having said hello.",
    ),
    _ms(
        "foreign_ban_ms",
        "foreign_ban_s",
        _MINUTE_MS,
        (1_000, _DAY_MS),
        "Time for which a peer of another network, or with a hello that cannot be read, is not "
        "let in again.",
    ),
    # Dials.
    _ms(
        "dial_ms",
        "dial_timeout_s",
        10_000,
        (100, 10 * _MINUTE_MS),
        "Time for one address of a dial, the name's resolution included, until the handshake is "
        "done.",
    ),
    _count(
        "dial_addresses_max",
        16,
        "addresses",
        (1, 256),
        "Addresses that one dial of a peer tries, one after another.",
    ),
    _count(
        "lookups_max",
        8,
        "names",
        (1, 64),
        "Names of peers that are looked up at once, in threads of their own.",
    ),
    _count(
        "name_addresses_max", 16, "addresses", (1, 256), "Addresses of one name that are tried."
    ),
    _count("dials_max", 4, "dials", (1, 256), "Dials under way at once for outbound_target."),
    _ms(
        "redial_min_ms",
        "redial_min_s",
        500,
        (10, 60 * _MINUTE_MS),
        "Time before a lost peer of this file is dialled again the first time; doubled with each "
        "failure.",
    ),
    _ms(
        "redial_max_ms",
        "redial_max_s",
        _MINUTE_MS,
        (10, _DAY_MS),
        "Longest time between two dials of a peer of this file that stays away.",
    ),
    # Connections of one peer.
    _count(
        "peer_connections_max",
        2,
        "connections",
        (1, 16),
        "Connections with one peer; two that dial each other at once have two.",
    ),
    _ms(
        "probe_ms",
        "probe_timeout_s",
        2_000,
        (100, _MINUTE_MS),
        "Time for a sign of life over the older connections of a peer that has come anew; a "
        "silent one gives its place to the newest.",
    ),
    _ms(
        "keepalive_ms",
        "keepalive_interval_s",
        15_000,
        (100, 60 * _MINUTE_MS),
        "Time between two pings on a connection (G32).",
    ),
    _count(
        "keepalive_misses_max",
        3,
        "pings",
        (1, 100),
        "Pings without an answer before the connection is dropped (G32).",
    ),
    _ms(
        "write_ms",
        "write_timeout_s",
        30_000,
        (100, 10 * _MINUTE_MS),
        "Time one frame of up to 64 KiB may take into the socket before the connection counts as "
        "dead.",
    ),
    _ms(
        "write_stall_ms",
        "write_stall_s",
        30_000,
        (100, 10 * _MINUTE_MS),
        "Time one write of gossip of up to 16 KiB to a slow peer may take before the peer is "
        "dropped; above slow_after_ms.",
    ),
    _ms(
        "slow_after_ms",
        "slow_after_s",
        2_000,
        (50, _MINUTE_MS),
        "Time the oldest frame may wait for a peer before the peer is slow: it leaves the meshes "
        "and is told ids in place of messages.",
    ),
    _ms(
        "slow_hold_ms",
        "slow_hold_s",
        10_000,
        (100, 10 * _MINUTE_MS),
        "Time a slow peer's queue must be found empty before the peer counts as any other.",
    ),
    _ms(
        "pull_after_ms",
        "pull_after_s",
        500,
        (50, _MINUTE_MS),
        "Time that packets of most connections wait in queues, at least half of it gossip, before "
        "our own link is slow: peers send us nothing unasked, and sync.peers are caught up with.",
    ),
    _ms(
        "pull_hold_ms",
        "pull_hold_s",
        10_000,
        (100, 10 * _MINUTE_MS),
        "Time that catching up lacks nothing, or packets wait for half of pull_after_ms at most, "
        "before peers send us messages again; doubled, 16 times at most, when that was too soon.",
    ),
    _ms(
        "quiet_ms",
        "idle_s",
        _MINUTE_MS,
        (100, _DAY_MS),
        "Time for which a peer that takes no gossip keeps its place; then a later one may take it.",
    ),
    # Streams and frames of one connection.
    _count(
        "connection_streams_max",
        16,
        "streams",
        (4, 1_024),
        "Streams one connection may have open at once, opened by either side.",
    ),
    _count(
        "gossip_streams_max",
        2,
        "streams",
        (1, 16),
        "Gossip streams one peer may open towards this node; a further one is reset.",
    ),
    _count(
        "streams_per_s",
        100,
        "streams/s",
        (1, 100_000),
        "Streams a peer may open on one connection in a second; further ones are refused.",
    ),
    _count(
        "refusals_per_s",
        100,
        "streams/s",
        (1, 100_000),
        "Streams refused on one connection in a second; one more ends the connection.",
    ),
    _ms(
        "abandoned_ms",
        "abandoned_s",
        15_000,
        (100, 60 * _MINUTE_MS),
        "Time a peer has to close a stream that nobody serves any more, before it is reset.",
    ),
    _count(
        "pings_per_s",
        10,
        "pings/s",
        (1, 100_000),
        "Pings of one connection that are answered in a second; others are passed over.",
    ),
    _count(
        "idle_frames_per_s",
        1_000,
        "frames/s",
        (10, 1_000_000),
        "Frames of a connection with less than 64 bytes of data that are read in a second; a "
        "connection with more is read on in the next second.",
    ),
    _count(
        "empty_frames_max",
        16,
        "frames",
        (1, 10_000),
        "Empty frames on one gossip stream; one more resets the stream.",
    ),
    _count(
        "negotiation_lines_max",
        64,
        "lines",
        (4, 10_000),
        "Lines of multistream-select that a peer may send before a protocol is agreed on; each "
        "is answered with a write.",
    ),
    # Bytes.
    _count(
        "negotiation_unread_max",
        64 * _KIB,
        "bytes",
        (4 * _KIB, 512 * _KIB),
        "Bytes of one stream that are held before both sides know what is spoken on it.",
    ),
    _count(
        "receive_window_max",
        512 * _KIB,
        "bytes",
        (512 * _KIB, 16 * _MIB),
        "Bytes a peer may send into one stream before somebody reads them; at most "
        "connection_unread_max.",
    ),
    _count(
        "queue_bytes_max",
        8 * _MIB,
        "bytes",
        (_MIB, 1_024 * _MIB),
        "Bytes of messages that wait for one peer; what does not fit is given up and may be asked "
        "for. As many bytes of control; one more drops the peer.",
    ),
    _count(
        "slow_bytes",
        128 * _KIB,
        "bytes",
        (1_024, 64 * _MIB),
        "Bytes of messages that wait for a slow peer.",
    ),
    _count(
        "queue_frames_max",
        8_192,
        "frames",
        (16, 1_000_000),
        "Frames that wait for one peer, bounded as its bytes are.",
    ),
    _count(
        "peer_pending_max",
        512,
        "messages",
        (16, 1_000_000),
        "Messages of one peer that wait for validation; above it, or above its share of half of "
        "inbox_max, this node stops reading from that peer.",
    ),
    # What is remembered and told of others.
    _count(
        "bans_max",
        4_096,
        "peers",
        (1, 1_000_000),
        "Bans remembered; beyond it the one that ends first goes.",
    ),
    _ms(
        "clock_interval_ms",
        "clock_interval_s",
        20_000,
        (100, _DAY_MS),
        "Time between two questions for the clock of a peer that tells it (G36).",
    ),
    _ms(
        "silence_max_ms",
        "silence_max_s",
        15_000,
        (0, _DAY_MS),
        "Time without a byte of any peer after which a node that has peers, or names some in "
        "gossip.peers or gossip.bootstrap, is not ready (G37); 0 never.",
    ),
    _count(
        "book_max",
        1_024,
        "peers",
        (16, 1_000_000),
        "Peers remembered to be dialled.",
    ),
    _count(
        "dial_failures_max",
        4,
        "dials",
        (1, 1_000),
        "Failed dials after which a peer that others named is forgotten.",
    ),
    _ms(
        "exchange_interval_ms",
        "exchange_interval_s",
        10_000,
        (100, _DAY_MS),
        "Time before the same peer is asked for records of others, or answered, again.",
    ),
    _count(
        "exchange_records_max",
        16,
        "records",
        (1, 256),
        "Records of peers in one answer, given and taken.",
    ),
    _count(
        "dht_peers_max",
        1_024,
        "peers",
        (1, 1_000_000),
        "Peers whose signed records are given to those who look in the table.",
    ),
    _count("dht_dials_max", 4, "peers", (1, 256), "Peers dialled in one lookup only to be asked."),
    _count(
        "dht_requests_per_s",
        10,
        "questions/s",
        (1, 10_000),
        "Questions of one peer a second that are answered, three seconds' worth at once.",
    ),
)
"""Every bound, in the order of the documentation."""
PORT_KEYS: Final = tuple(bound.key for bound in BOUNDS)


def bounds_of(gossip: Mapping[str, Any]) -> dict[str, float | int]:
    """Return the values of the section ``gossip`` by their names in `NetConfig`."""
    return {bound.field: bound.value(gossip[bound.name]) for bound in BOUNDS}
