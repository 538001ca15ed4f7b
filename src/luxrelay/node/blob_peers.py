"""Gossip peers as sources of blobs: who is said to have one, who else is connected.

Worker threads ask; the streams live on the trio loop. Only peers that are connected are asked, so
a hint cannot aim this node's connections at anybody (G10).

Source: LP-6420 §3.2, §4.2; decisions G10, G11, P28.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import trio

from luxrelay.bus import constants as c
from luxrelay.errors import NetError
from luxrelay.gossip import PeerId
from luxrelay.net import RelayHost
from luxrelay.net.addresses import peer_id_from_text, peer_text
from luxrelay.net.blobs import BlobExchange, BlobRequest, BlobStatus, CommitmentKind
from luxrelay.node.hint_book import HintBook
from luxrelay.node.wanted import WantedBlobs
from luxrelay.sync.fetch import AskBlob

PREFIX: Final = "p2p:"
"""Stands before the peer id in a source's name."""
NAMED_MAX: Final = 6
"""Peers asked first, because they announced, brought or hinted at the blob."""
OTHERS_MAX: Final = 6
"""Further connected peers asked, by chance."""

T = TypeVar("T")


class BlobPeers:
    """The gossip peers, as a `BlobFetcher` asks them.

    Made on the trio loop that the host runs on.

    Args:
        host: Whose peers these are.
        exchange: Asks them.
        wanted: Who announced or brought a header.
        hints: Who hinted at a blob.
        clock_ms: Unix milliseconds.
        rng: Which others are asked.

    """

    def __init__(
        self,
        host: RelayHost,
        exchange: BlobExchange,
        *,
        wanted: WantedBlobs,
        hints: HintBook,
        clock_ms: Callable[[], int],
        rng: random.Random,
    ) -> None:
        self._host = host
        self._exchange = exchange
        self._wanted = wanted
        self._hints = hints
        self._clock_ms = clock_ms
        self._rng = rng
        self._token = trio.lowlevel.current_trio_token()

    def peers(self, commitment: bytes) -> tuple[Sequence[str], Sequence[str]]:
        """Return who is said to have a blob, and some others, among the connected."""
        try:
            connected = self._on_loop(self._connected)
        except NetError:
            return (), ()
        wanted = self._wanted.find(commitment)
        said = (
            *self._hints.providers(commitment, self._clock_ms()),
            *(wanted.holders if wanted is not None else ()),
        )
        named = [PeerId(each) for each in dict.fromkeys(said) if each in connected][:NAMED_MAX]
        left = [each for each in connected if each not in named]
        others = self._rng.sample(left, min(OTHERS_MAX, len(left)))
        return [_name(each) for each in named], [_name(each) for each in others]

    def ask(self, ask: AskBlob, deadline_s: float) -> bytes | None:
        """Return what a peer sends, empty for what breaks the protocol; None when it has nothing.

        Raises:
            NetError: the node is stopping.

        """
        wanted = self._wanted.find(ask.commitment)
        kzg = wanted is not None and wanted.header.flags & c.FLAG_KZG_COMMITMENT
        request = BlobRequest(
            commitment=ask.commitment,
            length=ask.length,
            kind=CommitmentKind.KZG if kzg else CommitmentKind.SHA3,
        )
        peer = peer_id_from_text(ask.peer.removeprefix(PREFIX))
        status, blob = self._on_loop(
            lambda: self._exchange.ask(peer, request, timeout_s=deadline_s)
        )
        if status is BlobStatus.BROKEN:
            return b""
        return blob if status is BlobStatus.FOUND else None

    async def _connected(self) -> tuple[PeerId, ...]:
        return self._host.connected()

    def _on_loop(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return trio.from_thread.run(call, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled) as error:
            raise NetError("the node is stopping", where="blob stream") from error


def _name(peer: PeerId) -> str:
    return PREFIX + peer_text(peer)
