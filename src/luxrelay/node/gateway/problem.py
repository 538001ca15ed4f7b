"""Errors as problem JSON (RFC 9457) with the stable codes of `luxrelay.errors`.

Source: decisions J10; user-07.
"""

from __future__ import annotations

import json
from typing import Any, Final

from luxrelay.errors import (
    CATALOGUE,
    GatewayError,
    LocalError,
    LuxRelayError,
    RemoteError,
    StoreError,
)
from luxrelay.node.gateway.calls import MethodError, Response

STATUS: Final = {
    "gateway.request": 400,
    "gateway.token": 401,
    "gateway.scope": 403,
    "gateway.origin": 403,
    "gateway.absent": 404,
    "gateway.method": 405,
    "gateway.timeout": 408,
    "gateway.conflict": 409,
    "gateway.size": 413,
    "gateway.media": 415,
    "gateway.range": 416,
    "gateway.refused": 422,
    "gateway.rate": 429,
    "gateway.fault": 500,
    "gateway.busy": 503,
    "store.io": 503,
    "store.full": 507,
}
"""HTTP status by code; other codes go by whose fault they are."""
CONTENT_TYPE: Final = "application/problem+json"
_AGAIN_MS: Final = 1000
"""When nothing says how long the node is busy, milliseconds."""


def status_of(error: LuxRelayError) -> int:
    """Return the HTTP status of an error."""
    known = STATUS.get(error.code)
    if known is not None:
        return known
    if isinstance(error, StoreError):
        return 503
    return 400 if isinstance(error, LocalError | RemoteError) else 500


def problem(error: LuxRelayError, status: int | None = None, **more: Any) -> dict[str, Any]:
    """Return the problem JSON of an error; ``more`` are members of its own."""
    wait_ms = retry_after_ms(error)
    if wait_ms is not None:
        more = {"retryAfterMs": wait_ms, **more}
    return {
        "type": f"urn:luxrelay:error:{error.code}",
        "title": CATALOGUE[error.code].meaning,
        "status": status_of(error) if status is None else status,
        "detail": error.what,
        "code": error.code,
        "where": error.where,
        "hint": error.hint,
        **more,
    }


def retry_after_ms(error: LuxRelayError) -> int | None:
    """Return after how many milliseconds trying again makes sense; None when it does not."""
    if not isinstance(error, GatewayError | StoreError) or status_of(error) not in {429, 503}:
        return None
    known = error.retry_after_ms if isinstance(error, GatewayError) else 0
    return known or _AGAIN_MS


def retry_after_s(error: LuxRelayError) -> int | None:
    """Return the same in whole seconds, as `Retry-After` has it."""
    wait_ms = retry_after_ms(error)
    return None if wait_ms is None else max(1, -(-wait_ms // 1000))


def failure(error: LuxRelayError, status: int | None = None, **more: Any) -> Response:
    """Return the answer to an error; ``more`` are members of its problem JSON.

    ``status`` replaces the status of the error's code.
    """
    body = json.dumps(problem(error, status, **more), ensure_ascii=False).encode() + b"\n"
    response = Response(
        status=status_of(error) if status is None else status,
        content_type=CONTENT_TYPE,
        body=body,
    )
    wait_s = retry_after_s(error)
    if wait_s is not None:
        response.headers.append(("Retry-After", str(wait_s)))
    if isinstance(error, MethodError):
        response.headers.append(("Allow", ", ".join(error.allowed)))
    if response.status == 401:
        response.headers.append(("WWW-Authenticate", "Bearer"))
    return response
