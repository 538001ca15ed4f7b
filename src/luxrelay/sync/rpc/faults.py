"""gRPC statuses as errors of ours: party at fault, place, remedy.

Source: decisions J10; architecture, rule 9.
"""

from __future__ import annotations

import math
import re
from typing import Final

import grpc

from luxrelay.errors import (
    LuxRelayError,
    SyncProtocolError,
    SyncRemoteError,
    SyncUnreachableError,
)

TRY_AGAIN: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
    }
)
"""Statuses that say nothing against the relay; every other one is an answer we cannot use."""
_HANDSHAKE: Final = re.compile(r"handshake|certificate|ssl|tls|verif", re.IGNORECASE)
_AGAIN: Final = re.compile(
    r"\bagain in (?:([0-9][0-9,]{0,8}) ms|([0-9]{1,6}(?:\.[0-9]{1,3})?) s)(?![a-z0-9])"
)
_SILENT: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
_LONGER: Final = (
    "is it a relay's sync port (sync.listen), with TLS on both sides or on neither? A longer wait: "
    "call_s, page_s, connect_s of the client, --timeout-s of a command"
)
_UNPROVEN: Final = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
_SHOW: Final = "show a token or a certificate that it knows, with the scope that the call needs"
_LESS: Final = "ask later or for less at once, or show the relay a token or a certificate"
TOLD_S: Final = 0.5
"""Waits from this length on are told, seconds."""
DETAIL_CHARS_MAX: Final = 300
"""Characters of a relay's own words that are repeated."""


class CallFault(grpc.RpcError):
    """How a call failed that gRPC itself did not end, in gRPC's form."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self._code, self._text = code, text

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        return self._code

    def details(self) -> str:
        """Return what happened, or what the relay said."""
        return self._text


def translated(
    error: grpc.RpcError, address: str, waited_s: float = 0.0, *, secure: bool = True
) -> LuxRelayError:
    """Return the error to raise for a failed call to ``address``.

    Args:
        error: What gRPC, or who stands for it, said.
        address: The relay.
        waited_s: How long it was waited for, seconds; told when that is of any use.
        secure: Whether TLS was spoken.

    """
    code = error.code()
    said = " ".join((error.details() or "").split())[:DETAIL_CHARS_MAX]
    if secure and code is grpc.StatusCode.UNAVAILABLE and _HANDSHAKE.search(said):
        return SyncUnreachableError(
            f"no secure connection to the relay ({said})",
            where=address,
            hint="compare both sides: TLS or not, the authorities, the name in the certificate, "
            "and whether a client certificate is asked for",
        )
    if code in TRY_AGAIN:
        waited = f" after {waited_s:.3g} s" if waited_s >= TOLD_S else ""
        words = _WORDS.get(code, "the relay cannot be reached")
        # The number stands in the text because streams of libp2p carry nothing else.
        again = _AGAIN.search(said) if code is grpc.StatusCode.RESOURCE_EXHAUSTED else None
        if again:
            words = "the relay is busy"
        busy = SyncUnreachableError(
            f"{words}{waited} ({said})",
            where=address,
            hint=_LONGER if code in _SILENT else _LESS if again else None,
        )
        if again:
            if again[1]:
                busy.retry_after_ms = int(again[1].replace(",", ""))
            else:
                busy.retry_after_ms = math.ceil(float(again[2]) * 1000)
        return busy
    if code is grpc.StatusCode.DATA_LOSS:
        return SyncProtocolError(f"the relay's answer cannot be used ({said})", where=address)
    hint: str | None
    if code is grpc.StatusCode.UNIMPLEMENTED:
        what, hint = f"the relay does not offer this call ({said})", "ask another relay"
    else:
        what = f"the relay refused the call with {code.name} ({said})"
        hint = _SHOW if code in _UNPROVEN else None
    refused = SyncRemoteError(what, where=address, hint=hint)
    refused.unimplemented = code is grpc.StatusCode.UNIMPLEMENTED
    return refused


def unreachable(what: str, address: str) -> SyncUnreachableError:
    """Return the error for a relay that cannot be had now."""
    return SyncUnreachableError(what, where=address)


_WORDS: Final = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "the relay did not answer in time",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "the relay is busy or the answer is too large",
    grpc.StatusCode.CANCELLED: "the call was cancelled",
}
