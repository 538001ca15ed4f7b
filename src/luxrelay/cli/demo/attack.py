"""The rogue peer: sends each broken message and asks the relay for its fate.

The relay counts for each peer what it refused, by code, what it could not read, and what it did not
hear because the sender's score is below the threshold. While it hears the rogue, messages go one at
a time, and the counter that grew says what became of each; so the account does not depend on how
fast either side is. A connection that ends with a message under way is looked up among the peers
that left; what the relay has not counted there never came, and is sent again under a new identity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import trio

from luxrelay.cli.demo.outcome import KindOutcome
from luxrelay.cli.demo.patience import DemoPatience
from luxrelay.cli.demo.rogue import CODES, MALFORMED, Corrupt, Rogue
from luxrelay.errors import LuxRelayError
from luxrelay.gossip.rpc import encode_message
from luxrelay.net.addresses import peer_text
from luxrelay.net.raw_peer import RawPubsubPeer, raw_pubsub_peer

UNHEARD: Final = "unheard"
"""The relay's counter of what it did not hear."""
NO_CODE: Final = "no code"
"""Refused by the router alone, which counts without a code."""
ACCEPTED: Final = "accepted"
_TOGETHER: Final = 8
"""Messages sent at once while the relay does not hear them. Should it hear again, so many more
cannot take the score from one threshold to the next, below which it ends the connection."""
_FRUITLESS_MAX: Final = 3
"""Identities one after the other under which nothing was achieved, before the rogue gives up."""
_IDLE_S: Final = 120.0
"""Seconds for which nothing that the relay counts of the rogue may change."""
_GONE_S: Final = 3.0
"""The same once the relay has let it go: what it had judged by then may still be counted."""
_POLL_S: Final = (0.01, 0.2)
"""First pause between two questions, and the longest, seconds."""


@dataclass(slots=True, kw_only=True)
class Fates:
    """What became of the broken messages."""

    sent: Counter[str] = field(default_factory=Counter)
    """Messages by kind."""
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Messages by kind and by the code with which they were refused."""
    unheard: Counter[str] = field(default_factory=Counter)
    """Messages by kind that the relay did not hear."""
    identities: int = 0
    """Under how many the rogue came."""
    digests: list[tuple[bytes, ...]] = field(default_factory=list)
    """Of each message, what it would be found under if it had been stored."""

    def accounted(self) -> int:
        """Return of how many messages it is known what became of them."""
        return self.refused.total() + self.unheard.total()


Watch = Callable[[str], tuple[Mapping[str, int], bool]]
"""Returns for a peer id what the relay counts of it, and whether that peer has left."""


def counts_of(status: Mapping[str, Any] | None, peer: str) -> tuple[Counter[str], bool]:
    """Return what a status page counts of a peer's messages, by code, and whether it has left."""
    if status is None:
        return Counter(), False
    gone = peer not in status["peers"] and peer in status["departed"]
    seen = status["departed" if gone else "peers"].get(peer)
    if seen is None:
        return Counter(), False
    counts = Counter(seen["refused"])
    by_router = seen["rejected"] + seen["ignored"] - counts.total()
    counts[NO_CODE] = max(0, by_router)  # a code may be counted a moment before the router's number
    counts[MALFORMED] = seen["malformed"]
    counts[UNHEARD] = seen["unheard"]
    counts[ACCEPTED] = seen["accepted"]
    return +counts, gone


def attribute(batch: Sequence[Corrupt], grown: Mapping[str, int], fates: Fates) -> list[Corrupt]:
    """Note what became of a batch, by what the relay's counters grew; return what is left over.

    A code belongs to the message of the kind that breaks its rule; what is unheard to those
    without; any other code to what is left then.
    """
    left, counts = [], Counter(grown)
    for each in batch:
        code = CODES[each.kind]
        if counts[code] > 0:
            counts[code] -= 1
            fates.refused[each.kind, code] += 1
        else:
            left.append(each)
    unknown = []
    for each in left:
        other = next((code for code, count in counts.items() if count > 0), None)
        name = UNHEARD if counts[UNHEARD] > 0 else other
        if name is None:
            unknown.append(each)
            continue
        counts[name] -= 1
        if name == UNHEARD:
            fates.unheard[each.kind] += 1
        else:
            fates.refused[each.kind, name] += 1
    return unknown


