"""Places in the order of a store's index of senders: namespace, sequence, content id. Pure.

Source: P38; LP-6440.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from luxrelay.archive.answers import Place
from luxrelay.archive.schema import MAX_I64

_ORDER: Final = ("namespace_id", "seq", "content_id")


def first_in_lanes(
    rows: pa.Table, best: pa.Table | None, wanted: int, after: Place | None
) -> pa.Table:
    """Return the first ``wanted`` rows of two tables behind a place, in order.

    Args:
        rows: Places, in whatever order.
        best: What an earlier call returned; None at first.
        wanted: Rows at most.
        after: Rows up to here are left out; its timestamp does not matter.

    """
    if after is not None:
        rows = rows.filter(_behind(after))
    if best is not None:
        rows = pa.concat_tables([best, rows])
    return rows.sort_by([(name, "ascending") for name in _ORDER]).slice(0, wanted)


def _behind(after: Place) -> pc.Expression:
    namespace, seq, content = (pc.field(name) for name in _ORDER)
    if after.seq > MAX_I64:  # the wire has such sequences, no table does
        return namespace > pa.scalar(after.namespace_id)
    same_slot = (seq == pa.scalar(after.seq)) & (content > pa.scalar(after.content_id))
    same_lane = (namespace == pa.scalar(after.namespace_id)) & (
        (seq > pa.scalar(after.seq)) | same_slot
    )
    return (namespace > pa.scalar(after.namespace_id)) | same_lane
