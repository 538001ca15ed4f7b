"""Fee proofs: kinds, bodies and their one encoding, bound to one header.

    feeProof     := 0x00 (None) | FeeProofV1
    FeeProofV1   := kind u8 ‖ bodyVersion u8 ‖ bodyLen u16 ‖ body ‖ keyLen u8 ‖ payer key field
                    ‖ signature 64
    Prepaid      := owner Identity ‖ namespaceId 20 ‖ messages u64 ‖ bytes u64 ‖ expiresAt u64
                    ‖ nonce 16 ‖ keyLen u8 ‖ issuer key field ‖ issuer signature 64
    OnChain      := chainId u64 ‖ contract 20 ‖ txHash 32 ‖ logIndex u32 ‖ amount 32
    StateChannel := channelId 32 ‖ cumulative 32 ‖ voucher signature 64
    Stake        := amount u64 ‖ validUntil u64 (ms) ‖ root 32 ‖ index u32 ‖ count u8 ‖ hash 32 …

The payer signs SHA3-256("lux.feeproof.v1" ‖ networkLen u8 ‖ network ‖ kind ‖ headerHash ‖
SHA3-256(senderPubKey) ‖ everything between kind and signature): the header's own signature does
not cover its fee proof, so this one does, and a proof moved to another header is worthless (H3).
Body version 1, and for Prepaid also 2: version 1 counts expiresAt in seconds, version 2 in
milliseconds (S7). 1 KiB leaves no room for ML-DSA, so payers and issuers sign with Ed25519 or
secp256k1.

Source: LP-6411 §2.9, LP-6422 §4, LP-6442 §3.2, LP-6481; docs/reference/fees-and-policies.md;
decisions H12, S6, S7.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias

from luxrelay.bus import constants as c
from luxrelay.bus.authorization import key_address
from luxrelay.bus.header import MsgHeader, NamespaceId
from luxrelay.bus.keys import SigningKey, VerifyKey
from luxrelay.bus.policy import MAX_U256, Identity
from luxrelay.bus.schemes import SCHEMES, SignatureScheme
from luxrelay.errors import BusArgumentError, FeeError, KeyFormatError
from luxrelay.wire import ByteReader

TAG_FEE: Final = b"lux.feeproof.v1"
"""Domain tag of the payer's signature."""
TAG_QUOTA: Final = b"lux.quota.v1"
"""Domain tag of the issuer's signature, and of the quota's hash."""
TAG_VOUCHER: Final = b"lux.voucher.v1"
"""Domain tag of a voucher, which a channel's contract can check without any header."""
TAG_CHANNEL: Final = b"lux.channel.v1"
"""Domain tag of a channel's account in the ledger."""
TAG_STAKE: Final = b"lux.stake.v1"
"""Domain tag of a leaf in the tree of stakes."""
NONCE_BYTES: Final = 16
"""Length of a quota's nonce; it keeps two equal quotas apart (S7)."""
FEE_SIGNATURE_BYTES: Final = 64
"""Length of every signature inside a fee proof."""
STAKE_DEPTH_MAX: Final = 20
"""Most hashes of a stake's Merkle path: a million stakes."""
FEE_SCHEMES: Final = frozenset({SignatureScheme.ED25519, SignatureScheme.SECP256K1})
"""Schemes whose keys and signatures fit a fee proof."""
VERSION_SECONDS: Final = 1
"""Body version; of Prepaid, the one whose expiry counts seconds."""
VERSION_MILLISECONDS: Final = 2
"""Body version of Prepaid whose expiry counts milliseconds."""

_U16: Final = Struct(">H")
_LIMITS: Final = Struct(">QQQ")
_ON_CHAIN: Final = Struct(">Q20s32sI")
_STAKE: Final = Struct(">QQ32sIB")


