"""Configuration keys of a node: sentence, unit, default and check of each.

``KEYS`` is the one place that knows the keys; parsing, messages and docs/reference/config.md are
made from it.

The keys of what guards the store: rates, fees, finality.

The keys of topics that are no namespace's: which a node follows, whose claims it believes.

The keys with which a file changes the router's numbers and tells where networks are.

Source: LP-6490; decision J10.
"""

from __future__ import annotations

from typing import Any, Final

from luxrelay.node.channel_keys import CHANNEL_KEYS
from luxrelay.node.checks import (
    Check,
    Key,
    boolean,
    host_port,
    list_of,
    match,
    multiaddress,
    one_of,
    text,
    whole,
)
from luxrelay.node.gateway.config import GATEWAY_KEYS, HOST_NAME
from luxrelay.node.peer_keys import PEER_ADDRESS, PEER_KEYS
from luxrelay.node.port_keys import PORT_KEYS
from luxrelay.node.store_keys import STORE_KEYS

TUNING_KEYS: Final = (
    Key(
        "gossip",
        "mesh",
        [],
        "",
        list_of(match(r"[a-z_]{1,40}=[0-9a-z.+-]{1,24}", "a change such as 'd=8'"), 64),
        "Numbers of the router that differ from their defaults (LP-6420 §4.1): names of "
        "`GossipParams`, such as 'd=8' and 'd_hi=16'. The whole set is checked at the start (G13).",
    ),
    Key(
        "gossip",
        "scores",
        [],
        "",
        list_of(
            match(
                r"[a-z_0-9]{1,40}(\.[a-z_0-9]{1,40})?=[0-9a-z.+-]{1,24}",
                "a change such as 'namespace.weight=0.7'",
            ),
            64,
        ),
        "Numbers of the scores that differ from their defaults (LP-6420 §5, G18): names of "
        "`ScoreParams`, or a topic's of `TopicScoreParams`, such as "
        "'headers_global.mesh_deliveries_weight=0.5'.",
    ),
    Key(
        "gossip",
        "places",
        "",
        "path",
        text(0),
        "File of networks with autonomous system and region, one a line such as "
        "192.0.2.0/24,64500,EU; without it neither counts (LP-6420 §6.1).",
    ),
    Key(
        "gossip",
        "system_peers_max",
        8,
        "peers",
        whole(1, 1000),
        "Peers of one autonomous system, with `places` (LP-6420 §6.1, G21).",
    ),
    Key(
        "gossip",
        "regions_min",
        0,
        "regions",
        whole(0, 100),
        "Regions that peers should be of, with `places`; the last places are kept for those that "
        "are missing (LP-6420 §6.1, G21).",
    ),
    Key(
        "gossip",
        "outbound_distinct_min",
        4,
        "networks",
        whole(0, 100),
        "Networks (an IPv4 /16, an IPv6 /32) that outbound peers should be of; the last places are "
        "kept for those that are missing (LP-6420 §6.1, G21).",
    ),
)
"""Further keys of the section ``gossip``."""


_PEER_ID: Final = match(r"[1-9A-HJ-NP-Za-km-z]{16,128}", "a peer id such as 12D3KooW…")
OPERATORS_MAX: Final = 32
"""Most operators; the key of each may be tried on a hint."""
PROPOSERS_MAX: Final = 1024
"""Most proposers."""

