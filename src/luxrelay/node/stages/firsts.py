"""`FirstStays`: who publishes twice for one slot is told so, and keeps what it published first.

Among peers the order of a slot must not depend on who came first (J11), so there a sender's second
message may push its first one out. At the door where applications publish nothing has been promised
to anybody yet: there the second is refused, with the sequence that is free.

*Threads*: publishers are many. Looking and writing happen under a lock of the namespace, so two
that come at once cannot both be first; namespaces share `STRIPES` locks, taken in their order.

Source: H17; user-05.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, Protocol

from luxrelay.bus import Code, ContentId, MsgHeader, NamespaceId, Verdict
from luxrelay.bus.verdict import ignore
from luxrelay.store import NamespaceHead

STRIPES: Final = 64
"""Locks that all namespaces share."""
TAKEN: Final = ignore(Code.CONTENTION, "the sender has put another message into the slot")


class Slots(Protocol):
    """What is asked of a store."""

    def head(self, namespace_id: NamespaceId) -> NamespaceHead:
        """Return a namespace's head."""

    def slot_holders(self, namespace_id: NamespaceId, seq: int) -> Mapping[bytes, ContentId]:
        """Return the senders of a slot's candidates, each with the content that is kept."""


class FirstStays:
    """Refuses a sender's second message for a slot."""

    def __init__(self, store: Slots) -> None:
        """Look into ``store``."""
        self._store = store
        self._locks = [threading.Lock() for _ in range(STRIPES)]

    @contextmanager
    def guarded(
        self, headers: Sequence[MsgHeader], verdicts: Sequence[Verdict]
    ) -> Iterator[list[Verdict]]:
        """Yield the verdicts after refusing rivals; whoever writes does so inside."""
        accepted = [i for i, verdict in enumerate(verdicts) if verdict.accepted]
        stripes = {hash(headers[i].namespace_id) % STRIPES for i in accepted}
        with ExitStack() as held:
            for stripe in sorted(stripes):
                held.enter_context(self._locks[stripe])
            yield self._judged(headers, verdicts, accepted)

    def _judged(
        self, headers: Sequence[MsgHeader], verdicts: Sequence[Verdict], accepted: Sequence[int]
    ) -> list[Verdict]:
        final = list(verdicts)
        slots: dict[tuple[NamespaceId, int], dict[bytes, ContentId]] = {}
        latest: dict[NamespaceId, int] = {}
        for index in accepted:
            header = headers[index]
            name = header.namespace_id
            if name not in latest:
                latest[name] = self._store.head(name).latest_seq
            slot = (name, header.seq)
            if slot not in slots:
                known = header.seq <= latest[name]
                slots[slot] = dict(self._store.slot_holders(name, header.seq)) if known else {}
            first = slots[slot].setdefault(header.sender_pub_key, header.content_id)
            if first != header.content_id:
                final[index] = TAKEN
        return final
