"""`CallBook`: counting, admission and error statuses around every call.

Source: LP-6421 §8; decisions P34, J10.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Final, Never

import grpc

from luxrelay.errors import (
    GatewayError,
    LocalError,
    ResourceError,
    SyncUnreachableError,
)
from luxrelay.sync.cost import Price, price_of_bytes
from luxrelay.sync.rpc.callers import Caller, caller_of
from luxrelay.sync.rpc.fair_queue import QueuePassage, Turnstile
from luxrelay.sync.rpc.metering import PAYER, SharedMeter
from luxrelay.sync.rpc.mishaps import Mishaps
from luxrelay.sync.rpc.pages import PageTurn, at_once
from luxrelay.sync.rpc.stats import SyncCounters
from luxrelay.sync.rpc.stream_limit import StreamGate, StreamOwner

_AGAIN_S: Final = 0.2
"""How soon a call asks for a turn again that its peer had no call left for."""
_AFFORD_S: Final = 1.0
"""How often a stream looks whether its caller may cost more."""
_GATEWAY: Final = {
    "gateway.token": grpc.StatusCode.UNAUTHENTICATED,
    "gateway.scope": grpc.StatusCode.PERMISSION_DENIED,
    "gateway.rate": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "gateway.busy": grpc.StatusCode.UNAVAILABLE,
    "gateway.absent": grpc.StatusCode.NOT_FOUND,
    "gateway.range": grpc.StatusCode.OUT_OF_RANGE,
}
"""Status by code of the gateway's errors; another one is the request's fault."""


class ServedCall:
    """One call while it is served."""

    __slots__ = ("_context", "_meter", "_passage", "caller", "code", "ended", "renew")

    def __init__(
        self, context: grpc.ServicerContext, caller: Caller, meter: SharedMeter | None = None
    ) -> None:
        self._context = context
        self._meter = meter
        self._passage: QueuePassage | None = None
        self.caller = caller
        """Whose it is."""
        self.ended = threading.Event()
        """Set when the client has left or its time is over."""
        self.renew: Callable[[], None] = lambda: None
        """Begins the life of the stream anew."""
        # Stands when the client leaves and gRPC drops the stream without a word.
        self.code = grpc.StatusCode.CANCELLED

    def refuse(self, code: grpc.StatusCode, text: str) -> Never:
        """End the call with a status; does not return."""
        self.code = code
        self._context.abort(code, text)

    def pass_through(self, passage: QueuePassage | None) -> None:
        """Take turns with others from now on, or no longer."""
        self._passage = passage

    def leave(self) -> None:
        """Let the thread go that waits for its turn; any thread."""
        if self._passage is not None:
            self._passage.end()

    def turn(self, cost_us: float = Price.TURN) -> AbstractContextManager[PageTurn]:
        """Wait until the call may read the store; what it read before has been taken.

        Args:
            cost_us: Bound of the CPU time that it will take, microseconds; charged before, and
                corrected after.

        Raises:
            SyncUnreachableError: the call has ended meanwhile.

        """
        shared = at_once() if self._passage is None else self._passage.turn()
        return shared if self._meter is None else self._charged(self._meter, shared, cost_us)

    def pay(self, cost_us: float) -> None:
        """Charge the caller before work for it begins; refuse the call when it may not."""
        if self._meter is not None:
            why = self._meter.wait_turn(self.caller.payer, cost_us, self.ended)
            if why:
                self.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, why)

    def afford(self, cost_us: float) -> None:
        """Charge before work of a stream that lasts; wait for as long as its caller may not."""
        if self._meter is not None:
            while not self.ended.is_set():
                wait_s = self._meter.take(self.caller.payer, cost_us)
                if not wait_s:
                    return
                self.ended.wait(min(wait_s, _AFFORD_S))

    def settle(self, more_us: float) -> None:
        """Charge what work has cost beyond what was taken; negative to give back."""
        if self._meter is not None:
            self._meter.settle(self.caller.payer, more_us)

    def priced_us(self, cpu_s: float) -> float:
        """Return CPU time, seconds, as that of the prices, microseconds; 0 without a meter."""
        return 0.0 if self._meter is None else self._meter.priced_us(cpu_s)

    @contextmanager
    def _charged(
        self, meter: SharedMeter, shared: AbstractContextManager[PageTurn], cost_us: float
    ) -> Iterator[PageTurn]:
        payer = self.caller.payer
        self.pay(cost_us)
        with shared as turn:
            noted = _Noted(turn)
            try:
                with meter.measured(payer, cost_us):
                    yield noted
            finally:
                meter.settle(payer, price_of_bytes(noted.size_bytes))


class _Noted:
    """A turn that remembers how much was read."""

    __slots__ = ("_turn", "size_bytes")

    def __init__(self, turn: PageTurn) -> None:
        self._turn = turn
        self.size_bytes = 0

    def read(self, size_bytes: int) -> None:
        """Say how much was read."""
        self.size_bytes = size_bytes
        self._turn.read(size_bytes)


class CallBook:
    """Wraps the calls of a servicer; streams pass its gate, every call its turnstile."""

    def __init__(
        self,
        counters: SyncCounters,
        gate: StreamGate,
        turnstile: Turnstile,
        *,
        limit_local: bool = False,
        meter: SharedMeter | None = None,
        let_in: Callable[[str, bool], AbstractContextManager[None]] | None = None,
    ) -> None:
        self.counters = counters
        self._meter = meter
        self._let_in = let_in or (lambda _peer, _known: nullcontext())
        self._gate = gate
        self._turnstile = turnstile
        self._limit_local = limit_local

    @contextmanager
    def call(
        self,
        method: str,
        context: grpc.ServicerContext,
        *,
        stream: bool = False,
        weigh: Callable[[Caller], float] | None = lambda _: 1.0,
    ) -> Iterator[ServedCall]:
        """Run one call: count it, admit it, and turn what it raises into its status.

        A caller's fault becomes INVALID_ARGUMENT, trouble of this machine UNAVAILABLE, our bug
        INTERNAL and a number, under which the log has it.

        Args:
            method: Its name, for the counters.
            context: gRPC's.
            stream: It may hold a thread for long, so it needs a place.
            weigh: Returns its share of the turns (P33); None for a call that reads nothing.

        """
        began = time.monotonic()
        self.counters.began()
        call = ServedCall(context, caller_of(context), self._meter)
        PAYER.set(call.caller.payer)
        with ExitStack() as leaving:
            leaving.callback(PAYER.set, None)  # the thread's next work is somebody else's
            try:
                if stream:
                    self._place(call, context, leaving)
                if weigh is None:
                    self._watch(call, context, call.leave)
                else:
                    self._join(call, context, leaving, weigh)
                call.pay(Price.CALL)
                leaving.enter_context(self._let_in(context.peer(), call.caller.payer.known))
                yield call
                call.code = grpc.StatusCode.OK
            except grpc.RpcError:
                raise  # the client left while its requests were read; gRPC knows
            except Exception as error:
                if call.code is not grpc.StatusCode.CANCELLED:
                    raise  # refused above
                call.refuse(*_status(error, method, self.counters.mishaps))
            finally:
                leaving.close()
                self.counters.ended(method, call.code.name, time.monotonic() - began)

    @contextmanager
    def share(
        self, call: ServedCall, context: grpc.ServicerContext, size_bytes: int
    ) -> Iterator[None]:
        """Take a turn of a call that reads now and then, for so many bytes, sent inside.

        Between two of them it holds no place among its peer's calls. A peer that has none left
        waits; nothing is yielded to one that has gone.

        Raises:
            SyncUnreachableError: the call has ended meanwhile.

        """
        caller = call.caller
        while True:
            passage, why = self._turnstile.enter(
                caller.name, context.cancel, limited=self._limited(caller)
            )
            if passage is not None:
                break
            if call.ended.wait(_AGAIN_S):
                raise SyncUnreachableError("the call ended while it waited for its turn", where=why)
        try:
            call.pass_through(passage)
            if call.ended.is_set():
                passage.end()  # it ended before it could be told of the passage
            with passage.turn() as turn:
                turn.read(size_bytes)
            yield
        finally:
            call.pass_through(None)
            passage.close()

    def pace(self, call: ServedCall, size_bytes: int) -> None:
        """Charge what a client has sent, and wait as long as its rate asks for (21-40)."""
        pause_s = self._turnstile.received(
            call.caller.name, size_bytes, limited=self._limited(call.caller)
        )
        if pause_s:
            call.ended.wait(pause_s)

    def _place(self, call: ServedCall, context: grpc.ServicerContext, leaving: ExitStack) -> None:
        payer = call.caller.payer
        known = payer.known or not (self._meter is None or self._meter.limits(payer))
        holder = StreamOwner(
            share=call.caller.share,
            network=payer.name if payer.known else payer.group,
            known=known,
        )
        ticket, why = self._gate.enter(context.cancel, holder)
        if ticket is None:
            call.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        leaving.callback(self._gate.leave, ticket)
        call.renew = partial(self._gate.renew, ticket)

    def _join(
        self,
        call: ServedCall,
        context: grpc.ServicerContext,
        leaving: ExitStack,
        weigh: Callable[[Caller], float],
    ) -> None:
        caller = call.caller
        passage, why = self._turnstile.enter(
            caller.name, context.cancel, weight=weigh(caller), limited=self._limited(caller)
        )
        if passage is None:
            call.refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        leaving.callback(passage.close)
        call.pass_through(passage)

        self._watch(call, context, passage.end)

    @staticmethod
    def _watch(
        call: ServedCall, context: grpc.ServicerContext, also: Callable[[], None] | None = None
    ) -> None:
        """Let threads that wait for this call go when it is over."""

        def end() -> None:
            call.ended.set()
            if also is not None:
                also()

        if not context.add_callback(end):
            end()  # it was over before it began

    def _limited(self, caller: Caller) -> bool:
        return self._limit_local or not caller.local


def gateway_status(error: GatewayError) -> tuple[grpc.StatusCode, str]:
    """Return the status of a call that the gateway cannot answer, as HTTP has one for it."""
    code = _GATEWAY.get(error.code, grpc.StatusCode.INVALID_ARGUMENT)
    limited = code is grpc.StatusCode.RESOURCE_EXHAUSTED  # its hint names a header of HTTP
    return code, error.what if limited else str(error)


def _status(error: Exception, method: str, mishaps: Mishaps) -> tuple[grpc.StatusCode, str]:
    if isinstance(error, GatewayError):
        return gateway_status(error)
    if isinstance(error, LocalError):
        return grpc.StatusCode.INVALID_ARGUMENT, str(error)
    if isinstance(error, ResourceError):
        return grpc.StatusCode.UNAVAILABLE, f"this relay cannot answer now ({error.code})"
    return grpc.StatusCode.INTERNAL, mishaps.note(method, error)
