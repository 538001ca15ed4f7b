"""`DoorInterceptor`: authorisation of each call before a thread waits for its request.

Theory of operation
-------------------
*Decides* by the method's scope, before a request is read: every call is served by a handler of the
kind that reads its requests itself, so a refused caller costs a thread no waiting. A call with one
request reads it among those that are `PendingRequests`, with a bound of time and a bound for its
address. A stream is looked at again with each frame it sends, so that a revoked token ends it, and
each request of a publishing stream is charged. Reflection and watching health are
`ReflectionLimit`. A method that the table does not know needs the scope ``admin``: nothing opens
by being forgotten.
*Does not know* tokens, scopes of tokens, or rates: a `Guard` does; a sync port has none.

Source: RFC 6750; ADR 0002.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Never, Protocol, TypeAlias, cast

import grpc
from google.protobuf.message import DecodeError

from luxrelay.errors import GatewayError, LuxRelayError, SyncArgumentError
from luxrelay.sync.cost import Price
from luxrelay.sync.rpc.callers import PASS_KEY, caller_of, host_of, network_of
from luxrelay.sync.rpc.calls import gateway_status
from luxrelay.sync.rpc.metering import SharedMeter
from luxrelay.sync.rpc.mishaps import Mishaps
from luxrelay.sync.rpc.relay_sync_pb2 import SyncRequest
from luxrelay.sync.rpc.waiting import PendingRequests, ReflectionLimit

_PACKAGE: Final = "/lux.relay.v1."
_OPEN: Final = "/grpc.health.v1.Health/"
"""The service that everybody may ask: it says whether the port serves."""
_REFLECTION: Final = "/grpc.reflection.v1alpha.ServerReflection/"
_WATCH: Final = "/grpc.health.v1.Health/Watch"
_SCOPES: Final = {
    "RelaySync": "read",
    "RelayGateway": "read",
    "RelayNode/Subscribe": "read",
    "RelayNode/Publish": "publish",
    "RelayNode/GetReceipts": "publish",
    "RelayNode/GetQuotas": "read",
}
"""Scope by service or method; every other method of ours needs ``admin``."""

_NO_MESSAGE: Final = "the request is no message of this call"
_Behaviour: TypeAlias = Callable[[Any, grpc.ServicerContext], Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Credentials(Protocol):
    """A caller that was let in."""

    @property
    def key(self) -> str:
        """What its streams are counted under: its token or its address."""
        ...

    def allows(self, scope: str) -> bool:
        """Return whether it may do this as well."""
        ...

    def holds(self) -> bool:
        """Return whether its token is neither revoked nor expired."""
        ...

    def publish(self, size_bytes: int) -> None:
        """Charge one more publishing request of so many bytes.

        Raises:
            GatewayError: its rate allows no more (``gateway.rate``), or its token is revoked or
                expired (``gateway.token``).

        """
        ...


class Guard(Protocol):
    """Knows the tokens."""

    def admit(self, scope: str, authorization: str, address: str) -> Credentials:
        """Return the pass of a caller, or raise; any thread.

        Args:
            scope: ``read``, ``publish`` or ``admin``.
            authorization: The metadata of that name; empty without it.
            address: Where it calls from, without the port.

        Raises:
            GatewayError: it may not, or calls too often.

        """
        ...


def scope_of(method: str) -> str:
    """Return the scope that a method needs; empty for one that everybody may call."""
    if method.startswith(_OPEN):
        return ""
    if method.startswith(_REFLECTION):
        return "read"
    name = method.removeprefix(_PACKAGE)
    return _SCOPES.get(name) or _SCOPES.get(name.partition("/")[0], "admin")


class DoorInterceptor(grpc.ServerInterceptor):
    """Stands before every call of a server.

    Args:
        guard: Knows the tokens; None lets everybody in.
        waiting: Calls whose request has not come.
        looks: Reflection and watching health.
        mishaps: Exceptions that nobody expected.
        meter: What callers may cost; None counts nothing.

    """

    def __init__(
        self,
        guard: Guard | None,
        waiting: PendingRequests,
        looks: ReflectionLimit,
        mishaps: Mishaps,
        *,
        meter: SharedMeter | None = None,
    ) -> None:
        self._meter = meter
        self._guard = guard
        self._mishaps = mishaps
        self._waiting = waiting
        self._looks = looks

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], _Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Return the handler of a call, behind the door."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        scope = scope_of(method) if self._guard is not None else ""
        shown = dict(handler_call_details.invocation_metadata or ())
        token = shown.get("authorization", "")
        door = _Door(
            guard=self._guard if scope else None,
            scope=scope,
            authorization=token if isinstance(token, str) else "",
            waiting=self._waiting,
            meter=None if method.startswith(_PACKAGE) else self._meter,
            ledger=self._meter,
            looks=self._looks if method == _WATCH or method.startswith(_REFLECTION) else None,
            method=method.rpartition("/")[2],
            mishaps=self._mishaps,
        )
        # gRPC ends a call whose bytes it cannot read twice, and then for ever counts it as running:
        # `_served` reads them.
        return grpc.stream_stream_rpc_method_handler(
            door.behind(handler), None, handler.response_serializer
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Door:
    """One call's way in."""

    guard: Guard | None
    scope: str
    authorization: str
    waiting: PendingRequests
    meter: SharedMeter | None
    """For calls that are not ours; those of ours are charged in `CallBook`."""
    ledger: SharedMeter | None
    """For calls that end before they have a request, of any service."""
    looks: ReflectionLimit | None
    method: str
    mishaps: Mishaps

    def behind(self, handler: _Handler) -> _Behaviour:
        """Return what serves the call, from its requests to its answers."""
        assert handler.response_streaming or not handler.request_streaming, (
            "no service of ours takes a stream and answers once"
        )

        def answer(
            requests: Iterator[Any], context: grpc.ServicerContext
        ) -> Generator[Any, None, None]:
            with self._contained(context):
                yield from guarded(requests, context)

        def guarded(
            requests: Iterator[Any], context: grpc.ServicerContext
        ) -> Generator[Any, None, None]:
            entered = self._enter(context)
            if self.meter is not None:
                why = self.meter.wait_turn(caller_of(context).payer, Price.CALL, threading.Event())
                if why:  # to be refused for other reasons costs as much
                    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
                requests = _paid(requests, context, self.meter)
            if self.looks is None:
                yield from self._served(handler, requests, context, entered)
                return
            with self.looks.entered(network_of(host_of(context)), context.cancel) as why:
                if why:
                    context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
                yield from self._served(handler, requests, context, entered)

        return answer

    @contextmanager
    def _contained(self, context: grpc.ServicerContext) -> Iterator[None]:
        """End the call, and nothing else, with a number when what serves it raises."""
        try:
            yield
        except grpc.RpcError:
            raise  # the client left while its requests were read
        except Exception as error:
            if _has_ended(context):
                raise  # `abort` raises as well: the status has been said
            context.abort(grpc.StatusCode.INTERNAL, self.mishaps.note(self.method, error))

    def _enter(self, context: grpc.ServicerContext) -> Credentials | None:
        """Return the caller's pass; ends the call when there is none."""
        if self.guard is None:
            return None
        try:
            entered = self.guard.admit(self.scope, self.authorization, host_of(context))
        except LuxRelayError as error:
            _refuse(context, error)
        PASS_KEY.set(entered.key)  # each call has a context of its own
        return entered

    def _served(
        self,
        handler: _Handler,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
        entered: Credentials | None,
    ) -> Iterator[Any]:
        decode = cast("Callable[[bytes], Any]", handler.request_deserializer)
        if handler.request_streaming:
            refuse = context.abort if self.looks is not None else None
            asked: Any = _decoded(requests, decode, refuse)
            if self.scope == "publish" and entered is not None:
                asked = _charged(asked, entered)
        else:
            data = self._first(requests, context)
            if data is None:
                return
            try:
                asked = decode(data)
            except DecodeError:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, _NO_MESSAGE)
            _check_held(asked, context, entered)
        if not handler.response_streaming:
            yield cast("_Behaviour", handler.unary_unary)(asked, context)
            return
        behaviour = cast("_Behaviour", handler.stream_stream or handler.unary_stream)
        frames = behaviour(asked, context)
        if not context.is_active():
            return  # who watches health would wait for the end of a call that has ended
        for frame in frames:
            if entered is not None and not entered.holds():
                context.abort(
                    grpc.StatusCode.UNAUTHENTICATED, "the token was revoked or has expired"
                )
            yield frame

    def _first(self, requests: Iterator[Any], context: grpc.ServicerContext) -> bytes | None:
        """Return the bytes of the one request of a call; None when it has ended without."""
        data: bytes | None = None
        try:
            with self.waiting.entered(network_of(host_of(context)), context.cancel):
                data = next(requests, None)
        finally:  # a call that is cancelled at once costs as much as one that is answered
            if data is None and self.ledger is not None:
                self.ledger.settle(caller_of(context).payer, Price.CALL)
        if data is None and context.is_active():
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call ended without its request")
        return data


