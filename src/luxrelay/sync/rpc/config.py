"""Bounds of the sync server and client, each with its unit; free of gRPC, so they pickle cheaply.

Source: decisions P18, P22, P34, P37; architecture, rule 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from luxrelay.bus import constants as c
from luxrelay.errors import SyncArgumentError
from luxrelay.sync.fairness import FairnessConfig

DEFAULT_PORT: Final = 9641
"""TCP port of RelaySync when the configuration names none (P37)."""
PAGE_MESSAGES_DEFAULT: Final = 1_000
"""Messages of a page when the request says 0 (P18)."""
PAGE_MESSAGES_MAX: Final = 10_000
"""Messages of a page at most (P18)."""
PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of headers and blobs of a page at most (P18)."""
IDS_MAX: Final = 1_000
"""Message ids of one GetMessages call at most (P22)."""
LANES_MAX: Final = 256
"""Namespaces of one SyncNamespace call at most."""
WATERMARKS_MAX: Final = 1_000
"""Watermarks of one SetWatermarks call at most."""
RECEIPTS_MAX: Final = 1_000
"""Receipts of one GetReceipts call at most."""
QUOTAS_MAX: Final = 1_000
"""Quotas of one GetQuotas call at most."""
MESSAGE_BYTES_MAX: Final = c.MAX_HEADER_BYTES + c.MAX_BLOB_BYTES
"""The largest message there is: header and blob."""
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
"""What every gRPC library receives by default; no frame of ours is larger."""


CONNECT_S: Final = 5.0
"""Longest time that a client takes to set up a connection, seconds."""
KEEPALIVE_MS: Final = 20_000
"""How often either side of a connection asks whether the other is there, milliseconds."""
KEEPALIVE_TIMEOUT_MS: Final = 10_000
"""How long it waits for the answer, milliseconds."""


def require(name: str, value: float, low: float, high: float) -> None:
    """Return when ``low`` <= ``value`` <= ``high``.

    Raises:
        SyncArgumentError: the value is out of its bounds.

    """
    if not low <= value <= high:
        raise SyncArgumentError(
            f"{name} is {value}, outside {low} to {high}",
            where=name,
            hint=f"choose {low} to {high}",
        )


