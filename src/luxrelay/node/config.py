"""The TOML file of a node: every key with its sentence, unit, default and bound.

``KEYS`` is the one place that knows the keys; parsing, messages and docs/reference/config.md are
made from it. A wrong value is answered with the file and line, what was expected, and nothing is
started.

Source: decisions J10; LP-6490.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, Final

from luxrelay.bus import NamespaceId, topic_namespace
from luxrelay.bus.policy import default_policy
from luxrelay.errors import ConfigError

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
        "http",
        "listen",
        "127.0.0.1:9642",
        "host:port",
        _host_port(_ANY_PORT),
        "Where /metrics, /healthz and /status answer; port 0 takes a free one.",
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

NAMESPACES_MAX: Final = 1024
"""Most [[namespace]] tables in one file."""
FILE_BYTES_MAX: Final = 4 * _MIB
"""Largest configuration file that is read."""


@dataclass(frozen=True, slots=True)
class NamespaceEntry:
    """A namespace this node carries."""

    namespace_id: NamespaceId
    """The parent namespace; its lanes are carried with it."""
    policy_hash: bytes
    """Hash of the policy in force, 32 bytes; empty when ``policy_file`` says it."""
    content_topic: str
    """The content topic it was derived from, or an empty text."""
    policy_file: Path | None = None
    """Signed policy documents, or None when only the hash is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """A checked configuration; ``KEYS`` documents each value."""

    name: str
    network: str
    data_dir: Path
    log_level: str
    gossip_listen: tuple[str, ...]
    gossip_peers: tuple[str, ...]
    connections_max: int
    inline_blob_max: int
    inbox_max: int
    heartbeat_ms: int
    ttl_ms: int
    max_storage_bytes: int
    durability: str
    when_full: str
    namespace_quota_bytes: int
    expire_interval_ms: int
    sync_listen: str
    sync_peers: tuple[str, ...]
    sync_interval_ms: int
    allow_publish: bool
    http_listen: str
    namespaces: tuple[NamespaceEntry, ...]


def load_config(path: Path) -> NodeConfig:
    """Return the checked configuration of a TOML file.

    Raises:
        ConfigError: the file cannot be read or a value does not fit; says file and line.

    """
    try:
        with path.open("rb") as file:  # a device has no size, so what is read is bounded
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"the file is larger than {FILE_BYTES_MAX} bytes", where=str(path))
        text = data.decode()
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration: {error.strerror}",
            where=str(path),
            hint="give the path of an existing TOML file",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError("the file is not UTF-8", where=str(path)) from error
    return parse_config(text, source=str(path), base=path.parent)


