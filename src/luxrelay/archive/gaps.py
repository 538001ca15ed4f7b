"""The history of gaps: which ranges are missing, since when, and when they were filled. Pure.

The table ``gaps`` is settled after each run: what is missing now is compared with the gaps that
stood open. A gap that is missing as a whole stays as it is. One that is missing in part is closed
with the time of its filling, and what is left of it opens anew with the time it was first seen.
What is missing and was in no open gap opens now. What was retired on purpose is not missing, nor
is what was passed over because its class is Ephemeral. Above the highest archived sequence of a
namespace something is missing when it was read and every row that relays served was rejected:
another relay may have the message, so it is a gap like any other, up to the highest such sequence.

Source: decisions P23, P25; H18.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from luxrelay.archive.offsets import Span
from luxrelay.archive.schema import MAX_I64


@dataclass(frozen=True, slots=True, order=True)
class GapRow:
    """One row of the table ``gaps``."""

    namespace_id: bytes
    """20 bytes."""
    first: int
    """Lowest missing sequence."""
    last: int
    """Highest missing sequence."""
    seen_at: int
    """When it was first found, ms."""
    filled_at: int | None = None
    """When it was found filled, ms; None while it is open."""


def settle(known: Iterable[GapRow], missing: Iterable[Span], now_ms: int) -> list[GapRow]:
    """Return the rows of the table after a look at what is missing now.

    Args:
        known: The rows before, open and closed.
        missing: Ranges that the archive does not hold; disjoint and not touching.
        now_ms: When it was looked, ms.

    """
    rows: list[GapRow] = []
    still_open: dict[bytes, list[GapRow]] = {}
    for row in known:
        if row.filled_at is None:
            still_open.setdefault(row.namespace_id, []).append(row)
        else:
            rows.append(row)
    holes: dict[bytes, list[Span]] = {}
    for span in missing:
        holes.setdefault(span.namespace, []).append(span)
    for namespace in sorted(still_open.keys() | holes.keys()):
        before = sorted(still_open.get(namespace, ()))
        rows += _settled(before, sorted(holes.get(namespace, ())), now_ms)
    return sorted(rows, key=lambda row: (row.namespace_id, row.first, row.seen_at, row.last))


def above(spans: Iterable[Span], floors: Mapping[bytes, int]) -> list[Span]:
    """Return what of ``spans`` lies above each namespace's floor, up to which it was retired."""
    kept = []
    for span in spans:
        first = max(span.first, floors.get(span.namespace, 0) + 1)
        if first <= span.last:
            kept.append(Span(span.namespace, first, span.last))
    return kept


def beside(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """Return what of ``spans`` lies in none of ``others``, each sequence once."""
    taken: dict[bytes, list[Span]] = {}
    for other in others:
        taken.setdefault(other.namespace, []).append(other)
    left: list[Span] = []
    for span in spans:
        parts = [span]
        mine = taken.setdefault(span.namespace, [])
        for other in mine:
            parts = [rest for part in parts for rest in _without(part, other.first, other.last)]
        left += parts
        mine += parts
    return left


def rejected_heads(
    lasts: Mapping[bytes, int], tops: Mapping[bytes, int], known: Iterable[GapRow]
) -> list[Span]:
    """Return what is missing above the highest archived sequence of each namespace.

    Args:
        lasts: The highest sequence archived, or deleted on purpose.
        tops: The highest sequence of which all rows were rejected, where it is above.
        known: The rows of ``gaps``; an open one above stays, though the rejects be deleted by age.

    """
    reach = {name: top for name, top in tops.items() if top > lasts.get(name, MAX_I64)}
    for row in known:
        if row.filled_at is None and row.last > lasts.get(row.namespace_id, MAX_I64):
            reach[row.namespace_id] = max(row.last, reach.get(row.namespace_id, 0))
    return [Span(name, lasts[name] + 1, top) for name, top in sorted(reach.items())]


def reached(last: int, spans: Iterable[Span]) -> int:
    """Return how far a namespace has been read without a hole: ``last``, and spans beyond it.

    Args:
        last: The highest sequence archived.
        spans: Of the namespace: ranges that were read and brought no message.

    """
    for span in sorted(spans, key=lambda span: span.first):
        if span.first <= last + 1:
            last = max(last, span.last)
    return last


def _settled(before: Sequence[GapRow], holes: Sequence[Span], now_ms: int) -> list[GapRow]:
    """Settle one namespace: both lists ascend, open gaps do not overlap one another."""
    # Most gaps stay as they are; only what has changed is compared pair by pair.
    same = {(gap.first, gap.last) for gap in before} & {(hole.first, hole.last) for hole in holes}
    rows = [gap for gap in before if (gap.first, gap.last) in same]
    before = [gap for gap in before if (gap.first, gap.last) not in same]
    holes = [hole for hole in holes if (hole.first, hole.last) not in same]
    fresh = list(holes)
    for gap in before:
        left = [part for hole in holes if (part := _common(gap, hole))]
        if [(part.first, part.last) for part in left] == [(gap.first, gap.last)]:
            rows.append(gap)  # it has grown: what is new of the hole opens below
        else:
            rows.append(replace(gap, filled_at=now_ms))
            rows += [replace(gap, first=part.first, last=part.last) for part in left]
        fresh = [part for hole in fresh for part in _without(hole, gap.first, gap.last)]
    rows += [GapRow(hole.namespace, hole.first, hole.last, now_ms) for hole in fresh]
    return rows


def _common(gap: GapRow, hole: Span) -> Span | None:
    first, last = max(gap.first, hole.first), min(gap.last, hole.last)
    return Span(hole.namespace, first, last) if first <= last else None


def _without(hole: Span, first: int, last: int) -> list[Span]:
    parts = [
        Span(hole.namespace, hole.first, min(hole.last, first - 1)),
        Span(hole.namespace, max(hole.first, last + 1), hole.last),
    ]
    if hole.last < first or last < hole.first:
        return [hole]
    return [part for part in parts if part.first <= part.last]
