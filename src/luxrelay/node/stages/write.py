"""Stage three: accepted candidates go into the store as one batch; outcomes become verdicts.

Source: LP-6421 §2.1; H17, J11, P2 and the verdict table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from luxrelay.bus import ACCEPTED, Code, Verdict
from luxrelay.bus.verdict import ignore
from luxrelay.errors import StoreError
from luxrelay.node.stages.candidate import Candidate
from luxrelay.store import IncomingMessage, PutOutcome


class Shelf(Protocol):
    """What writing asks of a store."""

    def put_many(self, messages: Sequence[IncomingMessage], now_ms: int) -> list[PutOutcome]:
        """Store a group; durable when it returns."""


_OUTCOMES: Final = {
    PutOutcome.STORED: ACCEPTED,
    PutOutcome.DUPLICATE: ignore(Code.DUPLICATE, "the message is stored already (LP-6421 §3.2)"),
    PutOutcome.LOST_SLOT: ignore(Code.CONTENTION, "other candidates keep the slot (J11)"),
    PutOutcome.EXPIRED: ignore(Code.EXPIRED, "the message is past its time to live (P14)"),
    PutOutcome.FULL: ignore(Code.STORE_FULL, "the store has no room (P2)"),
}


def write(
    shelf: Shelf, candidates: Sequence[Candidate], verdicts: Sequence[Verdict], now_ms: int
) -> list[Verdict]:
    """Return the verdicts after storing every accepted candidate; durable when it returns.

    A store that cannot write is our fault, so its messages are ignored, never rejected.
    """
    accepted = [i for i, verdict in enumerate(verdicts) if verdict.accepted]
    final = list(verdicts)
    if not accepted:
        return final
    incoming = [
        IncomingMessage(
            header=candidates[i].header,
            blob=candidates[i].blob,
            parent=candidates[i].parent,
            received_at=now_ms,
            source=candidates[i].source,
        )
        for i in accepted
    ]
    try:
        outcomes = shelf.put_many(incoming, now_ms)
    except StoreError as error:
        fault = ignore(Code.LOCAL_FAULT, str(error))
        for index in accepted:
            final[index] = fault
        return final
    for index, outcome in zip(accepted, outcomes, strict=True):
        final[index] = _OUTCOMES[outcome]
    return final
