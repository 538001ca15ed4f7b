"""`RelayConnection`: the channel to one relay, and how a call over it fails.

`with_token`: a channel that shows a bearer token with every call.

Source: RFC 6750; ADR 0002; decision P37.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

import grpc

from luxrelay.errors import (
    LuxRelayError,
    SyncArgumentError,
    SyncProtocolError,
    SyncRemoteError,
    SyncUnreachableError,
)
from luxrelay.gate import is_loopback
from luxrelay.sync.rpc.config import SyncClientConfig
from luxrelay.sync.rpc.faults import translated, unreachable
from luxrelay.sync.rpc.patience import Pace, PatientChannel
from luxrelay.sync.rpc.scope import CallScope
from luxrelay.sync.rpc.tls import PROOF_METADATA, ClientTls


class _Details(NamedTuple):
    """What gRPC asks of the details of a call."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


class _Shown(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the token, or a validator's proof, to each call."""

    def __init__(self, name: str, value: str | bytes) -> None:
        self._pair = (name, value)

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """Pass the call on with the token."""
        return continuation(self._with_token(client_call_details), request)

    def intercept_unary_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """Pass the call on with the token."""
        return continuation(self._with_token(client_call_details), request)

    def intercept_stream_stream(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        """Pass the call on with the token."""
        return continuation(self._with_token(client_call_details), request_iterator)

    def _with_token(self, details: Any) -> Any:
        return _Details(
            details.method,
            details.timeout,
            [*(details.metadata or ()), self._pair],
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )


def with_token(channel: grpc.Channel, token: str) -> grpc.Channel:
    """Return the channel, showing ``token`` with every call; itself for an empty one."""
    shown = _Shown("authorization", f"Bearer {token}")
    return grpc.intercept_channel(channel, shown) if token else channel


_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_TOKEN: Final = re.compile(r"[!-~]{0,200}", re.ASCII)
_Answer = TypeVar("_Answer")
_Answer_co = TypeVar("_Answer_co", covariant=True)


class Streaming(Protocol[_Answer_co]):
    """What gRPC returns for a streaming call."""

    def __iter__(self) -> Iterator[_Answer_co]: ...

    def cancel(self) -> bool:
        """End the call."""
        ...


class RelayConnection:
    """A relay at ``host:port``; connects on first use, may be shared by threads, pickles.

    Args:
        address: ``host:port``; an IPv6 address in brackets.
        config: Deadlines and sizes.
        tls: Whom to believe and what to show; None speaks in the clear.
        token: Bearer token of a gateway that answers over gRPC; empty for a sync port.
        token_in_clear: Whether the token may leave this machine without TLS, for a way that is
            protected otherwise.

    Raises:
        SyncArgumentError: the address is not of that form, or the token cannot be sent.

    Source: P37.

    """

    def __init__(
        self,
        address: str,
        *,
        config: SyncClientConfig | None = None,
        tls: ClientTls | None = None,
        token: str = "",
        token_in_clear: bool = False,
    ) -> None:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match[1]) <= 65_535:
            raise SyncArgumentError(
                f"{address!r} is no relay address",
                where="address",
                hint="write host:port, for example 127.0.0.1:9641",
            )
        self.address = address
        self.config = config or SyncClientConfig()
        if not _TOKEN.fullmatch(token):
            raise SyncArgumentError("the token cannot be sent", where="token")
        host = address.rpartition(":")[0]
        if token and tls is None and not token_in_clear and not is_loopback(host):
            raise SyncArgumentError(
                "the token would travel in the clear",
                where=address,
                hint="give tls, or say token_in_clear=True when the way is protected otherwise",
            )
        self.tls = tls
        self._token = token
        self._token_in_clear = token_in_clear
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._closed = False
        self._calls = CallScope()

    def close(self) -> None:
        """Close the connection; calls under way end as unreachable. May be called twice."""
        with self._lock:
            channel, self._channel, self._closed = self._channel, None, True
        self._calls.cancel()
        if channel is not None:
            channel.close()

    def _distrust(self, broken: grpc.Channel) -> None:
        """Dial anew for the next call: gRPC has not ended one of this channel's in time."""
        with self._lock:
            if self._channel is broken:
                self._channel = None
        threading.Thread(target=broken.close, name="luxrelay-grpc-close", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        """Travel as address and configuration; the other side connects by itself."""
        shown = (self._token, self._token_in_clear)
        return (_rebuild, (type(self), self.address, self.config, self.tls, shown))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    def _connect(self) -> grpc.Channel:
        with self._lock:
            if self._closed:
                raise SyncArgumentError(
                    "the client is closed", where=self.address, hint="open a new RelaySyncClient"
                )
            if self._channel is None:
                self._channel = self._patient(with_token(self._dial(), self._token))
            return self._channel

    def _patient(self, channel: grpc.Channel) -> grpc.Channel:
        """Return the channel, on which every wait has an end of ours."""
        patient = PatientChannel(channel, lambda: self._distrust(patient))
        return patient

    def _dial(self) -> grpc.Channel:
        options: list[tuple[str, int | str]] = [*self._options()]
        if self.tls is None:
            return grpc.insecure_channel(self.address, options=options)
        if self.tls.server_name:
            options.append(("grpc.ssl_target_name_override", self.tls.server_name))
        channel = grpc.secure_channel(self.address, self.tls.credentials(), options=options)
        proof = self.tls.validator_proof
        return grpc.intercept_channel(channel, _Shown(PROOF_METADATA, proof)) if proof else channel

    def _options(self) -> list[tuple[str, int]]:
        # What gRPC calls the least time between two attempts is the most time for one.
        return [
            ("grpc.max_receive_message_length", self.config.frame_bytes_max),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", int(self.config.connect_s * 1000)),
            ("grpc.max_reconnect_backoff_ms", int(self.config.reconnect_s * 1000)),
            ("grpc.use_local_subchannel_pool", 1),  # two clients never share a connection's fate
            ("grpc.keepalive_time_ms", self.config.keepalive_ms),
            ("grpc.keepalive_timeout_ms", self.config.keepalive_timeout_ms),
            ("grpc.http2.ping_timeout_ms", self.config.keepalive_timeout_ms),
            ("grpc.http2.max_pings_without_data", 0),  # a subscriber sends none for hours
            ("grpc.enable_http_proxy", 0),  # a relay is dialled, never fetched through a proxy
        ]

    def _unary(self, call: Callable[[grpc.Channel], _Answer]) -> _Answer:
        until: float | None = None
        while True:
            channel = self._connect()
            began = time.monotonic()
            try:
                return call(channel)
            except grpc.RpcError as error:
                fault = self._translated(error, began)
            except ValueError:  # the channel was closed by another thread in between
                raise unreachable("the client was closed", self.address) from None
            until = self._waited(fault, until, None)

    def _stream(
        self,
        start: Callable[[grpc.Channel], Streaming[_Answer]],
        scope: CallScope | None,
        *,
        again: bool = True,
    ) -> Generator[_Answer, None, None]:
        """Yield the frames of a stream; the call ends with the iteration, however that ends.

        ``again`` says that ``start`` may be called anew after a refusal before the first frame.
        """
        until = None if again else 0.0
        while True:
            channel = self._connect()
            began = time.monotonic()
            try:
                call = start(channel)
            except ValueError:  # the channel was closed by another thread in between
                raise unreachable("the client was closed", self.address) from None
            if scope is not None:
                scope.enter(call.cancel)
            try:
                for frame in call:
                    until = 0.0  # what has begun is never begun anew
                    yield frame
            except grpc.RpcError as error:
                fault = self._translated(error, began)
            else:
                return
            finally:
                call.cancel()
                if scope is not None:
                    scope.leave(call.cancel)
            until = self._waited(fault, until, scope)

    def _waited(self, fault: LuxRelayError, until: float | None, scope: CallScope | None) -> float:
        """Wait as long as a busy relay wishes; return when patience ends, which begins here.

        Raises:
            LuxRelayError: the fault, which names no time, or one when there is no patience left.

        """
        now = time.monotonic()
        if until is None:
            until = now + self.config.busy_wait_s
        wait_s = fault.retry_after_ms / 1000 if isinstance(fault, SyncUnreachableError) else 0.0
        if not wait_s or now + wait_s > until:
            raise fault
        stop = threading.Event()
        ended = scope or self._calls
        ended.enter(stop.set)
        try:
            if stop.wait(wait_s):
                raise fault
        finally:
            ended.leave(stop.set)
        return until

    def _translated(self, error: grpc.RpcError, began: float) -> LuxRelayError:
        waited_s = time.monotonic() - began
        return translated(error, self.address, waited_s, secure=self.tls is not None)

    def _pace(self) -> Pace:
        """Return the pace of what is asked in many calls, beginning now."""
        return Pace(self.config.grace_s, self.config.rows_per_s)

    def _bad(self, what: str) -> SyncProtocolError:
        return SyncProtocolError(f"the relay's answer cannot be used: {what}", where=self.address)

    def _too_much(self, what: str, bound: str) -> SyncRemoteError:
        """Return the error of an honest answer that is above a bound of ours."""
        return SyncRemoteError(
            f"the relay's answer is too long: more than {what}",
            where=self.address,
            hint=f"raise {bound} of the client, or ask for less",
        )


def _rebuild(
    kind: type[RelayConnection],
    address: str,
    config: SyncClientConfig,
    tls: ClientTls | None,
    shown: tuple[str, bool],
) -> RelayConnection:
    token, in_clear = shown
    return kind(address, config=config, tls=tls, token=token, token_in_clear=in_clear)
