"""`Writer`: the single writer of rows, counters and states.

Theory of operation
-------------------
*Decides* who writes when.
*Does not know* what a message means to a slot; `Group` does. Nor when a write is safe; `Durable`
does.
*Machine*: one lock for changes. Each public method makes one `Group` under it and commits it, so
states on disk, in the ledger and in the counters move together.
*Timers*: none; the node calls `expire` by its clock.
*Bounds*: a put waits for at most one other group, or for one piece of the deletion cycle: a chunk
goes in pieces of PIECE_MAX messages and ends early when somebody waits. A put that must make room
does so in runs of one chunk. `FairLock` sees to it that a waiter goes next.
*What else to change when you change this*: `batch`, docs on durability, tests/chaos.

Source: ADR 0006 §3, §7; architecture, rules 5 and 6; decisions P3, P9, P13, P14, J8.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, NamedTuple

from luxrelay.bus import NamespaceId
from luxrelay.bus import constants as c
from luxrelay.bus.finality import FinalityRow
from luxrelay.errors import StoreArgumentError, StoreError
from luxrelay.store.config import RelayStoreConfig, WhenFull
from luxrelay.store.durability.marks import HEADS_MAX, Mark
from luxrelay.store.durability.sync import Durable, FairLock
from luxrelay.store.ledger import Ledger
from luxrelay.store.messages import IncomingMessage, PutOutcome
from luxrelay.store.namespaces import Equivocation, Lack, Shortage
from luxrelay.store.rocks import Database
from luxrelay.store.writing.batch import Group
from luxrelay.store.writing.eviction import Evictor, Sweep
from luxrelay.store.writing.special_batches import (
    BlobGroup,
    BlobRoom,
    FinalGroup,
    ThinGroup,
    Thinner,
)

PIECE_MAX: Final = 100
"""Messages that a deletion cycle removes before it looks whether somebody waits."""


class Recent:
    """The namespaces written last, HEADS_MAX of them; one thread at a time."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: OrderedDict[NamespaceId, None] = OrderedDict()

    def wrote(self, names: Iterable[NamespaceId]) -> None:
        """They have been written just now."""
        for name in names:
            self._names[name] = None
            self._names.move_to_end(name)
        while len(self._names) > HEADS_MAX:
            self._names.popitem(last=False)

    def mark(self, sequence: int, ledger: Ledger, *, clean: bool = False) -> Mark:
        """Return the mark of the present moment."""
        heads = {name: ledger.head(name).latest_seq for name in self._names}
        return Mark(
            sequence=sequence,
            messages=ledger.messages,
            heads=heads,
            others=max(0, len(ledger.states) - len(heads)),
            clean=clean,
        )


class WriterRun(NamedTuple):
    """What one chunk of a deletion cycle did."""

    looked_at: int
    """Messages it removed or set aside for the archive."""
    removed: int
    """Messages it removed."""
    namespaces: frozenset[NamespaceId]
    """Where they had been."""
    done: bool
    """True when nothing more of the kind is left."""


@dataclass(slots=True)
class WriterCounters:
    """What the writer has done since the store was opened."""

    outcomes: list[int] = field(default_factory=lambda: [0] * len(PutOutcome))
    """Messages by `PutOutcome`."""
    equivocations: int = 0
    removed: int = 0
    """Messages whose time had passed."""
    evicted: list[int] = field(default_factory=lambda: [0] * len(Lack))
    """Messages that made room, by the `Lack` they relieved."""
    unread: int = 0
    """Messages that went although an archive had not read them (J8)."""
    refused: list[int] = field(default_factory=lambda: [0] * len(Lack))
    """Messages that were FULL, by `Lack`."""
    blobs_dropped: int = 0
    """Blobs that went before their messages (LP-6421 §5.1)."""
    thinned: int = 0
    """Messages that went early because their namespace is thinned (J3)."""
    superseded: int = 0
    """Candidates that lost their slot to a finalized one."""
    batches: int = 0


