"""What became of published messages: the receipts given out, and who has shown the message since.

Source: user-05, user-07.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from luxrelay.bus import Code, Digest, MessageId, VerdictKind
from luxrelay.sync import PublishReceipt

RECEIPTS_KEPT: Final = 8_192
"""Receipts remembered; beyond it the oldest is forgotten."""
PEERS_KEPT: Final = 64
"""Peers counted for one message as having shown it back."""


class ReceiptBook:
    """The newest receipts by digest; any thread may call it."""

    def __init__(self, *, kept: int = RECEIPTS_KEPT, peers_kept: int = PEERS_KEPT) -> None:
        """Start empty."""
        self._kept = kept
        self._peers_kept = peers_kept
        self._lock = threading.Lock()
        self._receipts: OrderedDict[bytes, PublishReceipt] = OrderedDict()
        self._by_slot: dict[bytes, bytes] = {}
        self._shown: dict[bytes, set[bytes]] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._receipts)

    def note(self, receipt: PublishReceipt) -> PublishReceipt:
        """Remember an accepted message; return the receipt as it stands.

        A message that is published again keeps what is known of it: to how many peers it went,
        and who has shown it since.
        """
        with self._lock:
            before = self._receipts.get(receipt.digest)
            if before is None and not receipt.stored:
                return receipt
            if before is not None:
                receipt = replace(receipt, peers_sent=max(before.peers_sent, receipt.peers_sent))
            self._receipts[receipt.digest] = receipt
            self._by_slot[receipt.message_id] = receipt.digest
            if len(self._receipts) > self._kept:
                digest, old = self._receipts.popitem(last=False)
                if self._by_slot.get(old.message_id) == digest:
                    del self._by_slot[old.message_id]
                self._shown.pop(digest, None)
            return self._standing(receipt)

    def shown(self, peer: bytes, message_ids: Sequence[MessageId]) -> None:
        """Count that ``peer`` has announced or sent these messages to us."""
        with self._lock:
            for each in message_ids:
                digest = self._by_slot.get(each)
                if digest is not None:
                    peers = self._shown.setdefault(digest, set())
                    if len(peers) < self._peers_kept:
                        peers.add(peer)

    def receipts(self, digests: Sequence[bytes]) -> list[PublishReceipt]:
        """Return what is known of messages, in order; *ignore* for one that is not remembered."""
        with self._lock:
            found = [(digest, self._receipts.get(digest)) for digest in digests]
            return [
                self._standing(receipt) if receipt is not None else _unknown(Digest(digest))
                for digest, receipt in found
            ]

    def _standing(self, receipt: PublishReceipt) -> PublishReceipt:
        return replace(receipt, seen_back=len(self._shown.get(receipt.digest, ())))


def _unknown(digest: Digest) -> PublishReceipt:
    return PublishReceipt(
        verdict=VerdictKind.IGNORE,
        code=Code.OK,
        reason="this node does not remember the message",
        digest=digest,
    )
