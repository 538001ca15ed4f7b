"""`MsgHeader` version 1: bytes to fields and back, its hashes and its JSON form.

A decoded header keeps the bytes it came from: they are what is stored, hashed and forwarded.

`check_blob` holds a blob against the commitment that a header carries.

Source: LP-6411 §1, §2.8, §4; decisions H1, H3, H11, H34, J11; LP-6411 §2.4, §2.5; decisions H2,
H11.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NewType

from Crypto.Hash import keccak

from luxrelay.bus import constants as c
from luxrelay.bus.keys import parse_secp256k1
from luxrelay.bus.kzg import KzgCommitment, kzg_available, kzg_field, verify_kzg
from luxrelay.bus.schemes import SignatureScheme
from luxrelay.bus.structure import Fields, first_broken_rule, read_fields, structure_verdict
from luxrelay.bus.verdict import ACCEPTED, Code, Verdict, ignore, reject
from luxrelay.errors import BusArgumentError, HeaderError, KeyFormatError, KzgUnavailableError
from luxrelay.wire import from_hex


def sha3_commitment(blob: bytes) -> bytes:
    """Return SHA3-256 of the blob, or 32 zero bytes for an empty one (H11)."""
    return hashlib.sha3_256(blob).digest() if blob else c.ZERO_HASH


def check_blob(header: MsgHeader, blob: bytes, received: KzgCommitment | None = None) -> Verdict:
    """Say whether ``blob`` is the payload that ``header`` commits to.

    Args:
        header: A header that keeps the structural rules.
        blob: The payload.
        received: The commitments and proofs that came with the payload of a header with the KZG
            flag; without them the commitments are computed, which takes 30 times as long.

    Returns:
        ACCEPT; REJECT with ``BLOB_MISMATCH``; or IGNORE with ``UNSUPPORTED_COMMITMENT`` for a
        KZG commitment while the extra is not installed.

    Source: LP-6411 §2.4; H2; 11-10, 11-20, 11-21.

    """
    if len(blob) != header.blob_len:
        return reject(
            Code.BLOB_MISMATCH,
            f"blob has {len(blob)} bytes, the header says {header.blob_len} (LP-6411 §2.5)",
        )
    if header.flags & c.FLAG_KZG_COMMITMENT:
        return _check_kzg(header.blob_commitment, blob, received)
    if not blob:
        return ACCEPTED  # the structural rules admit only the two commitments of nothing
    if hashlib.sha3_256(blob).digest() != header.blob_commitment:
        return reject(Code.BLOB_MISMATCH, "blob does not match blobCommitment (LP-6411 §2.4)")
    return ACCEPTED


def _check_kzg(field: bytes, blob: bytes, received: KzgCommitment | None) -> Verdict:
    if not kzg_available():
        return ignore(
            Code.UNSUPPORTED_COMMITMENT, "KZG commitments need luxrelay[kzg] (LP-6411 §2.4, H2)"
        )
    if not blob:
        return ACCEPTED  # nothing to cut into polynomials; see `check_blob`
    try:
        holds = kzg_field(blob) == field if received is None else verify_kzg(field, blob, received)
    except KzgUnavailableError as error:  # our own installation is never the peer's fault
        return ignore(Code.UNSUPPORTED_COMMITMENT, f"{error.what} (LP-6411 §2.4, H2)")
    if holds:
        return ACCEPTED
    return reject(Code.BLOB_MISMATCH, "blob does not match its KZG commitment (LP-6411 §2.4, H2)")


NamespaceId = NewType("NamespaceId", bytes)
"""20 bytes (LP-6410)."""
MessageId = NewType("MessageId", bytes)
"""SHA3-256(namespaceId ‖ seq), 32 bytes: names the slot (LP-6420 §4.3, LP-6421 §3.1)."""
Digest = NewType("Digest", bytes)
"""SHA3-256 over all bytes of a header, 32 bytes (H3)."""
ContentId = NewType("ContentId", bytes)
"""SHA3-256(headerHash ‖ senderPubKey), 32 bytes: what is signed and who signed it (J11)."""

_PREIMAGE: Final = Struct(">BB20sQQ32sI32s")
_U16: Final = Struct(">H")
_SIDECAR: Final = Struct(">32sQ")
_SEQ: Final = Struct(">Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class TFHESidecarRef:
    """The reference to a TFHE sidecar that a header may carry (LP-6411 §2.10)."""

    commitment: bytes
    """SHA3-256 of the sidecar, 32 bytes."""
    epoch: int
    """Epoch of the TFHE keys, u64."""

    def __post_init__(self) -> None:
        """Refuse what cannot be encoded."""
        _check_bytes("tfhe_sidecar.commitment", self.commitment, c.HASH_BYTES)
        _check_int("tfhe_sidecar.epoch", self.epoch, c.MAX_U64)


@dataclass(frozen=True, slots=True, kw_only=True)
class MsgHeader:
    """A message header of LP-6411; equal when every field is equal.

    Building one checks types and ranges only, so that tools can build broken headers; `decode`
    applies every structural rule.

    Raises:
        BusArgumentError: a field has the wrong length or range.

    Source: LP-6411 §1.1.

    """

    namespace_id: NamespaceId
    """Target namespace, 20 bytes."""
    seq: int
    """Sequence number in the namespace, u64; the first is 1."""
    timestamp: int
    """Unix milliseconds, u64."""
    blob_commitment: bytes
    """SHA3-256 of the payload, or zero bytes without one; 32 bytes."""
    blob_len: int
    """Payload length in bytes, u32."""
    policy_hash: bytes
    """Hash of the namespace policy in force, 32 bytes."""
    sender_pub_key: bytes = b""
    """sigType byte and the public key."""
    signature: bytes = b""
    """Signature over `header_hash`."""
    fee_proof: bytes = c.FEE_NONE
    """Fee kind byte and its data; a single zero byte for none (H12)."""
    flags: int = 0
    """Flag bits of LP-6411 §1.4."""
    version: int = c.VERSION
    """Always 1."""
    tfhe_sidecar: TFHESidecarRef | None = None
    """Present exactly when flag bit 0 is set."""

    _raw: bytes | None = field(default=None, init=False, repr=False, compare=False)
    _hash: bytes | None = field(default=None, init=False, repr=False, compare=False)
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False)
    _content: ContentId | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what the layout cannot hold."""
        _check_bytes("namespace_id", self.namespace_id, c.NAMESPACE_BYTES)
        _check_int("seq", self.seq, c.MAX_U64)
        _check_int("timestamp", self.timestamp, c.MAX_U64)
        _check_bytes("blob_commitment", self.blob_commitment, c.HASH_BYTES)
        _check_int("blob_len", self.blob_len, c.MAX_U32)
        _check_bytes("policy_hash", self.policy_hash, c.HASH_BYTES)
        _check_room("sender_pub_key", self.sender_pub_key, c.MAX_KEY_FIELD_BYTES)
        _check_room("signature", self.signature, c.MAX_SIGNATURE_BYTES)
        _check_room("fee_proof", self.fee_proof, c.MAX_FEE_PROOF_BYTES)
        _check_int("flags", self.flags, 0xFF)
        _check_int("version", self.version, 0xFF)
        if (self.tfhe_sidecar is not None) != bool(self.flags & c.FLAG_TFHE_SIDECAR):
            raise BusArgumentError(
                "tfhe_sidecar and flag bit 0 must be present together", where="MsgHeader.flags"
            )
        if self._size() > c.MAX_HEADER_BYTES:
            raise BusArgumentError(
                f"the header would have {self._size()} bytes, above {c.MAX_HEADER_BYTES}",
                where="MsgHeader",
                hint="shorten fee_proof; 860 bytes fit beside ML-DSA-87 (H8)",
            )

    def _size(self) -> int:
        sidecar = c.SIDECAR_BYTES if self.tfhe_sidecar is not None else 0
        variable = len(self.sender_pub_key) + len(self.signature) + len(self.fee_proof)
        return c.FIXED_BYTES + variable + sidecar

    def encode(self) -> bytes:
        """Return the header as bytes; of a decoded header, the bytes that arrived.

        Source: LP-6411 §1.2.
        """
        if self._raw is None:
            parts = [
                self.preimage,
                _U16.pack(len(self.sender_pub_key)),
                self.sender_pub_key,
                _U16.pack(len(self.signature)),
                self.signature,
                _U16.pack(len(self.fee_proof)),
                self.fee_proof,
            ]
            if self.tfhe_sidecar is not None:
                parts.append(_SIDECAR.pack(self.tfhe_sidecar.commitment, self.tfhe_sidecar.epoch))
            object.__setattr__(self, "_raw", b"".join(parts))
        assert self._raw is not None
        return self._raw

    @classmethod
    def decode(cls, data: bytes) -> MsgHeader:
        """Return the header that ``data`` encodes; every structural rule holds for it.

        Raises:
            HeaderError: ``data`` breaks a rule; ``verdict_code`` says which. Nothing else is
                raised, whatever the bytes.

        Source: LP-6411 §1.2, §3.1.

        """
        raw = data if type(data) is bytes else bytes(data)
        fields = read_fields(raw)
        if fields is None:
            raise _header_error(first_broken_rule(raw), raw)
        draft: Any = _Draft(raw, fields)
        draft.__class__ = cls
        header: MsgHeader = draft
        return header

    @property
    def preimage(self) -> bytes:
        """The 106 bytes under the header hash: the canonical encoding of LP-6411 §4.1."""
        if self._raw is not None:
            return self._raw[: c.PREIMAGE_BYTES]
        return _PREIMAGE.pack(
            self.version,
            self.flags,
            self.namespace_id,
            self.seq,
            self.timestamp,
            self.blob_commitment,
            self.blob_len,
            self.policy_hash,
        )

    @property
    def header_hash(self) -> bytes:
        """SHA3-256 of the 106-byte preimage: what the sender signs (LP-6411 §2.8)."""
        if self._hash is None:
            object.__setattr__(self, "_hash", hashlib.sha3_256(self.preimage).digest())
        assert self._hash is not None
        return self._hash

    @property
    def epoch(self) -> int:
        """The hour of the timestamp since 1970, as TFHE keys and quotas count it (LP-6411 §2.3)."""
        return self.timestamp // c.EPOCH_MS

    @property
    def digest(self) -> Digest:
        """SHA3-256 over all bytes, the ones that are not signed included (H3)."""
        if self._digest is None:
            object.__setattr__(self, "_digest", Digest(hashlib.sha3_256(self.encode()).digest()))
        assert self._digest is not None
        return self._digest

    @property
    def content_id(self) -> ContentId:
        """SHA3-256(headerHash ‖ senderPubKey): one id for what is signed and who signed (J11)."""
        if self._content is None:
            joined = hashlib.sha3_256(self.header_hash + self.sender_pub_key).digest()
            object.__setattr__(self, "_content", ContentId(joined))
        assert self._content is not None
        return self._content

    @property
    def message_id(self) -> MessageId:
        """SHA3-256(namespaceId ‖ seq): the slot, in gossip, queries and sync."""
        return message_id(self.namespace_id, self.seq)

    @property
    def sender_address(self) -> bytes:
        """The sender's 20-byte address, derived from the carried key (H27)."""
        return sender_address(self.sender_pub_key)

    def to_json(self) -> dict[str, object]:
        """Return the JSON form of LP-6411 §4.2: integers and lower-case 0x hex (H34)."""
        sidecar = self.tfhe_sidecar
        return {
            "version": self.version,
            "flags": self.flags,
            "namespaceId": _hex(self.namespace_id),
            "seq": self.seq,
            "timestamp": self.timestamp,
            "blobCommitment": _hex(self.blob_commitment),
            "blobLen": self.blob_len,
            "policyHash": _hex(self.policy_hash),
            "senderPubKey": _hex(self.sender_pub_key),
            "signature": _hex(self.signature),
            "feeProof": _hex(self.fee_proof),
            "tfheSidecar": None
            if sidecar is None
            else {"commitment": _hex(sidecar.commitment), "epoch": sidecar.epoch},
        }

    @classmethod
    def from_json(cls, obj: object) -> MsgHeader:
        """Return the header of a JSON object; unknown keys are refused (H34).

        Integers may be numbers or decimal strings, so that u64 survives JavaScript.

        Raises:
            HeaderError: a key is missing, unknown or has the wrong form; or a structural rule is
                broken.

        """
        known = _require_mapping(obj, "header", _JSON_KEYS, optional={"tfheSidecar"})
        raw_sidecar = known.get("tfheSidecar")
        sidecar = None
        if raw_sidecar is not None:
            inner = _require_mapping(raw_sidecar, "tfheSidecar", {"commitment", "epoch"})
            sidecar = TFHESidecarRef(
                commitment=_json_bytes(inner, "commitment", c.HASH_BYTES),
                epoch=_json_int(inner, "epoch", c.MAX_U64),
            )
        try:
            header = cls(
                version=_json_int(known, "version", 0xFF),
                flags=_json_int(known, "flags", 0xFF),
                namespace_id=NamespaceId(_json_bytes(known, "namespaceId", c.NAMESPACE_BYTES)),
                seq=_json_int(known, "seq", c.MAX_U64),
                timestamp=_json_int(known, "timestamp", c.MAX_U64),
                blob_commitment=_json_bytes(known, "blobCommitment", c.HASH_BYTES),
                blob_len=_json_int(known, "blobLen", c.MAX_U32),
                policy_hash=_json_bytes(known, "policyHash", c.HASH_BYTES),
                sender_pub_key=_json_bytes(known, "senderPubKey"),
                signature=_json_bytes(known, "signature"),
                fee_proof=_json_bytes(known, "feeProof"),
                tfhe_sidecar=sidecar,
            )
        except BusArgumentError as error:
            raise HeaderError(error.what, where=error.where) from error
        return cls.decode(header.encode())


