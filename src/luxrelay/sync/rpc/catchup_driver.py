"""`run_catchup`: the catch-up machine over real relays, a table from action to effect.

Requests run in a few threads; their answers come back through one queue to the calling thread,
which alone feeds the machine and the sink. So the sink is never called twice at once, and what is
under way in memory is bounded by ``pages_max`` pages of ``page_bytes``.

Source: LP-6421 §2.3; decisions P24, P25, P26; 21-25 to 21-28, 21-56.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final, Protocol

from luxrelay.bus.header import NamespaceId
from luxrelay.errors import LuxRelayError, SyncUnreachableError
from luxrelay.sync.actions import AskHeads, AskPage, Fault, Finished, SkipTo
from luxrelay.sync.catchup import CatchUp
from luxrelay.sync.heads import PeerHead, SeqRange
from luxrelay.sync.messages import LaneRange, PageFlow, SyncPage, WireMessage
from luxrelay.sync.params import CatchUpConfig
from luxrelay.sync.postponed import Spans
from luxrelay.sync.report import AcceptResult, CatchUpProgress, CatchUpReport
from luxrelay.sync.rpc.client import RelaySyncClient
from luxrelay.sync.rpc.patience import MARGIN_S
from luxrelay.sync.rpc.scope import CallScope
from luxrelay.sync.rpc.workers import Workers
from luxrelay.sync.transfer import LinkWindow, Transfer

POLL_S: Final = 0.1
"""How soon a cancelled catch-up notices, seconds."""
PROGRESS_S: Final = 0.5
"""Time between two reports of progress, seconds."""
_HEADS_A_STEP: Final = 100
"""Heads of a listing that count as progress."""


class CatchUpSink(Protocol):
    """The node's side: what it holds, and what it does with what arrives. One thread calls it."""

    def heads(self, parent: NamespaceId | None) -> Iterable[PeerHead]:
        """Return our heads of a parent and its lanes, or of every namespace."""
        ...

    def gaps(self, namespace_id: NamespaceId, limit: int) -> Sequence[tuple[int, int]]:
        """Return the lowest missing ``(first, last)`` between contiguous head and latest."""
        ...

    def accept(
        self, peer: str, parent: NamespaceId, messages: Sequence[WireMessage]
    ) -> AcceptResult:
        """Validate the messages of one namespace by the sync rules and store the valid ones.

        Returns when they are durable; never called without a message. The namespace is ``parent``
        or claims to be a lane of it.

        Source: verdict table, column sync (P39); H14; 21-27.
        """
        ...

    def skip_to(self, namespace_id: NamespaceId, parent: NamespaceId, seq: int) -> None:
        """Record that nothing up to ``seq`` can be had any more; the contiguous head moves on."""
        ...


class Cancelled(Protocol):
    """Tells whether to stop; `threading.Event` fits."""

    def is_set(self) -> bool:
        """True when the catch-up should end."""
        ...


@dataclass(frozen=True, slots=True)
class _Listed:
    request: int
    heads: list[PeerHead]


@dataclass(frozen=True, slots=True)
class _Came:
    request: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Fetched:
    request: int
    """The first of the call's."""
    pages: list[tuple[AskPage, SyncPage]]
    passed_over: Sequence[AskPage] = ()
    """What the call did not come to."""


@dataclass(frozen=True, slots=True)
class _Failed:
    request: int
    fault: Fault
    error: BaseException | None = None
    """A bug of ours, to be raised in the calling thread."""
    reason: str = ""
    """What happened, in words."""


_Answer = _Listed | _Came | _Fetched | _Failed


def run_catchup(
    clients: Sequence[RelaySyncClient],
    sink: CatchUpSink,
    config: CatchUpConfig | None = None,
    *,
    parent: NamespaceId | None = None,
    windows: Mapping[str, LinkWindow] | None = None,
    postponed: Mapping[str, Spans] | None = None,
    clock: Callable[[], float] = time.monotonic,
    cancelled: Cancelled | None = None,
    on_progress: Callable[[CatchUpProgress], None] | None = None,
) -> CatchUpReport:
    """Bring the sink level with the relays, as far as they have what is missing.

    Blocks until done; call it in a worker thread from an event loop. What arrived is in the sink
    whatever happens, and a later call goes on from there. The clients stay open.

    Args:
        clients: Relays to ask, best first, each address once; ``peer`` is the address.
        sink: What we hold, and where messages go.
        config: Bounds.
        parent: Catch up this namespace and its lanes; None for every namespace.
        windows: What is known of the links to relays, by address; it is kept up to date.
        postponed: What each relay is not asked for, by address (G36).
        clock: Monotonic seconds.
        cancelled: Set to end early, within a moment.
        on_progress: Called in this thread now and then, and at the end.

    Raises:
        SyncArgumentError: too many clients, or one address twice.
        LuxRelayError: whatever the sink raises, a full disk for example; calls under way are ended.

    Source: P24, P25, P26.

    """
    run = _Run(
        clients,
        sink,
        CatchUp(
            [client.address for client in clients],
            parent=parent,
            windows=windows,
            postponed=postponed,
            config=config,
        ),
        config or CatchUpConfig(),
        parent=parent,
        clock=clock,
    )
    try:
        return run.to_end(cancelled, on_progress)
    finally:
        run.close()


