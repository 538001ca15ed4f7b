"""Quotas: bytes by account, and the order of eviction. Pure.

Theory of operation
-------------------
*Decides* which shortage a message meets and which namespace pays for it.
*Does not know* messages, rows or time; the evictor takes the payer's oldest messages.
*Accounts*: a parent and its lanes share one account, because the operator configures channels and
not senders, and because keys cost nothing: with a quota for each lane a sender with many keys would
have as many quotas. A lane with a quota of its own is its own account.
*Payer*: the largest namespace of the account. One that floods shrinks to the size of the others
before any of them loses a message; in an account of one namespace it is that namespace.
*Bounds*: one entry a namespace; the heap of an account is rebuilt at twice its members.
*What else to change when you change this*: `eviction`, docs/explanation/store.md.

Source: LP-6421 §1.1, "Why Per-Namespace Quotas?"; decisions P1, P2, P13, J6.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from luxrelay.bus import NamespaceId
from luxrelay.store.config import RelayStoreConfig

LOW_WATER_PERCENT: Final = 90
"""Once something was full, making room goes on down to this share of it (P13)."""
_SHARES: Final = 16
"""One namespace pays at least this fraction of what an account must free, so that accounts of
many equal namespaces need few steps."""


class Lack(IntEnum):
    """What a message found no room in."""

    NAMESPACES = 0
    """One namespace more is too many; nothing can make room."""
    DENIED = 1
    """The quota of its account is 0 (P1), or the message alone is above it."""
    ACCOUNT = 2
    """The quota of its account."""
    STORE = 3
    """The store as a whole."""


class Shortage(NamedTuple):
    """Why a message did not fit."""

    lack: Lack
    """What is full."""
    account: NamespaceId
    """The account the message belongs to."""


class Payment(NamedTuple):
    """Whose oldest messages go, and how many bytes of them."""

    namespace: NamespaceId
    """The payer."""
    size_bytes: int
    """What it gives up at least, if it has as much."""


def low_water(size_bytes: int) -> int:
    """Return the mark down to which making room goes on."""
    return size_bytes * LOW_WATER_PERCENT // 100


@dataclass(slots=True)
class _Account:
    """One quota and those who share it."""

    quota: int
    size_bytes: int = 0
    members: dict[NamespaceId, int] = field(default_factory=dict)
    heap: list[tuple[int, NamespaceId]] = field(default_factory=list)
    """(−size, namespace); each member's last entry is true, older ones are passed over."""

    def resize(self, namespace: NamespaceId, size_bytes: int) -> None:
        self.size_bytes += size_bytes - self.members.pop(namespace, 0)
        if not size_bytes:
            return
        self.members[namespace] = size_bytes
        heapq.heappush(self.heap, (-size_bytes, namespace))
        if len(self.heap) > 2 * len(self.members) + 8:
            self.heap = [(-size, name) for name, size in self.members.items()]
            heapq.heapify(self.heap)

    def largest(self) -> list[tuple[int, NamespaceId]]:
        """Return the largest member and the next one, with their sizes."""
        found: list[tuple[int, NamespaceId]] = []
        while self.heap and len(found) < 2:
            size, name = heapq.heappop(self.heap)
            if self.members.get(name) == -size and all(name != other for _, other in found):
                found.append((-size, name))
        for size_bytes, name in found:
            heapq.heappush(self.heap, (-size_bytes, name))
        return found


class QuotaBook:
    """Sizes by account, kept in step with the namespaces."""

    __slots__ = ("_accounts", "_config", "_default", "_full", "_homes")

    def __init__(self, config: RelayStoreConfig) -> None:
        self._config = config
        self._default = config.default_quota_bytes()
        self._accounts: dict[NamespaceId, _Account] = {}
        self._homes: dict[NamespaceId, NamespaceId] = {}
        self._full: set[NamespaceId] = set()

    def account_of(self, namespace: NamespaceId, parent: NamespaceId) -> NamespaceId:
        """Return the account whose quota ``namespace`` uses."""
        return namespace if namespace in self._config.namespace_quotas else parent

    def quota(self, account: NamespaceId) -> int:
        """Return the bytes an account may hold; 0 denies it (P1)."""
        return self._config.namespace_quotas.get(account, self._default)

    def size_bytes(self, account: NamespaceId) -> int:
        """Return the bytes an account holds."""
        known = self._accounts.get(account)
        return 0 if known is None else known.size_bytes

    def update(self, namespace: NamespaceId, parent: NamespaceId, size_bytes: int) -> None:
        """``namespace`` holds ``size_bytes`` and stands under ``parent``."""
        account = self.account_of(namespace, parent)
        home = self._homes.get(namespace)
        if home is not None and home != account:
            self._resize(home, namespace, 0)
        if size_bytes:
            self._homes[namespace] = account
        else:
            self._homes.pop(namespace, None)
        self._resize(account, namespace, size_bytes)

    def over(self) -> NamespaceId | None:
        """Return an account above its quota, None without one.

        Quotas are kept when messages come; only a changed configuration leaves an account above.
        """
        return min(self._full, default=None)

    def payment(self, account: NamespaceId) -> Payment | None:
        """Return who pays next on the way to the low-water mark; None when that is reached."""
        known = self._accounts.get(account)
        if known is None:
            return None
        excess = known.size_bytes - low_water(known.quota)
        largest = known.largest()
        if excess <= 0 or not largest:
            return None
        size, payer = largest[0]
        next_size = largest[1][0] if len(largest) > 1 else 0
        share = max(size - next_size, (known.quota - low_water(known.quota)) // _SHARES, 1)
        return Payment(payer, min(excess, share))

    def largest(self, account: NamespaceId) -> NamespaceId | None:
        """Return the namespace of ``account`` that would pay, None for an empty account."""
        known = self._accounts.get(account)
        found = known.largest() if known is not None else []
        return found[0][1] if found else None

    def _resize(self, account: NamespaceId, namespace: NamespaceId, size_bytes: int) -> None:
        known = self._accounts.get(account)
        if known is None:
            known = self._accounts[account] = _Account(self.quota(account))
        known.resize(namespace, size_bytes)
        if known.size_bytes > known.quota:
            self._full.add(account)
        else:
            self._full.discard(account)
        if not known.members:
            del self._accounts[account]
