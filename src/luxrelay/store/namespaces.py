"""State of a namespace: floor, contiguous head, held runs, candidates of a slot. Pure.

``floor``: nothing at or below it is expected any more. ``contiguous``: the highest sequence with no
hole above the floor; it never goes back. Expiry raises the floor to the highest sequence it
removed: timestamps do not decrease in a namespace, so a hole below has expired as well.

`HeldRuns`: the sequences held beyond the contiguous head, and the holes between. Pure.

Runs are disjoint, never adjacent, sorted. There is at most one per stored message, so their number
is bounded by ``max_storage_bytes``. Adding costs O(log runs) and one list insertion.

Which candidates a slot keeps. Pure.

A slot is a (namespace, sequence). Each sender keeps its content with the lowest content id, and
the four senders with the lowest content ids stay. Both choices use the same order, so a candidate
that was dropped can never be wanted again: whatever it lost to is replaced only by something
lower still. The kept set of any messages is therefore the same in every order of arrival, and a
store needs to remember no more than the four.

*One order*: had each sender kept the content with the lowest headerHash, and senders been ranked by
content id, the outcome would depend on arrival: a sender whose later content has a lower hash but a
higher id falls behind a fifth sender that is already forgotten.

Quotas: bytes by account, and the order of eviction. Pure.

*Decides* which shortage a message meets and which namespace pays for it.
*Does not know* messages, rows or time; the evictor takes the payer's oldest messages.
*Accounts*: a parent and its lanes share one account, because the operator configures channels and
not senders, and because keys cost nothing: with a quota for each lane a sender with many keys would
have as many quotas. A lane with a quota of its own is its own account.
*Payer*: the largest namespace of the account. One that floods shrinks to the size of the others
before any of them loses a message; in an account of one namespace it is that namespace.
*Bounds*: one entry a namespace; the heap of an account is rebuilt at twice its members.
*What else to change when you change this*: `eviction`, docs/explanation/store.md.

Source: LP-6421 §1.1, "Why Per-Namespace Quotas?", §2.2, §2.3; retention document, "Edge Cases";
21-31; decisions P1, P2, P13, P22, P25, P27, J6, J11, H17.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from luxrelay.bus import ContentId, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.errors import StoreArgumentError
from luxrelay.store.config import RelayStoreConfig

CANDIDATES_MAX: Final = 4
"""Senders a slot keeps (H17)."""


class SlotCandidate(NamedTuple):
    """One content competing for a slot; ordered by content id."""

    content_id: ContentId
    """What is signed and who signed it."""
    sender: bytes
    """The senderPubKey field."""


class Equivocation(NamedTuple):
    """Two contents that one sender signed for one slot; each proves the other wrong (H17)."""

    held: bytes
    """The encoded header that was in the store."""
    came: bytes
    """The encoded header that came."""


def settle(candidates: Iterable[SlotCandidate]) -> list[SlotCandidate]:
    """Return the candidates that stay, lowest content id first.

    ``settle(settle(a) + b) == settle(a + b)`` for all ``a`` and ``b``.
    """
    kept: list[SlotCandidate] = []
    senders: set[bytes] = set()
    for candidate in sorted(candidates):
        if candidate.sender not in senders:
            senders.add(candidate.sender)
            kept.append(candidate)
    return kept[:CANDIDATES_MAX]


class HeldRuns:
    """A set of sequence numbers as sorted runs ``[first, last]``."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __contains__(self, seq: int) -> bool:
        at = bisect_right(self._firsts, seq) - 1
        return at >= 0 and seq <= self._lasts[at]

    def runs(self) -> list[tuple[int, int]]:
        """Return the runs in ascending order."""
        return list(zip(self._firsts, self._lasts, strict=True))

    def copy(self) -> HeldRuns:
        """Return an independent copy."""
        twin = HeldRuns()
        twin._firsts = self._firsts.copy()
        twin._lasts = self._lasts.copy()
        return twin

    def add(self, seq: int) -> None:
        """Hold ``seq``, joined to the runs it touches."""
        firsts, lasts = self._firsts, self._lasts
        at = bisect_right(firsts, seq)
        if at and seq <= lasts[at - 1]:
            return
        joins_before = at > 0 and lasts[at - 1] + 1 == seq
        joins_after = at < len(firsts) and firsts[at] == seq + 1
        if joins_before and joins_after:
            lasts[at - 1] = lasts.pop(at)
            del firsts[at]
        elif joins_before:
            lasts[at - 1] = seq
        elif joins_after:
            firsts[at] = seq
        else:
            firsts.insert(at, seq)
            lasts.insert(at, seq)

    def take_from(self, head: int) -> int:
        """Give up every run that begins at or below ``head + 1``; return the head they lead to."""
        taken = 0
        while taken < len(self._firsts) and self._firsts[taken] <= head + 1:
            head = max(head, self._lasts[taken])
            taken += 1
        del self._firsts[:taken]
        del self._lasts[:taken]
        return head

    def gaps(self, first: int, last: int, limit: int) -> list[tuple[int, int]]:
        """Return the lowest ``limit`` maximal gaps within ``[first, last]``."""
        found: list[tuple[int, int]] = []
        at = bisect_left(self._lasts, first)
        while first <= last and len(found) < limit:
            if at == len(self._firsts):
                found.append((first, last))
                break
            if first < self._firsts[at]:
                found.append((first, min(self._firsts[at] - 1, last)))
            first = self._lasts[at] + 1
            at += 1
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceHead:
    """How far a namespace reaches; all zero for one the store does not know."""

    namespace_id: NamespaceId
    """The namespace."""
    parent: NamespaceId
    """The namespace this one is a lane of; its own id when it is none (J6)."""
    earliest_seq: int = 0
    """Lowest sequence stored; 0 without messages."""
    contiguous_seq: int = 0
    """Highest sequence with no hole above the floor; never goes back (P25)."""
    latest_seq: int = 0
    """Highest sequence ever stored."""
    finalized_seq: int = 0
    """Highest finalized sequence; 0 without an oracle (J9)."""
    latest_header_hash: bytes = c.ZERO_HASH
    """headerHash at ``latest_seq``; of several candidates, the one with the lowest content id."""
    latest_timestamp: int = 0
    """Timestamp of that header, milliseconds."""
    messages: int = 0
    """Messages stored, every candidate of a slot counted."""
    size_bytes: int = 0
    """Their logical bytes, index rows included."""
    floor: int = 0
    """Nothing at or below this sequence is expected any more."""