def kind_outcome(kind: str, fates: Fates) -> KindOutcome:
    """Return what became of the messages of one kind."""
    code = CODES[kind]
    return KindOutcome(
        kind=kind,
        code=code,
        sent=fates.sent[kind],
        refused=fates.refused[kind, code],
        unheard=fates.unheard[kind],
        otherwise={
            other: count
            for (of, other), count in sorted(fates.refused.items())
            if of == kind and other != code
        },
    )


class Attack:
    """Sends what a rogue makes to one relay until it is known what became of all of it.

    Args:
        address: Multiaddress of the relay.
        rogue: Whose identities and topic are used.
        corrupt: What to send.
        watch: Asks the relay; it may block and runs in a thread.

    """

    def __init__(
        self, address: str, rogue: Rogue, corrupt: Iterator[Corrupt], watch: Watch
    ) -> None:
        self.fates = Fates()
        self._address = address
        self._rogue = rogue
        self._corrupt = corrupt
        self._watch = watch
        self._again: list[Corrupt] = []
        self._batch: list[Corrupt] = []
        self._before: Mapping[str, int] = {}

    def run(self) -> None:
        """Send it all, under as many identities as it takes while there is progress.

        Raises:
            LuxRelayError: the relay could not be reached.

        """
        fruitless = 0
        while True:
            accounted = self.fates.accounted()
            error = trio.run(self._visit, self._rogue.identity_of(self.fates.identities).seed)
            self.fates.identities += 1
            self._again = [*self._batch, *self._again]
            self._batch = self._next(1)
            if not self._batch:
                return
            fruitless = 0 if self.fates.accounted() > accounted else fruitless + 1
            if fruitless == _FRUITLESS_MAX:
                if error is not None:
                    raise error
                return

    async def _visit(self, seed: bytes) -> LuxRelayError | None:
        """Send under one identity until nothing is left or the connection ends; return why."""
        self._before = {}
        name, error = "", None
        try:
            async with raw_pubsub_peer(self._address, seed, topics=[self._rogue.topic]) as peer:
                name = peer_text(peer.host.peer_id)
                await self._send(peer, name)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the relay has ended the connection
        except* LuxRelayError as group:
            error = _first(group)
        if name and self._batch:
            await self._settle(name)
        return error

    async def _send(self, peer: RawPubsubPeer, name: str) -> None:
        heard = True
        self._batch = self._batch or self._next(1)
        while self._batch:
            for each in self._batch:
                await peer.send_rpc(encode_message(each.topic, each.envelope))
            grown = await self._settle(name)
            if self._batch:
                return  # of some of it nothing is known
            heard = not grown[UNHEARD]
            self._batch = self._next(1 if heard else _TOGETHER)

    async def _settle(self, peer: str) -> Counter[str]:
        """Wait for what became of the batch; what is not known stays in it. Return what grew."""
        patience, pause = DemoPatience(_IDLE_S), _POLL_S[0]
        left: DemoPatience | None = None
        while True:
            counts, gone = await trio.to_thread.run_sync(self._watch, peer)
            grown = Counter(counts)
            grown.subtract(self._before)
            grown = +grown
            if grown.total() >= len(self._batch) or patience.lost(counts):
                break
            if gone:
                left = left or DemoPatience(_GONE_S)
                if left.lost(counts):
                    break
            await trio.sleep(pause)
            pause = min(2 * pause, _POLL_S[1])
        self._before = counts
        self._batch = attribute(self._batch, grown, self.fates)
        return grown

    def _next(self, count: int) -> list[Corrupt]:
        """Return what is to be sent next, first what is to be sent again."""
        again, self._again = self._again[:count], self._again[count:]
        fresh = list(islice(self._corrupt, count - len(again)))
        for each in fresh:
            self.fates.sent[each.kind] += 1
            self.fates.digests.append(each.digests)
        return [*again, *fresh]


def _first(group: BaseExceptionGroup[LuxRelayError]) -> LuxRelayError:
    """Return the first error inside a group."""
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
