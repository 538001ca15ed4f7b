"""The TOML file of a node, read and checked against `luxrelay.node.settings`.

A wrong value is answered with the file and line, what was expected, and nothing is
started.

The TLS files of a node's listeners and of its calls to peers, read as they are when it starts.

Source: LP-6490; docs/how-to/secure.md; decision J10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from luxrelay.bus import NamespaceId, VerifyKey, topic_namespace
from luxrelay.bus.limits import LimitConfig
from luxrelay.bus.policy import default_policy
from luxrelay.errors import (
    AddressError,
    ConfigError,
    GossipArgumentError,
    KeyFileError,
    KeyFormatError,
)
from luxrelay.files import read_bounded
from luxrelay.gossip import TopicKind, global_topic
from luxrelay.node.channel_keys import ChannelSection, channel_section_of
from luxrelay.node.document import Document
from luxrelay.node.gateway.config import GatewayConfig
from luxrelay.node.listeners import sharing_a_port
from luxrelay.node.peering import (
    Peering,
    gossip_params_of,
    net_config_of,
    peering_of,
    score_params_of,
)
from luxrelay.node.rates import rate_of
from luxrelay.node.store_keys import StoreLimits, store_limits_of
from luxrelay.node.subscription_config import Following, following_of, global_topics_of
from luxrelay.wire import from_hex

NAMESPACES_MAX: Final = 1024
"""Most [[namespace]] tables in one file."""
SECTIONS: Final = (
    "node", "gossip", "store", "sync", "http", "limits", "fees", "finality", "validators",
    "gateway", "channel",
)  # fmt: skip
"""The sections that stand once."""
_PLAIN: Final = ("connections_max", "inline_blob_max", "inbox_max", "heartbeat_ms")
"""Keys of ``[gossip]`` that are fields as they are."""
FILE_BYTES_MAX: Final = 4 * 1024 * 1024
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
    quota_bytes: int = field(default=0, compare=False)
    """Bytes of the namespace with its lanes; 0 for the quota that all others have."""
    thin_ratio: int = field(default=0, compare=False)
    """Of older messages every Nth stays; 0 for all (J3)."""
    headers_only: bool = field(default=False, compare=False)
    """Its headers come from ``headers/global``; its own topic is not followed (G25)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncLimits:
    """Rates and certificates of the sync port; ``KEYS`` documents each value."""

    tls_certificate: Path | None
    tls_key: Path | None
    tls_client_ca: Path | None
    tls_peer_ca: Path | None
    validators: frozenset[str]
    validator_keys: frozenset[bytes]
    validator_proof: bytes
    validator_weight: int
    known_hosts: tuple[str, ...]
    out_bytes_per_s: int
    in_bytes_per_s: int
    peer_bytes_per_s: int
    peer_requests_per_s: int
    peer_streams_max: int
    exempt_loopback: bool
    reconcile_ranges_max: int
    connections_max: int
    address_connections_per_s: int
    address_connections_burst: int
    accepts_per_s: int
    publishers_max: int
    peer_publishers_max: int
    publisher_silent_ms: int
    subscribers_max: int
    peer_subscribers_max: int
    stranger_ms_per_s: int
    stranger_burst_ms: int
    known_ms_per_s: int
    postponed_max: int
    reconcile_interval_ms: int
    stall_ms: int
    reconcile_stream: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """A checked configuration; ``KEYS`` documents each value."""

    name: str
    profile: str
    network: str
    signing: str
    unsigned_sidecars: bool
    data_dir: Path
    log_level: str
    log_levels: Mapping[str, str]
    restart_modules: bool
    stop_grace_ms: int
    traces: str
    gossip_listen: tuple[str, ...]
    gossip_peers: tuple[str, ...]
    connections_max: int
    inline_blob_max: int
    inbox_max: int
    heartbeat_ms: int
    peering: Peering
    following: Following
    ttl_ms: int
    max_storage_bytes: int
    durability: str
    when_full: str
    namespace_quota_bytes: int
    expire_interval_ms: int
    store_limits: StoreLimits
    sync_listen: str
    sync_peers: tuple[str, ...]
    sync_interval_ms: int
    allow_publish: bool
    allow_handoff: bool
    sync_limits: SyncLimits
    http_listen: str
    http_hosts: tuple[str, ...]
    http_accepts_per_s: int
    http_clients_max: int
    http_timeout_ms: int
    http_stranger_ms_per_s: int
    http_stranger_burst_ms: int
    limits: LimitConfig
    prepaid_issuers: tuple[bytes, ...]
    free_tier: bool
    finality_file: Path | None
    finality_signers: tuple[bytes, ...]
    finality_refresh_ms: int
    gateway: GatewayConfig
    channel: ChannelSection
    namespaces: tuple[NamespaceEntry, ...]


