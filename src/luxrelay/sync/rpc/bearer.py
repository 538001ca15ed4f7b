"""`with_token`: a channel that shows a bearer token with every call.

Source: RFC 6750; ADR 0002.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc


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
    """Adds the token to each call."""

    def __init__(self, token: str) -> None:
        self._pair = ("authorization", f"Bearer {token}")

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
    return grpc.intercept_channel(channel, _Shown(token)) if token else channel
