"""`OwnLink`: whether our own link is too slow for what peers send us unasked, without I/O.

Theory of operation
  Decides: when a node leaves the meshes and fetches messages by catching up (G41). Five peers that
    each send a message find out one by one that our link takes less than they offer, and what they
    have sent by then stands in its queue, mostly twice. We know at once: whatever we send, its
    acknowledgement waits in that queue as well.
  Does not know: sockets, peers, the router. It is told how long packets wait, and how much
    came and went, as gossip and in all.
  Machine: normal -> pulling when packets of most connections wait for `pull_after_s` and at least
    half of what came and went lately is gossip: blobs and pages that fill the link have windows of
    their own. pulling -> normal when for `pull_hold_s` they waited for half of that or less, or
    catching up lacked nothing. When that was an error, and the link is full again within a minute,
    the next time lasts twice as long, `HOLDS_MAX` times at most. When packets waited as long as
    before although catching up lacked nothing, somebody else fills the link: it would not help to
    do so again before the queue was gone once.
  Timers: none of its own; `look` is called once a heartbeat.

Source: LP-6420 §4.1; decision G41.
"""

from __future__ import annotations

from math import inf
from typing import Final

from luxrelay.net.config import NetConfig

AGAIN_S: Final = 60.0
"""A link that is full again within so many seconds was not well."""
HOLDS_MAX: Final = 16
"""Times `pull_hold_s` that a node catches up at least, after many errors."""


class OwnLink:
    """One node's own link; see the theory above."""

    def __init__(self, config: NetConfig) -> None:
        self._config = config
        self.pulls = False
        """Whether messages are fetched by catching up."""
        self.waits_s = 0.0
        """Seconds that packets waited at the last look."""
        self._holds = 1
        self._well_since: float | None = None
        self._least_s = inf
        self._in_vain = False
        self._left_at = -inf
        self._seen = (0, 0)
        self._lately = (0.0, 0.0)

    def look(self, waits_s: float, moved: tuple[int, int], *, level: bool, now: float) -> bool:
        """Return whether messages are to be fetched by catching up from now on.

        Args:
            waits_s: Seconds by which the round trips of most connections are above the shortest.
            moved: Bytes that came and went, as gossip and in all, since the node began.
            level: Whether catching up lacks nothing.
            now: Monotonic seconds.

        """
        self.waits_s = waits_s
        gossip, everything = self._note(moved)
        after_s = self._config.pull_after_s
        self._least_s = min(self._least_s, waits_s)
        self._in_vain = self._in_vain and 2 * waits_s > after_s
        if self.pulls:
            self._look_whether_well(well=level or 2 * waits_s <= after_s, now=now)
        elif waits_s > after_s and not self._in_vain and gossip and 2 * gossip >= everything:
            again = now - self._left_at < AGAIN_S
            self._holds = min(2 * self._holds, HOLDS_MAX) if again else 1
            self.pulls, self._well_since = True, None
        return self.pulls

    def _note(self, moved: tuple[int, int]) -> tuple[float, float]:
        """Return what moved lately, as gossip and in all: half of it since the last look."""
        for_each = zip(self._lately, moved, self._seen, strict=True)
        gossip, everything = ((before + now - seen) / 2 for before, now, seen in for_each)
        self._lately, self._seen = (gossip, everything), moved
        return self._lately

    def _look_whether_well(self, *, well: bool, now: float) -> None:
        if not well:
            self._well_since = None
            return
        if self._well_since is None:
            self._well_since, self._least_s = now, self.waits_s
        if now - self._well_since >= self._holds * self._config.pull_hold_s:
            self.pulls, self._left_at = False, now
            self._in_vain = self._least_s > self._config.pull_after_s