def load_config(path: Path, environ: Mapping[str, str] | None = None) -> NodeConfig:
    """Return the checked configuration of a TOML file.

    Args:
        path: The file.
        environ: Variables that override it; see `luxrelay.node.document`.

    Raises:
        ConfigError: the file cannot be read or a value does not fit; says file and line.

    """
    return parse_config(_text_of(path), source=str(path), base=path.parent, environ=environ)


def problems_of(path: Path, environ: Mapping[str, str] | None = None) -> list[ConfigError]:
    """Return every mistake in a TOML file, in the order of their finding; none when it is right."""
    try:
        document = Document(_text_of(path), str(path), environ)
        config = _config_of(document, path.parent)
        _tuned(config, document)
    except ConfigError as error:
        return [error]
    return document.problems or [
        *_of_addresses(config, str(path)),
        *_of_certificates(config),
        *_of_channels(config, document),
    ]


def _of_addresses(config: NodeConfig, where: str) -> list[ConfigError]:
    """Return what the parts that use the addresses say of them: check answers as run does."""
    from luxrelay.net import addresses as parse  # noqa: PLC0415 - loads libp2p

    found = []
    for texts, parser in (
        (config.gossip_listen, parse.parse_listen_address),
        (config.gossip_peers, parse.parse_peer_address),
        (config.peering.bootstrap, parse.parse_peer_address),
        (config.peering.announce, parse.parse_address),
    ):
        for text in texts:
            try:
                parser(text)
            except AddressError as error:
                found.append(ConfigError(str(error), where=where, hint=error.hint))
    return found


def _of_certificates(config: NodeConfig) -> list[ConfigError]:
    """Return what the listeners say of the TLS files that they would begin with."""
    from luxrelay.node.certificates import certificate_problems  # noqa: PLC0415 - loads gRPC

    return certificate_problems(config)


def _of_channels(config: NodeConfig, lines: Document) -> list[ConfigError]:
    """Return what is wrong with the shared key of channels."""
    from luxrelay.node.keyfile import read_shared_key  # noqa: PLC0415 - only where there is one

    path = config.channel.encryption_key_file
    try:
        if path is not None:
            read_shared_key(path)
    except KeyFileError as error:
        where = lines.where("channel", "encryption_key_file")
        return [ConfigError(str(error), where=where, hint=error.hint)]
    return []


def parse_config(
    text: str, *, source: str, base: Path, environ: Mapping[str, str] | None = None
) -> NodeConfig:
    """Return the checked configuration of a TOML text.

    Args:
        text: The TOML text.
        source: Name of the file, for messages.
        base: Folder that relative paths start at.
        environ: Variables that override the text.

    Raises:
        ConfigError: with ``source:line`` where a line can be named.

    """
    document = Document(text, source, environ)
    config = _config_of(document, base)
    _tuned(config, document)
    _heard(config, document)
    document.settle()
    return config


def _tuned(config: NodeConfig, lines: Document) -> None:
    """Report numbers of the router and of the gossip port that do not fit together (20-13)."""
    if not lines.problems:
        try:
            net_config_of(config)
        except ConfigError as error:
            where = lines.where("gossip")
            lines.report(ConfigError(error.what, where=where, hint=error.hint))
    for name, made in (("mesh", gossip_params_of), ("scores", score_params_of)):
        try:
            made(config)
        except GossipArgumentError as error:
            where = lines.where("gossip", name)
            hint = "docs/reference/config.md names them"
            lines.report(ConfigError(error.what, where=where, hint=hint))


def _heard(config: NodeConfig, lines: Document) -> None:
    """Report a namespace of which nothing would be heard (G25)."""
    heard = global_topic(config.network, TopicKind.HEADERS_GLOBAL) in global_topics_of(config)
    if any(entry.headers_only for entry in config.namespaces) and not heard:
        lines.report(
            ConfigError(
                "headers_only is for nodes that follow headers/global",
                where=lines.where("gossip", "role"),
                hint="give gossip.role or gossip.global_topics, or follow the namespace's topic",
            )
        )


def _text_of(path: Path) -> str:
    try:
        return read_bounded(path, FILE_BYTES_MAX).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration: {error.strerror}",
            where=str(path),
            hint="give the path of an existing TOML file; a pipe or a device will not do: the file "
            "is read again at SIGHUP, and paths in it begin at its folder",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError("the file is not UTF-8", where=str(path)) from error


_NODE_AS_IT_IS: Final = ("signing", "unsigned_sidecars", "restart_modules", "stop_grace_ms")
"""Keys of ``[node]`` that stand in a `NodeConfig` as in the file."""


