"""`FinalGroup`: a batch that takes over what consensus says of messages.

Every candidate of a slot is marked with the state that a statement gave it. Once one is FINALIZED,
the others go in the same batch and none comes any more, however low its content id; REORGED opens
the slot again. A namespace's finalized head is what the oracle says it is, also when it goes back.

The losers of a slot go whether an archive has read them or not: they never were part of history.

Source: decisions P40, J9, H17; 21-58.
"""

from __future__ import annotations

from collections.abc import Mapping

from luxrelay.bus import MsgHeader, NamespaceId
from luxrelay.bus.finality import FinalityRow, FinalityState
from luxrelay.store import layout
from luxrelay.store.group import Group
from luxrelay.store.touched import crown


class FinalGroup(Group):
    """Takes statements one by one; `commit` makes all of it true at once."""

    superseded = 0
    """Candidates that lost their slot to a finalized one."""

    def take(self, said: FinalityRow, heads: Mapping[NamespaceId, int]) -> bool:
        """One message has the state said; False when it is not here and may come."""
        namespace, seq = said.namespace_id, said.seq
        if namespace not in self._ledger.states:
            return False
        state = self._known(namespace)
        finalized = heads.get(namespace, state.finalized)
        if finalized != state.finalized:
            state.finalized = finalized
            self._change(state)
        slot = layout.slot_key(namespace, seq)
        rows = self._touched.read(state, slot, seq)
        found = {content: layout.decode_row(value) for content, value in rows.items()}
        for content in sorted(found):  # senders of equal headers share a hash: the lowest counts
            row = found[content]
            header = MsgHeader.decode(row.header)
            if header.header_hash == said.header_hash:
                break
        else:
            return seq <= state.floor or self._is_thinned(slot)
        final = said.state is FinalityState.FINALIZED
        if row.finality != said.state:
            row = row._replace(finality=int(said.state))
            rows[content] = layout.encode_row(row)
            where = self._slices.of(row.expires_at)
            self._rows.replace(where, slot + content, row, rows[content], 0)
            self._change(state)
        if final and len(rows) > 1:
            for other in found.keys() - {content}:
                self._erase(state, slot, rows, other)
                self.superseded += 1
            if seq == state.latest:
                crown(state, rows, header)
            self._change(state)
        return True