class _Draft:
    """A header that is still being filled: the slots of `MsgHeader`, not yet frozen.

    Filled like this and then turned into a MsgHeader by its class, a header is decoded twice as
    fast as through ``object.__setattr__``, which a frozen class demands for each field. The rules
    of structure, stricter than ``__post_init__``, have been applied before.
    """

    __slots__ = MsgHeader.__slots__

    def __init__(self, raw: bytes, fields: Fields) -> None:
        (
            self.version,
            self.flags,
            self.namespace_id,
            self.seq,
            self.timestamp,
            self.blob_commitment,
            self.blob_len,
            self.policy_hash,
            self.sender_pub_key,
            self.signature,
            self.fee_proof,
            has_sidecar,
        ) = fields
        self.tfhe_sidecar = _sidecar_at_the_end(raw) if has_sidecar else None
        self._raw = raw
        self._hash = self._digest = self._content = None


def _sidecar_at_the_end(raw: bytes) -> TFHESidecarRef:
    reference, epoch = _SIDECAR.unpack_from(raw, len(raw) - c.SIDECAR_BYTES)
    return TFHESidecarRef(commitment=reference, epoch=epoch)


def message_id(namespace_id: NamespaceId, seq: int) -> MessageId:
    """Return SHA3-256(namespaceId ‖ seq big-endian), 32 bytes.

    Source: LP-6420 §4.3, LP-6421 §3.1.
    """
    return MessageId(hashlib.sha3_256(namespace_id + _SEQ.pack(seq)).digest())