def _config_of(lines: Document, base: Path) -> NodeConfig:
    """Return the configuration; what does not fit is among the document's problems."""
    values = {section: lines.section(section) for section in SECTIONS}
    node, gossip, store, sync = (values[s] for s in ("node", "gossip", "store", "sync"))
    _no_port_twice(values, lines)
    finality = values["finality"]
    validators = _key_fields(values["validators"]["keys"], lines, "validators")
    signers = _signers(finality, lines, validators)
    if len(gossip["peers"]) >= gossip["connections_max"]:
        lines.report(
            ConfigError(
                f"{len(gossip['peers'])} peers leave no connection to others",
                where=lines.where("gossip", "peers"),
                hint="raise connections_max above the number of peers",
            )
        )
    return NodeConfig(
        name=node["name"],
        profile=node["profile"],
        network=node["network"],
        data_dir=base / node["data_dir"],
        log_level=node["log_level"],
        log_levels=dict(entry.split("=") for entry in node["log_levels"]),
        **{name: node[name] for name in _NODE_AS_IT_IS},
        traces=node["traces"],
        gossip_listen=tuple(gossip["listen"]),
        gossip_peers=tuple(gossip["peers"]),
        **{name: gossip[name] for name in _PLAIN},
        peering=peering_of(gossip, base, validators),
        following=following_of(gossip),
        ttl_ms=store["ttl_ms"],
        max_storage_bytes=store["max_storage_bytes"],
        durability=store["durability"],
        when_full=store["when_full"],
        namespace_quota_bytes=store["namespace_quota_bytes"],
        expire_interval_ms=store["expire_interval_ms"],
        store_limits=store_limits_of(store),
        sync_listen=sync["listen"],
        sync_peers=tuple(sync["peers"]),
        sync_interval_ms=sync["interval_ms"],
        allow_publish=sync["allow_publish"],
        allow_handoff=sync["allow_handoff"],
        sync_limits=_sync_limits(sync, base, lines, validators),
        **{f"http_{name}": value for name, value in values["http"].items()},
        limits=_limits(values["limits"]),
        prepaid_issuers=_key_fields(values["fees"]["prepaid_issuers"], lines, "fees"),
        free_tier=values["fees"]["free_tier"],
        finality_file=base / finality["file"] if finality["file"] else None,
        finality_signers=signers,
        finality_refresh_ms=finality["refresh_ms"],
        gateway=_gateway(values["gateway"], lines, base),
        channel=channel_section_of(values["channel"], base),
        namespaces=_namespaces(lines, base),
    )


def _signers(
    finality: Mapping[str, Any], lines: Document, validators: tuple[bytes, ...]
) -> tuple[bytes, ...]:
    """Return whose statements count: those that the section names, else the validators."""
    signers = _key_fields(finality["signers"], lines, "finality")
    if finality["file"]:
        signers = signers or validators
    if bool(finality["file"]) != bool(signers):
        lines.report(
            ConfigError(
                "finality needs both a file and its signers",
                where=lines.where("finality"),
                hint="give both or neither; [validators] keys are signers as well",
            )
        )
    return signers


def _no_port_twice(values: Mapping[str, Mapping[str, Any]], lines: Document) -> None:
    keys = [("sync", "listen"), ("http", "listen")]
    if values["gateway"]["listen"]:
        names = ("listen", "admin_listen", "grpc_listen", "grpc_admin_listen")
        keys += [("gateway", name) for name in names]
    listeners = [("gossip", "listen", each) for each in values["gossip"]["listen"]]
    listeners += [(section, name, values[section][name]) for section, name in keys]
    for (section, name, address), (other_section, other_name, _) in sharing_a_port(listeners):
        lines.report(
            ConfigError(
                f"{address} is where [{other_section}] {other_name} listens",
                where=lines.where(section, name),
                hint="give each listener a port of its own",
            )
        )


def _limits(values: Mapping[str, int]) -> LimitConfig:
    return LimitConfig(
        peer=rate_of(values["peer_messages_per_s"]),
        everything=rate_of(values["node_messages_per_s"]),
        namespace=rate_of(values["namespace_messages_per_s"]),
        sender=rate_of(values["sender_messages_per_s"]),
        burst_factor=values["burst_s"],
    )


def _key_fields(texts: Sequence[str], lines: Document, section: str) -> tuple[bytes, ...]:
    fields = []
    for text in texts:
        try:
            field = from_hex(text)
            VerifyKey.from_field(field)
        except (ValueError, KeyFormatError):
            problem = f"{text[:24]}… is no public key field"
            hint = "`luxrelay keys show` prints one"
            lines.report(ConfigError(problem, where=lines.where(section), hint=hint))
        else:
            fields.append(field)
    return tuple(fields)


