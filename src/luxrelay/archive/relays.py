"""Asking relays: their heads for the planner, their messages for a task.

A relay that fails is left alone for the rest of the task. That is an error only when nobody else
serves what it was asked for; otherwise the task goes on with the others, and the relay appears as
an unread row when the option ``faultRows`` asks for it.
Short ranges of many namespaces are asked for together, up to ``LANES_MAX`` in one call. What is
past its time at a relay and waits for the archive is asked for as well (J8).

Source: LP-6421 §2.2; decisions P23, P24, P26.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, compress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from luxrelay.archive.offsets import LEAP_MAX, Span
from luxrelay.archive.options import SourceOptions
from luxrelay.archive.schema import MAX_I64, RAW
from luxrelay.bus import constants as c
from luxrelay.bus.finality import FinalityState
from luxrelay.bus.header import NamespaceId
from luxrelay.errors import (
    ArchiveError,
    LuxRelayError,
    SyncRemoteError,
    SyncUnreachableError,
)
from luxrelay.sync.heads import PeerHead, SeqRange, holes_between
from luxrelay.sync.messages import SLOT, LaneRange, SyncPage, WireMessage
from luxrelay.sync.rpc.client import RelaySyncClient
from luxrelay.sync.rpc.tls import ClientTls

CHUNK_SEQUENCES: Final = 500
"""Sequences asked of each relay in turn, so that the copies of a message stand close together."""
CHUNK_ALONE: Final = 1_000
"""Sequences asked of a relay that is the only one: as many as a page has."""
PAGE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of one page: what a task holds of a relay's answer."""
BATCH_ROWS: Final = 4_096
BATCH_BYTES: Final = 8 * 1024 * 1024
"""An Arrow batch ends at this many rows or bytes, whichever comes first."""
CONTENTS_MAX: Final = 64
"""Messages of a sequence that a relay is taken, on average of what is asked for; it keeps four
(J11), an archive that is read as a relay a few more. Else an answer might never end."""
LANES_MAX: Final = 200
"""Namespaces asked for in one call."""
SURVEY_THREADS: Final = 8
"""Relays asked for their heads at once."""

_SCHEMA: Final = RAW.arrow()
_STATES: Final = frozenset(map(int, FinalityState))

Served = tuple[list[WireMessage], list[int]]
"""Messages of one namespace, and their sequences."""


def connect(relay: str, options: SourceOptions) -> RelaySyncClient:
    """Return a client of a relay, by TLS when the options name files for it.

    Raises:
        SyncArgumentError: a file cannot be read here.

    """
    named = [path or None for path in (options.tls_ca, options.tls_certificate, options.tls_key)]
    if not any(named):
        return RelaySyncClient(relay)
    ca, certificate, key = (None if path is None else Path(path) for path in named)
    return RelaySyncClient(relay, tls=ClientTls.from_files(ca, certificate, key))


def list_heads(options: SourceOptions) -> tuple[list[list[PeerHead]], tuple[str, ...]]:
    """Return the heads of each relay that answers, and the relays that do not.

    Raises:
        SyncUnreachableError: no relay answers.

    """
    with ThreadPoolExecutor(min(SURVEY_THREADS, len(options.relays))) as pool:
        answers = list(pool.map(lambda relay: _heads_of(relay, options), options.relays))
    heads = [answer for answer in answers if isinstance(answer, list)]
    faults = [answer for answer in answers if not isinstance(answer, list)]
    if not heads:
        raise SyncUnreachableError(
            f"no relay answers: {faults[0].what}", where=", ".join(options.relays)
        )
    down = [
        relay
        for relay, answer in zip(options.relays, answers, strict=True)
        if not isinstance(answer, list)
    ]
    return heads, tuple(down)


def _heads_of(relay: str, options: SourceOptions) -> list[PeerHead] | LuxRelayError:
    try:
        with connect(relay, options) as client:
            if options.namespaces:
                heads = [client.get_head(namespace) for namespace in options.namespaces]
            else:
                heads = list(client.list_heads(options.parent))
            for head in heads:
                if head.earliest_seq and head.contiguous_seq - head.earliest_seq > LEAP_MAX:
                    _doubt(client, relay, head)
            return heads
    except (SyncUnreachableError, SyncRemoteError) as error:
        return error


