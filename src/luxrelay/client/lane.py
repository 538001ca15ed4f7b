"""`LaneSigner`: a sender's messages in its own lane, signed in sequence.

Source: J6, H17; user-07.
"""

from __future__ import annotations

from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    SigningKey,
    TFHECiphertext,
    attach_sidecar,
    lane,
    sha3_commitment,
)
from luxrelay.bus.bound import sign_header_bound
from luxrelay.bus.hlc import HybridClock, pack_stamp
from luxrelay.bus.policy import default_policy
from luxrelay.bus.prepaid import PrepaidPayer
from luxrelay.client.values import Outgoing, Receipt


class LaneSigner:
    """Signs the next message of one sender; the caller asks the node where to begin.

    Stamps are a hybrid logical clock's (J1): one is never before the one before it, even when the
    caller's clock is set back. A relay refuses a timestamp that goes back (LP-6411 §2.3, H13).
    """

    def __init__(
        self,
        key: SigningKey,
        parent: NamespaceId,
        *,
        policy_hash: bytes = b"",
        bound_network: str = "",
        next_seq: int = 1,
        after_ms: int = 0,
        fee: PrepaidPayer | None = None,
    ) -> None:
        """Sign for the lane of ``key`` in ``parent``.

        Args:
            key: The sender's key.
            parent: The namespace, such as a content topic's.
            policy_hash: Of the policy in force, 32 bytes; the namespace's open one when empty.
            bound_network: Name of a network with bound signatures; empty for literal ones (H3).
            next_seq: Sequence of the next message: the head's latest and one.
            after_ms: Timestamp of the message before it, Unix milliseconds: the head's latest.
            fee: Pays each message from prepaid quotas; None signs messages without a fee.

        """
        self._key = key
        self.policy_hash = policy_hash or default_policy(parent).policy_hash
        """Of the policy in force, in every header."""
        self._bound_network = bound_network
        self._fee = fee
        self.parent = parent
        """The namespace."""
        self.namespace_id = lane(parent, key.public_field)
        """The lane."""
        self.next_seq = next_seq
        """Sequence of the next message."""
        self._clock = HybridClock(pack_stamp(after_ms, 0))

    def follow(self, latest_seq: int, latest_timestamp: int) -> None:
        """Go on behind a lane's head: its sequence and timestamp, as a node tells them."""
        self.next_seq = latest_seq + 1
        self._clock.follow(pack_stamp(latest_timestamp, 0))

    def sign(
        self, blob: bytes, now_ms: int, *, ciphertext: TFHECiphertext | None = None
    ) -> Outgoing:
        """Return the next message, signed.

        Args:
            blob: Its payload, 2 MiB at most.
            now_ms: The wall clock, Unix milliseconds. It is the message's timestamp, unless the
                message before has a later one, which is taken then.
            ciphertext: What goes along in a TFHE sidecar. Relays take sidecars where the signature
                covers their reference: with ``bound_network``, as a rule (H3).

        Raises:
            QuotaError: no prepaid quota pays it; no sequence was used up.

        """
        header = MsgHeader(
            namespace_id=self.namespace_id,
            seq=self.next_seq,
            timestamp=self._clock.for_message(now_ms),
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=self.policy_hash,
        )
        sidecar = b""
        if ciphertext is not None:
            header, sidecar = attach_sidecar(header, ciphertext)
        if self._fee is not None:
            header = self._fee.pay(header, self._key.public_field)
        self.next_seq += 1
        if self._bound_network:
            signed = sign_header_bound(self._key, header, self._bound_network)
        else:
            signed = self._key.sign_header(header)
        if self._fee is not None:
            self._fee.sent(signed)
        encoded = signed.encode()
        return Outgoing(header=encoded, blob=blob, parent=self.parent, sidecar=sidecar)

    def lost(self, receipt: Receipt) -> bool:
        """Return True when the message must be signed again because its slot was taken.

        ``next_seq`` is then the sequence that the node expects. What a quota paid for a message
        that is not stored is not counted.
        """
        if self._fee is not None:
            self._fee.settle(receipt.digest, stored=receipt.stored)
        if receipt.stored or not receipt.expected_seq:
            return False
        self.next_seq = max(self.next_seq, receipt.expected_seq)
        return True