class _Run:
    """One catch-up: the machine, its threads and their answers."""

    def __init__(
        self,
        clients: Sequence[RelaySyncClient],
        sink: CatchUpSink,
        machine: CatchUp,
        config: CatchUpConfig,
        *,
        parent: NamespaceId | None,
        clock: Callable[[], float],
    ) -> None:
        self._clients = {client.address: client for client in clients}
        self._sink = sink
        self._config = config
        self._parent = parent
        self._clock = clock
        self._machine = machine
        self._plain = {each.address for each in clients if each.config.frame_messages == 1}
        """Relays that answer for one namespace a call."""
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._scope = CallScope()
        self._reasons: dict[str, str] = {}
        """What the last call that failed came to, by peer."""
        self._due: dict[int, tuple[AskHeads | AskPage, Transfer]] = {}
        """When a request is over although no answer and no failure came; each step moves it."""
        # Listings have threads of their own: a relay that is slow to list delays no page.
        workers = config.pages_max + max(1, len(clients))
        self._pool = Workers(workers, "luxrelay-catchup")

    def to_end(
        self,
        cancelled: Cancelled | None,
        on_progress: Callable[[CatchUpProgress], None] | None,
    ) -> CatchUpReport:
        """Drive the machine until it has finished."""
        heads, gaps = self._own()
        self._machine.start(heads, gaps, self._clock())
        told_at = self._clock()
        while not self._act():
            if cancelled is not None and cancelled.is_set():
                self._machine.cancel(self._clock())
                continue
            self._wait()
            if on_progress is not None and self._clock() - told_at >= PROGRESS_S:
                told_at = self._clock()
                on_progress(self._machine.progress())
        if on_progress is not None:
            on_progress(self._machine.progress())
        report = self._machine.report()
        peers = tuple(
            replace(each, reason=self._reasons.get(each.peer, "")) for each in report.peers
        )
        return replace(report, peers=peers)

    def close(self) -> None:
        """End every call under way; a thread that hangs in one is left behind."""
        self._scope.cancel()
        self._pool.close()

    def _own(self) -> tuple[list[PeerHead], Mapping[NamespaceId, list[SeqRange]]]:
        heads = list(self._sink.heads(self._parent))
        gaps: dict[NamespaceId, list[SeqRange]] = {}
        for head in heads:
            if head.latest_seq > head.contiguous_seq:
                found = self._sink.gaps(head.namespace_id, self._config.holes_max)
                gaps[head.namespace_id] = [SeqRange(first, last) for first, last in found]
        return heads, gaps

    def _act(self) -> bool:
        """Do what the machine asks; True when it has finished."""
        finished = False
        calls: dict[int, list[AskPage]] = {}
        for action in self._machine.drain():
            match action:
                case AskHeads():
                    self._moved(action)
                    self._pool.submit(partial(self._list, action))
                case AskPage():
                    self._moved(action)
                    calls.setdefault(action.call, []).append(action)
                case SkipTo():
                    self._sink.skip_to(action.namespace_id, action.parent, action.seq)
                case Finished():
                    finished = True
        for asks in calls.values():
            self._pool.submit(partial(self._fetch, asks))
        return finished

    def _wait(self) -> None:
        """Feed the next answer, or the passing of time."""
        now = self._clock()
        wake_at = self._machine.wake_at()
        pause = POLL_S if wake_at is None else min(POLL_S, max(0.0, wake_at - now))
        try:
            answer = self._answers.get(timeout=pause)
        except queue.Empty:
            if wake_at is not None and wake_at <= self._clock():
                self._machine.wake(self._clock())
            self._end_overdue()
            return
        waiting = self._due.get(answer.request)
        if waiting is not None and not isinstance(answer, _Failed):
            # Answers of one peer come one after another: those behind it wait for it.
            for ask, _ in list(self._due.values()):
                if ask.peer == waiting[0].peer:
                    self._moved(ask)
        match answer:
            case _Came(request, size_bytes):
                self._machine.came(request, size_bytes, self._clock())
            case _Listed(request, heads):
                self._due.pop(request, None)
                self._machine.heads_received(request, heads, self._clock())
            case _Fetched():
                self._take(answer)
            case _Failed(request):
                self._fail(answer, self._due.pop(request, None))

    def _fail(self, failed: _Failed, asked: tuple[AskHeads | AskPage, Transfer] | None) -> None:
        if failed.error is not None:
            raise failed.error
        if asked is not None:
            self._reasons[asked[0].peer] = failed.reason
        self._machine.failed(failed.request, failed.fault, self._clock())

    def _moved(self, ask: AskHeads | AskPage) -> None:
        """Give a request the time of one answer from now on, and what ends its call twice over."""
        config = self._clients[ask.peer].config
        step_s = config.page_s if isinstance(ask, AskPage) else config.call_s
        whole_s = step_s + config.connect_s + 4 * MARGIN_S
        self._due[ask.request] = ask, Transfer(whole_s, self._clock())

    def _end_overdue(self) -> None:
        """Take a request for failed whose thread should have come back long ago."""
        now = self._clock()
        for request in [each for each, (_, due) in self._due.copy().items() if due.late(now)]:
            ask, _ = self._due.pop(request)
            self._reasons[ask.peer] = "the relay did not answer in time, and its call did not end"
            self._machine.failed(request, Fault.UNREACHABLE, now)

    def _take(self, fetched: _Fetched) -> None:
        """Hand what came to the sink, all of a parent at once: each time waits for the disk."""
        by_parent: dict[NamespaceId, list[tuple[AskPage, SyncPage]]] = {}
        for ask, page in fetched.pages:
            by_parent.setdefault(ask.parent, []).append((ask, page))
        for parent, pages in by_parent.items():
            messages = [message for _, page in pages for message in page.messages]
            whole = AcceptResult(outcomes=(), contiguous_seq=0)
            if messages:
                whole = self._sink.accept(pages[0][0].peer, parent, messages)
            at = 0
            for ask, page in pages:
                end = at + len(page.messages)
                alone = whole.contiguous_seq if len(pages) == 1 else 0
                result = AcceptResult(
                    outcomes=whole.outcomes[at:end],
                    contiguous_seq=whole.reached.get(ask.namespace_id, alone),
                )
                at = end
                self._due.pop(ask.request, None)
                seqs = [message.seq for message in page.messages]
                self._machine.page_stored(ask.request, seqs, page.status, result, self._clock())
        for ask in fetched.passed_over:
            self._due.pop(ask.request, None)
            self._machine.passed_over(ask.request, self._clock())

    def _list(self, ask: AskHeads) -> None:
        client = self._clients[ask.peer]

        def work() -> _Answer:
            listed = []
            with closing(client.list_heads(ask.parent, scope=self._scope)) as heads:
                for head in islice(heads, self._config.heads_max + 1):
                    listed.append(head)
                    if not len(listed) % _HEADS_A_STEP and ask.request in self._due:
                        self._moved(ask)
            return _Listed(ask.request, listed)

        self._answers.put(_guarded(ask.request, work))

    def _fetch(self, asks: Sequence[AskPage]) -> None:
        """Ask for pages in one call; of a relay that knows no such call one after the other."""
        first = asks[0]
        if len(asks) > 1 and first.peer not in self._plain:
            answer = _guarded(first.request, partial(self._lanes, asks))
            if not (isinstance(answer, _Failed) and answer.fault is Fault.UNUSABLE):
                self._put(answer, asks)
                return
            if answer.error is None:
                self._plain.add(first.peer)
        for ask in asks:
            self._put(_guarded(ask.request, partial(self._page, ask)), [ask])

    def _put(self, answer: _Answer, asks: Sequence[AskPage]) -> None:
        """Hand an answer over; a failed call has failed for each of its pages."""
        if isinstance(answer, _Failed):
            for ask in asks:
                self._answers.put(replace(answer, request=ask.request))
        else:
            self._answers.put(answer)

    def _page(self, ask: AskPage) -> _Answer:
        page = self._clients[ask.peer].sync_page(
            ask.namespace_id,
            ask.from_seq,
            ask.to_seq,
            ask.max_messages,
            cursor=ask.cursor,
            max_bytes=ask.max_bytes,
            flow=self._flow(ask),
            scope=self._scope,
        )
        return _Fetched(ask.request, [(ask, page)])

    def _lanes(self, asks: Sequence[AskPage]) -> _Answer:
        first = asks[0]
        lanes = [
            LaneRange(
                namespace_id=ask.namespace_id,
                from_seq=ask.from_seq,
                to_seq=ask.to_seq,
                cursor=ask.cursor,
            )
            for ask in asks
        ]
        pages = self._clients[first.peer].sync_lanes(
            lanes,
            max(ask.max_messages for ask in asks),
            max_bytes=first.max_bytes,
            flow=self._flow(first),
            scope=self._scope,
        )
        served = list(zip(asks, pages, strict=False))
        return _Fetched(first.request, [*served], asks[len(served) :])

    def _flow(self, ask: AskPage) -> PageFlow:
        return PageFlow(
            silence_s=self._config.transfer.silence_s,
            frame_bytes=ask.max_frame_bytes,
            blob_bytes=ask.max_blob_bytes,
            took=lambda size_bytes: self._answers.put(_Came(ask.request, size_bytes)),
        )


def _guarded(request: int, work: Callable[[], _Answer]) -> _Answer:
    """Return what ``work`` returns, or its fault as a value: threads have nobody to raise to."""
    try:
        return work()
    except SyncUnreachableError as failure:
        return _Failed(request, Fault.UNREACHABLE, reason=failure.what)
    except LuxRelayError as failure:
        return _Failed(request, Fault.UNUSABLE, reason=failure.what)
    except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
        return _Failed(request, Fault.UNUSABLE, error)