def _sync_limits(
    sync: Mapping[str, Any], base: Path, lines: Document, validators: Sequence[bytes]
) -> SyncLimits:
    def path(name: str) -> Path | None:
        return base / sync[name] if sync[name] else None

    certificate, key, client_ca = (path(n) for n in ("tls_certificate", "tls_key", "tls_client_ca"))
    if (certificate is None) != (key is None):
        lines.report(
            ConfigError(
                "a certificate and its key belong together",
                where=lines.where("sync", "tls_key" if sync["tls_key"] else "tls_certificate"),
                hint="give tls_certificate and tls_key, or neither",
            )
        )
    if client_ca is not None and certificate is None:
        lines.report(
            ConfigError(
                "clients cannot show a certificate to a port that speaks in the clear",
                where=lines.where("sync", "tls_client_ca"),
                hint="give tls_certificate and tls_key as well",
            )
        )
    if sync["validator_proof"] and not (certificate and sync["tls_peer_ca"]):
        lines.report(
            ConfigError(
                "a validator's proof is for the certificate that relays in peers are shown",
                where=lines.where("sync", "validator_proof"),
                hint="give tls_certificate, tls_key and tls_peer_ca as well",
            )
        )
    rates = (
        *("out_bytes_per_s", "in_bytes_per_s", "peer_bytes_per_s", "peer_requests_per_s"),
        *("peer_streams_max", "exempt_loopback", "reconcile_ranges_max"),
        *("connections_max", "address_connections_per_s", "address_connections_burst"),
        *("publishers_max", "peer_publishers_max", "publisher_silent_ms"),
        *("subscribers_max", "peer_subscribers_max"),
        *(
            "validator_weight",
            "accepts_per_s",
            "stranger_ms_per_s",
            "stranger_burst_ms",
            "known_ms_per_s",
        ),
    )
    return SyncLimits(
        tls_certificate=certificate,
        tls_key=key,
        tls_client_ca=client_ca,
        tls_peer_ca=path("tls_peer_ca"),
        validators=frozenset(sync["validators"]),
        validator_keys=frozenset(validators),
        validator_proof=from_hex(sync["validator_proof"]),
        known_hosts=tuple(sync["known_hosts"]),
        **{name: sync[name] for name in rates},
        postponed_max=sync["postponed_max"],
        reconcile_interval_ms=sync["reconcile_interval_ms"],
        stall_ms=sync["stall_ms"],
        reconcile_stream=sync["reconcile_stream"],
    )


def _gateway(values: dict[str, Any], lines: Document, base: Path) -> GatewayConfig:
    paths = {
        name: str(base / values[name]) if values[name] else ""
        for name in ("tls_certificate", "tls_key")
    }
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in (values | paths).items()
    }
    try:
        return GatewayConfig(**fields)
    except ConfigError as error:
        where = lines.where("gateway", error.where)
        lines.report(ConfigError(error.what, where=where, hint=error.hint))
        return GatewayConfig()


def _namespaces(lines: Document, base: Path) -> tuple[NamespaceEntry, ...]:
    entries: dict[NamespaceId, NamespaceEntry] = {}
    for index, values in enumerate(lines.tables("namespace", NAMESPACES_MAX)):
        where = lines.where("namespace", occurrence=index)
        try:
            entry = _namespace_entry(values, where, base)
        except ConfigError as error:
            lines.report(error)
            continue
        if entry.namespace_id in entries:
            problem = f"namespace {entry.namespace_id.hex()} is listed twice"
            lines.report(ConfigError(problem, where=where, hint="remove one of the tables"))
        entries[entry.namespace_id] = entry
    return tuple(entries.values())


def _namespace_entry(values: Mapping[str, Any], where: str, base: Path) -> NamespaceEntry:
    topic, text = values["content_topic"], values["id"]
    if bool(topic) == bool(text):
        raise ConfigError(
            "a namespace needs either content_topic or id", where=where, hint="give one of the two"
        )
    namespace = topic_namespace(topic) if topic else NamespaceId(from_hex(text))
    if not any(namespace):
        raise ConfigError("the all-zero namespace is invalid", where=where, hint="see S6")
    quota, ratio, only = values["quota_bytes"], values["thin_ratio"], values["headers_only"]
    if ratio == 1:
        raise ConfigError("thin_ratio is 1", where=where, hint="0 keeps all, 2 every second one")
    declared = values["policy_hash"]
    if values["policy_file"]:
        if declared:
            raise ConfigError(
                "policy_file and policy_hash are two ways to say one thing",
                where=where,
                hint="give one of the two",
            )
        file = base / values["policy_file"]
        return NamespaceEntry(namespace, b"", topic, file, quota, ratio, headers_only=only)
    policy = from_hex(declared) if declared else default_policy(namespace).policy_hash
    return NamespaceEntry(
        namespace, policy, topic, quota_bytes=quota, thin_ratio=ratio, headers_only=only
    )
