"""A header on its second topic: passed on once by each, judged and charged once.

A header travels on its namespace's topic and on ``headers/global``, and both have to pass it on
(G2). The second copy is, byte for byte, of a header that was judged and stored moments ago, so only
what stands around it is looked at: the announcement, unless it is the verified one, and a blob. A
copy that brings the blob which the first one lacked is judged and stored, and no rate or fee is
charged again.

Bounds: `HEADERS_MAX` headers are remembered.

Source: LP-6420 §2.2, §4.3; decisions G2, G20; 20-23.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from luxrelay.bus import Code, Verdict, VerdictKind
from luxrelay.bus.verdict import ignore
from luxrelay.node.stages.verify import Candidate

HEADERS_MAX: Final = 16_384
"""Accepted headers remembered for their second topic; beyond it the oldest is forgotten."""

PASSED_ON: Final = Verdict(
    VerdictKind.ACCEPT, Code.DUPLICATE, "the header was stored by its other topic (G2)"
)
"""The verdict on a second copy: its topic passes it on, nothing else is done with it."""


JudgeGroup = Callable[[Sequence[Candidate]], Sequence[Verdict]]
"""Judges candidates, stores the accepted ones, and returns the verdicts in order."""
JudgeAnnouncement = Callable[[Candidate], Verdict]
"""Judges what stands around a header that was accepted before."""


@dataclass(slots=True)
class _Accepted:
    """A header that was accepted from gossip lately."""

    announced: tuple[bytes, int]
    """Signature and time of the announcement that brought it first; verified."""
    blob: bool
    """Whether its blob came with it, or there is none."""
    topics: set[str] = field(default_factory=set)
    """Topics that it was accepted on."""


class SecondCopies:
    """Which headers were accepted on which topic; threads take turns, a group each."""

    def __init__(
        self,
        group: JudgeGroup,
        announcement: JudgeAnnouncement,
        *,
        headers_max: int = HEADERS_MAX,
    ) -> None:
        """Take who judges; remember so many headers."""
        self._group = group
        self._announcement = announcement
        self._max = headers_max
        self._lock = threading.Lock()
        self._headers: OrderedDict[bytes, _Accepted] = OrderedDict()

    def __len__(self) -> int:
        return len(self._headers)

    def judged(self, found: Sequence[Candidate | Verdict], topics: Sequence[str]) -> list[Verdict]:
        """Return the verdict on each, in order.

        A header that stands twice in a group is judged once, unless the first copy failed.

        Args:
            found: What arrived.
            topics: The topic that brought each.

        """
        with self._lock:
            return self._judged(found, topics)

    def _judged(self, found: Sequence[Candidate | Verdict], topics: Sequence[str]) -> list[Verdict]:
        verdicts = {i: each for i, each in enumerate(found) if isinstance(each, Verdict)}
        left = [(i, each) for i, each in enumerate(found) if isinstance(each, Candidate)]
        while left:
            first: dict[bytes, tuple[int, Candidate]] = {}
            later = []
            for index, candidate in left:
                verdict = self._known(candidate, topics[index])
                if verdict is not None:
                    verdicts[index] = verdict
                elif candidate.header.digest in first:
                    later.append((index, candidate))
                else:
                    first[candidate.header.digest] = index, self._marked(candidate)
            chosen = list(first.values())
            judged = self._group([each for _, each in chosen]) if chosen else ()
            for (index, candidate), verdict in zip(chosen, judged, strict=True):
                verdicts[index] = self._settled(candidate, topics[index], verdict)
            left = later
        return [verdicts[index] for index in range(len(found))]

    def _known(self, candidate: Candidate, topic: str) -> Verdict | None:
        """Return the verdict on another copy of an accepted header; None for any other header."""
        known = self._headers.get(candidate.header.digest)
        if known is None or (candidate.blob is not None and not known.blob):
            return None
        return self._another(candidate, known, topic)

    def _another(self, candidate: Candidate, known: _Accepted, topic: str) -> Verdict:
        if topic in known.topics:
            return ignore(Code.DUPLICATE, "the topic has passed it on already (LP-6420 §4.3)")
        same = candidate.blob is None and _announced(candidate) == known.announced
        verdict = PASSED_ON if same else self._announcement(candidate)
        if not verdict.accepted:
            return verdict
        known.topics.add(topic)
        return PASSED_ON

    def _marked(self, candidate: Candidate) -> Candidate:
        """Return a candidate that brings the blob of an accepted header as judged."""
        known = candidate.header.digest in self._headers
        return replace(candidate, judged=True) if known else candidate

    def _settled(self, candidate: Candidate, topic: str, verdict: Verdict) -> Verdict:
        known = self._headers.get(candidate.header.digest)
        if verdict.accepted:
            if known is None:
                known = _Accepted(_announced(candidate), blob=False)
                self._headers[candidate.header.digest] = known
                if len(self._headers) > self._max:
                    self._headers.popitem(last=False)
            known.topics.add(topic)
            known.blob |= candidate.blob is not None or not candidate.header.blob_len
        elif known is not None and verdict.code is Code.DUPLICATE:  # its blob came another way
            known.blob = True
            return self._another(candidate, known, topic)
        return verdict


def _announced(candidate: Candidate) -> tuple[bytes, int]:
    announcement = candidate.announcement
    return (b"", 0) if announcement is None else (announcement.signature, announcement.timestamp_ms)
