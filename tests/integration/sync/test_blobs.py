"""Blobs from the own store, then from relays, verified, over real gRPC."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from luxrelay.bus import sha3_commitment
from luxrelay.errors import SyncUnreachableError
from luxrelay.store import RelayStore
from luxrelay.sync.fetch import AskBlob, Blame, FetchConfig, WantedRange
from luxrelay.sync.messages import BlobAnswer
from luxrelay.sync.rpc.blob_driver import BlobFetcher
from luxrelay.sync.rpc.scope import CallScope

if TYPE_CHECKING:
    from tests.integration.sync.conftest import Harbour

BLOB = b"payload" * 1_000
ID = sha3_commitment(BLOB)


@dataclass
class Liar:
    """A store whose blobs are something else."""

    store: RelayStore

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def get_blob(self, commitment: bytes, now_ms: int) -> bytes:
        """Return as many other bytes."""
        del commitment, now_ms
        return bytes(len(BLOB))


def fetcher(harbour: Harbour, addresses: list[str], blamed: list[Blame]) -> BlobFetcher:
    """Return a fetcher that asks these relays and has nothing itself."""
    clients = [harbour.client(address) for address in addresses]
    return BlobFetcher(
        clients, lambda _: None, on_blame=blamed.append, config=FetchConfig(hedge_s=5, silence_s=10)
    )


class Silent:
    """Peers that never answer, until nobody waits for them any more."""

    def __init__(self) -> None:
        self.dropped = threading.Event()

    def peers(self, commitment: bytes) -> tuple[Sequence[str], Sequence[str]]:
        """Return one that is said to have it."""
        return [f"p2p:{commitment.hex()}"], []

    def hosts(self) -> dict[str, str]:
        """Return nobody's machine."""
        return {}

    def ask(self, ask: AskBlob, silence_s: float, scope: CallScope) -> BlobAnswer | None:
        """Wait for the end."""
        del ask, silence_s
        scope.enter(self.dropped.set)
        self.dropped.wait()
        raise SyncUnreachableError("it was dropped", where="test")


def test_one_that_fails_at_the_end_of_its_fetch_takes_nothing_from_others() -> None:
    """Who waits for another blob is told its end all the same."""
    ours, told = BlobFetcher([], lambda _: None, others=Silent()), []

    def broken(blob: bytes | None) -> None:
        raise ValueError(blob)

    for blob, end in ((b"a", broken), (b"b", told.append)):
        assert ours.begin(sha3_commitment(blob), 1, end) is WantedRange.ASKED
    ours.close()

    assert told == [None]


def test_the_own_store_comes_first() -> None:
    """21-37: what is held is not asked for."""
    ours = BlobFetcher([], lambda _: BLOB)

    assert ours.get(ID, len(BLOB)) == BLOB
    assert (ours.stats().asked, ours.stats().local) == (0, 1)
    ours.close()


def test_wrong_bytes_are_refused_and_their_sender_named(harbour: Harbour) -> None:
    """21-37: a relay that sends something else is blamed, and the next one delivers."""
    writer = harbour.author(1)
    liar = harbour.serve(Liar(harbour.store()))
    honest = harbour.serve(harbour.store([writer.message(1, blob=BLOB)]))
    blamed: list[Blame] = []
    fetch = fetcher(harbour, [liar, honest], blamed)

    assert fetch.get(ID, len(BLOB)) == BLOB
    assert [each.peer for each in blamed] == [liar]
    assert (fetch.stats().delivered, fetch.stats().blamed) == (1, 1)
    fetch.close()


def test_a_storm_for_an_unknown_blob_asks_each_relay_once(harbour: Harbour) -> None:
    """21-38: many threads and many times, each relay gets one question and passes none on."""
    addresses = [harbour.serve(harbour.store()) for _ in range(4)]
    fetch = fetcher(harbour, addresses, [])

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: fetch.get(ID, len(BLOB)), range(24)))

    assert found == [None] * 24
    for server in harbour.servers:
        assert server.stats().requests == {("GetBlobParts", "OK"): 1}
    stats = fetch.stats()
    assert (stats.asked, stats.in_flight, stats.given_up, stats.delivered) == (4, 0, 1, 0)
    assert stats.shared + stats.absent == 23  # the first asked, the others joined or came later
    assert stats.refused == 0
    fetch.close()


def test_a_relay_that_is_away_costs_one_try(harbour: Harbour) -> None:
    """21-38: a relay that cannot be reached is passed over."""
    writer = harbour.author(1)
    away = harbour.serve(harbour.store())
    harbour.servers[-1].stop(grace_s=0)
    honest = harbour.serve(harbour.store([writer.message(1, blob=BLOB)]))
    fetch = fetcher(harbour, [away, honest], [])

    assert fetch.get(ID, len(BLOB)) == BLOB
    fetch.close()
