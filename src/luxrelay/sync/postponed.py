"""`PostponedMessages`: what peers served before its time, and is not asked of them until then.

Theory of operation
  Decides: which sequences of which namespace are not asked of which peer now.
  Does not know: stores, sockets, clocks. It is given the wall clock's time.
  Why by peer: who sends a message of tomorrow into a slot must not keep others' messages of today
    out of it. So an honest network whose clock is ahead of ours costs one fetch a peer and message.
  Bounds: `entries_max` messages; beyond it the one put off longest ago is forgotten, and fetched
    once more.

Source: decisions G36, H14, P25.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence

from luxrelay.bus.header import NamespaceId
from luxrelay.sync.heads import SeqRange
from luxrelay.sync.lanes import spans_of

Spans = Mapping[NamespaceId, Sequence[SeqRange]]
"""Ascending, disjoint sequences by namespace."""


class PostponedMessages:
    """Remembers them.

    Args:
        entries_max: Messages remembered, each counted once a peer.

    """

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._due: OrderedDict[tuple[str, NamespaceId, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._due)

    def put_off(self, peer: str, namespace_id: NamespaceId, seq: int, due_ms: int) -> None:
        """Do not ask the peer for the message until then, Unix milliseconds."""
        self._due[peer, namespace_id, seq] = due_ms
        self._due.move_to_end((peer, namespace_id, seq))
        if len(self._due) > self._entries_max:
            self._due.popitem(last=False)

    def spans(self, now_ms: int) -> Mapping[str, Spans]:
        """Return what is not to be asked now, by peer; what is due is forgotten."""
        found: defaultdict[str, defaultdict[NamespaceId, list[int]]]
        found = defaultdict(lambda: defaultdict(list))
        for key, due_ms in list(self._due.items()):
            if due_ms <= now_ms:
                del self._due[key]
            else:
                peer, namespace_id, seq = key
                found[peer][namespace_id].append(seq)
        return {
            peer: {name: spans_of(sorted(seqs)) for name, seqs in lanes.items()}
            for peer, lanes in found.items()
        }