def _has_ended(context: grpc.ServicerContext) -> bool:
    """Say whether the call is over, or its status was said."""
    said = getattr(context, "code", bool)()  # its stubs do not know it
    return bool(said) or not context.is_active()


def _check_held(request: Any, context: grpc.ServicerContext, entered: Credentials | None) -> None:
    """Refuse what is past its time, and waits for an archive, to all but those who rule (J8)."""
    if entered is None or not isinstance(request, SyncRequest) or not request.held:
        return
    if not entered.allows("admin"):
        context.abort(
            grpc.StatusCode.PERMISSION_DENIED,
            "what is past its time (held) needs a token with the scope 'admin'",
        )


def _decoded(
    requests: Iterator[bytes],
    decode: Callable[[bytes], Any],
    refuse: Callable[[grpc.StatusCode, str], Never] | None,
) -> Iterator[Any]:
    """Yield the requests of a stream; ``refuse`` for a servicer that knows no errors of ours."""
    for data in requests:
        try:
            request = decode(data)
        except DecodeError as error:
            if refuse is not None:
                refuse(grpc.StatusCode.INVALID_ARGUMENT, _NO_MESSAGE)
            raise SyncArgumentError(_NO_MESSAGE, where="request") from error
        yield request


def _paid(
    requests: Iterator[bytes], context: grpc.ServicerContext, meter: SharedMeter
) -> Iterator[bytes]:
    """Charge each request of health and reflection, which no servicer of ours does."""
    payer = caller_of(context).payer
    for data in requests:
        why = meter.wait_turn(payer, Price.CALL, threading.Event())
        if why:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        yield data


def _charged(requests: Iterator[Any], entered: Credentials) -> Iterator[Any]:
    for request in requests:
        entered.publish(request.ByteSize())
        yield request


def _refuse(context: grpc.ServicerContext, error: LuxRelayError) -> Never:
    code, text = (
        gateway_status(error)
        if isinstance(error, GatewayError)
        else (grpc.StatusCode.UNAVAILABLE, f"this node cannot answer now ({error.code})")
    )
    context.abort(code, text)