TOPIC_KEYS: Final = (
    Key(
        "gossip",
        "global_topics",
        ["role"],
        "",
        list_of(
            one_of(
                "role", "headers/global", "blocks/proposed", "blocks/finalized", "blobs/available"
            ),
            5,
        ),
        "Which of the four global topics this node follows beside its namespaces: those of its "
        "role, or those named; none when empty (LP-6420 §1.1, §2.2).",
    ),
    Key(
        "gossip",
        "carry",
        "listed",
        "",
        one_of("listed", "open"),
        "Which namespaces this node takes: those of this file and those that an operator has it "
        "follow, or every one whose policy can be told, which is the default policy or one that "
        "came with it. An open node follows what applications here publish to or read (G35).",
    ),
    Key(
        "gossip",
        "followed_max",
        1_024,
        "namespaces",
        whole(1, 1_900),
        "Namespaces followed at run time, beside those of this file; in an open node those that "
        "applications asked for give way, the one not used for longest first (G35).",
    ),
    Key(
        "gossip",
        "follow_demands_per_minute",
        60,
        "namespaces",
        whole(0, 100_000),
        "Namespaces a minute that applications have an open node follow (G35).",
    ),
    Key(
        "gossip",
        "block_proposers",
        [],
        "peer id",
        list_of(_PEER_ID, PROPOSERS_MAX),
        "Whose block announcements are taken and passed on; everybody's when empty (G12).",
    ),
    Key(
        "gossip",
        "hint_operators",
        [],
        "peer id",
        list_of(_PEER_ID, OPERATORS_MAX),
        "DA operators whose blob hints may name others than themselves (G10).",
    ),
    Key(
        "gossip",
        "blob_streams",
        True,
        "",
        boolean,
        "Whether blobs are served to peers and fetched from them over libp2p streams (G11, P28).",
    ),
    Key(
        "gossip",
        "blob_bytes_per_s",
        4 * 1024 * 1024,
        "bytes per second",
        whole(1024 * 1024, 2**40),
        "Bytes of blobs served to one peer over libp2p streams.",
    ),
    Key(
        "gossip",
        "blob_requests_per_s",
        20,
        "requests per second",
        whole(1, 100_000),
        "Questions for blobs of one peer over libp2p streams.",
    ),
    Key(
        "gossip",
        "blob_silence_ms",
        15_000,
        "ms",
        whole(1_000, 600_000),
        "A request for a blob, and an answer to one, is over when nothing came for so long (P46).",
    ),
    Key(
        "gossip",
        "blob_partial_bytes_max",
        32 * 1024 * 1024,
        "bytes",
        whole(2 * 1024 * 1024, 2**33),
        "Memory for fetched blobs that have not come whole.",
    ),
)
"""Further keys of the section ``gossip``."""


_KEY_FIELDS: Final[Check] = list_of(
    match(r"(0x)?[0-9a-fA-F]{4,4000}", "a public key field in hex"), 64
)

GUARD_KEYS: Final = (
    Key(
        "limits",
        "peer_messages_per_s",
        1000,
        "messages/s",
        whole(0, 10_000_000),
        "Live messages that one gossip peer may bring; 0 for no limit (LP-6422, G20).",
    ),
    Key(
        "limits",
        "node_messages_per_s",
        100_000,
        "messages/s",
        whole(0, 10_000_000),
        "Live messages that this node takes from everybody together; 0 for no limit.",
    ),
    Key(
        "limits",
        "namespace_messages_per_s",
        100,
        "messages/s",
        whole(0, 10_000_000),
        "Live messages of one namespace with its lanes, where no policy_file says it; 0 for no "
        "limit.",
    ),
    Key(
        "limits",
        "sender_messages_per_s",
        10,
        "messages/s",
        whole(0, 10_000_000),
        "Live messages of one sender; a good reputation doubles it, a bad one halves it (S8); "
        "0 for no limit.",
    ),
    Key(
        "limits",
        "burst_s",
        3,
        "seconds",
        whole(1, 3600),
        "How many seconds' worth may come at once (S1).",
    ),
    Key(
        "fees",
        "prepaid_issuers",
        [],
        "hex",
        _KEY_FIELDS,
        "Public key fields whose prepaid quotas this node honours; what a message costs is then "
        "kept in the store (LP-6411 §2.9, S7).",
    ),
    Key(
        "fees",
        "free_tier",
        True,
        "",
        boolean,
        "Whether messages without a fee proof are taken.",
    ),
    Key(
        "finality",
        "file",
        "",
        "path",
        text(0, 4096),
        "File of signed finality statements, one in hex a line, read again when it changes; "
        "without one every message is pending (J9). A relative path starts at the file's folder.",
    ),
    Key(
        "finality",
        "signers",
        [],
        "hex",
        _KEY_FIELDS,
        "Public key fields whose finality statements count; without any those of [validators].",
    ),
    Key(
        "finality",
        "refresh_ms",
        5_000,
        "milliseconds",
        whole(100, 86_400_000),
        "Time between two looks at the file.",
    ),
    Key(
        "validators",
        "keys",
        [],
        "hex",
        _KEY_FIELDS,
        "Public key fields of validators, one list for all: a relay that one vouches for is "
        "trusted more by gossip (G24), a sync client that one vouches for gets four shares (P33), "
        "and their finality statements count (J9). Where gossip.validators or finality.signers "
        "names others, those count there.",
    ),
)
"""In the order of the documentation."""


