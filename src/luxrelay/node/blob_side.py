"""The node's side of claims and blobs, put together from its configuration.

Gossip peers as sources of blobs: who is said to have one, who else is connected.

Worker threads ask; the streams live on the trio loop. Only peers that are connected are asked, so
a hint cannot aim this node's connections at anybody (G10).

Source: LP-6420 §2.2, §3.2, §4.2; LP-6420 §3.2, §4.2; decisions G10, G11, G12, P28.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

import trio

from luxrelay.bus import SigningKey
from luxrelay.bus import constants as c
from luxrelay.errors import FrameError, NetError, SyncProtocolError, SyncUnreachableError
from luxrelay.gossip import NodeRole, PeerId
from luxrelay.net import RelayHost
from luxrelay.net.addresses import peer_id_from_text, peer_text
from luxrelay.net.blobs import (
    BlobAnswerStream,
    BlobConfig,
    BlobExchange,
    BlobRequest,
    BlobStatus,
    CommitmentKind,
)
from luxrelay.node.blobs import FETCHING
from luxrelay.node.carried import CarriedNamespaces
from luxrelay.node.config import NodeConfig
from luxrelay.node.hint_book import HintBook
from luxrelay.node.missing_blobs import WantedBlobs
from luxrelay.node.stages.global_topics import GlobalTopics
from luxrelay.node.subscription_config import announced_topics_of, headers_only_of
from luxrelay.store import RelayStore
from luxrelay.sync.fetch import AskBlob, FetchConfig
from luxrelay.sync.messages import BlobAnswer
from luxrelay.sync.rpc.scope import CallScope
from luxrelay.sync.rpc.uplink import BlobUplink

PREFIX: Final = "p2p:"
"""Stands before the peer id in a source's name."""
NAMED_MAX: Final = 6
"""Peers asked first, because they announced, brought or hinted at the blob."""
BUSY_AGAIN_MS: Final = 500
"""When a busy peer is asked again, milliseconds; whoever fetches doubles it (P28)."""
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

    def hosts(self) -> dict[str, str]:
        """Return the connected, by the IP addresses of their machines; one of each machine."""
        try:
            return self._on_loop(self._remote_hosts)
        except NetError:
            return {}

    def ask(self, ask: AskBlob, silence_s: float, scope: CallScope) -> BlobAnswer | None:
        """Return what a peer sends; None when it does not have the blob.

        Raises:
            NetError: the node is stopping.
            SyncUnreachableError: the peer gives no answer, or is busy.
            SyncProtocolError: what it says breaks the protocol.

        """
        wanted = self._wanted.find(ask.commitment)
        kzg = wanted is not None and wanted.header.flags & c.FLAG_KZG_COMMITMENT
        kind = CommitmentKind.KZG if kzg else CommitmentKind.SHA3
        request = BlobRequest(
            commitment=ask.commitment,
            length=ask.length,
            kind=kind if ask.exact else CommitmentKind.SIDECAR,
            offset=ask.offset,
            count=ask.count,
        )
        peer = peer_id_from_text(ask.peer.removeprefix(PREFIX))
        dropped = _Dropped(self._token)
        scope.enter(dropped.drop)
        answer = None
        try:
            answer = self._on_loop(
                lambda: dropped.unless(self._exchange.open(peer, request, silence_s=silence_s))
            )
            return _taken(answer, ask.peer, self._parts(answer, dropped, silence_s, scope))
        finally:
            if answer is None or answer.status is not BlobStatus.FOUND:
                scope.leave(dropped.drop)
                if answer is not None:
                    self._on_loop(answer.close)

    def _parts(
        self,
        answer: BlobAnswerStream | None,
        dropped: _Dropped,
        silence_s: float,
        scope: CallScope,
    ) -> Generator[bytes, None, None]:
        if answer is None:
            return
        try:
            while part := self._on_loop(lambda: dropped.unless(_read(answer, silence_s))):
                yield part
        finally:
            scope.leave(dropped.drop)
            with suppress(NetError):
                self._on_loop(answer.close)

    async def _connected(self) -> tuple[PeerId, ...]:
        return self._host.connected()

    async def _remote_hosts(self) -> dict[str, str]:
        return {self._host.remote_host(each): _name(each) for each in self._host.connected()}

    def _on_loop(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return trio.from_thread.run(call, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled) as error:
            raise NetError("the node is stopping", where="blob stream") from error


def _name(peer: PeerId) -> str:
    return PREFIX + peer_text(peer)


def _taken(
    answer: BlobAnswerStream | None, peer: str, parts: Generator[bytes, None, None]
) -> BlobAnswer | None:
    """Return what a peer's answer means.

    Raises:
        SyncUnreachableError: there is none, or the peer is busy.
        SyncProtocolError: it breaks the protocol.

    """
    if answer is None:
        raise SyncUnreachableError("the peer does not answer about a blob", where=peer)
    if answer.status is BlobStatus.FOUND:
        return BlobAnswer(answer.total, parts)
    if answer.status is BlobStatus.LATER:
        return BlobAnswer(0, parts, answer.total / 1000)
    if answer.status is BlobStatus.BUSY:
        busy = SyncUnreachableError("the peer is busy", where=peer)
        busy.retry_after_ms = BUSY_AGAIN_MS
        raise busy
    if answer.status is BlobStatus.BROKEN:
        raise SyncProtocolError("an answer that breaks the protocol", where=peer)
    return None


async def _read(answer: BlobAnswerStream, silence_s: float) -> bytes:
    """What has come of an answer; empty at its end.

    Raises:
        SyncUnreachableError: it ended early, or nothing came for too long.

    """
    try:
        with trio.fail_after(silence_s):
            return await answer.read()
    except (FrameError, trio.TooSlowError) as error:
        raise SyncUnreachableError("the answer about a blob ended", where="blob stream") from error


class _Dropped:
    """Lets any thread end what is awaited on the loop for one request."""

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self._token = token
        self._over = False
        self._scope: trio.CancelScope | None = None

    def drop(self) -> None:
        """End it, and whatever is awaited later."""
        self._over = True
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._cancel)

    def _cancel(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    async def unless(self, call: Coroutine[Any, Any, T]) -> T:
        """What is awaited, unless it is dropped.

        Raises:
            SyncUnreachableError: it was.

        """
        with trio.CancelScope() as self._scope:
            if self._over:
                self._scope.cancel()
            return await call
        raise SyncUnreachableError("the request was dropped", where="blob stream")


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
    uplink: BlobUplink
    """What is sent of blobs, by all doors that peers fetch from."""
    fetching: FetchConfig
    """Bounds of fetching."""
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


def _tell(token: trio.lowlevel.TrioToken, exchange: BlobExchange, commitment: bytes) -> None:
    """Have peers told, from any thread, of a blob that has come."""
    with suppress(trio.RunFinishedError):
        token.run_sync_soon(exchange.arrived, commitment)


def blob_side_of(
    config: NodeConfig,
    identity: SigningKey,
    host: RelayHost,
    store: RelayStore,
    *,
    carried: CarriedNamespaces,
    rng: random.Random,
    clock_ms: Callable[[], int],
) -> BlobSide:
    """Return the parts on a host and an open store; called on the trio loop.

    A validator that takes every header asks for payloads of the namespaces that it follows; of the
    others, and of those with ``headers_only``, a reader has to ask for one.

    Raises:
        AddressError: a peer id in the configuration is none.

    """
    limits, following = config.store_limits, config.following
    news = BlobNews()
    headers_alone = carried.everything and config.peering.role == NodeRole.VALIDATOR
    unheard = headers_only_of(config)
    wanted = WantedBlobs(
        ttl_ms=min(config.ttl_ms, limits.blob_ttl_ms or config.ttl_ms),
        largest=limits.largest_blob,
        news=news.tell,
        unasked=lambda parent: parent not in unheard and (not headers_alone or parent in carried),
    )
    topics = GlobalTopics(
        network=config.network,
        identity=identity,
        carried=carried,
        announced=announced_topics_of(config),
        proposers=frozenset(map(peer_id_from_text, following.block_proposers)),
        operators=tuple(map(peer_id_from_text, following.hint_operators)),
        hinted=wanted.hear,
    )
    uplink = BlobUplink(time.monotonic)
    exchange = peers = None
    if following.blob_streams:
        token = trio.lowlevel.current_trio_token()
        exchange = BlobExchange(
            host,
            lambda commitment, _length: store.get_blob(commitment, clock_ms()),
            coming=lambda commitment: wanted.find(commitment) is not None,
            heard=lambda peer, commitment: wanted.hear(commitment, peer),
            uplink=uplink,
            config=BlobConfig(
                peer_bytes_per_s=following.blob_bytes_per_s,
                peer_requests_per_s=following.blob_requests_per_s,
                stall_s=following.blob_silence_ms / 1000,
            ),
        )
        wanted.came.append(partial(_tell, token, exchange))
        peers = BlobPeers(
            host, exchange, wanted=wanted, hints=topics.hints, clock_ms=clock_ms, rng=rng
        )
    return BlobSide(
        wanted=wanted,
        news=news,
        topics=topics,
        exchange=exchange,
        peers=peers,
        uplink=uplink,
        fetching=replace(
            FETCHING,
            silence_s=following.blob_silence_ms / 1000,
            partial_bytes_max=following.blob_partial_bytes_max,
        ),
        hints_at_fetched=config.peering.role == NodeRole.DA_OPERATOR,
        clock_ms=clock_ms,
    )
