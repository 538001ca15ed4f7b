"""Every key of a node's file: its sentence, unit, default, and the check that says what fits.

``KEYS`` is the one place that knows the keys; parsing, messages and docs/reference/config.md are
made from it.

Source: decisions J10; LP-6490.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

Check = Callable[[Any], str | None]
"""Returns what was expected when the value does not fit, or None."""


def _text(minimum: int = 1, maximum: int = 4096) -> Check:
    def check(value: Any) -> str | None:
        fits = isinstance(value, str) and minimum <= len(value) <= maximum and "\0" not in value
        return None if fits else f"text of {minimum} to {maximum} characters, none of them NUL"

    return check


def _match(pattern: str, words: str) -> Check:
    compiled = re.compile(pattern)

    def check(value: Any) -> str | None:
        return None if isinstance(value, str) and compiled.fullmatch(value) else words

    return check


def _whole(minimum: int, maximum: int) -> Check:
    def check(value: Any) -> str | None:
        fits = isinstance(value, int) and not isinstance(value, bool) and value in span
        return None if fits else f"a whole number from {minimum:,} to {maximum:,}"

    span = range(minimum, maximum + 1)
    return check


def _boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _one_of(*choices: str) -> Check:
    def check(value: Any) -> str | None:
        return None if value in choices else "one of " + ", ".join(repr(c) for c in choices)

    return check


def _list_of(inner: Check, maximum: int) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, list) or len(value) > maximum:
            return f"a list of at most {maximum} entries"
        for entry in value:
            expected = inner(entry)
            if expected is not None:
                return f"a list whose entries are {expected}"
        return None if len(set(value)) == len(value) else "a list that names each entry once"

    return check


def _multiaddress(pattern: str, ports: range, words: str) -> Check:
    """Check a multiaddress as far as it can be told without loading libp2p."""
    compiled = re.compile(pattern)

    def check(value: Any) -> str | None:
        found = compiled.fullmatch(value) if isinstance(value, str) else None
        if found is None or int(found["port"]) not in ports or not _host_fits(found):
            return words
        return None

    return check


def _host_fits(found: re.Match[str]) -> bool:
    try:
        match found["kind"]:
            case "ip4":
                IPv4Address(found["host"])
            case "ip6":
                IPv6Address(found["host"])
    except ValueError:
        return False
    return True


def _host_port(ports: range) -> Check:
    def check(value: Any) -> str | None:
        found = _HOST_PORT_TEXT.fullmatch(value) if isinstance(value, str) else None
        fits = found is not None and int(found["port"]) in ports
        return None if fits else "an address such as 127.0.0.1:9641"

    return check


_ANY_PORT: Final = range(65_536)
_HOST_PORT_TEXT: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_LISTEN_ADDRESS: Final = _multiaddress(
    r"/(?P<kind>ip4|ip6)/(?P<host>[^/]+)/tcp/(?P<port>[0-9]{1,5})",
    _ANY_PORT,
    "a multiaddress such as /ip4/127.0.0.1/tcp/9640",
)
_PEER_ADDRESS: Final = _multiaddress(
    r"/(?P<kind>ip4|ip6|dns4|dns6)/(?P<host>[^/]+)/tcp/(?P<port>[0-9]{1,5})"
    r"/p2p/[1-9A-HJ-NP-Za-km-z]{16,128}",
    _ANY_PORT[1:],
    "a multiaddress with the peer's id, such as /ip4/127.0.0.1/tcp/9640/p2p/12D3KooW…",
)
SYNC_PEERS_MAX: Final = 32
"""Most relays one catch-up may ask; each is a bit in the history of a hole."""
_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the file."""

    section: str
    name: str
    default: Any
    """None when the key must be given."""
    unit: str
    check: Check
    sentence: str


