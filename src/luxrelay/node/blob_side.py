"""The node's side of claims and blobs, put together from its configuration.

Source: LP-6420 §2.2, §3.2, §4.2; decisions G10, G11, G12, P28.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from luxrelay.bus import SigningKey
from luxrelay.gossip import NodeRole
from luxrelay.net import RelayHost
from luxrelay.net.addresses import peer_id_from_text
from luxrelay.net.blobs import BlobConfig, BlobExchange
from luxrelay.node.blob_peers import BlobPeers
from luxrelay.node.carried import Carried
from luxrelay.node.config import NodeConfig
from luxrelay.node.following import announced_topics_of
from luxrelay.node.stages.global_topics import GlobalTopics
from luxrelay.node.wanted import WantedBlobs
from luxrelay.store import RelayStore


class BlobNews:
    """Wakes whoever fetches blobs; told by any thread, waited for on the loop."""

    def __init__(self) -> None:
        """Nothing has been told."""
        self._event = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def tell(self) -> None:
        """There is a blob to ask for at once."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._ring, idempotent=True)

    def _ring(self) -> None:
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Return when something was told since the last call, or after so many seconds."""
        with trio.move_on_after(seconds):
            await self._event.wait()
        self._event = trio.Event()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobSide:
    """What a node has for blobs and for the global topics."""

    wanted: WantedBlobs
    """Blobs that stored headers lack."""
    news: BlobNews
    """Told when one of them is to be asked for at once."""
    topics: GlobalTopics
    """Claims, and what is announced on global topics."""
    exchange: BlobExchange | None
    """Serves our blobs and asks peers; None when streams are off."""
    peers: BlobPeers | None
    """The gossip peers as sources; None when streams are off."""
    hints_at_fetched: bool
    """Whether a fetched blob is hinted at: the part of a DA operator."""
    clock_ms: Callable[[], int]
    """Unix milliseconds."""

    def hint_at(
        self,
        commitment: bytes,
        length: int,
        spread: Callable[[Sequence[tuple[str, bytes]]], object],
    ) -> None:
        """Say to others, as a DA operator, that we have a blob that was fetched."""
        if self.hints_at_fetched:
            spread(self.topics.own_hint(commitment, length, self.clock_ms()))


def blob_side_of(
    config: NodeConfig,
    identity: SigningKey,
    host: RelayHost,
    store: RelayStore,
    *,
    rng: random.Random,
    clock_ms: Callable[[], int],
) -> BlobSide:
    """Return the parts on a host and an open store; called on the trio loop.

    Raises:
        AddressError: a peer id in the configuration is none.

    """
    limits, following = config.store_limits, config.following
    news = BlobNews()
    wanted = WantedBlobs(
        ttl_ms=min(config.ttl_ms, limits.blob_ttl_ms or config.ttl_ms),
        largest=limits.largest_blob,
        news=news.tell,
    )
    topics = GlobalTopics(
        network=config.network,
        identity=identity,
        carried=Carried(entry.namespace_id for entry in config.namespaces),
        announced=announced_topics_of(config),
        proposers=frozenset(map(peer_id_from_text, following.block_proposers)),
        operators=tuple(map(peer_id_from_text, following.hint_operators)),
        hinted=wanted.hear,
    )
    exchange = peers = None
    if following.blob_streams:
        exchange = BlobExchange(
            host,
            lambda commitment, _length: store.get_blob(commitment, clock_ms()),
            config=BlobConfig(
                peer_bytes_per_s=following.blob_bytes_per_s,
                peer_requests_per_s=following.blob_requests_per_s,
            ),
        )
        peers = BlobPeers(
            host, exchange, wanted=wanted, hints=topics.hints, clock_ms=clock_ms, rng=rng
        )
    return BlobSide(
        wanted=wanted,
        news=news,
        topics=topics,
        exchange=exchange,
        peers=peers,
        hints_at_fetched=config.peering.role == NodeRole.DA_OPERATOR,
        clock_ms=clock_ms,
    )
