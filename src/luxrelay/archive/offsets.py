"""Offsets ``{namespace hex: last sequence read}``, read limits and the split into partitions.

Theory of operation
-------------------
*Decides* how far a read goes, how much of it one micro-batch takes, which sequences no relay
holds any more, and which task reads what.
*Does not know* relays' addresses, Spark, clocks.
An offset names, for each namespace, the last sequence that has been read; the next read begins
one above. The end of a read is the union over the relays: the highest head that any of them
reports. With contiguous heads nothing below the end is still on its way, so a range is read once
and never again; a hole that was waited for long enough is given up, and shows as a gap.
*Relays that lie*: whatever a relay says of its heads, a run must end, and an offset must not pass
what others have yet to bring. So a message further than ``LEAP_MAX`` beyond a relay's contiguous
head, or its first message, is not read to (a node takes no message that far ahead), and neither is
a range that lies that far beyond what another relay says of the same namespace near the offset.
*Bounds*: ``NAMESPACES_MAX`` namespaces in one offset; a micro-batch takes at most the sequences
of its limit, and at least one.
*Deviations*: none; LP-6421 names no archive (P42).
*What else to change when you change this*: the checkpoint of a running archive holds these
offsets as JSON; older ones must stay readable.

Source: decisions P25, P42, J8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from luxrelay.archive.schema import MAX_I64
from luxrelay.errors import ArchiveArgumentError

Offsets = dict[str, int]
"""Namespace as 40 lower-case hex digits → last sequence read; 0 before the first."""

NAMESPACES_MAX: Final = 1_000_000
"""Namespaces in one offset; its JSON then has about 60 MB."""

LEAP_MAX: Final = 1_000_000
"""Sequences over which a read follows one relay's word: beyond a hole, or away from the others."""

_NAMESPACE: Final = re.compile(r"[0-9a-f]{40}")


class HeadView(Protocol):
    """What this module needs of a relay's head of one namespace."""

    @property
    def namespace_id(self) -> bytes:
        """20 bytes."""

    @property
    def earliest_seq(self) -> int:
        """Lowest sequence held, 0 when nothing is."""

    @property
    def contiguous_seq(self) -> int:
        """Highest sequence without a hole below it."""

    @property
    def latest_seq(self) -> int:
        """Highest sequence held, 0 when nothing is."""