@lru_cache(maxsize=4096)
def sender_address(key_field: bytes) -> bytes:
    """Return the 20-byte address of a senderPubKey field.

    The last 20 bytes of Keccak-256 over the key without its scheme byte; of secp256k1, as
    Ethereum does, over the 64 bytes X ‖ Y of the point (LP-6460, H27).

    Raises:
        BusArgumentError: the field is empty, or of secp256k1 and no compressed point.

    """
    if not key_field:
        raise BusArgumentError("an empty key has no address", where="senderPubKey")
    if key_field[0] == SignatureScheme.SECP256K1:
        try:
            point = parse_secp256k1(key_field[1:])
        except KeyFormatError as error:
            raise BusArgumentError(error.what, where=error.where) from error
        uncompressed = point.format(compressed=False)[1:]
        return keccak.new(digest_bits=256, data=uncompressed).digest()[-c.ADDRESS_BYTES :]
    return keccak.new(digest_bits=256, data=key_field[1:]).digest()[-c.ADDRESS_BYTES :]


_JSON_KEYS: Final = frozenset(
    {
        "version",
        "flags",
        "namespaceId",
        "seq",
        "timestamp",
        "blobCommitment",
        "blobLen",
        "policyHash",
        "senderPubKey",
        "signature",
        "feeProof",
        "tfheSidecar",
    }
)
_DECIMAL: Final = re.compile(r"[0-9]{1,20}")


