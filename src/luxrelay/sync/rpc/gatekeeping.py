"""`TokenInterceptor`: who may make which call where callers show bearer tokens.

Theory of operation
-------------------
*Decides* by the method's scope, before the call begins; a stream is looked at again with each frame
it sends, so that a revoked token ends it, and each request of a publishing stream is charged.
A method that the table does not know needs the scope ``admin``: nothing opens by being forgotten.
*Does not know* tokens, scopes of tokens, or rates: a `Guard` does.

Source: issue of the gateway; RFC 6750.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Never, Protocol, TypeAlias, cast

import grpc

from luxrelay.errors import GatewayError, LuxRelayError
from luxrelay.sync.rpc.callers import caller_of
from luxrelay.sync.rpc.calls import gateway_status

_PACKAGE: Final = "/lux.relay.v1."
_OPEN: Final = ("/grpc.health.v1.Health/", "/grpc.reflection.v1alpha.ServerReflection/")
"""Services that everybody may ask: they say what the port is, nothing of what it holds."""
_SCOPES: Final = {
    "RelaySync": "read",
    "RelayGateway": "read",
    "RelayNode/Subscribe": "read",
    "RelayNode/Publish": "publish",
    "RelayNode/GetReceipts": "publish",
}
"""Scope by service or method; every other method of ours needs ``admin``."""

_Behaviour: TypeAlias = Callable[[Any, grpc.ServicerContext], Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Pass(Protocol):
    """A caller that was let in."""

    def holds(self) -> bool:
        """Return whether its token is neither revoked nor expired."""
        ...

    def publish(self, size_bytes: int) -> None:
        """Charge one more publishing request of so many bytes.

        Raises:
            GatewayError: its rate allows no more (``gateway.rate``).

        """
        ...


class Guard(Protocol):
    """Knows the tokens."""

    def admit(self, scope: str, authorization: str, address: str) -> Pass:
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
    name = method.removeprefix(_PACKAGE)
    return _SCOPES.get(name) or _SCOPES.get(name.partition("/")[0], "admin")


class TokenInterceptor(grpc.ServerInterceptor):
    """Stands before every call of a server."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], _Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Return the handler of a call, behind the guard."""
        handler = continuation(handler_call_details)
        scope = scope_of(handler_call_details.method)
        if handler is None or not scope:
            return handler
        shown = dict(handler_call_details.invocation_metadata or ())
        token = shown.get("authorization", "")
        text = token if isinstance(token, str) else ""
        return _behind(handler, _Door(self._guard, scope, text))


class _Door:
    """One call's way past the guard."""

    def __init__(self, guard: Guard, scope: str, authorization: str) -> None:
        self._guard = guard
        self._scope = scope
        self._authorization = authorization

    def enter(self, context: grpc.ServicerContext) -> Pass:
        """Return the caller's pass; ends the call when there is none."""
        address = caller_of(context).host
        try:
            return self._guard.admit(self._scope, self._authorization, address)
        except LuxRelayError as error:
            _refuse(context, error)

    def once(self, behaviour: _Behaviour) -> _Behaviour:
        """Return a behaviour with one answer."""

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            self.enter(context)
            return behaviour(request, context)

        return answer

    def streamed(self, behaviour: _Behaviour) -> _Behaviour:
        """Return a behaviour that answers with a stream; ``request`` may be one as well."""

        def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            entered = self.enter(context)
            if self._scope == "publish":
                request = _charged(request, entered)
            for frame in behaviour(request, context):
                if not entered.holds():
                    context.abort(
                        grpc.StatusCode.UNAUTHENTICATED, "the token was revoked or has expired"
                    )
                yield frame

        return answer


def _charged(requests: Iterator[Any], entered: Pass) -> Iterator[Any]:
    for request in requests:
        entered.publish(request.ByteSize())
        yield request


def _behind(handler: _Handler, door: _Door) -> _Handler:
    coded = (handler.request_deserializer, handler.response_serializer)
    if handler.response_streaming:
        made = (
            grpc.stream_stream_rpc_method_handler
            if handler.request_streaming
            else grpc.unary_stream_rpc_method_handler
        )
        behaviour = handler.stream_stream or handler.unary_stream
        return made(door.streamed(cast("_Behaviour", behaviour)), *coded)
    assert not handler.request_streaming, "no service of ours takes a stream and answers once"
    unary = cast("_Behaviour", handler.unary_unary)
    return grpc.unary_unary_rpc_method_handler(door.once(unary), *coded)


def _refuse(context: grpc.ServicerContext, error: LuxRelayError) -> Never:
    code, text = (
        gateway_status(error)
        if isinstance(error, GatewayError)
        else (grpc.StatusCode.UNAVAILABLE, f"this node cannot answer now ({error.code})")
    )
    context.abort(code, text)
