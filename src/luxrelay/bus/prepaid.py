"""The payer's half of prepaid quotas: the file of a quota, and who pays messages from it.

    SignedQuotaV1 := "lux.quota.file.v1" ‖ networkLen u8 ‖ network ‖ bodyVersion u8 ‖ bodyLen u16
                     ‖ body

The body is that of fee kind 1 (`luxrelay.bus.fee`) with the issuer's signature. It does not name
its network, which the signature covers, so the file does.

`PrepaidPayer` counts what it has paid, so that no sequence is signed that no quota is left for.
The node's count is the one that counts: `PrepaidPayer.follow` takes it over.

Source: LP-6411 §2.9, LP-6422 §4; decisions S6, S7; docs/how-to/prepaid.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Final

from luxrelay.bus.authorization import Access, identity_access
from luxrelay.bus.fee import (
    FeeKind,
    FeeProof,
    Prepaid,
    known_body,
    network_bytes,
    read_prepaid,
    verify_digest,
)
from luxrelay.bus.header import Digest, MsgHeader, NamespaceId
from luxrelay.bus.keys import SigningKey
from luxrelay.bus.namespace import lane
from luxrelay.bus.schemes import SCHEMES, SIGNATURE_FLAGS
from luxrelay.bus.signed_policy import NETWORK_PATTERN
from luxrelay.errors import BusArgumentError, FeeError, QuotaError
from luxrelay.wire import ByteReader

TAG_QUOTA_FILE: Final = b"lux.quota.file.v1"
"""Begins a quota's file."""
MAX_QUOTA_BYTES: Final = 1024
"""Longest file of a quota: what does not fit into a fee proof pays nothing."""
UNSETTLED_MAX: Final = 4096
"""Messages that a payer remembers until it learns whether they were stored."""