KEYS: Final = (
    Key(
        "node",
        "name",
        "relay",
        "",
        _match(r"[A-Za-z0-9._-]{1,64}", "1 to 64 of A-Z a-z 0-9 . _ -"),
        "Name of this node in logs and on its pages.",
    ),
    Key(
        "node",
        "network",
        "devnet",
        "",
        _match(r"[a-z0-9-]{1,32}", "1 to 32 of a-z 0-9 -"),
        "Network whose topics this node speaks; it stands in every topic name.",
    ),
    Key(
        "node",
        "signing",
        "literal",
        "",
        _one_of("literal", "bound"),
        "What senders sign: LP-6411's header hash, or in a closed network everything in the header "
        "and the network's name (H3). All nodes and senders of a network must agree.",
    ),
    Key(
        "node",
        "data_dir",
        None,
        "path",
        _text(),
        "Folder of the store and the identity key; made when missing. "
        "A relative path starts at the file's folder.",
    ),
    Key(
        "node",
        "log_level",
        "info",
        "",
        _one_of("debug", "info", "warning", "error"),
        "Least severe log line that is written.",
    ),
    Key(
        "gossip",
        "listen",
        ["/ip4/127.0.0.1/tcp/9640"],
        "multiaddress",
        _list_of(_LISTEN_ADDRESS, 8),
        "Where libp2p listens; port 0 takes a free one.",
    ),
    Key(
        "gossip",
        "peers",
        [],
        "multiaddress",
        _list_of(_PEER_ADDRESS, 64),
        "Peers kept connected; each address ends in /p2p/ and the peer id.",
    ),
    Key(
        "gossip",
        "connections_max",
        50,
        "connections",
        _whole(2, 1000),
        "Most connections at once, in and out; above the number of peers (LP-6420 §1.2).",
    ),
    Key(
        "gossip",
        "inline_blob_max",
        48 * 1024,
        "bytes",
        _whole(0, 60 * 1024),
        "Largest blob that travels inside its announcement (J7); 0 turns it off.",
    ),
    Key(
        "gossip",
        "inbox_max",
        8192,
        "messages",
        _whole(16, 1_000_000),
        "Messages waiting for validation; more are ignored without penalty.",
    ),
    Key(
        "gossip",
        "heartbeat_ms",
        700,
        "milliseconds",
        _whole(50, 60_000),
        "Period of mesh upkeep (LP-6420 §4.1).",
    ),
    Key(
        "store",
        "ttl_ms",
        10 * _MINUTE_MS,
        "milliseconds",
        _whole(1000, 365 * _DAY_MS),
        "Time to live of a message (LP-6421 §1.1, J2).",
    ),
    Key(
        "store",
        "max_storage_bytes",
        1024 * _MIB,
        "bytes",
        _whole(_MIB, 2**50),
        "Most bytes of messages kept (LP-6421 §1.1).",
    ),
    Key(
        "store",
        "durability",
        "fsync",
        "",
        _one_of("fsync", "group", "os"),
        "When a message counts as stored: after an fsync of its batch, after one that many "
        "batches share (every 50 ms), or when the system has it.",
    ),
    Key(
        "store",
        "when_full",
        "evict",
        "",
        _one_of("evict", "refuse"),
        "Whether a full quota or store forgets its oldest messages or ignores new ones (P2).",
    ),
    Key(
        "store",
        "namespace_quota_bytes",
        0,
        "bytes",
        _whole(0, 2**50),
        "Most bytes of one namespace with its lanes; 0 for a tenth of max_storage_bytes (P1).",
    ),
    Key(
        "store",
        "expire_interval_ms",
        _MINUTE_MS,
        "milliseconds",
        _whole(100, _DAY_MS),
        "Time between two deletions of expired messages.",
    ),
    Key(
        "sync",
        "listen",
        "127.0.0.1:9641",
        "host:port",
        _host_port(_ANY_PORT),
        "Where the RelaySync service listens; port 0 takes a free one (P37).",
    ),
    Key(
        "sync",
        "peers",
        [],
        "host:port",
        _list_of(_host_port(_ANY_PORT[1:]), SYNC_PEERS_MAX),
        "Relays whose history this node catches up from.",
    ),
    Key(
        "sync",
        "interval_ms",
        5000,
        "milliseconds",
        _whole(100, _DAY_MS),
        "Time between two looks at the peers' heads.",
    ),
    Key(
        "sync",
        "allow_publish",
        False,
        "",
        _boolean,
        "Whether the sync port also takes signed messages from applications.",
    ),
    Key(
        "sync",
        "allow_handoff",
        False,
        "",
        _boolean,
        "Whether the sync port takes an archive's watermarks: what it has not read is then "
        "kept beyond its time (J8).",
    ),
    Key(
        "sync",
        "tls_certificate",
        "",
        "path",
        _text(0, 4096),
        "Certificate chain of the sync port, PEM; without it the port speaks in the clear.",
    ),
    Key(
        "sync",
        "tls_key",
        "",
        "path",
        _text(0, 4096),
        "Private key of that certificate, PEM without a passphrase; sync peers are shown both.",
    ),
    Key(
        "sync",
        "tls_client_ca",
        "",
        "path",
        _text(0, 4096),
        "Authorities whose clients are let in (mutual TLS), PEM; without it everybody is.",
    ),
    Key(
        "sync",
        "tls_peer_ca",
        "",
        "path",
        _text(0, 4096),
        "Authorities of the relays in peers, PEM; with it they are dialled over TLS.",
    ),
    Key(
        "sync",
        "validators",
        [],
        "hex",
        _list_of(_match(r"[0-9a-f]{64}", "64 lower-case hex digits"), 1024),
        "SHA-256 fingerprints of validators' public keys; who proves one by client certificate "
        "gets four shares (LP-6421 §6.2, P33).",
    ),
    Key(
        "sync",
        "out_bytes_per_s",
        8 * _MIB,
        "bytes/s",
        _whole(0, 2**40),
        "Most bytes the sync port sends a second (LP-6421 §6.1, P34); 0 for no limit.",
    ),
    Key(
        "sync",
        "in_bytes_per_s",
        8 * _MIB,
        "bytes/s",
        _whole(0, 2**40),
        "Most bytes the sync port takes in a second; 0 for no limit.",
    ),
    Key(
        "sync",
        "peer_bytes_per_s",
        _MIB,
        "bytes/s",
        _whole(0, 2**40),
        "Most bytes a second to or from one peer that is not on this machine; 0 for no limit.",
    ),
    Key(
        "sync",
        "peer_requests_per_s",
        20,
        "calls/s",
        _whole(0, 1_000_000),
        "Most calls a second of one peer that is not on this machine; 0 for no limit.",
    ),
    Key(
        "sync",
        "peer_streams_max",
        4,
        "calls",
        _whole(1, 100),
        "Calls of one peer that are served at once; further ones wait.",
    ),
    Key(
        "http",
        "listen",
        "127.0.0.1:9642",
        "host:port",
        _host_port(_ANY_PORT),
        "Where /metrics, /healthz and /status answer; port 0 takes a free one.",
    ),
    Key(
        "limits",
        "peer_messages_per_s",
        1000,
        "messages/s",
        _whole(0, 10_000_000),
        "Live messages that one gossip peer may bring; 0 for no limit (LP-6422, G20).",
    ),
    Key(
        "limits",
        "node_messages_per_s",
        100_000,
        "messages/s",
        _whole(0, 10_000_000),
        "Live messages that this node takes from everybody together; 0 for no limit.",
    ),
    Key(
        "limits",
        "namespace_messages_per_s",
        100,
        "messages/s",
        _whole(0, 10_000_000),
        "Live messages of one namespace with its lanes, where no policy_file says it; 0 for no "
        "limit.",
    ),
    Key(
        "limits",
        "sender_messages_per_s",
        10,
        "messages/s",
        _whole(0, 10_000_000),
        "Live messages of one sender; a good reputation doubles it, a bad one halves it (S8); "
        "0 for no limit.",
    ),
    Key(
        "limits",
        "burst_s",
        3,
        "seconds",
        _whole(1, 3600),
        "How many seconds' worth may come at once (S1).",
    ),
    Key(
        "fees",
        "prepaid_issuers",
        [],
        "hex",
        _list_of(_match(r"(0x)?[0-9a-fA-F]{4,4000}", "a public key field in hex"), 64),
        "Public key fields whose prepaid quotas this node honours; what a message costs is then "
        "kept in the store (LP-6411 §2.9, S7).",
    ),
    Key(
        "fees",
        "free_tier",
        True,
        "",
        _boolean,
        "Whether messages without a fee proof are taken.",
    ),
    Key(
        "finality",
        "file",
        "",
        "path",
        _text(0, 4096),
        "File of signed finality statements, one in hex a line, read again when it changes; "
        "without one every message is pending (J9). A relative path starts at the file's folder.",
    ),
    Key(
        "finality",
        "signers",
        [],
        "hex",
        _list_of(_match(r"(0x)?[0-9a-fA-F]{4,4000}", "a public key field in hex"), 64),
        "Public key fields whose finality statements count.",
    ),
    Key(
        "namespace",
        "content_topic",
        "",
        "",
        _text(0, 1024),
        "Content topic whose namespace this node carries (J6).",
    ),
    Key(
        "namespace",
        "id",
        "",
        "hex",
        _match(r"|(0x)?[0-9a-fA-F]{40}", "40 hex digits"),
        "Namespace id, where it does not come from a content topic.",
    ),
    Key(
        "namespace",
        "policy_hash",
        "",
        "hex",
        _match(r"|(0x)?[0-9a-fA-F]{64}", "64 hex digits"),
        "Hash of the policy in force; the default open policy of the namespace when absent.",
    ),
    Key(
        "namespace",
        "policy_file",
        "",
        "path",
        _text(0, 4096),
        "File of signed policy documents; with it the node also checks writers, signature schemes "
        "and sidecars. A relative path starts at the file's folder.",
    ),
)
"""Every key, in the order of the documentation."""