class Span(NamedTuple):
    """Sequences ``first`` to ``last`` of one namespace, both included."""

    namespace: bytes
    first: int
    last: int

    @property
    def size(self) -> int:
        """How many sequences the span holds."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the relays together reach in one namespace."""

    last: int
    """Highest head of any relay."""
    held: tuple[tuple[int, int], ...] = field(default=())
    """Ranges [first, last] that at least one relay holds: ascending, disjoint, not touching."""
    said: tuple[int, ...] = field(default=(), compare=False)
    """The head of each relay that knows the namespace, also of one that holds nothing any more."""

    def believed(self, start: int) -> int:
        """Return how far a read from ``start`` goes: up to the first leap that others do not make.

        With nobody near ``start`` the nearest there are count: the window has passed it by.
        """
        points = [*self.held, *((last, last) for last in self.said)]
        reached, near = start, False
        for first, last in sorted(points):
            if last < start - LEAP_MAX:
                continue
            if near and first > reached + LEAP_MAX:
                break
            reached, near = max(reached, last), True
        return reached

    @property
    def earliest(self) -> int:
        """Lowest sequence that a relay still holds; ``last + 1`` when none holds anything."""
        return self.held[0][0] if self.held else self.last + 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What filters leave of a batch read: namespaces and sequences."""

    namespaces: frozenset[bytes] | None = None
    """Only these; None for all."""
    first: int = 0
    """From this sequence on."""
    last: int = MAX_I64
    """Up to this one."""

    def among(self, namespaces: Iterable[bytes]) -> Wanted:
        """Return what is wanted of these namespaces only."""
        named = frozenset(namespaces)
        both = named if self.namespaces is None else self.namespaces & named
        return Wanted(both, self.first, self.last)

    def between(self, first: int, last: int) -> Wanted:
        """Return what is wanted within these bounds only, both included."""
        return Wanted(self.namespaces, max(self.first, first), min(self.last, last))

    def cut(self, spans: Iterable[Span]) -> list[Span]:
        """Return what of ``spans`` is wanted."""
        kept = []
        for span in spans:
            first, last = max(span.first, self.first), min(span.last, self.last)
            if first <= last and (self.namespaces is None or span.namespace in self.namespaces):
                kept.append(Span(span.namespace, first, last))
        return kept


def parse_offsets(value: object) -> Offsets:
    """Return the checked offsets of a decoded JSON value, keys in order.

    Raises:
        ArchiveArgumentError: the value is no object of namespace ids to sequences.

    """
    if not isinstance(value, Mapping) or len(value) > NAMESPACES_MAX:
        raise ArchiveArgumentError(
            "offsets are not a JSON object of namespaces to sequences", where="startingOffsets"
        )
    offsets: Offsets = {}
    for key, seq in value.items():
        name = key.removeprefix("0x").lower() if isinstance(key, str) else ""
        if not _NAMESPACE.fullmatch(name):
            raise ArchiveArgumentError(
                f"{key!r:.60} is no namespace", where="offsets", hint="give 40 hex digits"
            )
        if isinstance(seq, bool) or not isinstance(seq, int) or not 0 <= seq <= MAX_I64:
            raise ArchiveArgumentError(
                f"{seq!r:.60} is no sequence number", where=f"offsets of {name}"
            )
        offsets[name] = seq
    return dict(sorted(offsets.items()))


def union_reach(
    heads: Iterable[Iterable[HeadView]],
    *,
    to_latest: bool = False,
    given_up: Mapping[str, int] | None = None,
) -> dict[str, Reach]:
    """Return how far the relays reach together, namespace by namespace, keys in order.

    Args:
        heads: The heads of each relay.
        to_latest: Reach to the newest message, holes or not, instead of to the first hole.
        given_up: Reach at least to this sequence of a namespace: its holes were waited for.

    """
    passed = given_up or {}
    lasts: dict[str, int] = {}
    ranges: dict[str, list[tuple[int, int]]] = {}
    said: dict[str, list[int]] = {}
    for relay in heads:
        for head in relay:
            name = head.namespace_id.hex()
            last = max(
                head.contiguous_seq,
                head.latest_seq if to_latest else 0,
                min(passed.get(name, 0), head.latest_seq),
            )
            # A store that was restored begins where it does, with nothing below.
            last = min(last, max(head.contiguous_seq, head.earliest_seq) + LEAP_MAX, MAX_I64)
            lasts[name] = max(lasts.get(name, 0), last)
            if last:
                said.setdefault(name, []).append(last)
            if 0 < head.earliest_seq <= last:
                ranges.setdefault(name, []).append((head.earliest_seq, last))
    if len(lasts) > NAMESPACES_MAX:
        raise ArchiveArgumentError(
            f"the relays hold {len(lasts)} namespaces, above {NAMESPACES_MAX}",
            where="source luxrelay",
            hint="read them in groups with the option namespaces",
        )
    return {
        name: Reach(lasts[name], _merged(ranges.get(name, [])), tuple(said[name]))
        for name in sorted(lasts)
        if lasts[name] > 0
    }


def holed(heads: Iterable[Iterable[HeadView]]) -> dict[str, tuple[int, int]]:
    """Return where messages lie beyond a hole: namespace → (last before it, last there is)."""
    contiguous: dict[str, int] = {}
    latest: dict[str, int] = {}
    for relay in heads:
        for head in relay:
            name = head.namespace_id.hex()
            contiguous[name] = max(contiguous.get(name, 0), min(head.contiguous_seq, MAX_I64))
            latest[name] = max(latest.get(name, 0), min(head.latest_seq, MAX_I64))
    return {
        name: (contiguous[name], last)
        for name, last in sorted(latest.items())
        if last > contiguous[name]
    }


def _merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def starting_offsets(starting: str | Mapping[str, int], reach: Mapping[str, Reach]) -> Offsets:
    """Return where a first read begins.

    Args:
        starting: ``earliest`` (what a relay still holds), ``latest`` (nothing of it), or offsets.
        reach: How far the relays reach now.

    """
    if not isinstance(starting, str):
        return dict(sorted(starting.items()))
    if starting == "latest":
        return end_offsets(reach)
    return {name: reached.earliest - 1 for name, reached in reach.items()}


def end_offsets(reach: Mapping[str, Reach], start: Mapping[str, int] | None = None) -> Offsets:
    """Return the offsets after everything within reach has been read.

    Args:
        reach: How far the relays reach.
        start: Offsets read before; what lies too far away from them is not believed.

    """
    return {
        name: reached.believed((start or {}).get(name, reached.earliest - 1))
        for name, reached in reach.items()
    }


def advance(
    start: Mapping[str, int], target: Mapping[str, int], sequences_max: int | None = None
) -> Offsets:
    """Return how far one micro-batch goes from ``start`` towards ``target``.

    Every namespace gets an equal share of the limit, and what one does not need goes to the
    others, so that a hot namespace never starves a quiet one. Nothing moves backwards.

    Args:
        start: Offsets reached so far.
        target: Offsets to reach in the end.
        sequences_max: Sequences this micro-batch may take, 1 or more; None for all.

    Returns:
        The new offsets; equal to ``start`` when there is nothing to read.

    """
    behind = {
        name: last - start.get(name, 0)
        for name, last in target.items()
        if last > start.get(name, 0)
    }
    if not behind:
        return dict(start)
    room = sum(behind.values()) if sequences_max is None else max(1, sequences_max)
    reached = dict(start)
    waiting = len(behind)
    for name, backlog in sorted(behind.items(), key=lambda item: (item[1], item[0])):
        share = -(-room // waiting)  # rounded up, so that a small limit still moves someone
        taken = min(backlog, share, room)
        if taken:
            reached[name] = start.get(name, 0) + taken
        room -= taken
        waiting -= 1
    return dict(sorted(reached.items()))


def spans_between(start: Mapping[str, int], end: Mapping[str, int]) -> list[Span]:
    """Return what lies between two offsets, one span a namespace, in order of namespaces."""
    return [
        Span(bytes.fromhex(name), start.get(name, 0) + 1, last)
        for name, last in sorted(end.items())
        if last > start.get(name, 0)
    ]


def lost_spans(spans: Iterable[Span], reach: Mapping[str, Reach]) -> list[Span]:
    """Return the parts of ``spans`` that no relay holds any more."""
    lost: list[Span] = []
    for span in spans:
        reached = reach.get(span.namespace.hex())
        next_seq = span.first
        for first, last in reached.held if reached else ():
            if first > next_seq:
                lost.append(Span(span.namespace, next_seq, min(first - 1, span.last)))
            next_seq = max(next_seq, last + 1)
            if next_seq > span.last:
                break
        if next_seq <= span.last:
            lost.append(Span(span.namespace, next_seq, span.last))
    return lost


def split(
    spans: Sequence[Span], partitions: int, *, sequences_min: int = 256
) -> list[tuple[Span, ...]]:
    """Return the spans dealt to tasks: small ones together, a large one cut by range.

    Every sequence of ``spans`` is in exactly one part, and no part is empty; so an empty read
    has no part at all.

    Args:
        spans: What to read.
        partitions: How many parts there may be, 1 or more.
        sequences_min: A part smaller than this is not worth a task of its own.

    """
    total = sum(span.size for span in spans)
    count = min(max(1, partitions), max(1, total // max(1, sequences_min)))
    size = max(1, -(-total // count))
    parts: list[tuple[Span, ...]] = []
    part: list[Span] = []
    room = size
    for span in spans:
        first = span.first
        while first <= span.last:
            last = min(span.last, first + room - 1)
            part.append(Span(span.namespace, first, last))
            room -= last - first + 1
            first = last + 1
            if room == 0:
                parts.append(tuple(part))
                part, room = [], size
    if part:
        parts.append(tuple(part))
    return parts
