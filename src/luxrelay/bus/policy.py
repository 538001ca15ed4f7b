"""`NamespacePolicy` and its canonical bytes, PolicyV1/1: one policy, one encoding, one hash.

    PolicyV1    := version u16 ‖ owner Identity ‖ writersMode u8 ‖ u32 length ‖ writersData
                   ‖ messagesPerSecond u32 ‖ bytesPerSecond u64 ‖ burstMessages u32
                   ‖ encryptionMode u8 ‖ tfheOrch u8 ‖ retentionClass u8 ‖ pqMode u8
                   ‖ customLen u16 ‖ customData
    Identity    := type u8 ‖ u16 length ‖ bytes
    writersData := nothing (Open, OwnerOnly) | count u16 ‖ Identity… (Allowlist)
                   | kind u8 ‖ chainId u64 ‖ contract 20 ‖ minBalance 32 ‖ flag u8 ‖ tokenId 32

All big-endian. Identities stand in ascending byte order, once each. A tokenId that is not there is
flag 0 and 32 zero bytes. customData is a CBOR map (`luxrelay.bus.cbor`), or no bytes when there
are no parameters: an empty map would be a second encoding of the same policy.

Source: LP-6410 §3; docs/reference/fees-and-policies.md; decisions S1, S21, H33.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import Final

from luxrelay.bus.cbor import CborValue, decode_cbor, encode_cbor
from luxrelay.bus.constants import ADDRESS_BYTES, MAX_U32, MAX_U64
from luxrelay.bus.schemes import SCHEMES
from luxrelay.errors import BusArgumentError, PolicyError
from luxrelay.wire import ByteReader, from_hex

_RATES: Final = Struct(">IQI")
_TAIL: Final = Struct(">BBBBH")
_GATE: Final = Struct(">BQ20s")
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
MAX_U256: Final = 2**256 - 1
MAX_IDENTITY_BYTES: Final = 4096
"""Longest identity; a raw ML-DSA-87 key fits."""
MAX_WRITERS: Final = 10_000
"""Most writers of an allowlist; ``MAX_POLICY_BYTES`` holds about 2,800 wallets."""
MAX_CUSTOM_BYTES: Final = 4096
"""Longest customData."""
PREPAID_ISSUERS: Final = "prepaidIssuers"
"""Parameter of a policy that wants each message prepaid."""
MAX_POLICY_BYTES: Final = 64 * 1024
"""Longest policy."""


class IdentityType(IntEnum):
    """What an identity is; 0x80 pins an exact key field."""

    WALLET = 1
    ENS = 2
    DID = 3
    EMAIL = 4
    PHONE = 5
    X509 = 6
    RAW_KEY = 0x80


class WritersMode(IntEnum):
    """Who may write."""

    OPEN = 0
    ALLOWLIST = 1
    TOKEN_GATED = 2
    OWNER_ONLY = 3


class TokenKind(IntEnum):
    """What a token gate counts."""

    NATIVE = 0
    """The chain's own coin: no contract, no token id."""
    FUNGIBLE = 1
    """A balance of a contract, no token id (ERC-20)."""
    NON_FUNGIBLE = 2
    """Tokens of a contract, or the one with the token id (ERC-721)."""
    MULTI = 3
    """A balance of one token id of a contract (ERC-1155)."""


class EncryptionMode(IntEnum):
    """How payloads are encrypted."""

    PLAINTEXT = 0
    E2EE_DM = 1
    E2EE_MLS = 2
    TFHE = 3


class RetentionClass(IntEnum):
    """How long history is kept after the relay window."""

    EPHEMERAL = 0
    STANDARD = 1
    ARCHIVE = 2
    PERMANENT = 3


