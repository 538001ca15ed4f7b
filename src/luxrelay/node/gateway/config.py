"""`GatewayConfig`: every bound and choice of the HTTP and WebSocket listeners.

Each field is a key of the file's ``[gateway]`` section; its check, unit and sentence stand beside
its default, and docs/reference/config.md is made from them.

Source: docs/reference/http.md; LP-6490; user-02, user-09, user-10.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from ipaddress import ip_network
from typing import Any, Final

from luxrelay.errors import ConfigError
from luxrelay.gate import is_loopback
from luxrelay.node.checks import Check, Key, boolean, list_of, match, one_of, text, whole

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
_ADDRESS: Final = match(
    r"|(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}"
    r"|655[0-2][0-9]|6553[0-5])",
    "an address such as 127.0.0.1:9643, or nothing",
)
_ORIGIN: Final = match(
    r"https?://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?", "an origin such as https://chat.example.org"
)
_NETWORK: Final = match(
    r"[0-9a-fA-F.:]{2,45}(/[0-9]{1,3})?", "an address or network such as 10.0.0.0/8"
)
HOST_NAME: Final = match(r"[A-Za-z0-9.-]{1,253}", "a host name such as relay.example.org")


def _key(default: Any, unit: str, check: Check, sentence: str) -> Any:
    return field(default=default, metadata={"unit": unit, "check": check, "sentence": sentence})


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The ``[gateway]`` section, checked.

    Raises:
        ConfigError: the fields contradict each other; ``where`` is the name of one.

    """

    listen: str = _key(
        "", "host:port", _ADDRESS, "Where the gateway and the dashboard answer; empty turns both "
        "off, port 0 takes a free one."
    )  # fmt: skip
    admin_listen: str = _key(
        "127.0.0.1:9644", "host:port", _ADDRESS, "Where admin calls answer, while the gateway is "
        "on; empty turns them off."
    )  # fmt: skip
    grpc_listen: str = _key(
        "", "host:port", _ADDRESS, "Where the gateway answers over gRPC, with the same tokens, "
        "while it is on; empty turns that off. 9645 is usual."
    )  # fmt: skip
    grpc_admin_listen: str = _key(
        "", "host:port", _ADDRESS, "Where admin calls answer over gRPC, while the gateway is on; "
        "empty turns that off. 9646 is usual."
    )  # fmt: skip
    archive: str = _key(
        "", "host:port", _ADDRESS, "Sync port of an archive (`luxrelay archive serve`) that is "
        "asked for messages and blobs this node has no more; empty for none. TLS as for "
        "sync.peers."
    )  # fmt: skip
    archive_calls_max: int = _key(
        4, "questions", whole(1, 8), "Questions to the archive at once, subscriptions apart."
    )  # fmt: skip
    archive_waiting_max: int = _key(
        12, "questions", whole(1, 12), "Questions that wait for it; others are refused."
    )  # fmt: skip
    archive_replays_max: int = _key(
        2, "questions", whole(1, 8), "Questions to the archive at once for subscriptions that "
        "begin with what this node has no more; further subscriptions wait."
    )  # fmt: skip
    anonymous: str = _key(
        "loopback", "", one_of("nobody", "loopback", "anybody"), "Who may read without a token: "
        "nobody, anybody, or whoever reaches a gateway that listens on loopback."
    )  # fmt: skip
    tls_certificate: str = _key(
        "", "path", text(0, 4096), "PEM file of the certificate chain; with it both listeners "
        "speak TLS only. A relative path starts at the file's folder."
    )  # fmt: skip
    tls_key: str = _key("", "path", text(0, 4096), "PEM file of its private key.")
    behind_proxy: bool = _key(
        False, "", boolean, "Whether a proxy in front ends TLS; without it and without a "
        "certificate the gateway listens on loopback only."
    )  # fmt: skip
    trusted_proxies: tuple[str, ...] = _key(
        (), "", list_of(_NETWORK, 64), "Addresses or networks of proxies in front, such as "
        "10.0.0.0/8: for their requests the client is the last hop of X-Forwarded-For or "
        "Forwarded that is none of them; where the two disagree, the proxy counts itself."
    )  # fmt: skip
    hosts: tuple[str, ...] = _key(
        (), "", list_of(HOST_NAME, 64), "Names under which the gateway may be reached, with "
        "or without a token, besides localhost, bare addresses and the name in listen; to a "
        "browser any other one is DNS rebinding."
    )  # fmt: skip
    cors_origins: tuple[str, ...] = _key(
        (), "", list_of(_ORIGIN, 64), "Web sites whose pages may call the gateway from a "
        "browser; requests of other pages are refused."
    )  # fmt: skip
    connections_max: int = _key(
        512, "connections", whole(1, 65_536), "Most connections of one listener; a further one "
        "takes the place of one that is idle or has no token, or is closed at once."
    )  # fmt: skip
    connections_per_address_max: int = _key(
        64, "connections", whole(1, 65_536), "Most connections of one client address (IPv6: /64); "
        "a further one takes the place of one of them in the same way."
    )  # fmt: skip
    accepts_per_s: int = _key(
        75,
        "connections/s",
        whole(1, 1_000_000),
        "Connections that a listener takes a second from one of its 64 queues, into which the "
        "system sorts them by source address: what a flood from one address costs. Fewer on a slow "
        "machine (`luxrelay_cost_pace`).",
    )
    newcomers_max: int = _key(
        128, "connections", whole(1, 65_536), "Most connections that have not sent the head of a "
        "request yet; one /16 (IPv6: /32) has a quarter of them, a private network half, and the "
        "oldest gives way."
    )  # fmt: skip
    first_byte_ms: int = _key(
        5_000, "milliseconds", whole(100, 600_000), "Time after which a new connection that has "
        "sent nothing is closed."
    )  # fmt: skip
    head_bytes_max: int = _key(
        16 * _KIB, "bytes", whole(_KIB, _MIB), "Largest request line with its headers."
    )  # fmt: skip
    body_bytes_max: int = _key(
        8 * _MIB, "bytes", whole(4 * _KIB, 64 * _MIB), "Largest body of a request, and largest "
        "WebSocket message from a client that may publish."
    )  # fmt: skip
    asking_bytes_max: int = _key(
        512 * _KIB, "bytes", whole(4 * _KIB, 64 * _MIB), "Largest WebSocket message from a client "
        "that may not publish."
    )  # fmt: skip
    bodies_bytes_max: int = _key(
        64 * _MIB, "bytes", whole(4 * _KIB, 4096 * _MIB), "Bytes of all bodies and WebSocket "
        "messages held at once, a quarter of them of clients without token; further ones are "
        "answered with 503, or close their WebSocket."
    )  # fmt: skip
    answers_bytes_max: int = _key(
        64 * _MIB, "bytes", whole(64 * _KIB, 4096 * _MIB), "Bytes of answers that wait to be taken "
        "by their clients, a quarter of them of clients without token; above it whoever has most "
        "of them loses its oldest. One answer always fits."
    )  # fmt: skip
    pages_max: int = _key(
        4, "pages", whole(1, 256), "Pages of messages that are read and put together at once; "
        "others wait their turn."
    )  # fmt: skip
    publish_items_max: int = _key(256, "messages", whole(1, 4096), "Messages in one publish call.")
    page_messages_max: int = _key(1000, "messages", whole(1, 10_000), "Messages in one answer.")
    page_bytes_max: int = _key(
        4 * _MIB, "bytes", whole(_KIB, 16 * _MIB), "Header and blob bytes in one answer; one "
        "message always fits."
    )  # fmt: skip
    heads_max: int = _key(1000, "namespaces", whole(1, 1000), "Namespaces in one answer.")
    request_ms: int = _key(
        10_000, "milliseconds", whole(100, 600_000), "Time a client has to send a request or a "
        "WebSocket message, and to shake hands for TLS."
    )  # fmt: skip
    idle_ms: int = _key(
        60_000, "milliseconds", whole(100, 3_600_000), "Time after which a connection that waits "
        "between two requests is closed."
    )  # fmt: skip
    stall_ms: int = _key(
        10_000, "milliseconds", whole(100, 600_000), "Time a client may take nothing of an answer "
        "before its connection is closed."
    )  # fmt: skip
    work_max: int = _key(
        32, "requests", whole(1, 1024), "Requests that read or write the store at once; others "
        "wait their turn."
    )  # fmt: skip
    work_waiting_max: int = _key(
        256, "requests", whole(1, 65_536), "Requests that wait for it; others get 503."
    )  # fmt: skip
    requests_per_s: int = _key(
        100, "requests/s", whole(1, 1_000_000), "Requests and WebSocket messages of one token, or "
        "of one address without one; three seconds' worth may come at once."
    )  # fmt: skip
    publish_bytes_per_s: int = _key(
        4 * _MIB, "bytes/s", whole(_KIB, 2**40), "Bytes published with one token; three seconds' "
        "worth may come at once."
    )  # fmt: skip
    rate_keys_max: int = _key(
        4096, "callers", whole(1, 1_000_000), "Callers whose rates are kept apart; newcomers "
        "beyond share buckets."
    )  # fmt: skip
    tokens_max: int = _key(1000, "tokens", whole(1, 100_000), "Tokens in the token file.")
    token_lock_ms: int = _key(
        5_000, "milliseconds", whole(1, 600_000), "How long a command that changes the token file "
        "waits for another one that does."
    )  # fmt: skip
    subscribers_max: int = _key(256, "connections", whole(1, 65_536), "WebSocket connections.")
    guest_ms: int = _key(
        10_000, "milliseconds", whole(100, 600_000), "Time after which a WebSocket without token "
        "that has not subscribed is closed; such ones hold a quarter of subscribers_max for one "
        "/16 (IPv6: /32), and give way to tokens."
    )  # fmt: skip
    subscription_namespaces_max: int = _key(
        64, "namespaces", whole(1, 4096), "Namespaces that one subscription names."
    )  # fmt: skip
    subscription_lanes_max: int = _key(
        4096, "namespaces", whole(1, 100_000), "Namespaces and lanes that one subscription "
        "follows; lanes beyond are told and not followed."
    )  # fmt: skip
    subscription_page: int = _key(
        256, "messages", whole(8, 4096), "Messages of one lane read for a subscriber at once."
    )  # fmt: skip
    gap_wait_ms: int = _key(
        3000, "milliseconds", whole(0, 600_000), "Time a subscription waits for a missing message "
        "before it tells the gap and goes on."
    )  # fmt: skip
    ping_ms: int = _key(
        20_000, "milliseconds", whole(100, 600_000), "Time between two pings; a subscriber that "
        "answers none for two of them is dropped."
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse what would be open, or closed, without anybody meaning it."""
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ConfigError(
                "tls_certificate and tls_key belong together",
                where="tls_certificate",
                hint="give both or neither",
            )
        for each in self.trusted_proxies:
            try:
                ip_network(each, strict=False)
            except ValueError as error:
                raise ConfigError(
                    f"{each!r} is no address and no network", where="trusted_proxies"
                ) from error
        for where in ("listen", "grpc_listen"):
            if self._open_air(where) and not self.behind_proxy:
                raise ConfigError(
                    "tokens would travel in the clear",
                    where=where,
                    hint="give a certificate, listen on 127.0.0.1, or say behind_proxy = true",
                )
        for where in ("admin_listen", "grpc_admin_listen"):
            if self._open_air(where):
                raise ConfigError(
                    "admin calls beyond this machine need TLS",
                    where=where,
                    hint="give a certificate or listen on 127.0.0.1",
                )
        for where in ("grpc_listen", "grpc_admin_listen"):
            if getattr(self, where) and not self.listen:
                raise ConfigError(
                    "nothing would answer there: the gateway is off",
                    where=where,
                    hint="give [gateway] listen as well",
                )

    def _open_air(self, name: str) -> bool:
        """Return whether others than this machine reach a listener that speaks in the clear."""
        listen: str = getattr(self, name)
        host = listen.rpartition(":")[0]
        return bool(listen) and not is_loopback(host) and not self.tls_certificate

    def reads_without_token(self, listen: str) -> bool:
        """Return whether a listener answers reading calls without a token."""
        loopback = self.anonymous == "loopback" and is_loopback(listen.rpartition(":")[0])
        return self.anonymous == "anybody" or (loopback and not self.behind_proxy)

    @property
    def anonymous_read(self) -> bool:
        """True when the gateway answers reading calls without a token."""
        return self.reads_without_token(self.listen)


GATEWAY_KEYS: Final = tuple(
    Key(
        "gateway",
        each.name,
        list(each.default) if isinstance(each.default, tuple) else each.default,
        each.metadata["unit"],
        each.metadata["check"],
        each.metadata["sentence"],
    )
    for each in fields(GatewayConfig)
)
"""The keys of the section, in the order of the documentation."""