def _header_error(code: Code, raw: bytes) -> HeaderError:
    error = HeaderError(structure_verdict(code).reason, where=f"header of {len(raw)} bytes")
    error.verdict_code = int(code)
    return error


def _hex(value: bytes) -> str:
    return "0x" + value.hex()


def _require_mapping(
    obj: object, name: str, keys: frozenset[str] | set[str], *, optional: set[str] | None = None
) -> Mapping[str, object]:
    if not isinstance(obj, Mapping):
        raise HeaderError("expected a JSON object", where=name)
    unknown = sorted(str(key) for key in obj if key not in keys)
    if unknown:
        raise HeaderError(f"unknown key {unknown[0]!r}", where=name)
    missing = sorted(keys - set(obj) - (optional or set()))
    if missing:
        raise HeaderError(f"missing key {missing[0]!r}", where=name)
    return obj


def _json_int(obj: Mapping[str, object], key: str, maximum: int) -> int:
    value = obj[key]
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise HeaderError(f"expected an integer from 0 to {maximum}", where=key)
    return value


def _json_bytes(obj: Mapping[str, object], key: str, length: int | None = None) -> bytes:
    value = obj[key]
    try:
        return from_hex(value if isinstance(value, str) else "?", length)
    except ValueError as error:
        raise HeaderError(str(error), where=key) from None


def _check_bytes(name: str, value: object, length: int) -> None:
    if not isinstance(value, bytes) or len(value) != length:
        raise BusArgumentError(f"{name} must be {length} bytes", where=f"MsgHeader.{name}")


def _check_room(name: str, value: object, maximum: int) -> None:
    if not isinstance(value, bytes) or len(value) > maximum:
        raise BusArgumentError(
            f"{name} must be bytes, {maximum} at most", where=f"MsgHeader.{name}"
        )


def _check_int(name: str, value: object, maximum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise BusArgumentError(
            f"{name} must be an integer from 0 to {maximum}", where=f"MsgHeader.{name}"
        )