class PqMode(IntEnum):
    """Which signature schemes are allowed."""

    CLASSICAL = 0
    HYBRID = 1
    PQ_ONLY = 2


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """An owner or writer."""

    type: IdentityType
    """Which kind of identity."""
    value: bytes
    """Its bytes: a wallet address of 20, a key field of its scheme's length, else 1 or more."""

    def __post_init__(self) -> None:
        """Refuse lengths the encoding cannot hold."""
        if not 0 < len(self.value) <= MAX_IDENTITY_BYTES:
            raise BusArgumentError(
                f"an identity has 1 to {MAX_IDENTITY_BYTES} bytes", where="Identity.value"
            )
        if self.type is IdentityType.WALLET and len(self.value) != ADDRESS_BYTES:
            raise BusArgumentError("a wallet address has 20 bytes", where="Identity.value")
        if self.type is IdentityType.RAW_KEY:
            spec = SCHEMES.get(self.value[0])
            if spec is None or len(self.value) != spec.key_field_bytes:
                raise BusArgumentError(
                    "a raw key is a senderPubKey field of exact length", where="Identity.value"
                )

    def encode(self) -> bytes:
        """Return type ‖ u16 length ‖ bytes."""
        return bytes([self.type]) + _U16.pack(len(self.value)) + self.value

    @classmethod
    def read(cls, reader: ByteReader) -> Identity:
        """Return the identity that ``reader`` stands at.

        Raises:
            RemoteError: the reader's own error, for bytes that are no identity.

        """
        kind, value = reader.u8(), reader.take(reader.u16())
        try:
            return cls(IdentityType(kind), value)
        except BusArgumentError as error:
            raise reader.fail(error.what) from error
        except ValueError as error:
            raise reader.fail(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGate:
    """Writers are who holds enough of a token (LP-6410)."""

    kind: TokenKind
    """What is counted."""
    chain_id: int
    """The chain the balance stands on, u64."""
    contract: bytes
    """The token's contract, 20 bytes; zero for the native coin."""
    min_balance: int
    """Least balance that may write, u256 from 1, in the token's smallest unit."""
    token_id: int | None = None
    """The one token that counts, u256; MULTI needs it, NON_FUNGIBLE may have it."""

    def __post_init__(self) -> None:
        """Refuse what means nothing or has no encoding."""
        _require(0 <= self.chain_id <= MAX_U64, "chain_id", "a u64")
        _require(len(self.contract) == ADDRESS_BYTES, "contract", f"{ADDRESS_BYTES} bytes")
        _require(1 <= self.min_balance <= MAX_U256, "min_balance", "a u256 from 1")
        native = self.kind is TokenKind.NATIVE
        _require(any(self.contract) != native, "contract", "zero for NATIVE and only for it")
        if self.token_id is None:
            _require(self.kind is not TokenKind.MULTI, "token_id", "given for MULTI")
        else:
            _require(0 <= self.token_id <= MAX_U256, "token_id", "a u256")
            single = self.kind in {TokenKind.NON_FUNGIBLE, TokenKind.MULTI}
            _require(single, "token_id", "absent for NATIVE and FUNGIBLE")

    def encode(self) -> bytes:
        """Return the 94 bytes of writersData."""
        return b"".join(
            (
                _GATE.pack(self.kind, self.chain_id, self.contract),
                self.min_balance.to_bytes(32, "big"),
                bytes([self.token_id is not None]),
                (self.token_id or 0).to_bytes(32, "big"),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespacePolicy:
    """The rules of one namespace at one version.

    Raises:
        BusArgumentError: a value is out of range or two values contradict each other.

    """

    owner: Identity
    """Who may change the policy."""
    version: int = 1
    """u16 from 1; rises with every update."""
    writers_mode: WritersMode = WritersMode.OPEN
    """Who may write."""
    writers: tuple[Identity, ...] = ()
    """The allowlist, ascending and unique; empty in the other modes."""
    messages_per_second: int = 100
    """Namespace rate, messages a second, u32."""
    bytes_per_second: int = 1024 * 1024
    """Namespace rate, bytes a second, u64."""
    burst_messages: int = 300
    """Bucket size, messages, u32."""
    encryption_mode: EncryptionMode = EncryptionMode.PLAINTEXT
    """Immutable over updates (H21)."""
    tfhe_orch: bool = False
    """True demands a sidecar on every message; needs TFHE (H22)."""
    retention_class: RetentionClass = RetentionClass.STANDARD
    """Steers the archive (J2)."""
    pq_mode: PqMode = PqMode.CLASSICAL
    """Which schemes may sign."""
    custom: bytes = b""
    """customData as it stands on the wire: a deterministic CBOR map, or nothing."""
    token_gate: TokenGate | None = None
    """Present exactly in the mode TOKEN_GATED."""

    def __post_init__(self) -> None:
        """Refuse what has no canonical encoding."""
        _require(1 <= self.version <= 0xFFFF, "version", "from 1 to 65535")
        _require(0 <= self.messages_per_second <= MAX_U32, "messages_per_second", "a u32")
        _require(0 <= self.bytes_per_second <= MAX_U64, "bytes_per_second", "a u64")
        _require(0 <= self.burst_messages <= MAX_U32, "burst_messages", "a u32")
        _require(len(self.writers) <= MAX_WRITERS, "writers", f"≤ {MAX_WRITERS} identities")
        listed = self.writers_mode is WritersMode.ALLOWLIST
        _require(listed or not self.writers, "writers", "empty unless writers_mode is ALLOWLIST")
        encoded = [identity.encode() for identity in self.writers]
        _require(encoded == sorted(set(encoded)), "writers", "sorted by bytes and unique")
        gated = self.writers_mode is WritersMode.TOKEN_GATED
        _require((self.token_gate is not None) == gated, "token_gate", "given for TOKEN_GATED")
        tfhe = self.encryption_mode is EncryptionMode.TFHE
        _require(tfhe or not self.tfhe_orch, "tfhe_orch", "False unless encryption_mode is TFHE")
        _check_custom(self.custom)
        _require(len(self.encode()) <= MAX_POLICY_BYTES, "policy", f"≤ {MAX_POLICY_BYTES} bytes")

    def encode(self) -> bytes:
        """Return the canonical PolicyV1 bytes."""
        data = b""
        if self.writers_mode is WritersMode.ALLOWLIST:
            data = _U16.pack(len(self.writers)) + b"".join(i.encode() for i in self.writers)
        elif self.token_gate is not None:
            data = self.token_gate.encode()
        return b"".join(
            (
                _U16.pack(self.version),
                self.owner.encode(),
                bytes([self.writers_mode]),
                _U32.pack(len(data)),
                data,
                _RATES.pack(self.messages_per_second, self.bytes_per_second, self.burst_messages),
                _TAIL.pack(
                    self.encryption_mode,
                    self.tfhe_orch,
                    self.retention_class,
                    self.pq_mode,
                    len(self.custom),
                ),
                self.custom,
            )
        )

    @property
    def policy_hash(self) -> bytes:
        """SHA3-256 of the canonical bytes: what headers bind to (LP-6411 §2.6)."""
        return hashlib.sha3_256(self.encode()).digest()

    @property
    def custom_params(self) -> Mapping[str, CborValue]:
        """The parameters in ``custom``; empty without any."""
        value = decode_cbor(self.custom) if self.custom else {}
        assert isinstance(value, Mapping)  # __post_init__ admits nothing else
        return value

    @property
    def prepaid_issuers(self) -> frozenset[bytes] | None:
        """Key fields whose prepaid quotas have to pay every message; None when nothing has to (S7).

        The parameter ``prepaidIssuers``: key fields as hex text. What is no hex names nobody.
        """
        return _prepaid_issuers(self.custom) if self.custom else None

    @classmethod
    def decode(cls, data: bytes) -> NamespacePolicy:
        """Return the policy that ``data`` is the one encoding of.

        Raises:
            PolicyError: the bytes are cut, have trailing bytes, unknown values or an order that
                is not canonical. Nothing else is raised.

        """
        if len(data) > MAX_POLICY_BYTES:
            raise PolicyError(f"a policy has at most {MAX_POLICY_BYTES} bytes", where="policy")
        reader = ByteReader(bytes(data), PolicyError, "policy")
        try:
            policy = _read_policy(cls, reader)
        except BusArgumentError as error:
            raise reader.fail(error.what) from error
        except ValueError as error:
            raise reader.fail(str(error)) from error
        reader.end()
        if policy.encode() != data:
            raise reader.fail("the encoding is not canonical")
        return policy


@lru_cache(maxsize=256)
def _prepaid_issuers(custom: bytes) -> frozenset[bytes] | None:
    value = decode_cbor(custom)
    assert isinstance(value, Mapping)  # a policy admits nothing else
    named = value.get(PREPAID_ISSUERS)
    if named is None:
        return None
    found = set()
    for text in named if isinstance(named, list | tuple) else ():
        try:
            found.add(from_hex(str(text)))
        except ValueError:
            continue
    return frozenset(found)


def encode_custom(params: Mapping[str, CborValue]) -> bytes:
    """Return the customData bytes of parameters: no bytes for none.

    Raises:
        BusArgumentError: a value has no place in the profile, or the map is too long.

    """
    data = encode_cbor(params) if params else b""
    _check_custom(data)
    return data


def _read_policy(cls: type[NamespacePolicy], reader: ByteReader) -> NamespacePolicy:
    version, owner, mode = reader.u16(), Identity.read(reader), WritersMode(reader.u8())
    length, start = reader.u32(), reader.offset
    writers: tuple[Identity, ...] = ()
    gate = None
    if mode is WritersMode.ALLOWLIST:
        writers = tuple(Identity.read(reader) for _ in range(reader.u16()))
    elif mode is WritersMode.TOKEN_GATED:
        gate = _read_gate(reader)
    if reader.offset - start != length:
        raise reader.fail("writersData has another length than it says")
    per_second, byte_rate, burst = _RATES.unpack(reader.take(_RATES.size))
    encryption, tfhe, retention, pq, custom = _TAIL.unpack(reader.take(_TAIL.size))
    return cls(
        version=version,
        owner=owner,
        writers_mode=mode,
        writers=writers,
        token_gate=gate,
        messages_per_second=per_second,
        bytes_per_second=byte_rate,
        burst_messages=burst,
        encryption_mode=EncryptionMode(encryption),
        tfhe_orch=bool(tfhe),
        retention_class=RetentionClass(retention),
        pq_mode=PqMode(pq),
        custom=reader.take(custom),
    )


def _read_gate(reader: ByteReader) -> TokenGate:
    kind, chain_id, contract = _GATE.unpack(reader.take(_GATE.size))
    balance, flag, token_id = reader.u256(), reader.u8(), reader.u256()
    return TokenGate(
        kind=TokenKind(kind),
        chain_id=chain_id,
        contract=contract,
        min_balance=balance,
        token_id=token_id if flag else None,
    )


def _check_custom(data: bytes) -> None:
    _require(len(data) <= MAX_CUSTOM_BYTES, "custom", f"≤ {MAX_CUSTOM_BYTES} bytes")
    if not data:
        return
    try:
        value = decode_cbor(data)
    except PolicyError as error:
        raise BusArgumentError(
            f"custom is no deterministic CBOR: {error.what}", where="NamespacePolicy.custom"
        ) from error
    _require(isinstance(value, dict) and bool(value), "custom", "a map that is not empty, or b''")


def _require(holds: bool, name: str, demand: str) -> None:
    if not holds:
        raise BusArgumentError(f"{name} must be {demand}", where=f"NamespacePolicy.{name}")


def default_policy(parent: bytes) -> NamespacePolicy:
    """Return the open policy of a content topic: anyone writes, 100 messages a second.

    Its owner is the namespace id itself, taken as a wallet address nobody holds, so that every
    node derives the same policy, and the same policy hash, from the namespace alone (H20, J6).
    """
    return NamespacePolicy(owner=Identity(IdentityType.WALLET, bytes(parent)))


def default_policy_hash(parent: bytes) -> bytes:
    """Return the hash of `default_policy`, twenty times faster: only its owner differs (H20)."""
    if len(parent) != ADDRESS_BYTES:
        return default_policy(parent).policy_hash
    return hashlib.sha3_256(_OPEN_HEAD + parent + _OPEN_TAIL).digest()


_OPEN_HEAD, _OPEN_TAIL = (
    default_policy(bytes(range(1, ADDRESS_BYTES + 1)))
    .encode()
    .split(bytes(range(1, ADDRESS_BYTES + 1)))
)