def parse_config(text: str, *, source: str, base: Path) -> NodeConfig:
    """Return the checked configuration of a TOML text.

    Args:
        text: The TOML text.
        source: Name of the file, for messages.
        base: Folder that relative paths start at.

    Raises:
        ConfigError: with ``source:line`` where a line can be named.

    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}", where=source) from error
    except RecursionError as error:
        raise ConfigError("not TOML of ours: nested too deeply", where=source) from error
    lines = _Lines(text, source)
    _refuse_unknown(document, lines)
    values = {
        section: _section_values(section, _table(document, section, lines), lines)
        for section in ("node", "gossip", "store", "sync", "http")
    }
    node, gossip, store, sync, http = (
        values[s] for s in ("node", "gossip", "store", "sync", "http")
    )
    if len(gossip["peers"]) >= gossip["connections_max"]:
        raise ConfigError(
            f"{len(gossip['peers'])} peers leave no connection to others",
            where=lines.where("gossip", "peers"),
            hint="raise connections_max above the number of peers",
        )
    return NodeConfig(
        name=node["name"],
        network=node["network"],
        data_dir=base / node["data_dir"],
        log_level=node["log_level"],
        gossip_listen=tuple(gossip["listen"]),
        gossip_peers=tuple(gossip["peers"]),
        connections_max=gossip["connections_max"],
        inline_blob_max=gossip["inline_blob_max"],
        inbox_max=gossip["inbox_max"],
        heartbeat_ms=gossip["heartbeat_ms"],
        ttl_ms=store["ttl_ms"],
        max_storage_bytes=store["max_storage_bytes"],
        durability=store["durability"],
        when_full=store["when_full"],
        namespace_quota_bytes=store["namespace_quota_bytes"],
        expire_interval_ms=store["expire_interval_ms"],
        sync_listen=sync["listen"],
        sync_peers=tuple(sync["peers"]),
        sync_interval_ms=sync["interval_ms"],
        allow_publish=sync["allow_publish"],
        http_listen=http["listen"],
        namespaces=_namespaces(document, lines, base),
    )


class _Lines:
    """Finds the line a key stands on, for messages."""

    def __init__(self, text: str, source: str) -> None:
        self._lines = text.splitlines()
        self._source = source

    def where(self, section: str, name: str = "", occurrence: int = 0) -> str:
        """Return ``source:line [section] name``; without the line where none is found."""
        current, seen = "", -1
        label = f"[{section}] {name}".rstrip()
        for number, line in enumerate(self._lines, start=1):
            header = re.match(r"\s*(\[+)\s*([A-Za-z0-9_.-]+)\s*\]+", line)
            if header is not None:
                current = header[2]
                if current == section:
                    seen += 1
                if current == section and not name and seen == occurrence:
                    return f"{self._source}:{number} {label}"
            elif current == section and seen == occurrence:
                key = re.match(r"\s*([A-Za-z0-9_-]+)\s*=", line)
                if key is not None and key[1] == name:
                    return f"{self._source}:{number} {label}"
        return f"{self._source} {label}"

    def top(self, name: str) -> str:
        """Return where a top-level name stands."""
        for number, line in enumerate(self._lines, start=1):
            if re.match(rf"\s*(\[+\s*)?{re.escape(name)}\b", line):
                return f"{self._source}:{number}"
        return self._source


def _refuse_unknown(document: Mapping[str, Any], lines: _Lines) -> None:
    sections = {key.section for key in KEYS}
    for name in document:
        if name not in sections:
            known = ", ".join(sorted(sections))
            raise ConfigError(
                f"unknown section {name!r}", where=lines.top(name), hint=f"known are: {known}"
            )


def _table(document: Mapping[str, Any], section: str, lines: _Lines) -> Mapping[str, Any]:
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(
            f"{section} must be a table", where=lines.top(section), hint=f"write [{section}]"
        )
    return table


def _section_values(
    section: str, table: Mapping[str, Any], lines: _Lines, occurrence: int = 0
) -> dict[str, Any]:
    keys = {key.name: key for key in KEYS if key.section == section}
    for name in table:
        if name not in keys:
            raise ConfigError(
                f"unknown key {name!r}",
                where=lines.where(section, name, occurrence),
                hint="known are: " + ", ".join(keys),
            )
    values = {}
    for name, key in keys.items():
        value = table.get(name, key.default)
        where = lines.where(section, name, occurrence)
        if value is None:
            raise ConfigError(f"{name} is missing", where=where, hint=key.sentence)
        expected = key.check(value)
        if expected is not None:
            raise ConfigError(
                f"{name} = {value!r} does not fit", where=where, hint=f"expected {expected}"
            )
        values[name] = value
    return values


def _namespaces(
    document: Mapping[str, Any], lines: _Lines, base: Path
) -> tuple[NamespaceEntry, ...]:
    tables = document.get("namespace", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise ConfigError(
            "namespace must be a list of tables",
            where=lines.top("namespace"),
            hint="write [[namespace]] once for each",
        )
    if len(tables) > NAMESPACES_MAX:
        raise ConfigError(f"more than {NAMESPACES_MAX} namespaces", where=lines.top("namespace"))
    entries: dict[NamespaceId, NamespaceEntry] = {}
    for index, table in enumerate(tables):
        values = _section_values("namespace", table, lines, index)
        entry = _namespace_entry(values, lines.where("namespace", occurrence=index), base)
        if entry.namespace_id in entries:
            raise ConfigError(
                f"namespace {entry.namespace_id.hex()} is listed twice",
                where=lines.where("namespace", occurrence=index),
                hint="remove one of the tables",
            )
        entries[entry.namespace_id] = entry
    return tuple(entries.values())


def _namespace_entry(values: Mapping[str, str], where: str, base: Path) -> NamespaceEntry:
    topic, text = values["content_topic"], values["id"].removeprefix("0x")
    if bool(topic) == bool(text):
        raise ConfigError(
            "a namespace needs either content_topic or id", where=where, hint="give one of the two"
        )
    namespace = topic_namespace(topic) if topic else NamespaceId(bytes.fromhex(text))
    if not any(namespace):
        raise ConfigError("the all-zero namespace is invalid", where=where, hint="see S6")
    declared = values["policy_hash"].removeprefix("0x")
    if values["policy_file"]:
        if declared:
            raise ConfigError(
                "policy_file and policy_hash are two ways to say one thing",
                where=where,
                hint="give one of the two",
            )
        return NamespaceEntry(namespace, b"", topic, base / values["policy_file"])
    policy = bytes.fromhex(declared) if declared else default_policy(namespace).policy_hash
    return NamespaceEntry(namespace, policy, topic)
