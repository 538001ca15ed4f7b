"""`CallBook`: what happens around every call: counting, admission, and faults as statuses.

Source: LP-6421 §8; decisions P34, J10.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Never

import grpc

from luxrelay.errors import LocalError, LuxRelayError, ResourceError
from luxrelay.sync.rpc.admission import StreamGate
from luxrelay.sync.rpc.stats import SyncCounters

_LOG: Final = logging.getLogger("luxrelay.sync")


class ServedCall:
    """One call while it is served."""

    __slots__ = ("_context", "code", "renew")

    def __init__(self, context: grpc.ServicerContext) -> None:
        self._context = context
        self.renew: Callable[[], None] = lambda: None
        """Begins the life of the stream anew."""
        # Stands when the client leaves and gRPC drops the stream without a word.
        self.code = grpc.StatusCode.CANCELLED

    def refuse(self, code: grpc.StatusCode, text: str) -> Never:
        """End the call with a status; does not return."""
        self.code = code
        self._context.abort(code, text)


class CallBook:
    """Wraps the calls of a servicer; streams pass its gate."""

    def __init__(self, counters: SyncCounters, gate: StreamGate) -> None:
        self.counters = counters
        self._gate = gate

    @contextmanager
    def call(
        self, method: str, context: grpc.ServicerContext, *, stream: bool = False
    ) -> Iterator[ServedCall]:
        """Run one call: count it, admit it, and turn what it raises into its status.

        A caller's fault becomes INVALID_ARGUMENT, trouble of this machine UNAVAILABLE, our bug
        INTERNAL and a line in the log.
        """
        began = time.monotonic()
        self.counters.began()
        call = ServedCall(context)
        ticket = self._gate.enter(context.cancel) if stream else None
        try:
            if stream and ticket is None:
                call.refuse(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    "every stream of this relay is taken; try again in a moment",
                )
            if ticket is not None:
                call.renew = partial(self._gate.renew, ticket)
            yield call
            call.code = grpc.StatusCode.OK
        except grpc.RpcError:
            raise  # the client left while its requests were read; gRPC knows
        except Exception as error:
            if call.code is not grpc.StatusCode.CANCELLED:
                raise  # refused above
            call.refuse(*_status(error, method))
        finally:
            if ticket is not None:
                self._gate.leave(ticket)
            self.counters.ended(method, call.code.name, time.monotonic() - began)


def _status(error: Exception, method: str) -> tuple[grpc.StatusCode, str]:
    if isinstance(error, LocalError):
        return grpc.StatusCode.INVALID_ARGUMENT, str(error)
    if isinstance(error, ResourceError):
        return grpc.StatusCode.UNAVAILABLE, f"this relay cannot answer now ({error.code})"
    if isinstance(error, LuxRelayError):
        return grpc.StatusCode.INTERNAL, str(error)
    _LOG.exception("%s failed", method)
    return grpc.StatusCode.INTERNAL, "a fault of this relay; its log has the details"
