"""What peers did outside gossip, as their application score in gossip (P5).

A peer that hands in invalid history or blobs over its streams is penalized as for invalid gossip
(verdict table, sync): each invalid message takes ten points, an answer that breaks the protocol
five, and half is forgiven in an hour. So one lie costs the meshes until good conduct makes up for
it, and five hundred the connection. What a peer claims and does not deliver costs its standing
only: it may have forgotten the message in between. A refusal, or an answer above a bound of ours,
costs nothing.

Source: LP-6420 §5.1; decisions P26, P39; 21-28.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import trio

from luxrelay.errors import AddressError
from luxrelay.gossip import PeerId
from luxrelay.net.addresses import peer_id_from_text
from luxrelay.net.reconcile import PREFIX
from luxrelay.node.standing import PeerStanding
from luxrelay.sync.report import PeerReport

TELL_S: Final = 5.0
"""Seconds between two times that the router is told."""


class GossipBlame:
    """Carries blame from worker threads to the router; made on the loop that gossip runs on.

    Args:
        app_score: Sets the application score of a connected peer; called on the loop.
        clock_ms: Milliseconds of a clock that nobody sets.

    """

    def __init__(
        self, app_score: Callable[[PeerId, float], None], clock_ms: Callable[[], int]
    ) -> None:
        self._app_score = app_score
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._standing = PeerStanding()
        self._told: set[str] = set()
        self._token = trio.lowlevel.current_trio_token()

    def note(self, report: PeerReport) -> None:
        """Take in what a peer did; peers that are reached by address are no peers of gossip."""
        if not report.peer.startswith(PREFIX):
            return
        with self._lock:
            added = self._standing.note(replace(report, withheld=0), self._clock_ms())
        if added:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self.tell, idempotent=True)

    def tell(self) -> None:
        """Set the score of every peer that owes, and of those that owe no longer; on the loop."""
        with self._lock:
            owing = self._standing.owing(self._clock_ms())
        for name in self._told - owing.keys():
            self._set(name, 0.0)
        for name, penalty in owing.items():
            self._set(name, -penalty)
        self._told = set(owing)

    async def keep(self, pause_s: float = TELL_S) -> None:
        """Tell again and again: the router forgets with the peer, and time forgives."""
        while True:
            await trio.sleep(pause_s)
            self.tell()

    def _set(self, name: str, score: float) -> None:
        with suppress(AddressError):
            self._app_score(peer_id_from_text(name.removeprefix(PREFIX)), score)