class FeeKind(IntEnum):
    """The first byte of a fee proof."""

    NONE = 0
    PREPAID = 1
    ON_CHAIN = 2
    STATE_CHANNEL = 3
    STAKE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepaid:
    """A quota that an issuer sold to an owner."""

    owner: Identity
    """Who may spend it: the payer's wallet address or key."""
    namespace_id: NamespaceId
    """Where it may be spent; all zero for anywhere (S6)."""
    messages: int
    """How many messages it pays, u64 from 1."""
    bytes_total: int
    """How many blob bytes it pays, u64."""
    expires_at: int
    """When it ends, in the unit of the version, u64."""
    nonce: bytes
    """16 bytes that no other quota of the issuer has."""
    issuer: bytes
    """The issuer's key field."""
    issuer_signature: bytes = b""
    """Over `quota_hash`; empty until issued."""
    version: int = VERSION_MILLISECONDS
    """1 for seconds, 2 for milliseconds."""

    def __post_init__(self) -> None:
        """Refuse what has no encoding."""
        _require(len(self.namespace_id) == c.NAMESPACE_BYTES, "namespace_id has 20 bytes")
        _require(1 <= self.messages <= c.MAX_U64, "messages is a u64 from 1")
        _require(0 <= self.bytes_total <= c.MAX_U64, "bytes_total is a u64")
        _require(0 <= self.expires_at <= c.MAX_U64, "expires_at is a u64")
        _require(len(self.nonce) == NONCE_BYTES, "nonce has 16 bytes")
        _require(_fee_key(self.issuer), "issuer is an Ed25519 or secp256k1 key field")
        _require(self.version in {VERSION_SECONDS, VERSION_MILLISECONDS}, "version is 1 or 2")

    @property
    def expires_ms(self) -> int:
        """When it ends, Unix milliseconds."""
        return self.expires_at * (1000 if self.version == VERSION_SECONDS else 1)

    def statement(self) -> bytes:
        """Return the body up to the issuer's signature."""
        return b"".join(
            (
                self.owner.encode(),
                self.namespace_id,
                _LIMITS.pack(self.messages, self.bytes_total, self.expires_at),
                self.nonce,
                bytes([len(self.issuer)]),
                self.issuer,
            )
        )

    def quota_hash(self, network: str) -> bytes:
        """Return SHA3-256(tag ‖ network ‖ version ‖ statement): what is signed, and its name."""
        joined = TAG_QUOTA + network_bytes(network) + bytes([self.version]) + self.statement()
        return hashlib.sha3_256(joined).digest()

    def issued_by(self, key: SigningKey, network: str) -> Prepaid:
        """Return the quota with ``key`` as its issuer."""
        unsigned = replace(self, issuer=key.public_field, issuer_signature=b"")
        return replace(unsigned, issuer_signature=key.sign(unsigned.quota_hash(network)))

    def encode(self) -> bytes:
        """Return the body."""
        return self.statement() + self.issuer_signature


