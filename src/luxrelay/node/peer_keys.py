"""Configuration keys of peers: addresses, numbers, diversity."""

from __future__ import annotations

from typing import Final

from luxrelay.node.checks import Check, Key, boolean, list_of, match, multiaddress, one_of, whole

PEER_ADDRESS: Final = multiaddress(
    r"/(?P<kind>ip4|ip6|dns4|dns6)/(?P<host>[^/]+)/tcp/(?P<port>[0-9]{1,5})"
    r"/p2p/(?P<peer>[1-9A-HJ-NP-Za-km-z]{16,128})",
    range(1, 65_536),
    "a multiaddress with the peer's id, such as /ip4/127.0.0.1/tcp/9640/p2p/12D3KooW…",
)
_ANNOUNCED: Final = multiaddress(
    r"/(?P<kind>ip4|ip6|dns4|dns6)/(?P<host>[^/]+)/tcp/(?P<port>[0-9]{1,5})",
    range(1, 65_536),
    "a multiaddress such as /dns4/relay.example/tcp/9640",
)
_KEY_FIELDS: Final[Check] = list_of(
    match(r"(0x)?[0-9a-fA-F]{4,4000}", "a public key field in hex"), 1024
)
_HOUR_MS: Final = 3_600_000
_MIB: Final = 1024 * 1024

PEER_KEYS: Final = (
    Key(
        "gossip",
        "bootstrap",
        [],
        "multiaddress",
        list_of(PEER_ADDRESS, 64),
        "Peers to begin with; once there are others, these are peers like any (LP-6420 §1.2).",
    ),
    Key(
        "gossip",
        "announce",
        [],
        "multiaddress",
        list_of(_ANNOUNCED, 8),
        "Where others can dial this node, told in its signed record; where it listens when "
        "absent, as far as that is no 0.0.0.0.",
    ),
    Key(
        "gossip",
        "exchange",
        True,
        "",
        boolean,
        "Whether signed records of peers are given to others and taken from them (G21).",
    ),
    Key(
        "gossip",
        "dht",
        False,
        "",
        boolean,
        "Whether peers are looked for in a distributed hash table as well, and others are answered "
        "(LP-6420 §1.2, G21).",
    ),
    Key(
        "gossip",
        "dht_interval_ms",
        60_000,
        "milliseconds",
        whole(1000, 24 * _HOUR_MS),
        "Time between two lookups in the table while peers are wanted.",
    ),
    Key(
        "gossip",
        "outbound_target",
        16,
        "connections",
        whole(0, 1000),
        "Outbound connections this node keeps dialling for, out of a third of connections_max; "
        "0 dials the peers of this file alone (G21).",
    ),
    Key(
        "gossip",
        "peers_min",
        10,
        "peers",
        whole(0, 1000),
        "Peers below which more are dialled and none is rotated (LP-6420 §1.2).",
    ),
    Key(
        "gossip",
        "rotation_interval_ms",
        300_000,
        "milliseconds",
        whole(1000, 24 * _HOUR_MS),
        "Time between two rotations of peers (LP-6420 §6.2, G22).",
    ),
    Key(
        "gossip",
        "rotation_count",
        2,
        "peers",
        whole(0, 100),
        "New peers asked for in a rotation.",
    ),
    Key(
        "gossip",
        "group_peers_max",
        4,
        "peers",
        whole(1, 1000),
        "Peers of one IPv4 /16 or IPv6 /32; the peers of this file count and are let in all the "
        "same (LP-6420 §6.1, G23).",
    ),
    Key(
        "gossip",
        "address_connections_max",
        8,
        "connections",
        whole(1, 1000),
        "Connections with one IPv4 address or IPv6 /64 (LP-6422 §6).",
    ),
    Key(
        "gossip",
        "subnet_connections_max",
        16,
        "connections",
        whole(1, 1000),
        "Connections with one IPv4 /24 or IPv6 /56 (G23).",
    ),
    Key(
        "gossip",
        "private_group_peers_max",
        24,
        "peers",
        whole(1, 1000),
        "The same as group_peers_max for private networks, loopback included (10/8, 172.16/12, "
        "192.168/16, 100.64/10, fc00::/7): an operator's own relays are there.",
    ),
    Key(
        "gossip",
        "private_address_connections_max",
        24,
        "connections",
        whole(1, 1000),
        "Connections with one address of a private network.",
    ),
    Key(
        "gossip",
        "private_subnet_connections_max",
        48,
        "connections",
        whole(1, 1000),
        "Connections with one /24 or /56 of a private network.",
    ),
    Key(
        "gossip",
        "handshakes_max",
        64,
        "connections",
        whole(8, 4096),
        "Inbound connections in the handshake at one time, apart from connections_max; one /16 or "
        "/32 has a quarter of them, and the oldest goes when there is no room.",
    ),
    Key(
        "gossip",
        "handshakes_per_s",
        8,
        "handshakes/s",
        whole(1, 10_000),
        "Handshakes of one address that are calculated in a second; further ones wait.",
    ),
    Key(
        "gossip",
        "exempt_loopback",
        False,
        "",
        boolean,
        "Whether this machine's own addresses are free of the limits by address; for development "
        "networks on one machine (G23).",
    ),
    Key(
        "gossip",
        "unread_max",
        32 * _MIB,
        "bytes",
        whole(4 * _MIB, 4096 * _MIB),
        "Bytes of all peers that may wait to be read; above it the connection that has most of "
        "them loses its fullest stream.",
    ),
    Key(
        "gossip",
        "connection_unread_max",
        2 * _MIB,
        "bytes",
        whole(_MIB, 64 * _MIB),
        "Bytes of one connection that may wait to be read, on all its streams; above it the "
        "fullest stream is reset.",
    ),
    Key(
        "gossip",
        "role",
        "relay",
        "",
        one_of("validator", "relay", "light", "da-operator"),
        "What this node says it is; light nodes are left out of the others' meshes (LP-6420 §1.1).",
    ),
    Key(
        "gossip",
        "validator_proof",
        "",
        "hex",
        match(r"|(0x)?([0-9a-fA-F]{2}){1,16384}", "hex digits"),
        "The proof that a validator vouches for this node's peer id (G24).",
    ),
    Key(
        "gossip",
        "validators",
        [],
        "hex",
        _KEY_FIELDS,
        "Public key fields of validators, whose proven relays are trusted more (G24); without any "
        "those of [validators].",
    ),
    Key(
        "gossip",
        "require_hello",
        False,
        "",
        boolean,
        "Whether peers that do not say hello are let go; plain libp2p peers do not (G32).",
    ),
    Key(
        "gossip",
        "clock_peers_min",
        2,
        "peers",
        whole(1, 1000),
        "Peers that tell their clock, below which their median is not believed (G36).",
    ),
    Key(
        "gossip",
        "clock_warn_ms",
        5_000,
        "milliseconds",
        whole(100, 30_000),
        "Offset of the clock to the median of the peers' above which log and health warn; above "
        "30 s the node is not ready (G36).",
    ),
    Key(
        "gossip",
        "refused_arrivals_min",
        10,
        "messages",
        whole(1, 1_000_000),
        "Messages of peers in a minute below which it is not told that most were refused (G37).",
    ),
)
"""Further keys of the section ``gossip``."""
