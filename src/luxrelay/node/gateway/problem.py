"""Errors as problem JSON (RFC 9457) with the stable codes of `luxrelay.errors`.

Source: decisions J10; user-07.
"""

from __future__ import annotations

from typing import Any, Final

from luxrelay.errors import (
    CATALOGUE,
    GatewayError,
    LocalError,
    LuxRelayError,
    RemoteError,
    StoreError,
)

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
    "store.full": 507,
}
"""HTTP status by code; other codes go by whose fault they are."""
CONTENT_TYPE: Final = "application/problem+json"


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


def retry_after_s(error: LuxRelayError) -> int | None:
    """Return after how many seconds trying again makes sense; None when it does not."""
    if not isinstance(error, GatewayError | StoreError):
        return None
    return 1 if status_of(error) in {429, 503} else None
