"""`NamespacePolicy` and its canonical PolicyV1 bytes: one policy, one encoding, one hash.

PolicyV1 := version u16 ‖ owner Identity ‖ writersMode u8 ‖ u32 length ‖ writersData ‖
messagesPerSecond u32 ‖ bytesPerSecond u64 ‖ burstMessages u32 ‖ encryptionMode u8 ‖ tfheOrch u8 ‖
retentionClass u8 ‖ pqMode u8 ‖ customLen u16 ‖ customData; all big-endian.
Identity := type u8 ‖ u16 length ‖ bytes.

This build encodes the writer modes Open, OwnerOnly and Allowlist; custom data is carried as bytes.

Source: LP-6410 §3; lux-family facts on the canonical encoding; S1, H33.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

from luxrelay.bus.constants import ADDRESS_BYTES, MAX_U32, MAX_U64
from luxrelay.errors import BusArgumentError, PolicyError

_RATES: Final = Struct(">IQI")
_TAIL: Final = Struct(">BBBBH")
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
MAX_IDENTITY_BYTES: Final = 2048
"""Longest identity; a raw ML-DSA-65 key fits."""
MAX_WRITERS: Final = 10_000
MAX_CUSTOM_BYTES: Final = 4096
MAX_POLICY_BYTES: Final = 64 * 1024


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
    OWNER_ONLY = 3


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
    """Its bytes; a wallet address has 20."""

    def __post_init__(self) -> None:
        """Refuse lengths the encoding cannot hold."""
        if not 0 < len(self.value) <= MAX_IDENTITY_BYTES:
            raise BusArgumentError(
                f"an identity has 1 to {MAX_IDENTITY_BYTES} bytes", where="Identity.value"
            )
        if self.type is IdentityType.WALLET and len(self.value) != ADDRESS_BYTES:
            raise BusArgumentError("a wallet address has 20 bytes", where="Identity.value")

    def encode(self) -> bytes:
        """Return type ‖ u16 length ‖ bytes."""
        return bytes([self.type]) + _U16.pack(len(self.value)) + self.value


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
    """customData as it stands on the wire."""

    def __post_init__(self) -> None:
        """Refuse what has no canonical encoding."""
        _require(1 <= self.version <= 0xFFFF, "version", "from 1 to 65535")
        _require(0 <= self.messages_per_second <= MAX_U32, "messages_per_second", "a u32")
        _require(0 <= self.bytes_per_second <= MAX_U64, "bytes_per_second", "a u64")
        _require(0 <= self.burst_messages <= MAX_U32, "burst_messages", "a u32")
        _require(len(self.custom) <= MAX_CUSTOM_BYTES, "custom", f"≤ {MAX_CUSTOM_BYTES} bytes")
        _require(len(self.writers) <= MAX_WRITERS, "writers", f"≤ {MAX_WRITERS} identities")
        listed = self.writers_mode is WritersMode.ALLOWLIST
        _require(listed or not self.writers, "writers", "empty unless writers_mode is ALLOWLIST")
        encoded = [identity.encode() for identity in self.writers]
        _require(encoded == sorted(set(encoded)), "writers", "sorted by bytes and unique")
        tfhe = self.encryption_mode is EncryptionMode.TFHE
        _require(tfhe or not self.tfhe_orch, "tfhe_orch", "False unless encryption_mode is TFHE")
        _require(len(self.encode()) <= MAX_POLICY_BYTES, "policy", f"≤ {MAX_POLICY_BYTES} bytes")

    def encode(self) -> bytes:
        """Return the canonical PolicyV1 bytes."""
        data = b""
        if self.writers_mode is WritersMode.ALLOWLIST:
            data = _U16.pack(len(self.writers)) + b"".join(i.encode() for i in self.writers)
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

    @classmethod
    def decode(cls, data: bytes) -> NamespacePolicy:
        """Return the policy that ``data`` is the one encoding of.

        Raises:
            PolicyError: the bytes are cut, have trailing bytes, unknown values or an order that
                is not canonical. Nothing else is raised.

        """
        if len(data) > MAX_POLICY_BYTES:
            raise PolicyError(f"a policy has at most {MAX_POLICY_BYTES} bytes", where="policy")
        reader = _Reader(bytes(data))
        try:
            policy = _read_policy(cls, reader)
        except (ValueError, BusArgumentError) as error:
            raise PolicyError(str(error), where=f"policy byte {reader.offset}") from error
        if reader.offset != len(data) or policy.encode() != data:
            raise PolicyError("the encoding is not canonical", where=f"policy byte {reader.offset}")
        return policy


class _Reader:
    """Takes bytes from the front and says where they ran out."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def take(self, count: int) -> bytes:
        if self.offset + count > len(self.data):
            raise PolicyError("the policy is cut", where=f"policy byte {self.offset}")
        self.offset += count
        return self.data[self.offset - count : self.offset]

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int(_U16.unpack(self.take(2))[0])

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def identity(self) -> Identity:
        kind = IdentityType(self.u8())
        return Identity(kind, self.take(self.u16()))


def _read_policy(cls: type[NamespacePolicy], reader: _Reader) -> NamespacePolicy:
    version, owner, mode = reader.u16(), reader.identity(), WritersMode(reader.u8())
    length, start = reader.u32(), reader.offset
    writers: tuple[Identity, ...] = ()
    if mode is WritersMode.ALLOWLIST:
        writers = tuple(reader.identity() for _ in range(reader.u16()))
    if reader.offset - start != length:
        raise PolicyError("writersData has another length than it says", where="writersData")
    per_second, byte_rate, burst = _RATES.unpack(reader.take(_RATES.size))
    encryption, tfhe, retention, pq, custom = _TAIL.unpack(reader.take(_TAIL.size))
    return cls(
        version=version,
        owner=owner,
        writers_mode=mode,
        writers=writers,
        messages_per_second=per_second,
        bytes_per_second=byte_rate,
        burst_messages=burst,
        encryption_mode=EncryptionMode(encryption),
        tfhe_orch=bool(tfhe),
        retention_class=RetentionClass(retention),
        pq_mode=PqMode(pq),
        custom=reader.take(custom),
    )


def _require(holds: bool, name: str, demand: str) -> None:
    if not holds:
        raise BusArgumentError(f"{name} must be {demand}", where=f"NamespacePolicy.{name}")


def default_policy(parent: bytes) -> NamespacePolicy:
    """Return the open policy of a content topic: anyone writes, 100 messages a second.

    Its owner is the namespace id itself, taken as a wallet address nobody holds, so that every
    node derives the same policy, and the same policy hash, from the namespace alone (H20, J6).
    """
    return NamespacePolicy(owner=Identity(IdentityType.WALLET, bytes(parent)))