@dataclass(frozen=True, slots=True, kw_only=True)
class OnChain:
    """A payment that stands on a chain."""

    chain_id: int
    """The chain, u64."""
    contract: bytes
    """The fee contract, 20 bytes."""
    tx_hash: bytes
    """The transaction, 32 bytes."""
    log_index: int
    """Which of its logs, u32."""
    amount: int
    """What was paid, u256."""

    def __post_init__(self) -> None:
        """Refuse what has no encoding."""
        _require(0 <= self.chain_id <= c.MAX_U64, "chain_id is a u64")
        _require(len(self.contract) == c.ADDRESS_BYTES, "contract has 20 bytes")
        _require(len(self.tx_hash) == c.HASH_BYTES, "tx_hash has 32 bytes")
        _require(0 <= self.log_index <= c.MAX_U32, "log_index is a u32")
        _require(0 <= self.amount <= MAX_U256, "amount is a u256")

    def encode(self) -> bytes:
        """Return the body."""
        head = _ON_CHAIN.pack(self.chain_id, self.contract, self.tx_hash, self.log_index)
        return head + self.amount.to_bytes(32, "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChannel:
    """A voucher: the payer owes the channel this much in all."""

    channel_id: bytes
    """The channel, 32 bytes."""
    cumulative: int
    """Everything owed since the channel opened, u256; it never falls."""
    voucher_signature: bytes = b""
    """By the payer, over `voucher_digest`; what the relay redeems."""

    def __post_init__(self) -> None:
        """Refuse what has no encoding."""
        _require(len(self.channel_id) == c.HASH_BYTES, "channel_id has 32 bytes")
        _require(0 <= self.cumulative <= MAX_U256, "cumulative is a u256")

    def voucher_digest(self, network: str) -> bytes:
        """Return SHA3-256(tag ‖ network ‖ channelId ‖ cumulative)."""
        joined = self.channel_id + self.cumulative.to_bytes(32, "big")
        return hashlib.sha3_256(TAG_VOUCHER + network_bytes(network) + joined).digest()

    def account(self, network: str) -> bytes:
        """Return SHA3-256(tag ‖ network ‖ channelId): the channel's name in the ledger.

        Whoever opens a channel may choose its id; hashed, it can never be a quota's name.
        """
        return hashlib.sha3_256(TAG_CHANNEL + network_bytes(network) + self.channel_id).digest()

    def signed_by(self, key: SigningKey, network: str) -> StateChannel:
        """Return the voucher signed by the payer."""
        return replace(self, voucher_signature=key.sign(self.voucher_digest(network)))

    def encode(self) -> bytes:
        """Return the body."""
        return self.channel_id + self.cumulative.to_bytes(32, "big") + self.voucher_signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Stake:
    """A stake of the payer's address, shown by a Merkle path to a root that nodes know."""

    amount: int
    """Staked LUX, whole, u64."""
    valid_until: int
    """When it may be withdrawn, Unix milliseconds, u64."""
    root: bytes
    """Root of the tree of stakes, 32 bytes."""
    index: int
    """Place of the leaf, u32."""
    path: tuple[bytes, ...]
    """Sibling hashes from leaf to root, at most 20."""

    def __post_init__(self) -> None:
        """Refuse what has no encoding."""
        _require(0 <= self.amount <= c.MAX_U64, "amount is a u64")
        _require(0 <= self.valid_until <= c.MAX_U64, "valid_until is a u64")
        _require(len(self.root) == c.HASH_BYTES, "root has 32 bytes")
        _require(len(self.path) <= STAKE_DEPTH_MAX, f"path has at most {STAKE_DEPTH_MAX} hashes")
        _require(all(len(node) == c.HASH_BYTES for node in self.path), "path has 32-byte hashes")
        _require(0 <= self.index < 1 << len(self.path), "index lies inside the tree")

    def encode(self) -> bytes:
        """Return the body."""
        head = _STAKE.pack(self.amount, self.valid_until, self.root, self.index, len(self.path))
        return head + b"".join(self.path)

    def leads_to_root(self, address: bytes) -> bool:
        """Return True when the path leads from the address's leaf to ``root``."""
        node = stake_leaf(address, self.amount, self.valid_until)
        for level, sibling in enumerate(self.path):
            right = self.index >> level & 1
            node = stake_node(sibling, node) if right else stake_node(node, sibling)
        return node == self.root


FeeBody: TypeAlias = Prepaid | OnChain | StateChannel | Stake


@dataclass(frozen=True, slots=True, kw_only=True)
class FeeProof:
    """A fee proof of kinds 1 to 4."""

    body: FeeBody
    """What is paid, and how."""
    payer: bytes
    """The payer's key field; the message's sender may be somebody else."""
    signature: bytes
    """By the payer, over `binding_digest`, 64 bytes."""

    @property
    def kind(self) -> FeeKind:
        """The proof's first byte."""
        return _KINDS[type(self.body)]

    @property
    def payer_address(self) -> bytes | None:
        """The payer's 20-byte address, None for a key that has none."""
        return key_address(self.payer)

    def encode(self) -> bytes:
        """Return the feeProof field of a header.

        Raises:
            BusArgumentError: a signature is missing or the field is above 1 KiB.

        """
        _require(len(self.signature) == FEE_SIGNATURE_BYTES, "signature has 64 bytes")
        data = bytes([self.kind]) + self._bound_bytes() + self.signature
        _require(len(data) <= c.MAX_FEE_PROOF_BYTES, "a fee proof has at most 1024 bytes")
        return data

    def _bound_bytes(self) -> bytes:
        body = self.body.encode()
        version = self.body.version if isinstance(self.body, Prepaid) else VERSION_SECONDS
        key = bytes([len(self.payer)]) + self.payer
        return bytes([version]) + _U16.pack(len(body)) + body + key

    def binding_digest(self, header: MsgHeader, network: str) -> bytes:
        """Return what the payer signs for ``header`` (H3; 11-34)."""
        sender = hashlib.sha3_256(header.sender_pub_key).digest()
        joined = TAG_FEE + network_bytes(network) + bytes([self.kind]) + header.header_hash
        return hashlib.sha3_256(joined + sender + self._bound_bytes()).digest()

    def bound_to(self, header: MsgHeader, network: str) -> bool:
        """Return True when the payer signed this proof for this header on this network."""
        return verify_digest(self.payer, self.binding_digest(header, network), self.signature)

    @classmethod
    def signed(cls, body: FeeBody, header: MsgHeader, payer: SigningKey, network: str) -> FeeProof:
        """Return the proof of ``payer`` for a header whose other fields are final.

        The header's hash covers its signature flags, so sign the header first and put the proof
        in afterwards; its signature stays valid.
        """
        _require(_fee_key(payer.public_field), "a payer signs with Ed25519 or secp256k1")
        unsigned = cls(body=body, payer=payer.public_field, signature=b"")
        signature = payer.sign(unsigned.binding_digest(header, network))
        return replace(unsigned, signature=signature)

    @classmethod
    def decode(cls, data: bytes) -> FeeProof:
        """Return the proof in a header's feeProof field; no signature is checked.

        Raises:
            FeeError: not a kind from 1 to 4 of a known version, cut, or not its one encoding.

        """
        if len(data) > c.MAX_FEE_PROOF_BYTES:
            raise FeeError("a fee proof has at most 1024 bytes", where="fee proof")
        reader = ByteReader(bytes(data), FeeError, "fee proof")
        kind, version = reader.u8(), reader.u8()
        if not known_body(kind, version):
            raise reader.fail(f"no fee kind {kind} of version {version}")
        length = reader.u16()
        start = reader.offset
        try:
            body = _BODIES[kind](reader, version)
        except BusArgumentError as error:
            raise reader.fail(error.what) from error
        if reader.offset - start != length:
            raise reader.fail("the body has another length than it says")
        payer = _read_key(reader)
        signature = reader.take(FEE_SIGNATURE_BYTES)
        reader.end()
        return cls(body=body, payer=payer, signature=signature)


def known_body(kind: int, version: int) -> bool:
    """Return True for a kind and body version that this build decodes."""
    versions = {VERSION_SECONDS, VERSION_MILLISECONDS} if kind == FeeKind.PREPAID else {1}
    return kind in _BODIES and version in versions


def network_bytes(network: str) -> bytes:
    """Return networkLen u8 ‖ network, as every signature here covers it (H4)."""
    encoded = network.encode()
    _require(0 < len(encoded) <= 0xFF, "a network has 1 to 255 bytes")
    return bytes([len(encoded)]) + encoded


def verify_digest(key_field: bytes, digest: bytes, signature: bytes) -> bool:
    """Return True when the key signed the digest; never raises."""
    try:
        return VerifyKey.from_field(key_field).verify(digest, signature)
    except KeyFormatError:
        return False


def stake_leaf(address: bytes, amount: int, valid_until: int) -> bytes:
    """Return the leaf of a stake: SHA3-256(0x00 ‖ tag ‖ address ‖ amount ‖ validUntil)."""
    joined = address + amount.to_bytes(8, "big") + valid_until.to_bytes(8, "big")
    return hashlib.sha3_256(b"\x00" + TAG_STAKE + joined).digest()


def stake_node(left: bytes, right: bytes) -> bytes:
    """Return the parent of two nodes: SHA3-256(0x01 ‖ left ‖ right)."""
    return hashlib.sha3_256(b"\x01" + left + right).digest()


def read_prepaid(reader: ByteReader, version: int) -> Prepaid:
    """Return the quota that ``reader`` stands at, with its issuer's signature.

    Raises:
        FeeError: the bytes are cut, or a key field is none.
        BusArgumentError: a value that no quota has.

    """
    owner, namespace = Identity.read(reader), NamespaceId(reader.take(c.NAMESPACE_BYTES))
    messages, bytes_total, expires_at = _LIMITS.unpack(reader.take(_LIMITS.size))
    return Prepaid(
        owner=owner,
        namespace_id=namespace,
        messages=messages,
        bytes_total=bytes_total,
        expires_at=expires_at,
        nonce=reader.take(NONCE_BYTES),
        issuer=_read_key(reader),
        issuer_signature=reader.take(FEE_SIGNATURE_BYTES),
        version=version,
    )


def _read_on_chain(reader: ByteReader, _: int) -> OnChain:
    chain_id, contract, tx_hash, log_index = _ON_CHAIN.unpack(reader.take(_ON_CHAIN.size))
    return OnChain(
        chain_id=chain_id,
        contract=contract,
        tx_hash=tx_hash,
        log_index=log_index,
        amount=reader.u256(),
    )


def _read_state_channel(reader: ByteReader, _: int) -> StateChannel:
    return StateChannel(
        channel_id=reader.take(c.HASH_BYTES),
        cumulative=reader.u256(),
        voucher_signature=reader.take(FEE_SIGNATURE_BYTES),
    )


def _read_stake(reader: ByteReader, _: int) -> Stake:
    amount, valid_until, root, index, count = _STAKE.unpack(reader.take(_STAKE.size))
    if count > STAKE_DEPTH_MAX:
        raise reader.fail(f"a path has at most {STAKE_DEPTH_MAX} hashes")
    path = tuple(reader.take(c.HASH_BYTES) for _ in range(count))
    return Stake(amount=amount, valid_until=valid_until, root=root, index=index, path=path)


_BODIES: Final[dict[int, Callable[[ByteReader, int], FeeBody]]] = {
    int(FeeKind.PREPAID): read_prepaid,
    int(FeeKind.ON_CHAIN): _read_on_chain,
    int(FeeKind.STATE_CHANNEL): _read_state_channel,
    int(FeeKind.STAKE): _read_stake,
}
_KINDS: Final[dict[type[FeeBody], FeeKind]] = {
    Prepaid: FeeKind.PREPAID,
    OnChain: FeeKind.ON_CHAIN,
    StateChannel: FeeKind.STATE_CHANNEL,
    Stake: FeeKind.STAKE,
}


def _read_key(reader: ByteReader) -> bytes:
    key = reader.take(reader.u8())
    if not _fee_key(key):
        raise reader.fail("no Ed25519 or secp256k1 key field")
    return key


def _fee_key(key: bytes) -> bool:
    spec = SCHEMES.get(key[0]) if key else None
    return spec is not None and spec.scheme in FEE_SCHEMES and len(key) == spec.key_field_bytes


def _require(holds: bool, demand: str) -> None:
    if not holds:
        raise BusArgumentError(demand, where="fee proof")
