"""Address book of peers to dial: addresses, sources, time of the next attempt. Pure.

Source: LP-6420 §1.2; requirements 20-02, 20-03, 20-05; decisions G21, G22.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from luxrelay.gossip import PeerId
from luxrelay.net.config import NetConfig
from luxrelay.pause import doubled, jittered

if TYPE_CHECKING:
    from random import Random


KEPT_MAX: Final = 6
"""Addresses of records kept of one peer: those of the newest, and of the one before."""


class Source(IntEnum):
    """Who named a peer; the higher, the more it is worth keeping."""

    EXCHANGE = 1
    """Another peer, by a signed record."""
    HELLO = 2
    """The peer itself, while it was connected."""
    BOOTSTRAP = 3
    """The operator."""


@dataclass(slots=True)
class BookEntry:
    """One peer that could be dialled."""

    addresses: tuple[str, ...]
    """Multiaddresses with its peer id, tried in this order."""
    source: Source
    """The best word for it so far."""
    seq: int = 0
    """Number of the signed record that the addresses are from."""
    given: tuple[str, ...] = ()
    """The operator's addresses, which stay whatever its records say."""
    failures: int = 0
    """Dials that failed since one succeeded."""
    retry_at: float = 0.0
    """Monotonic seconds before which it is not dialled."""
    away_until: float = 0.0
    """The same because we let it go, whatever becomes of a dial under way."""


class AddressBook:
    """At most ``book_max`` peers, each dialled again after a while that doubles.

    Beyond the bound the least worth goes: named by others first, and of these whoever failed most.
    A peer that others named is forgotten after ``dial_failures_max`` failures; the operator's stay.

    Args:
        config: `book_max`, `redial_min_s`, `redial_max_s`, `dial_failures_max`.
        rng: Order of candidates and jitter of re-dials.

    """

    def __init__(self, config: NetConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng
        self._entries: dict[PeerId, BookEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._entries

    def learn(
        self, peer: PeerId, addresses: Sequence[str], source: Source, *, seq: int = 0
    ) -> bool:
        """The peer can be tried at these addresses; an older record of another changes nothing.

        The addresses of its record before stay behind them as a fallback, `KEPT_MAX` in all, and
        the operator's. A peer at new addresses is tried at once. What the peer itself says while it
        is here is believed whatever its number: numbers are its clock's, and a clock that was ahead
        would make the later record the older one.

        Returns:
            Whether the peer was known and is at an address now that was not.

        """
        if not addresses:
            return False
        entry = self._entries.get(peer)
        if entry is None:
            given = tuple(addresses) if source is Source.BOOTSTRAP else ()
            self._entries[peer] = BookEntry(tuple(addresses), source, seq, given)
            self._keep_bound(peer)
            return False
        if not (
            seq > entry.seq
            or (seq == entry.seq and source > entry.source)
            or (source is Source.HELLO and seq != entry.seq)
        ):
            return False
        if source is Source.BOOTSTRAP:
            entry.given = tuple(addresses)
        moved = not set(addresses) <= {*entry.addresses, *entry.given}
        entry.addresses = tuple(dict.fromkeys([*addresses, *entry.addresses]))[:KEPT_MAX]
        entry.seq, entry.source = seq, max(entry.source, source)
        if moved:
            entry.retry_at = entry.away_until = 0.0
        return moved

    def _keep_bound(self, new: PeerId) -> None:
        if len(self._entries) > self._config.book_max:
            others = (peer for peer in self._entries if peer != new)
            del self._entries[max(others, key=lambda peer: _worthless(self._entries[peer]))]

    def candidates(self, count: int, without: Collection[PeerId], now: float) -> list[PeerId]:
        """Up to so many peers to dial now: the operator's first, then in turn by chance.

        Those that were here once and those that were only named take turns, so that whoever fills
        the book with made-up peers takes every other dial at most.
        """
        ready: dict[Source, list[PeerId]] = {source: [] for source in Source}
        for peer, entry in self._entries.items():
            if max(entry.retry_at, entry.away_until) <= now and peer not in without:
                ready[entry.source].append(peer)
        for peers in ready.values():
            self._rng.shuffle(peers)
        met, named = ready[Source.HELLO], ready[Source.EXCHANGE]
        turns = [peer for pair in zip(met, named, strict=False) for peer in pair]
        shared = min(len(met), len(named))
        chosen = [*ready[Source.BOOTSTRAP], *turns, *met[shared:], *named[shared:]]
        return chosen[: max(0, count)]

    def addresses(self, peer: PeerId) -> tuple[str, ...]:
        """Where to try it."""
        entry = self._entries.get(peer)
        if entry is None:
            return ()
        return tuple(dict.fromkeys([*entry.addresses, *entry.given]))

    def reached(self, peer: PeerId) -> None:
        """A dial succeeded."""
        entry = self._entries.get(peer)
        if entry is not None:
            entry.failures, entry.retry_at = 0, 0.0

    def postpone(self, peer: PeerId, now: float) -> None:
        """A peer that we have just let go is not dialled at once."""
        entry = self._entries.get(peer)
        if entry is not None:
            entry.away_until = now + self._config.redial_max_s

    def failed(self, peer: PeerId, now: float) -> int:
        """A dial failed; how often it has by now."""
        entry = self._entries.get(peer)
        if entry is None:
            return 0
        entry.failures += 1
        if entry.source is not Source.BOOTSTRAP and (
            entry.failures >= self._config.dial_failures_max
        ):
            del self._entries[peer]
            return entry.failures
        delay = doubled(self._config.redial_min_s, entry.failures, self._config.redial_max_s)
        entry.retry_at = now + jittered(delay, self._rng)
        return entry.failures

    def forget(self, peer: PeerId) -> None:
        """The peer is not dialled any more unless somebody names it again."""
        entry = self._entries.get(peer)
        if entry is not None and entry.source is not Source.BOOTSTRAP:
            del self._entries[peer]


def _worthless(entry: BookEntry) -> tuple[int, int]:
    return -int(entry.source), entry.failures
