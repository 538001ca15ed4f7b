"""Every bound of the room, once, with its unit and the decision behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from luxrelay.errors import ConfigError
from luxrelay.gossip import PROTOCOLS

DEFAULT_PORT: Final = 9640
"""TCP port of the gossip host, apart from any other Lux network (G29, 20-56)."""
MESHSUB: Final = PROTOCOLS
"""The pubsub protocols we offer and accept, best first (G29)."""
COALESCED_BYTES: Final = 65_507
"""64 KiB less the framing: one write becomes one Yamux frame inside one Noise message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetConfig:
    """What the host and the gossip driver may use; every limit is enforced and tested.

    Source: G21, G29, G32; requirements 20-56, 20-58.
    """

    listen: tuple[str, ...] = (f"/ip4/0.0.0.0/tcp/{DEFAULT_PORT}",)
    """Multiaddresses to listen on; port 0 lets the system choose."""
    peers: tuple[str, ...] = ()
    """Multiaddresses ending in ``/p2p/<peer id>`` that are kept connected."""
    peers_max: int = 256
    """Addresses `peers` may hold."""

    network: str = "devnet"
    """Name of the network; a peer that says another in its hello is let go (G32)."""
    roles: tuple[str, ...] = ("relay",)
    """What we say we are: validator, relay, light, da-operator (LP-6420 §1.1)."""
    validator_proof: bytes = b""
    """What proves that a validator vouches for us, told in hello (G24)."""
    agent: str = "luxrelay"
    """What we call ourselves in hello, for people."""
    inline_blob_max: int = 48 * 1024
    """Limit that hello tells, bytes (J7)."""
    announce: tuple[str, ...] = ()
    """Multiaddresses at which others can dial us, without peer id; empty: those we listen on, and
    for ``0.0.0.0`` the addresses of this machine that connections come from."""
    require_hello: bool = False
    """Whether a peer without hello is let go; plain libp2p peers have none (G32)."""
    hello_timeout_s: float = 5.0
    """Seconds for one hello and its answer."""
    hello_attempts_max: int = 3
    """Streams that may break before a peer is let go without having said hello."""
    foreign_ban_s: float = 60.0
    """Seconds for which a peer of another network, or with a hello that cannot be read, is not let
    in again."""

    bootstrap: tuple[str, ...] = ()
    """Multiaddresses of peers to begin with; unlike `peers` they are not kept connected once there
    are others."""
    peers_min: int = 10
    """Peers below which more are dialled than `outbound_target` (G21)."""
    outbound_target: int = 16
    """Outbound connections that we keep dialling for, within `outbound_max`; 0: none (G21)."""
    dials_max: int = 4
    """Dials under way at one time for `outbound_target`."""
    dial_addresses_max: int = 16
    """Addresses that one dial of a peer tries; a further one only waits for the result."""
    lookups_max: int = 8
    """Names that are looked up at one time; a further one waits within its dial's time."""
    name_addresses_max: int = 16
    """Addresses of one name that a dial tries."""
    dial_failures_max: int = 4
    """Failed dials after which a peer that others named is forgotten."""
    upkeep_interval_s: float = 1.0
    """Seconds between two looks at the number of peers."""
    book_max: int = 1024
    """Peers remembered to be dialled."""
    exchange: bool = True
    """Whether signed peer records are given to others and taken from them (G21)."""
    exchange_interval_s: float = 10.0
    """Seconds before the same peer is asked, or answered, again."""
    exchange_records_max: int = 16
    """Records in one answer."""
    dht: bool = False
    """Whether peers are looked for in a distributed hash table as well, and others answered."""
    dht_interval_s: float = 60.0
    """Seconds between two lookups while peers are wanted, a quarter more or less."""
    dht_peers_max: int = 1024
    """Peers whose signed records are given to those who look, and taken in one lookup."""
    dht_dials_max: int = 4
    """Peers dialled in one lookup only to be asked."""
    dht_requests_per_s: float = 10.0
    """Questions of one peer a second that are answered, three seconds' worth at once."""
    address_connections_max: int = 8
    """Connections with one IPv4 address or IPv6 /64 (LP-6422 §6)."""
    subnet_connections_max: int = 16
    """Connections with one IPv4 /24 or IPv6 /56 (G23)."""
    private_address_connections_max: int = 24
    """Connections with one private address, loopback included."""
    private_subnet_connections_max: int = 48
    """Connections with one private /24 or /56."""
    loopback_exempt: bool = False
    """Whether this machine's own addresses count for neither; for development networks (G23)."""
    bans_max: int = 4096
    """Bans remembered; beyond it the one that ends first goes."""
    bans_save_s: float = 1.0
    """Seconds between two writes of the list of bans."""

    inbound_max: int = 34
    """Inbound connections at one time whose handshake came to its end (G21)."""
    handshakes_max: int = 64
    """Inbound connections in the handshake at one time, apart from `inbound_max`; one /16 or /32
    has a quarter of them, a private one half."""
    handshakes_per_s: float = 8.0
    """Handshakes of one address a second that are calculated, a second's worth at once; further
    ones wait."""
    first_byte_timeout_s: float = 3.0
    """Seconds until the first byte of an inbound connection, within `handshake_timeout_s`."""
    speak_timeout_s: float = 15.0
    """Seconds after the handshake in which a stream for a protocol of ours has to be opened, by
    either side, or the inbound connection is closed."""
    outbound_max: int = 16
    """Outbound connections at one time (G21)."""
    peer_connections_max: int = 2
    """Connections with one peer: one in each direction when both dial at once."""
    probe_timeout_s: float = 2.0
    """Seconds for a sign of life over the older connections of a peer that has come anew; a silent
    one gives its place to the newest."""
    connection_streams_max: int = 16
    """Streams one connection may have open at one time, opened by either side."""
    streams_per_s: int = 100
    """Streams a peer may open on one connection in a second; further ones are refused."""
    refusals_per_s: int = 100
    """Streams refused on one connection in a second; one more ends it."""
    abandoned_s: float = 15.0
    """Seconds a peer has to close a stream that nobody serves any more, before it is reset."""
    pings_per_s: int = 10
    """Pings of one connection that are answered in a second; others are passed over."""
    idle_frames_per_s: int = 1000
    """Frames of a connection with less than 64 bytes of data that are read in a second; a
    connection with more is read on in the next second."""
    receive_window_max: int = 512 * 1024
    """Bytes a peer may push into one stream before somebody reads them."""
    negotiation_lines_max: int = 64
    """Lines of multistream-select that a peer may send before a protocol is agreed on; each is
    answered with a write."""
    negotiation_unread_max: int = 64 * 1024
    """Bytes of one stream that are held before both sides know what is spoken on it; the
    connection is not read on meanwhile."""
    connection_unread_max: int = 2 * 1024 * 1024
    """Bytes that one connection may have waiting to be read, on all its streams; above it the
    fullest stream is reset."""
    unread_max: int = 32 * 1024 * 1024
    """Bytes that all connections may have waiting to be read; above it the connection with most of
    them loses its fullest stream."""

    handshake_timeout_s: float = 5.0
    """Seconds for Noise and Yamux on a new connection, and for the protocol of a new stream."""
    dial_timeout_s: float = 10.0
    """Seconds for one dial, from the first packet to the finished handshake."""
    silence_max_s: float = 15.0
    """Seconds without a byte of any peer after which nothing is heard at all (G37); after a third
    of it every connection is pinged. 0: never looked at."""
    clock_interval_s: float = 20.0
    """Seconds between two questions for the clock of a peer that tells it (G36)."""
    write_timeout_s: float = 30.0
    """Seconds one frame of up to 64 KiB may take into the socket before the connection counts as
    dead; a live link of 20 kbit/s is not cut by it."""
    keepalive_interval_s: float = 15.0
    """Seconds between two pings on a connection (G32)."""
    keepalive_misses_max: int = 3
    """Pings without an answer before the connection is dropped (G32)."""
    close_timeout_s: float = 3.0
    """Seconds an orderly shutdown may take before sockets are cut."""

    frame_max: int = 1024 * 1024
    """Bytes of one length-delimited frame; a longer one resets the stream."""
    frame_batch_max: int = 256
    """Frames handed over at once, so that small frames cannot hold the loop."""
    empty_frames_max: int = 16
    """Empty frames on one gossip stream; one more resets the stream. Peers that follow no topic
    greet with one."""
    queue_bytes_max: int = 8 * 1024 * 1024
    """Bytes waiting for one peer; a message that does not fit is given up and the peer is slow,
    control that does not fit drops the peer. Twice what the router gathers for a peer between two
    drains, so that a peer that keeps taking is never slow for one burst."""
    queue_frames_max: int = 8192
    """Frames waiting for one peer, bounded as its bytes are."""
    write_stall_s: float = 30.0
    """Seconds one write of up to 16 KiB to a slow peer may take before the peer is dropped."""
    slow_after_s: float = 2.0
    """Seconds the oldest frame may wait for a peer before the peer counts as slow: it leaves the
    meshes and is told ids in place of messages (G39)."""
    slow_bytes: int = 128 * 1024
    """Bytes that may wait for a slow peer: what fits is sent to it when it asks for it (G39)."""
    slow_hold_s: float = 10.0
    """Seconds a slow peer's queue must be found empty before the peer counts as any other."""
    pull_after_s: float = 0.5
    """Seconds that packets of most connections wait in queues, mostly for gossip, before messages
    are fetched by catching up and no longer sent to us unasked (G41)."""
    pull_hold_s: float = 10.0
    """Seconds that catching up lacks nothing, or packets wait for half of that at most, before
    messages are sent to us again."""

    gossip_streams_max: int = 2
    """Gossip streams one peer may open towards us; a further one is reset."""
    inbox_max: int = 4096
    """Messages waiting for a verdict; over it the verdict is IGNORE."""
    peer_pending_max: int = 512
    """Messages of one peer waiting for a verdict; above it, or above its share of half the inbox,
    we stop reading from that peer."""
    batch_max: int = 256
    """Messages handed to `validate` at once."""
    publish_batch_max: int = 64
    """Messages of one publish call sent before queues are looked at."""
    patience_s: float = 1.0
    """Seconds for which publishing and forwarding wait for a peer whose queue is half full."""

    redial_min_s: float = 0.5
    """Seconds before a lost peer is dialled again the first time."""
    redial_max_s: float = 60.0
    """Seconds between dials of a peer that stays away."""
    steady_s: float = 10.0
    """Seconds a connection must hold before the next loss starts again at `redial_min_s`."""
    stream_attempts_max: int = 4
    """Tries in a row to open the gossip stream, all refused, before a peer may be let go."""
    stream_pause_max_s: float = 5.0
    """Longest pause before a gossip stream that broke is opened anew on a live connection."""
    idle_s: float = 60.0
    """Seconds for which a peer that takes no gossip keeps its place; a later connection may take
    it."""

    def __post_init__(self) -> None:
        """Hold only bounds that make sense together."""
        for name in self.__slots__:
            value = getattr(self, name)
            may_be_zero = name in (
                "inline_blob_max",
                "outbound_target",
                "peers_min",
                "silence_max_s",
            )
            low = isinstance(value, int | float) and not isinstance(value, bool) and value <= 0
            if low and not (may_be_zero and value == 0):
                raise ConfigError(
                    f"{name} must be above zero", where="NetConfig", hint="see its docstring"
                )
        if len(self.peers) > self.peers_max:
            raise ConfigError(
                f"{len(self.peers)} peers are more than peers_max = {self.peers_max}",
                where="NetConfig.peers",
                hint="name fewer peers or raise peers_max",
            )
        if self.receive_window_max < 2 * 256 * 1024:
            raise ConfigError(
                "receive_window_max is below 512 KiB",
                where="NetConfig",
                hint="Yamux grants 256 KiB at once and may double it; use 524288 or more",
            )
        if self.receive_window_max > self.connection_unread_max:
            raise ConfigError(
                "receive_window_max is above connection_unread_max",
                where="NetConfig",
                hint="a connection must hold at least one full stream",
            )
        if self.redial_min_s > self.redial_max_s:
            raise ConfigError(
                "redial_min_s is above redial_max_s",
                where="NetConfig",
                hint="pauses grow from the one to the other",
            )
        if self.slow_after_s >= self.write_stall_s:
            raise ConfigError(
                "slow_after_s is not below write_stall_s",
                where="NetConfig",
                hint="a peer is spared full messages before it is dropped",
            )
        if self.queue_bytes_max < self.frame_max:
            raise ConfigError(
                "queue_bytes_max is below frame_max",
                where="NetConfig",
                hint="a queue must hold at least one frame",
            )