def _doubt(client: RelaySyncClient, relay: str, head: PeerHead) -> None:
    """Ask for the last message of so long a range: a number alone would keep us reading for ever.

    Raises:
        SyncRemoteError: the relay does not hold it.

    """
    last = head.contiguous_seq
    if (
        last <= MAX_I64
        and client.sync_page(head.namespace_id, last - 1, last, 1, held=True).messages
    ):
        return
    raise SyncRemoteError(
        f"the relay says that it holds {head.earliest_seq} to {last}, and serves no {last}",
        where=f"{relay}, namespace {head.namespace_id.hex()}",
    )


def data_loss(lost: Sequence[Span], down: Sequence[str] = ()) -> ArchiveError:
    """Return the error for ranges that nobody holds any more."""
    first = lost[0]
    messages = sum(span.size for span in lost)
    namespaces = len({span.namespace for span in lost})
    silent = f"; {', '.join(down)} did not answer and may still hold them" if down else ""
    return ArchiveError(
        f"{messages} messages in {namespaces} namespaces were forgotten by the relays before the"
        f" archive read them, the first are sequences {first.first} to {first.last}{silent}",
        where=f"namespace {first.namespace.hex()}",
        code="archive.data_loss",
    )


def read_spans(
    options: SourceOptions,
    spans: Sequence[Span],
    down: Sequence[str] = (),
    parents: Mapping[bytes, bytes] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield what the relays serve of ``spans`` as raw batches.

    Args:
        options: Relays, read mode and what to do about losses.
        spans: Ranges of sequences.
        down: Relays that are not to be asked.
        parents: Namespaces that are lanes, and whose (J6).

    Raises:
        SyncUnreachableError: a range is served by nobody, and a relay failed meanwhile.
        ArchiveError: ``archive.data_loss``: every relay has forgotten a range meanwhile.

    """
    rows = _Rows(parents or {})
    with _Readers(options, down) as readers:
        for group in _groups(spans, CHUNK_ALONE if len(options.relays) == 1 else CHUNK_SEQUENCES):
            answers = {span.namespace: _Answer(span) for span in group}
            for relay, namespace, served in readers.fetch(answers):
                for part in readers.with_sidecars(relay, served):
                    yield from rows.add(relay, namespace, part)
            for answer in answers.values():
                readers.judge(answer)
        if options.fault_rows:
            for relay in readers.down:
                yield from rows.add_unread(relay, spans[0])
    yield from rows.rest()


def _groups(spans: Iterable[Span], most: int) -> Iterator[list[Span]]:
    """Yield what is asked for together: few sequences, each namespace once."""
    group: list[Span] = []
    room = most
    for span in spans:
        for chunk in _chunks(span, most):
            known = any(each.namespace == chunk.namespace for each in group[-1:])
            if group and (chunk.size > room or known or len(group) == LANES_MAX):
                yield group
                group, room = [], most
            group.append(chunk)
            room -= chunk.size
    if group:
        yield group


def _chunks(span: Span, most: int) -> Iterator[Span]:
    for first in range(span.first, span.last + 1, most):
        yield Span(span.namespace, first, min(span.last, first + most - 1))


@dataclass(slots=True)
class _Answer:
    """What came of one chunk."""

    chunk: Span
    seen: set[int] = field(default_factory=set)
    """Sequences that some relay served."""
    earliest: int = MAX_I64
    """Lowest sequence that any answering relay holds."""
    answered: bool = False

    def note(self, page: SyncPage, parts: Sequence[SeqRange]) -> Served:
        """Take in a page and return its messages of the ranges that were wanted."""
        self.answered = True
        self.earliest = min(self.earliest, page.status.earliest_seq or MAX_I64)
        messages, unpack = page.messages, SLOT.unpack_from
        seqs = [unpack(message.header, c.OFFSET_NAMESPACE)[1] for message in messages]
        low, high = min(seqs, default=0), max(seqs, default=0)
        if messages and not any(part.first <= low and high <= part.last for part in parts):
            wanted = [any(part.first <= seq <= part.last for part in parts) for seq in seqs]
            messages, seqs = list(compress(messages, wanted)), list(compress(seqs, wanted))
        self.seen.update(seqs)
        return messages, seqs

    def holes(self) -> list[SeqRange]:
        """Return the sequences that nobody served so far."""
        if len(self.seen) == self.chunk.size:  # nothing else is ever noted
            return []
        return holes_between(self.chunk.first, self.chunk.last, sorted(self.seen))


def _endless(relay: str, namespace: bytes) -> SyncRemoteError:
    return SyncRemoteError(
        f"the relay serves more than {CONTENTS_MAX} messages for each sequence asked for",
        where=f"{relay}, namespace {namespace.hex()}",
    )


class _Readers:
    """The relays of one task, with a connection to each while it holds."""

    def __init__(self, options: SourceOptions, down: Sequence[str]) -> None:
        self._options = options
        self.down = list(down)
        self._fault: LuxRelayError | None = None  # of a relay that the plan had counted on
        self._clients = {
            relay: connect(relay, options) for relay in options.relays if relay not in down
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for client in self._clients.values():
            client.close()

    def fetch(self, answers: Mapping[bytes, _Answer]) -> Iterator[tuple[str, bytes, Served]]:
        """Yield messages of a group: of every relay, or of one and of others for what it lacks."""
        wanted = {
            namespace: [SeqRange(answer.chunk.first, answer.chunk.last)]
            for namespace, answer in answers.items()
        }
        relays = list(self._clients)
        if self._options.read_mode == "any":
            turn = next(iter(wanted))[0] % max(1, len(relays))  # spreads groups over relays
            relays = relays[turn:] + relays[:turn]
        for relay in relays:
            for namespace, page in self._pages(relay, wanted):
                yield relay, namespace, answers[namespace].note(page, wanted[namespace])
            if self._options.read_mode == "any":
                holes = {namespace: answer.holes() for namespace, answer in answers.items()}
                wanted = {namespace: parts for namespace, parts in holes.items() if parts}
                if not wanted:
                    return

    def _pages(
        self, relay: str, wanted: Mapping[bytes, Sequence[SeqRange]]
    ) -> Iterator[tuple[bytes, SyncPage]]:
        """Yield a relay's pages for some ranges; a relay that fails is not asked again."""
        spans = (parts[-1].last - parts[0].first + 1 for parts in wanted.values())
        room = CONTENTS_MAX * sum(spans)
        try:
            for namespace, page in self._answers(relay, wanted):
                room -= len(page.messages)
                if room < 0:
                    raise _endless(relay, namespace)
                yield namespace, page
        except (SyncUnreachableError, SyncRemoteError) as error:
            self._lose(relay, error)

    def _answers(
        self, relay: str, wanted: Mapping[bytes, Sequence[SeqRange]]
    ) -> Iterator[tuple[bytes, SyncPage]]:
        """Yield the pages that a relay answers with; each brings a message, or is the last."""
        client = self._clients[relay]
        if len(wanted) > 1:
            lanes = [
                LaneRange(
                    namespace_id=NamespaceId(namespace),
                    from_seq=parts[0].first - 1,
                    to_seq=parts[-1].last,
                )
                for namespace, parts in wanted.items()
            ]
            for page in client.iter_lanes(lanes, max_bytes=PAGE_BYTES, held=True):
                yield page.namespace_id, page
            return
        for namespace, parts in wanted.items():
            for single in client.iter_pages(
                namespace, parts[0].first - 1, parts[-1].last, max_bytes=PAGE_BYTES, held=True
            ):
                yield namespace, single

    def with_sidecars(self, relay: str, served: Served) -> Iterator[Served]:
        """Yield messages with the sidecars that the relay holds, few of them at once.

        A relay that fails is not asked again, and what it still owes is read as if it had none.
        """
        messages, seqs = served
        first = size = 0
        for place, message in enumerate(messages):
            if not message.sidecar_len or relay not in self._clients:
                continue
            try:
                message.sidecar = _sidecar(self._clients[relay], message.header)
            except (SyncUnreachableError, SyncRemoteError) as error:
                self._lose(relay, error)
            size += len(message.sidecar)
            if size >= BATCH_BYTES:
                yield messages[first : place + 1], seqs[first : place + 1]
                first, size = place + 1, 0
        yield messages[first:], seqs[first:]

    def _lose(self, relay: str, error: LuxRelayError) -> None:
        self._fault = error
        self._clients.pop(relay).close()
        self.down.append(relay)

    def judge(self, answer: _Answer) -> None:
        """Raise when a chunk is incomplete and that is nobody's choice."""
        holes = answer.holes()
        if not holes:
            return
        if self._fault is not None:
            raise self._fault
        if not answer.answered:
            raise SyncUnreachableError("no relay is left to ask", where=", ".join(self.down))
        lost = [
            Span(answer.chunk.namespace, hole.first, min(hole.last, answer.earliest - 1))
            for hole in holes
            if hole.first < answer.earliest
        ]
        if lost and self._options.fail_on_data_loss:
            raise data_loss(lost, self.down)


def _sidecar(client: RelaySyncClient, header: bytes) -> bytes:
    """Return what the relay gives as the sidecar of a header; empty when it has none."""
    if len(header) < c.FIXED_BYTES + c.SIDECAR_BYTES or not (
        header[c.OFFSET_FLAGS] & c.FLAG_TFHE_SIDECAR
    ):
        return b""
    return client.get_blob(header[-c.SIDECAR_BYTES :][: c.HASH_BYTES]) or b""


class _Rows:
    """Collects raw rows into Arrow batches of bounded size, column by column."""

    def __init__(self, parents: Mapping[bytes, bytes]) -> None:
        self._parents = parents
        self._clear()

    def _clear(self) -> None:
        self._rows = self._bytes = 0
        # what many rows share: relay, namespace, parent, and how many they are
        self._runs: list[tuple[str, bytes, bytes | None, int]] = []
        self._messages: list[WireMessage | None] = []
        self._seqs: list[int] = []

    def add(self, relay: str, namespace: bytes, served: Served) -> Iterator[pa.RecordBatch]:
        """Take in messages; yield each batch that is full."""
        parent = self._parents.get(namespace, namespace)
        messages, seqs = served
        sizes = [len(each.header) + len(each.blob) + len(each.sidecar) for each in messages]
        first = 0
        while first < len(messages):
            last = self._room(first, sizes)
            self._runs.append((relay, namespace, parent, last - first))
            self._messages += messages[first:last]
            self._seqs += seqs[first:last]
            self._rows += last - first
            self._bytes += sum(sizes[first:last])
            first = last
            if self._rows >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
                yield from self.rest()

    def _room(self, first: int, sizes: Sequence[int]) -> int:
        """Return up to where this batch takes messages: the one that fills it is its last."""
        last = min(len(sizes), first + BATCH_ROWS - self._rows)
        if self._bytes + sum(sizes[first:last]) < BATCH_BYTES:
            return last
        ends = list(accumulate(sizes[first:last], initial=self._bytes))
        return first + bisect_left(ends, BATCH_BYTES)

    def add_unread(self, relay: str, span: Span) -> Iterator[pa.RecordBatch]:
        """Take in the row that stands for a relay that was not read."""
        self._runs.append((relay, span.namespace, None, 1))
        self._messages.append(None)
        self._seqs.append(span.first)
        self._rows += 1
        if self._rows >= BATCH_ROWS:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left, if anything."""
        if self._rows:
            yield self._batch()
        self._clear()

    def _batch(self) -> pa.RecordBatch:
        relays, namespaces, parents, counts = zip(*self._runs, strict=True)
        runs = pa.array(np.repeat(np.arange(len(counts)), counts))
        messages = self._messages
        numbers = [
            (None, None, None)
            if each is None
            else (each.received_at, each.expires_at, each.finality)
            for each in messages
        ]
        received, expires, finality = zip(*numbers, strict=True)
        columns: dict[str, pa.Array] = {
            "relay": pa.array(relays, pa.string()).take(runs),
            "namespace": pa.array(namespaces, pa.binary()).take(runs),
            "parent": pa.array(parents, pa.binary()).take(runs),
            "seq": pa.array(self._seqs, pa.int64()),
            "header": pa.array([each and each.header for each in messages], pa.binary()),
            "blob": pa.array([each and (each.blob or None) for each in messages], pa.binary()),
            "received_at": _times(received),
            "expires_at": _times(expires),
            "finality": _states(finality),
            "sidecar": pa.array(
                [each and (each.sidecar or None) for each in messages], pa.binary()
            ),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in RAW.names], schema=_SCHEMA)


def _times(values: Sequence[int | None]) -> pa.Array:
    """Return times of the wire, u64, as a table holds them."""
    array = pa.array(values, pa.uint64())
    return pc.min_element_wise(array, pa.scalar(MAX_I64, pa.uint64()), skip_nulls=False).cast(
        pa.int64()
    )


def _states(values: Sequence[int | None]) -> pa.Array:
    """Return finality states; what is none says nothing."""
    if not _STATES.issuperset(values):
        values = [value if value is None or value in _STATES else 0 for value in values]
    return pa.array(values, pa.int32())