class Writer:
    """Groups in, batches on disk, outcomes out."""

    def __init__(
        self, database: Database, ledger: Ledger, config: RelayStoreConfig, durable: Durable
    ) -> None:
        self._durable = durable
        self.counters = WriterCounters()
        self.lock = FairLock()
        """Held while anything changes; `verify` holds it to see one picture."""
        self._database = database
        self._ledger = ledger
        self._config = config
        self._evictor = Evictor(ledger, config)
        self._blobs = BlobRoom(ledger, config)
        self._bounds_blobs = config.bounds_blobs()
        self._thinner = Thinner(ledger, config)
        self.evidence: deque[Equivocation] = deque(maxlen=config.equivocations_max)
        """The newest equivocations (H17)."""
        self.recent = Recent()
        """The namespaces written last (`marks`)."""
        self.read_only = False
        """True for a store that shows another process's database."""
        self.trusts_clock = True
        """False while messages must not go for their age (P43)."""
        self.believed_ms: int | None = None
        """The wall clock as last compared with the monotonic one; None without a comparison."""

    def go_on_from(self, before: Writer) -> None:
        """Count on, after the database was opened again."""
        self.counters, self.evidence = before.counters, before.evidence
        self.recent = before.recent
        self.trusts_clock, self.believed_ms = before.trusts_clock, before.believed_ms

    def put(self, messages: Sequence[IncomingMessage], now_ms: int) -> list[PutOutcome]:
        """Every message is decided, what is stored is written; not yet durable."""
        outcomes: list[PutOutcome] = []
        if self._bounds_blobs:
            messages = self._blobs.admit(messages, now_ms)
        for part in split_groups(
            messages, self._config.group_messages_max, self._config.group_bytes_max
        ):
            with self.lock:
                outcomes += self._put(part, now_ms)
        return outcomes

    def _put(self, part: Sequence[IncomingMessage], now_ms: int) -> list[PutOutcome]:
        """Decide and write one group."""
        group = self._begin()
        decided: list[PutOutcome] = []
        counts = [0] * len(PutOutcome)
        while len(decided) < len(part):
            at = group.place_plain(part, len(decided), now_ms)
            counts[PutOutcome.STORED] += at - len(decided)
            decided += [PutOutcome.STORED] * (at - len(decided))
            if at == len(part):
                break
            outcome = group.place(part[at], now_ms)
            if outcome is PutOutcome.FULL:
                group, outcome = self._place_with_room(group, part[at], now_ms)
            counts[outcome] += 1
            decided.append(outcome)
        self._commit(group)
        while self._bounds_blobs and self._blobs.excess():
            if self._trim_blobs(None, self._config.gc_chunk_size).done:
                break
        self._ledger.hot.forget_old(now_ms)
        for index, count in enumerate(counts):
            self.counters.outcomes[index] += count
        return decided

    def skip_to(self, namespace: NamespaceId, parent: NamespaceId, seq: int) -> None:
        """The floor of ``namespace`` is ``seq`` or more; not yet durable.

        Raises:
            StoreError: ``store.full`` when one namespace more is too many.

        """
        with self.lock:
            group = self._begin()
            if not group.skip_to(namespace, parent, seq):
                raise _too_many(namespace)
            self._commit(group)

    def hand_off(self, namespace: NamespaceId, parent: NamespaceId, seq: int | None) -> None:
        """The archive has read ``namespace`` up to ``seq``; None ends that; not yet durable.

        Raises:
            StoreError: ``store.full`` when one namespace more is too many.

        """
        with self.lock:
            group = self._begin()
            if not group.hand_off(namespace, parent, seq):
                raise _too_many(namespace)
            self._commit(group)

    def apply_finality(
        self, rows: Sequence[FinalityRow], heads: Mapping[NamespaceId, int]
    ) -> list[FinalityRow]:
        """What is here has the states said; return what may still come; not yet durable."""
        waiting: list[FinalityRow] = []
        for start in range(0, len(rows), self._config.gc_chunk_size):
            with self.lock:
                self._require_changeable()
                group = FinalGroup(self._database, self._ledger, self._config)
                part = rows[start : start + self._config.gc_chunk_size]
                waiting += [row for row in part if not group.take(row, heads)]
                self._commit(group)
                self.counters.superseded += group.superseded
        return waiting

    def drop_past(self, now_ms: int, cutoff_ms: int) -> WriterRun:
        """The first slice that is wholly past its time is gone, with all its messages.

        One that the archive has not read to its end stays until it is past the cut-off (J8).
        """
        with self.lock:
            self._ledger.hot.forget_old(now_ms)
            group = self._begin()
            past = self._evictor.past(now_ms)
            gone = next((each for each in past if group.may_drop(each, cutoff_ms)), None)
            if gone is None:
                return WriterRun(0, 0, frozenset(), done=True)
            self.counters.unread += group.let_go(gone)
            self._commit(group)
            self.counters.removed += gone.messages
        # The table may go only when the batch that forgets it cannot be lost any more.
        self._durable.sync()
        self._ledger.slices.drop(gone)
        return WriterRun(gone.messages, gone.messages, frozenset(gone.shares), done=False)

    def remove_expired(self, now_ms: int, limit: int) -> WriterRun:
        """Up to ``limit`` expired messages are gone, or set aside for the archive (J8)."""
        return self._in_pieces(lambda some: self._remove_expired(now_ms, some), limit)

    def remove_aged(self, cutoff_ms: int, limit: int) -> WriterRun:
        """Up to ``limit`` messages up to the cut-off are gone, read by the archive or not.

        Source: retention document, "Rule".
        """

        def remove(some: int) -> WriterRun:
            keys = list(islice(self._evictor.aged(cutoff_ms), some))
            run = self._forget([key[8:] for key in keys], done=len(keys) < some)
            self.counters.removed += len(keys)
            if run.done:
                self._ledger.time_hint = max(self._ledger.time_hint, cutoff_ms + 1)
            return run

        return self._in_pieces(remove, limit)

    def remove_released(self, limit: int) -> WriterRun:
        """Up to ``limit`` expired messages that the archive has read since are gone (J8)."""

        def remove(some: int) -> WriterRun:
            keys = list(islice(self._evictor.released(), some))
            self.counters.removed += len(keys)
            return self._forget(keys, done=len(keys) < some)

        return self._in_pieces(remove, limit)

    def relieve(self, limit: int) -> WriterRun:
        """Up to ``limit`` messages above a low-water mark are gone.

        Source: P13.
        """

        def evict(some: int) -> WriterRun:
            victims, lack = self._evictor.victims_of_pressure(some)
            # Relief comes payer by payer, so only an empty run ends it.
            return self._evict(victims, lack)

        return self._in_pieces(evict, limit)

    def trim_blobs(self, now_ms: int | None, limit: int) -> WriterRun:
        """Up to ``limit`` messages have lost a blob beyond its bounds; None: for bytes only."""
        return self._in_pieces(lambda some: self._trim_blobs(now_ms, some), limit)

    def _trim_blobs(self, now_ms: int | None, limit: int) -> WriterRun:
        self._require_changeable()
        group = BlobGroup(self._database, self._ledger, self._config)
        taken, position, done = self._blobs.trim(group, now_ms, limit)
        self._commit(group)
        self._ledger.blob_hint = position
        self.counters.blobs_dropped += taken
        return WriterRun(taken, 0, frozenset(), done)

    def thin(self, now_ms: int, limit: int) -> WriterRun:
        """Up to ``limit`` messages of thinned namespaces are gone, their slots remembered (J3)."""
        return self._in_pieces(lambda some: self._thin(now_ms, some), limit)

    def _thin(self, now_ms: int, limit: int) -> WriterRun:
        self._require_changeable()
        keys, done = self._thinner.victims(now_ms, limit)
        group = ThinGroup(self._database, self._ledger, self._config)
        group.foresee(keys)
        for key in keys:
            group.thin(key)
        try:
            self._commit(group)
        except StoreError:
            self._thinner.look_again()
            raise
        self.counters.thinned += len(keys)
        return WriterRun(len(keys), len(keys), frozenset(group.changed), done)

    def forget_idle(self, limit: int) -> WriterRun:
        """Up to ``limit`` namespaces without messages have made room for others.

        Source: retention document, "Edge Cases": a head never goes back, so it stays on the disk.
        """
        with self.lock:
            return self._forget_idle(limit)

    def _forget_idle(self, limit: int) -> WriterRun:
        idle = self._ledger.idle()
        group = self._begin()
        for state in idle[:limit]:
            group.make_room(state)
        self._commit(group)
        return WriterRun(0, 0, frozenset(), done=len(idle) <= limit)

    def has_due(self, now_ms: int) -> bool:
        """Return True when a message waits to be removed."""
        with self.lock:
            due: Iterable[bytes] = ()
            if self._blobs.is_due(now_ms if self.trusts_clock else None):
                return True
            if self.trusts_clock:
                aged = self._evictor.aged(self._config.cutoff_ms(now_ms))
                due = chain(aged, self._evictor.released())
                if self._evictor.due(now_ms) is not None or self._thinner.has_due(now_ms):
                    return True
            return any(True for _ in due) or bool(self._evictor.victims_of_pressure(1)[0])

    def _in_pieces(self, step: Callable[[int], WriterRun], limit: int) -> WriterRun:
        """Run ``step`` on up to ``limit`` messages under one hold, or until somebody waits."""
        looked_at = removed = 0
        namespaces: set[NamespaceId] = set()
        with self.lock:
            for begin in range(0, limit, PIECE_MAX):
                run = step(min(PIECE_MAX, limit - begin))
                looked_at, removed = looked_at + run.looked_at, removed + run.removed
                namespaces |= run.namespaces
                time.sleep(0)  # whoever waits for the interpreter comes as far as the lock
                if run.done or self.lock.is_wanted():
                    break
        return WriterRun(looked_at, removed, frozenset(namespaces), run.done)

    def _begin(self) -> Group:
        self._require_changeable()
        return Group(self._database, self._ledger, self._config)

    def _require_changeable(self) -> None:
        if self.read_only:
            raise StoreArgumentError("the store was opened for reading only", where="RelayStore")
        self._durable.check()

    def _commit(self, group: Group) -> None:
        if group.commit():
            self._durable.wrote()
            self.counters.batches += 1
            self.recent.wrote(group.changed)
        self.counters.equivocations += group.equivocations
        self.evidence.extend(group.evidence)

    def _place_with_room(
        self, group: Group, message: IncomingMessage, now_ms: int
    ) -> tuple[Group, PutOutcome]:
        """Place a message that found no room, after others have made some (P2, P13).

        What was decided before is written first: an eviction must not depend on it.
        """
        outcome = PutOutcome.FULL
        shortage = group.shortage
        while outcome is PutOutcome.FULL and shortage is not None:
            if self._config.when_full is WhenFull.REFUSE:
                break
            self._commit(group)
            relieved = self._make_room(shortage, message, now_ms)
            group = self._begin()
            if not relieved:
                break
            outcome = group.place(message, now_ms)
            shortage = group.shortage
        if outcome is PutOutcome.FULL and shortage is not None:
            self.counters.refused[shortage.lack] += 1
        return group, outcome

    def _make_room(self, shortage: Shortage, message: IncomingMessage, now_ms: int) -> bool:
        """One run of victims is gone; False when nobody makes room for this message."""
        if shortage.lack is Lack.NAMESPACES:
            before = len(self._ledger.states)
            self._forget_idle(self._config.gc_chunk_size)
            return len(self._ledger.states) < before
        by_age = shortage.lack is Lack.STORE and self.trusts_clock
        if self.believed_ms is not None:
            # A clock that jumped since the last cycle makes nobody old (P43).
            now_ms = min(now_ms, self.believed_ms + 2 * self._config.gc_interval_ms)
        while by_age:
            run = self._remove_expired(now_ms, self._config.gc_chunk_size)
            if run.removed:
                return True
            by_age = not run.done  # all set aside, or none of those looked at was due
        victims = self._evictor.victims_for(shortage, message.header)
        return bool(self._evict(victims, shortage.lack).removed)

    def _remove_expired(self, now_ms: int, limit: int) -> WriterRun:
        """Sweep over the times of the first slice that has something due; a chunk of it."""
        where = self._evictor.due(now_ms)
        if where is None:
            return WriterRun(0, 0, frozenset(), done=True)
        group = self._begin()
        sweep = Sweep(where, now_ms, limit)
        due = sweep.chunk()
        group.foresee([key for key in due if not group.is_unread(key)])
        removed = looked_at = 0
        namespaces: set[NamespaceId] = set()
        for key in due:
            if group.is_unread(key):
                looked_at += group.set_aside(where, key)
            else:
                namespaces.add(group.forget(key))
                removed += 1
        self._commit(group)
        sweep.passed()
        self.counters.removed += removed
        return WriterRun(looked_at + removed, removed, frozenset(namespaces), done=False)

    def _evict(self, keys: list[bytes], lack: Lack) -> WriterRun:
        run = self._forget(keys, done=not keys)
        self.counters.evicted[lack] += len(keys)
        return run

    def _forget(self, keys: list[bytes], *, done: bool) -> WriterRun:
        group = self._begin()
        unread = 0
        namespaces: set[NamespaceId] = set()
        group.foresee(keys)
        for key in keys:
            unread += group.is_unread(key)
            namespaces.add(group.forget(key))
        self._commit(group)
        self.counters.unread += unread
        return WriterRun(len(keys), len(keys), frozenset(namespaces), done)


def _too_many(namespace: NamespaceId) -> StoreError:
    return StoreError(
        "the store holds namespaces_max namespaces", where=namespace.hex(), code="store.full"
    )


def split_groups(
    messages: Sequence[IncomingMessage], messages_max: int, bytes_max: int
) -> Iterator[Sequence[IncomingMessage]]:
    """Yield ``messages`` in runs within both bounds, at least one message each."""
    whole = len(messages) * c.MAX_HEADER_BYTES + sum([each.header.blob_len for each in messages])
    whole += sum([len(each.sidecar) for each in messages if each.sidecar])
    if 0 < len(messages) <= messages_max and whole <= bytes_max:
        yield messages
        return
    start = size = 0
    for at, message in enumerate(messages):
        charge = len(message.header.encode()) + len(message.blob or b"")
        charge += len(message.sidecar or b"")
        if at > start and (at - start == messages_max or size + charge > bytes_max):
            yield messages[start:at]
            start, size = at, 0
        size += charge
    if messages:
        yield messages[start:]