def require_id(name: str, value: object, length: int) -> None:
    """Return when ``value`` is ``length`` bytes.

    Raises:
        SyncArgumentError: it is not.

    """
    if not isinstance(value, bytes) or len(value) != length:
        raise SyncArgumentError(f"{name} must be {length} bytes", where=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncServerConfig:
    """How much a `RelaySyncServer` gives away, to how many at once."""

    host: str = "127.0.0.1"
    """Address the server listens on; IPv6 addresses in brackets."""
    port: int = DEFAULT_PORT
    """TCP port; 0 lets the system choose."""
    workers: int = 252
    """Threads that answer calls; `streams_max`, `publishers_max` and `subscribers_max`
    together stay below it."""
    calls_max: int = 256
    """Calls admitted at once, waiting ones included; further ones are refused as busy."""
    connections_max: int = 256
    """Connections at once. One /16 (IPv6: /32) has a quarter of them, a private one half; when
    there is no room, the oldest that has proven least gives its place to the newcomer."""
    entrance: bool = True
    """Whether connections come in through `Entrance`, which bounds those of one address; without
    it gRPC takes whoever comes."""
    address_connections_per_s: float = 10.0
    """Connections of one address (IPv6: /64) that are let in a second, further ones wait; 0 for
    no limit."""
    address_connections_burst: float = 40.0
    """Connections of one address that are let in at once after it was quiet."""
    accepts_per_s: float = 100.0
    """Connections taken a second from one of the port's queues, which are by source address."""
    connection_streams_max: int = 100
    """Concurrent calls on one connection (HTTP/2 setting)."""
    streams_max: int = 200
    """SyncNamespace, ListHeads and other reading streams at once, each with a thread; further ones
    are refused as busy. How they share the store is in `fairness`."""
    publishers_max: int = 8
    """Publish streams at once; further ones are refused as busy."""
    peer_publishers_max: int = 4
    """Publish streams of one peer at once; further ones are refused as busy."""
    subscribers_max: int = 32
    """Subscribe streams at once; further ones are refused as busy. Each holds a thread."""
    peer_subscribers_max: int = 8
    """Subscribe streams of one peer at once; further ones are refused as busy."""
    request_wait_s: float = 10.0
    """Longest a call may wait for its one request, seconds; then it is cancelled."""
    address_waiting_max: int = 64
    """Calls of one address (IPv6: /64) that wait for their request at once; with a further one the
    oldest is cancelled. Half of `workers` is the bound of all addresses together: above it the
    oldest of the address that has most is cancelled."""
    looks_max: int = 8
    """Reflection and health-watching streams at once; further ones are refused as busy. Each holds
    a thread; at most those that `workers` has beside the other streams, and one."""
    address_looks_max: int = 2
    """Such streams of one address at once."""
    look_s: float = 20.0
    """Longest life of such a stream, seconds; who watches on asks again."""
    idle_ms: int = 60_000
    """A connection without a call is closed after this long, milliseconds."""
    subscription_namespaces_max: int = 4_096
    """Namespaces that one Subscribe names at most."""
    stream_s: float = 120.0
    """Longest life of a SyncNamespace or ListHeads stream, seconds; a reader that stalls loses
    it and comes back with its cursor."""
    publisher_s: float = 120.0
    """Longest a Publish stream may be open without a request, seconds; an idle one would keep
    the others out."""
    publisher_silent_s: float = 1.0
    """Seconds without a request after which a Publish stream gives its place to one that comes
    when all are taken."""
    fairness: FairnessConfig = field(default_factory=FairnessConfig)
    """How clients share turns, bytes and calls (P33, P34)."""
    limit_local: bool = False
    """Whether the rates of a peer hold for programs of this machine as well; the rates of all
    together always do."""
    keepalive_ms: int = KEEPALIVE_MS
    """How often a silent connection with open calls is asked whether the other side is there,
    milliseconds."""
    keepalive_timeout_ms: int = KEEPALIVE_TIMEOUT_MS
    """How long the answer may take before the connection counts as dead, milliseconds."""
    validator_keys: frozenset[bytes] = frozenset()
    """Key fields of validators: a TLS key that one of them vouches for is a validator's (P33)."""
    validators: frozenset[str] = frozenset()
    """SHA-256 fingerprints of the public keys of validators, hex; proven by a client certificate
    alone (P33)."""
    deadline_margin_s: float = 0.2
    """A page ends early, with a cursor, when less than this is left of the client's deadline."""
    page_messages_max: int = PAGE_MESSAGES_MAX
    """Messages of a page at most; requests for more get this many."""
    page_bytes_max: int = PAGE_BYTES_MAX
    """Bytes of a page at most; one message beyond when the first is larger."""
    read_messages: int = 512
    """Rows taken from the store at a time; with `read_bytes` what one stream holds in memory."""
    read_bytes: int = 1024 * 1024
    """Bytes taken from the store at a time; one message beyond when it is larger."""
    frame_messages_max: int = 1_024
    """Messages grouped in one frame at most, whatever the client asks."""
    frame_bytes: int = 512 * 1024
    """A frame is closed when another message would carry it past this many bytes."""
    gaps_max: int = 1_000
    """Gaps named in one status; a page ends before it would have to name more."""
    ids_max: int = IDS_MAX
    """Message ids in one GetMessages call."""
    ids_read: int = 16
    """Ids looked up at a time, so that an answer of large blobs is not held twice."""
    reconciles_max: int = 4
    """Reconciliations at once; each holds 40 bytes for each message compared."""
    reconcile_ranges_max: int = 4_096
    """Ranges of one reconciliation message that are looked at; the rest is answered with one
    fingerprint, so that whoever sent more goes on in the next message."""
    intervals_max: int = 1_000
    """Intervals named for one namespace in ListHeld; more are cut off and said to be."""
    digest_blocks_max: int = 64
    """Blocks of 256 sequences in one GetDigests call; each is read to be hashed."""
    lanes_max: int = LANES_MAX
    """Namespaces of one SyncNamespace call."""
    watermarks_max: int = WATERMARKS_MAX
    """Watermarks of one SetWatermarks call."""
    heads_read: int = 1_000
    """Heads taken from the store at a time."""
    request_bytes_max: int = FRAME_BYTES_MAX
    """Largest request message accepted, bytes."""
    publish_items_max: int = 1_000
    """Items of one PublishRequest at most."""
    window_ms: int = 600_000
    """Time to live of the store behind, milliseconds; heads say where the window begins."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work, alone or together."""
        require("port", self.port, 0, 65_535)
        require("workers", self.workers, 2, 1_024)
        require("calls_max", self.calls_max, 1, 65_536)
        require("connections_max", self.connections_max, 1, 65_536)
        require("address_connections_per_s", self.address_connections_per_s, 0, 1_000_000)
        require("address_connections_burst", self.address_connections_burst, 1, 1_000_000)
        require("accepts_per_s", self.accepts_per_s, 1, 1_000_000)
        require("connection_streams_max", self.connection_streams_max, 1, 65_536)
        require("streams_max", self.streams_max, 1, self.workers - 1)
        require("publishers_max", self.publishers_max, 0, self.workers - 1 - self.streams_max)
        left = self.workers - 1 - self.streams_max - self.publishers_max
        require("subscribers_max", self.subscribers_max, 0, left)
        require("looks_max", self.looks_max, 1, 1_024)
        require("address_looks_max", self.address_looks_max, 1, 65_536)
        require("look_s", self.look_s, 0.01, 86_400)
        require("request_wait_s", self.request_wait_s, 0.01, 3_600)
        require("address_waiting_max", self.address_waiting_max, 1, 65_536)
        require("idle_ms", self.idle_ms, 100, 3_600_000)
        require("subscription_namespaces_max", self.subscription_namespaces_max, 1, 65_536)
        require("peer_publishers_max", self.peer_publishers_max, 1, 65_536)
        require("peer_subscribers_max", self.peer_subscribers_max, 1, 65_536)
        require("stream_s", self.stream_s, 0.01, 86_400)
        require("publisher_s", self.publisher_s, 0.01, 86_400)
        require("publisher_silent_s", self.publisher_silent_s, 0.01, 86_400)
        require("keepalive_ms", self.keepalive_ms, 10, 3_600_000)
        require("keepalive_timeout_ms", self.keepalive_timeout_ms, 10, 3_600_000)
        require("deadline_margin_s", self.deadline_margin_s, 0, 60)
        require("page_messages_max", self.page_messages_max, 1, PAGE_MESSAGES_MAX)
        require("page_bytes_max", self.page_bytes_max, 1, PAGE_BYTES_MAX)
        require("read_messages", self.read_messages, 1, PAGE_MESSAGES_MAX)
        require("read_bytes", self.read_bytes, 1, PAGE_BYTES_MAX)
        require("frame_messages_max", self.frame_messages_max, 1, PAGE_MESSAGES_MAX)
        require("frame_bytes", self.frame_bytes, 1, FRAME_BYTES_MAX - MESSAGE_BYTES_MAX)
        require("gaps_max", self.gaps_max, 1, PAGE_MESSAGES_MAX)
        require("ids_max", self.ids_max, 1, IDS_MAX)
        require("ids_read", self.ids_read, 1, IDS_MAX)
        require("reconciles_max", self.reconciles_max, 1, 256)
        require("reconcile_ranges_max", self.reconcile_ranges_max, 1, 65_536)
        require("intervals_max", self.intervals_max, 1, 10_000)
        require("digest_blocks_max", self.digest_blocks_max, 1, 4_096)
        require("lanes_max", self.lanes_max, 1, LANES_MAX)
        require("watermarks_max", self.watermarks_max, 1, WATERMARKS_MAX)
        require("heads_read", self.heads_read, 1, 10_000)
        require("request_bytes_max", self.request_bytes_max, 64 * 1024, 64 * 1024 * 1024)
        require("publish_items_max", self.publish_items_max, 1, 10_000)
        require("window_ms", self.window_ms, 0, 2**48)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncClientConfig:
    """How long a `RelaySyncClient` waits and how much it takes from a relay."""

    call_s: float = 10.0
    """Deadline of GetMessages, GetNamespaceHead and one ListHeads page, seconds."""
    page_s: float = 30.0
    """Deadline of one SyncNamespace page, seconds; in a catch-up the longest time without a frame
    of it, beside its own."""
    transfer_s: float = 110.0
    """Longest time of a page that keeps bringing frames, seconds; what came by then is kept. Below
    the 120 after which a relay ends its streams."""
    reconcile_s: float = 60.0
    """Longest silence in one reconciliation, seconds; `transfer_s` bounds the whole."""
    publish_s: float = 60.0
    """Deadline of `publish` for each request it takes, seconds."""
    grace_s: float = 60.0
    """What is asked in many calls has so many seconds, and more for what it brings."""
    busy_wait_s: float = 5.0
    """How long after its first refusal a call still asks a busy relay that says when, seconds;
    when that is later, the refusal is raised. 0 raises the first one."""
    rows_per_s: float = 20.0
    """Rows, or half KiB of messages, that pay for one further second."""
    silence_s: float = 45.0
    """Longest time between two frames of a subscription, seconds; a relay that has nothing to tell
    sends an empty one every 10 s."""
    connect_s: float = CONNECT_S
    """Longest time to set up a connection, seconds; a call's own deadline holds as well."""
    reconnect_s: float = 2.0
    """Longest pause before a lost connection is dialled again, seconds."""
    keepalive_ms: int = KEEPALIVE_MS
    """How often a silent connection with open calls is asked whether the other side is there,
    milliseconds."""
    keepalive_timeout_ms: int = KEEPALIVE_TIMEOUT_MS
    """How long the answer may take before the connection counts as dead, milliseconds."""
    frame_messages: int = 1_024
    """Messages asked for in one frame, which the relay bounds in bytes as well; 1 for a relay that
    knows the plain protocol only."""
    frame_bytes_max: int = FRAME_BYTES_MAX
    """Largest frame accepted, bytes."""
    heads_page: int = 1_000
    """Heads asked for in one ListHeads call."""
    heads_max: int = 1_000_000
    """Heads taken from one relay in one listing; more is an error."""
    gaps_max: int = PAGE_MESSAGES_MAX
    """Gaps accepted in one status; more is an error."""
    publish_items: int = 256
    """Items sent in one PublishRequest."""
    publish_bytes: int = 1024 * 1024
    """A PublishRequest is closed when another item would carry it past this many bytes."""

    @classmethod
    def waiting(cls, timeout_s: float | None) -> SyncClientConfig:
        """Return the configuration whose calls have so many seconds each; None for the defaults.

        Raises:
            SyncArgumentError: the number is out of range.

        """
        if timeout_s is None:
            return cls()
        return cls(
            call_s=timeout_s,
            page_s=timeout_s,
            reconcile_s=timeout_s,
            publish_s=timeout_s,
            grace_s=timeout_s,
            busy_wait_s=min(cls().busy_wait_s, timeout_s),
            connect_s=max(0.1, min(CONNECT_S, timeout_s)),
        )

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        require("call_s", self.call_s, 0.001, 3_600)
        require("page_s", self.page_s, 0.001, 3_600)
        require("transfer_s", self.transfer_s, 0.001, 3_600)
        require("reconcile_s", self.reconcile_s, 0.001, 3_600)
        require("publish_s", self.publish_s, 0.001, 86_400)
        require("grace_s", self.grace_s, 0.01, 3_600)
        require("busy_wait_s", self.busy_wait_s, 0, 3_600)
        require("rows_per_s", self.rows_per_s, 0.01, 1_000_000)
        require("silence_s", self.silence_s, 0.01, 3_600)
        require("connect_s", self.connect_s, 0.1, 600)
        require("reconnect_s", self.reconnect_s, 0.1, 600)
        require("keepalive_ms", self.keepalive_ms, 10, 3_600_000)
        require("keepalive_timeout_ms", self.keepalive_timeout_ms, 10, 3_600_000)
        require("frame_messages", self.frame_messages, 1, PAGE_MESSAGES_MAX)
        require("frame_bytes_max", self.frame_bytes_max, 64 * 1024, 64 * 1024 * 1024)
        require("heads_page", self.heads_page, 1, 10_000)
        require("heads_max", self.heads_max, 1, 10_000_000)
        require("gaps_max", self.gaps_max, 1, PAGE_MESSAGES_MAX)
        require("publish_items", self.publish_items, 1, 1_000)
        require("publish_bytes", self.publish_bytes, 1, FRAME_BYTES_MAX - MESSAGE_BYTES_MAX)