_U16: Final = Struct(">H")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedQuota:
    """A quota as its issuer hands it out."""

    network: str
    """The network it is meant for, 1 to 32 of a-z 0-9 -."""
    quota: Prepaid
    """What it pays, signed by its issuer."""

    def __post_init__(self) -> None:
        """Refuse a network that there cannot be."""
        if not NETWORK_PATTERN.fullmatch(self.network):
            raise BusArgumentError("a network has 1 to 32 of a-z 0-9 -", where="SignedQuota")

    @property
    def account(self) -> bytes:
        """The quota's hash: what nodes count it under, 32 bytes."""
        return self.quota.quota_hash(self.network)

    def verify(self) -> bool:
        """Return True when the issuer's signature holds; says nothing about who honours it."""
        return verify_digest(self.quota.issuer, self.account, self.quota.issuer_signature)

    def encode(self) -> bytes:
        """Return the one encoding."""
        body = self.quota.encode()
        head = TAG_QUOTA_FILE + network_bytes(self.network) + bytes([self.quota.version])
        return head + _U16.pack(len(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> SignedQuota:
        """Return the quota that ``data`` encodes; the signature is not checked.

        Raises:
            FeeError: the bytes are cut, too long, of an unknown version, or not its one encoding.

        """
        if len(data) > MAX_QUOTA_BYTES:
            raise FeeError(f"a quota has at most {MAX_QUOTA_BYTES} bytes", where="quota")
        reader = ByteReader(bytes(data), FeeError, "quota")
        if reader.take(len(TAG_QUOTA_FILE)) != TAG_QUOTA_FILE:
            raise reader.fail("the tag is not lux.quota.file.v1")
        network = reader.take(reader.u8()).decode("ascii", "replace")
        version = reader.u8()
        if not known_body(FeeKind.PREPAID, version):
            raise reader.fail(f"no quota of version {version}")
        length = reader.u16()
        start = reader.offset
        try:
            signed = cls(network=network, quota=read_prepaid(reader, version))
        except BusArgumentError as error:
            raise reader.fail(error.what) from error
        if reader.offset - start != length:
            raise reader.fail("the body has another length than it says")
        reader.end()
        return signed


@dataclass(slots=True)
class _Use:
    messages: int = 0
    size_bytes: int = 0


class PrepaidPayer:
    """Pays messages from quotas of one owner, the first one first, and counts what it paid.

    Args:
        key: The owner's key; the sender of the messages may be somebody else.
        quotas: Quotas of one network, in the order in which they are used up.

    Raises:
        BusArgumentError: no quota, of several networks, or a key that cannot pay.
        QuotaError: a quota is somebody else's, or its issuer's signature does not verify.

    """

    def __init__(self, key: SigningKey, quotas: Sequence[SignedQuota]) -> None:
        """Begin with nothing used; `follow` takes over what a node has counted."""
        if len({each.network for each in quotas}) != 1:
            raise BusArgumentError("quotas of one network are needed", where="PrepaidPayer")
        for each in quotas:
            if not each.verify():
                raise QuotaError("the issuer's signature does not verify", where=_name(each))
            if identity_access(each.quota.owner, key.public_field) is not Access.ALLOWED:
                raise QuotaError(
                    f"the quota is of {each.quota.owner.value.hex()}, the payer is "
                    f"{key.public_field.hex()}",
                    where=_name(each),
                )
        self._key = key
        self.quotas = tuple(quotas)
        """What it pays from."""
        self.network = quotas[0].network
        """The network of the quotas."""
        self._used = {each.account: _Use() for each in quotas}
        self._unsettled: OrderedDict[Digest, tuple[bytes, int]] = OrderedDict()

    def follow(self, account: bytes, messages_used: int, bytes_used: int) -> None:
        """Count what a node has counted of a quota instead of what was counted here."""
        if account in self._used:
            self._used[account] = _Use(messages_used, bytes_used)

    def left(self, account: bytes) -> tuple[int, int]:
        """Return the messages and bytes that a quota still pays, as counted here."""
        quota = next(each.quota for each in self.quotas if each.account == account)
        used = self._used[account]
        return max(0, quota.messages - used.messages), max(0, quota.bytes_total - used.size_bytes)

    def check(
        self,
        namespace_id: NamespaceId,
        sender: bytes,
        blob_len: int,
        timestamp_ms: int,
    ) -> SignedQuota:
        """Return the quota that would pay a message.

        Args:
            namespace_id: The message's namespace, such as a lane.
            sender: The sender's key field: a quota for a namespace pays its lanes as well.
            blob_len: Bytes of its blob.
            timestamp_ms: The message's timestamp, Unix milliseconds.

        Raises:
            QuotaError: none pays it; the text says of each why.

        """
        reasons = []
        for each in self.quotas:
            why = self._refusal(each, namespace_id, sender, blob_len, timestamp_ms)
            if not why:
                return each
            reasons.append(f"{_name(each)}: {why}")
        raise QuotaError("no quota pays the message (code 1007)", where="; ".join(reasons))

    def pay(self, header: MsgHeader, sender: bytes) -> MsgHeader:
        """Return a header with its fee proof, to be signed next by the key with field ``sender``.

        The proof covers the flags of the sender's scheme and its key, so both are filled in. A
        header that is signed with LP-6411's own signature stays valid with the proof.

        Raises:
            QuotaError: no quota pays it.

        """
        chosen = self.check(header.namespace_id, sender, header.blob_len, header.timestamp)
        flags = (header.flags & ~SIGNATURE_FLAGS) | SCHEMES[sender[0]].flags
        ready = replace(header, flags=flags, sender_pub_key=sender)
        proof = FeeProof.signed(chosen.quota, ready, self._key, self.network)
        use = self._used[chosen.account]
        use.messages += 1
        use.size_bytes += header.blob_len
        return replace(ready, fee_proof=proof.encode())

    def sent(self, header: MsgHeader) -> None:
        """Remember a signed header that `pay` has paid, until `settle`."""
        body = FeeProof.decode(header.fee_proof).body
        assert isinstance(body, Prepaid)
        self._unsettled[header.digest] = (body.quota_hash(self.network), header.blob_len)
        while len(self._unsettled) > UNSETTLED_MAX:
            self._unsettled.popitem(last=False)

    def settle(self, digest: bytes, *, stored: bool) -> None:
        """Take back what was counted for a message that the node has not stored."""
        found = self._unsettled.pop(Digest(digest), None)
        if found is None or stored:
            return
        account, blob_len = found
        use = self._used[account]
        use.messages = max(0, use.messages - 1)
        use.size_bytes = max(0, use.size_bytes - blob_len)

    def _refusal(
        self,
        signed: SignedQuota,
        namespace_id: NamespaceId,
        sender: bytes,
        blob_len: int,
        timestamp_ms: int,
    ) -> str:
        quota = signed.quota
        own = quota.namespace_id
        if any(own) and namespace_id not in {own, lane(own, sender)}:
            return f"it is for namespace {own.hex()}, the message is for {namespace_id.hex()}"
        if timestamp_ms > quota.expires_ms:
            late = timestamp_ms - quota.expires_ms
            return f"it ended at {quota.expires_ms} (Unix ms), {late:,} ms before the message"
        messages, size_bytes = self.left(signed.account)
        if messages < 1 or size_bytes < blob_len:
            return (
                f"{messages:,} of {quota.messages:,} messages and {size_bytes:,} of "
                f"{quota.bytes_total:,} bytes are left, the message takes 1 and {blob_len:,}"
            )
        return ""


def _name(signed: SignedQuota) -> str:
    return f"quota {signed.account.hex()[:16]}"