@dataclass(slots=True, kw_only=True)
class NamespaceState:
    """A namespace's row in memory; the writer changes copies and publishes them whole."""

    namespace_id: NamespaceId
    parent: NamespaceId
    floor: int = 0
    contiguous: int = 0
    latest: int = 0
    earliest: int = 0
    finalized: int = 0
    latest_hash: bytes = c.ZERO_HASH
    latest_timestamp: int = 0
    messages: int = 0
    size_bytes: int = 0
    watermark: int | None = None
    """Sequence up to which the archive has read; None without a handoff (J8)."""
    runs: HeldRuns = field(default_factory=HeldRuns)
    """Sequences held above ``contiguous``; rebuilt from the rows at start."""

    def copy(self) -> NamespaceState:
        """Return an independent copy."""
        return NamespaceState(
            namespace_id=self.namespace_id,
            parent=self.parent,
            floor=self.floor,
            contiguous=self.contiguous,
            latest=self.latest,
            earliest=self.earliest,
            finalized=self.finalized,
            latest_hash=self.latest_hash,
            latest_timestamp=self.latest_timestamp,
            messages=self.messages,
            size_bytes=self.size_bytes,
            watermark=self.watermark,
            runs=self.runs.copy(),
        )

    def holds(self, seq: int) -> bool:
        """Return False when no message can stand at ``seq``; True is no promise below the head."""
        return seq <= self.contiguous or seq in self.runs

    def hold(self, seq: int) -> None:
        """Count ``seq`` as held; the contiguous head moves over everything it now reaches."""
        self.latest = max(self.latest, seq)
        self.earliest = min(self.earliest, seq) if self.earliest else seq
        if seq == self.contiguous + 1:
            self.contiguous = self.runs.take_from(seq) if self.runs else seq
        elif seq > self.contiguous:
            self.runs.add(seq)

    def raise_floor(self, seq: int) -> None:
        """Expect nothing at or below ``seq`` any more."""
        if seq > self.floor:
            self.floor = seq
            self.contiguous = self.runs.take_from(max(self.contiguous, seq))

    def gaps(self, first: int, last: int, limit: int) -> list[tuple[int, int]]:
        """Return the lowest ``limit`` holes in ``[first, last]``, none above ``latest``."""
        return self.runs.gaps(max(first, self.contiguous + 1), min(last, self.latest), limit)

    def head(self) -> NamespaceHead:
        """Return what others may know."""
        return NamespaceHead(
            namespace_id=self.namespace_id,
            parent=self.parent,
            earliest_seq=self.earliest,
            contiguous_seq=self.contiguous,
            latest_seq=self.latest,
            finalized_seq=self.finalized,
            latest_header_hash=self.latest_hash,
            latest_timestamp=self.latest_timestamp,
            messages=self.messages,
            size_bytes=self.size_bytes,
            floor=self.floor,
        )


def check_names(*names: bytes, where: str) -> None:
    """Return when every name can be a namespace's.

    Raises:
        StoreArgumentError: one has not 20 bytes.

    """
    if any(len(name) != c.NAMESPACE_BYTES for name in names):
        raise StoreArgumentError("a namespace has 20 bytes", where=where)


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