_ANY_PORT: Final = range(65_536)
_LISTEN_ADDRESS: Final = multiaddress(
    r"/(?P<kind>ip4|ip6)/(?P<host>[^/]+)/tcp/(?P<port>[0-9]{1,5})",
    _ANY_PORT,
    "a multiaddress such as /ip4/127.0.0.1/tcp/9640",
)
SYNC_PEERS_MAX: Final = 32
"""Most relays one catch-up may ask; each is a bit in the history of a hole."""
_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS
_MIB: Final = 1024 * 1024

KEYS: Final = (
    Key(
        "node",
        "name",
        "relay",
        "",
        match(r"[A-Za-z0-9._-]{1,64}", "1 to 64 of A-Z a-z 0-9 . _ -"),
        "Name of this node in logs and on its pages.",
    ),
    Key(
        "node",
        "profile",
        "relay",
        "",
        one_of("relay", "store", "light", "messenger", "validator"),
        "What kind of node this is: it chooses the defaults of other keys (LP-6490).",
    ),
    Key(
        "node",
        "network",
        "devnet",
        "",
        match(r"[a-z0-9-]{1,32}", "1 to 32 of a-z 0-9 -"),
        "Network whose topics this node speaks; it stands in every topic name.",
    ),
    Key(
        "node",
        "signing",
        "literal",
        "",
        one_of("literal", "bound"),
        "What senders sign: LP-6411's header hash, or in a closed network everything in the header "
        "and the network's name (H3). All nodes and senders of a network must agree.",
    ),
    Key(
        "node",
        "unsigned_sidecars",
        False,
        "",
        boolean,
        'Take messages with a TFHE sidecar also with signing = "literal", where no signature '
        "covers the reference to the sidecar and any relay can swap it (H3).",
    ),
    Key(
        "node",
        "data_dir",
        None,
        "path",
        text(),
        "Folder of the store and the identity key; made when missing. "
        "A relative path starts at the file's folder.",
    ),
    Key(
        "node",
        "log_level",
        "info",
        "",
        one_of("debug", "info", "warning", "error"),
        "Least severe log line that is written.",
    ),
    Key(
        "node",
        "log_levels",
        [],
        "",
        list_of(
            match(
                r"[a-z_]{1,32}(\.[a-z_]{1,32}){0,3}=(debug|info|warning|error)",
                "a room or module and its level, such as 'node.catch_up=debug'",
            ),
            64,
        ),
        "Levels of rooms or modules that differ from log_level.",
    ),
    Key(
        "node",
        "restart_modules",
        True,
        "",
        boolean,
        "Whether a module that failed is started again after a pause; if not, or if it cannot be "
        "started eight times in a row, the node stops in order and ends with 1.",
    ),
    Key(
        "node",
        "stop_grace_ms",
        8_000,
        "milliseconds",
        whole(1_000, 10 * _MINUTE_MS),
        "How long an orderly end may take after SIGTERM; then the process ends at once with 3 and "
        "a line that names what hangs. Nothing that was acknowledged is lost by it.",
    ),
    Key(
        "node",
        "traces",
        "",
        "url",
        match(r"|https?://[A-Za-z0-9._:\[\]-]{1,256}(/[A-Za-z0-9._/-]{0,256})?", "an http address"),
        "OTLP endpoint that gets a span for each batch of messages, such as "
        "http://127.0.0.1:4318; empty for no traces. Needs luxrelay[traces].",
    ),
    Key(
        "gossip",
        "listen",
        ["/ip4/127.0.0.1/tcp/9640"],
        "multiaddress",
        list_of(_LISTEN_ADDRESS, 8),
        "Where libp2p listens; port 0 takes a free one.",
    ),
    Key(
        "gossip",
        "peers",
        [],
        "multiaddress",
        list_of(PEER_ADDRESS, 64),
        "Peers kept connected; each address ends in /p2p/ and the peer id.",
    ),
    Key(
        "gossip",
        "connections_max",
        50,
        "connections",
        whole(2, 1000),
        "Most connections at once, in and out; above the number of peers (LP-6420 §1.2).",
    ),
    Key(
        "gossip",
        "inline_blob_max",
        48 * 1024,
        "bytes",
        whole(0, 60 * 1024),
        "Largest blob that travels inside its announcement (J7); 0 turns it off.",
    ),
    Key(
        "gossip",
        "inbox_max",
        8192,
        "messages",
        whole(16, 1_000_000),
        "Messages waiting for validation; more are ignored without penalty.",
    ),
    Key(
        "gossip",
        "heartbeat_ms",
        700,
        "milliseconds",
        whole(50, 60_000),
        "Period of mesh upkeep (LP-6420 §4.1).",
    ),
    *PEER_KEYS,
    *PORT_KEYS,
    *TOPIC_KEYS,
    *TUNING_KEYS,
    Key(
        "store",
        "ttl_ms",
        10 * _MINUTE_MS,
        "milliseconds",
        whole(1000, 365 * _DAY_MS),
        "Time to live of a message (LP-6421 §1.1, J2).",
    ),
    Key(
        "store",
        "max_storage_bytes",
        1024 * _MIB,
        "bytes",
        whole(_MIB, 2**50),
        "Most bytes of messages kept (LP-6421 §1.1).",
    ),
    Key(
        "store",
        "durability",
        "fsync",
        "",
        one_of("fsync", "group", "os"),
        "When a message counts as stored: after an fsync of its batch, after one that all "
        "waiters share, or when the system has it.",
    ),
    Key(
        "store",
        "when_full",
        "evict",
        "",
        one_of("evict", "refuse"),
        "Whether a full quota or store forgets its oldest messages or ignores new ones (P2).",
    ),
    Key(
        "store",
        "namespace_quota_bytes",
        0,
        "bytes",
        whole(0, 2**50),
        "Most bytes of one namespace with its lanes; 0 for a tenth of max_storage_bytes (P1).",
    ),
    Key(
        "store",
        "expire_interval_ms",
        _MINUTE_MS,
        "milliseconds",
        whole(100, _DAY_MS),
        "Time between two deletions of expired messages (GC_INTERVAL, J2).",
    ),
    *STORE_KEYS,
    Key(
        "sync",
        "listen",
        "127.0.0.1:9641",
        "host:port",
        host_port(_ANY_PORT),
        "Where the RelaySync service listens; port 0 takes a free one (P37).",
    ),
    Key(
        "sync",
        "peers",
        [],
        "host:port",
        list_of(host_port(_ANY_PORT[1:]), SYNC_PEERS_MAX),
        "Relays whose history this node catches up from.",
    ),
    Key(
        "sync",
        "interval_ms",
        5000,
        "milliseconds",
        whole(100, _DAY_MS),
        "Time between two looks at the peers' heads.",
    ),
    Key(
        "sync",
        "allow_publish",
        False,
        "",
        boolean,
        "Whether the sync port also takes signed messages from applications.",
    ),
    Key(
        "sync",
        "allow_handoff",
        False,
        "",
        boolean,
        "Whether the sync port takes an archive's watermarks: what it has not read is then "
        "kept beyond its time (J8).",
    ),
    Key(
        "sync",
        "postponed_max",
        65_536,
        "messages",
        whole(1, 10_000_000),
        "Messages of relays that came before their time, counted once a relay, which are not asked "
        "for again until then; beyond it the oldest is forgotten (G36).",
    ),
    Key(
        "sync",
        "reconcile_interval_ms",
        _MINUTE_MS,
        "milliseconds",
        whole(0, _DAY_MS),
        "About how often the whole window is compared with one peer, a sync peer or one of gossip, "
        "which finds forks of a slot and what heads do not show; 0 for never.",
    ),
    Key(
        "sync",
        "stall_ms",
        2 * _MINUTE_MS,
        "milliseconds",
        whole(1_000, _DAY_MS),
        "How long a catch-up, a reconciliation or a search for blobs may stand still before its "
        "connections are closed and the next round begins.",
    ),
    Key(
        "sync",
        "reconcile_stream",
        True,
        "",
        boolean,
        "Whether peers of gossip may compare themselves with this store, and read it, over libp2p; "
        "never where tls_client_ca is given.",
    ),
    Key(
        "sync",
        "tls_certificate",
        "",
        "path",
        text(0, 4096),
        "Certificate chain of the sync port, PEM; without it the port speaks in the clear.",
    ),
    Key(
        "sync",
        "tls_key",
        "",
        "path",
        text(0, 4096),
        "Private key of that certificate, PEM without a passphrase; sync peers are shown both.",
    ),
    Key(
        "sync",
        "tls_client_ca",
        "",
        "path",
        text(0, 4096),
        "Authorities whose clients are let in (mutual TLS), PEM; without it everybody is.",
    ),
    Key(
        "sync",
        "tls_peer_ca",
        "",
        "path",
        text(0, 4096),
        "Authorities of the relays in peers, PEM; with it they are dialled over TLS.",
    ),
    Key(
        "sync",
        "validators",
        [],
        "hex",
        list_of(match(r"[0-9a-f]{64}", "64 lower-case hex digits"), 1024),
        "SHA-256 fingerprints of validators' public TLS keys, for those that no key of "
        "[validators] vouches for; who proves one by client certificate gets the "
        "shares of `validator_weight` (LP-6421 §6.2, P33).",
    ),
    Key(
        "sync",
        "validator_proof",
        "",
        "hex",
        match(r"|(0x)?([0-9a-fA-F]{2}){1,2048}", "hex digits of at most 2,048 bytes"),
        "The proof that a validator vouches for the key of tls_certificate, shown to the relays in "
        "peers: `luxrelay keys vouch --tls-certificate` (P33).",
    ),
    Key(
        "sync",
        "validator_weight",
        4,
        "shares",
        whole(3, 1000),
        "Shares of a validator where anybody else has one (ValidatorPriority, P33).",
    ),
    Key(
        "sync",
        "out_bytes_per_s",
        8 * _MIB,
        "bytes/s",
        whole(0, 2**40),
        "Most bytes the sync port sends a second (LP-6421 §6.1, P34); 0 for no limit.",
    ),
    Key(
        "sync",
        "in_bytes_per_s",
        8 * _MIB,
        "bytes/s",
        whole(0, 2**40),
        "Most bytes the sync port takes in a second; 0 for no limit.",
    ),
    Key(
        "sync",
        "peer_bytes_per_s",
        _MIB,
        "bytes/s",
        whole(0, 2**40),
        "Most bytes a second to or from one peer that is not on this machine; 0 for no limit.",
    ),
    Key(
        "sync",
        "peer_requests_per_s",
        20,
        "calls/s",
        whole(0, 1_000_000),
        "Most calls a second of one peer that is not on this machine; 0 for no limit.",
    ),
    Key(
        "sync",
        "peer_streams_max",
        4,
        "calls",
        whole(1, 100),
        "Calls of one peer that are served at once; further ones wait.",
    ),
    Key(
        "sync",
        "exempt_loopback",
        True,
        "",
        boolean,
        "Whether peer_bytes_per_s and peer_requests_per_s leave out programs of this machine; the "
        "rates of all together hold for them in any case (P34).",
    ),
    Key(
        "sync",
        "connections_max",
        256,
        "connections",
        whole(1, 65_536),
        "Connections to the sync port at once; one /16 (IPv6: /32) has a quarter of them, a "
        "private one half, this machine all. Without room the oldest that has proven least goes.",
    ),
    Key(
        "sync",
        "address_connections_per_s",
        10,
        "connections/s",
        whole(0, 1_000_000),
        "Connections of one address (IPv6: a /64) that a port which speaks gRPC lets in a second; "
        "further ones wait, or are closed when they would wait ten seconds. 0 for no limit.",
    ),
    Key(
        "sync",
        "address_connections_burst",
        40,
        "connections",
        whole(1, 1_000_000),
        "Connections of one address that are let in at once after it was quiet.",
    ),
    Key(
        "sync",
        "accepts_per_s",
        100,
        "connections/s",
        whole(1, 1_000_000),
        "Connections that such a port takes a second from one of its 64 queues, into which the "
        "system sorts them by source address: what a flood from one address costs. Fewer on a slow "
        "machine (`luxrelay_cost_pace`).",
    ),
    Key(
        "sync",
        "publishers_max",
        8,
        "streams",
        whole(0, 1_024),
        "Publish streams of RelayNode at once. When all are taken, one that has been silent "
        "for publisher_silent_ms gives way to one that comes, then one of the network that "
        "has two more than the newcomer's; a proven certificate or a host that is known "
        "takes a stranger's place, and the rest is refused with the number and when to ask "
        "again.",
    ),
    Key(
        "sync",
        "peer_publishers_max",
        4,
        "streams",
        whole(1, 1_024),
        "Publish streams of one address.",
    ),
    Key(
        "sync",
        "publisher_silent_ms",
        1_000,
        "ms",
        whole(10, 86_400_000),
        "Time without a request after which a Publish stream gives way.",
    ),
    Key(
        "sync",
        "subscribers_max",
        32,
        "streams",
        whole(0, 4_096),
        "Subscribe streams of RelayNode at once, each with a thread; when all are taken, "
        "the network that has two more than the newcomer's gives one.",
    ),
    Key(
        "sync",
        "peer_subscribers_max",
        8,
        "streams",
        whole(1, 4_096),
        "Subscribe streams of one address.",
    ),
    Key(
        "sync",
        "stranger_ms_per_s",
        40,
        "ms/s",
        whole(0, 100_000),
        "CPU time that one address without a token may cost a second, at all doors together, "
        "gossip included (IPv6: a /64); a /16 four and all of them ten times as much. 0 for no "
        "limit.",
    ),
    Key(
        "sync",
        "stranger_burst_ms",
        1_000,
        "ms",
        whole(1, 3_600_000),
        "CPU time that such an address may cost at once after it was quiet.",
    ),
    Key(
        "sync",
        "known_hosts",
        [],
        "",
        list_of(match(r"[0-9a-fA-F.:]{2,45}", "an IP address"), 1024),
        "Addresses that may cost as much as a token, beside those in the peers of gossip and sync: "
        "an archive or a relay that catches up without one.",
    ),
    Key(
        "sync",
        "known_ms_per_s",
        1_000,
        "ms/s",
        whole(0, 100_000),
        "CPU time that one token or proven certificate may cost a second; 0 for no limit.",
    ),
    Key(
        "sync",
        "reconcile_ranges_max",
        4_096,
        "ranges",
        whole(64, 65_536),
        "Ranges of one reconciliation message that are looked at; the rest is answered with one "
        "fingerprint and compared in the next message.",
    ),
    Key(
        "http",
        "listen",
        "127.0.0.1:9642",
        "host:port",
        host_port(_ANY_PORT),
        "Where /metrics, /healthz and /status answer; port 0 takes a free one.",
    ),
    Key(
        "http",
        "hosts",
        [],
        "",
        list_of(HOST_NAME, 64),
        "Names under which these pages may be asked, besides localhost, bare addresses and the "
        "host of listen; other names are DNS rebinding. What scrapes by name needs it.",
    ),
    Key(
        "http",
        "accepts_per_s",
        100,
        "connections/s",
        whole(1, 1_000_000),
        "Connections that the pages take a second from one of their 64 queues, into which the "
        "system sorts them by source address. Fewer on a slow machine (`luxrelay_cost_pace`).",
    ),
    Key(
        "http",
        "clients_max",
        16,
        "connections",
        whole(2, 1_024),
        "Connections to these pages at once; for a further one the oldest without a whole request "
        "makes room, of the address that has most.",
    ),
    Key(
        "http",
        "timeout_ms",
        5_000,
        "ms",
        whole(100, 600_000),
        "For a whole request to these pages, and for reading each 64 KiB of the answer.",
    ),
    Key(
        "http",
        "stranger_ms_per_s",
        40,
        "ms/s",
        whole(0, 100_000),
        "CPU time that one address may cost a second at these pages (IPv6: a /64); a /16 four and "
        "all of them ten times as much. Who owes waits up to 2 s, then 429. The addresses in "
        "sync.known_hosts have sync.known_ms_per_s. 0 for no limit.",
    ),
    Key(
        "http",
        "stranger_burst_ms",
        300,
        "ms",
        whole(1, 3_600_000),
        "CPU time that such an address may cost at once after it was quiet.",
    ),
    *GUARD_KEYS,
    *GATEWAY_KEYS,
    *CHANNEL_KEYS,
    Key(
        "namespace",
        "content_topic",
        "",
        "",
        text(0, 1024),
        "Content topic whose namespace this node carries (J6).",
    ),
    Key(
        "namespace",
        "id",
        "",
        "hex",
        match(r"|(0x)?[0-9a-fA-F]{40}", "40 hex digits"),
        "Namespace id, where it does not come from a content topic.",
    ),
    Key(
        "namespace",
        "policy_hash",
        "",
        "hex",
        match(r"|(0x)?[0-9a-fA-F]{64}", "64 hex digits"),
        "Hash of the policy in force; the default open policy of the namespace when absent.",
    ),
    Key(
        "namespace",
        "policy_file",
        "",
        "path",
        text(0, 4096),
        "File of signed policy documents; with it the node also checks writers, signature schemes "
        "and sidecars. A relative path starts at the file's folder.",
    ),
    Key(
        "namespace",
        "quota_bytes",
        0,
        "bytes",
        whole(0, 2**50),
        "Most bytes of this namespace with its lanes; 0 for namespace_quota_bytes of [store] (P1).",
    ),
    Key(
        "namespace",
        "headers_only",
        False,
        "",
        boolean,
        "Whether its headers come from headers/global and its own topic is not followed: for "
        "validators and indexers (LP-6420 §2.2, G25). A payload is fetched when a reader asks.",
    ),
    Key(
        "namespace",
        "thin_ratio",
        0,
        "",
        whole(0, 1_000_000),
        "Of messages older than five minutes only every Nth stays, 2 or more; 0 keeps all. A "
        "policy file has to say Ephemeral (J3).",
    ),
)
"""Every key, in the order of the documentation."""
PROFILES: Final[dict[str, dict[tuple[str, str], Any]]] = {
    "relay": {},
    "store": {
        ("store", "ttl_ms"): 30 * _DAY_MS,
        ("store", "max_storage_bytes"): 64 * 1024 * _MIB,
        ("store", "expire_interval_ms"): 10 * _MINUTE_MS,
    },
    "light": {
        ("gossip", "role"): "light",
        ("gossip", "connections_max"): 12,
        ("gossip", "inline_blob_max"): 4 * 1024,
        ("store", "ttl_ms"): 2 * _MINUTE_MS,
        ("store", "max_storage_bytes"): 64 * _MIB,
        ("limits", "node_messages_per_s"): 2_000,
    },
    "messenger": {
        ("gossip", "connections_max"): 16,
        ("store", "ttl_ms"): _DAY_MS,
        ("store", "max_storage_bytes"): 1024 * _MIB,
        ("sync", "allow_publish"): True,
        ("limits", "node_messages_per_s"): 2_000,
    },
    "validator": {
        ("gossip", "role"): "validator",
        ("gossip", "connections_max"): 100,
        ("store", "ttl_ms"): 60 * _MINUTE_MS,
        ("store", "max_storage_bytes"): 8 * 1024 * _MIB,
    },
}
"""The defaults that a profile changes (LP-6490, J2); what the file says counts all the same."""
