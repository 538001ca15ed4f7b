"""The header codec, its columns and its signatures, against the limits of the same run.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim. The ratio is ours over
the limit, and so is the aim.
Ours and the limit take turns, and the best round of each counts, which other load disturbs least.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from struct import Struct

import numpy as np
from coincurve import PublicKey
from coincurve.ecdsa import cdata_to_der, deserialize_compact
from cryptography.hazmat.primitives.asymmetric import mldsa
from nacl import bindings

from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    validate_structure,
    verify_header,
)
from luxrelay.bus.structure_batch import HASHES, decode_buffer
from luxrelay.testing import message_line, signing_key

ROUNDS = 7
ROUND_S = 0.06
"""How long a call is repeated in one round, seconds."""
COLUMN_ROWS = 1_000_000
HASHED_ROWS = 100_000
COLUMN_ROUNDS = 4


@dataclass(frozen=True)
class Pair:
    """Something of ours and its limit."""

    name: str
    ours: Callable[[], object]
    against: str
    limit: Callable[[], object]
    aim: float
    rows: int = 1
    """How many headers one call takes."""


def rate(call: Callable[[], object]) -> float:
    """Return calls a second of one round."""
    count, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < ROUND_S:
        for _ in range(20):
            call()
        count += 20
    return count / spent


def once(call: Callable[[], object]) -> float:
    """Return calls a second of one call."""
    began = time.perf_counter()
    call()
    return 1 / (time.perf_counter() - began)


def measure(pair: Pair) -> None:
    """Print the result of one pair."""
    long = pair.rows > 1
    clock, rounds = (once, COLUMN_ROUNDS) if long else (rate, ROUNDS)
    best = [0.0, 0.0]
    for _ in range(rounds):
        for place, call in enumerate((pair.ours, pair.limit)):
            best[place] = max(best[place], clock(call) * pair.rows)
    row = {
        "part": "bus",
        "name": pair.name,
        "value": best[0],
        "unit": "headers/s",
        "against": pair.against,
        "ratio": best[0] / best[1],
        "aim": pair.aim,
    }
    print(json.dumps(row), flush=True)


def codec_pairs() -> Iterator[Pair]:
    """Decode and encode of one Ed25519 header against bare struct on the same bytes."""
    (message,) = message_line(1)
    header = message.header
    data = header.encode()
    bare = Struct(">BB20sQQ32sI32sH33sH64sHs")
    fields = bare.unpack(data)

    def encode() -> bytes:
        object.__setattr__(header, "_raw", None)  # as if it had not been encoded yet
        return header.encode()

    def build() -> bytes:
        return MsgHeader(
            namespace_id=NamespaceId(fields[2]),
            seq=fields[3],
            timestamp=fields[4],
            blob_commitment=fields[5],
            blob_len=fields[6],
            policy_hash=fields[7],
            sender_pub_key=fields[9],
            signature=fields[11],
        ).encode()

    unpacked, packed = "struct unpacking of the bytes", "struct packing of the fields"
    yield Pair("decode", lambda: MsgHeader.decode(data), unpacked, lambda: bare.unpack(data), 0.1)
    yield Pair(
        "validate_structure",
        lambda: validate_structure(data),
        unpacked,
        lambda: bare.unpack(data),
        0.1,
    )
    yield Pair("encode", encode, packed, lambda: bare.pack(*fields), 0.1)
    yield Pair("build, check and encode", build, packed, lambda: bare.pack(*fields), 0.04)


def column_pairs() -> Iterator[Pair]:
    """Columns of a million headers against a copy of their bytes."""
    rows = [message.header.encode() for message in message_line(1000)]
    data = b"".join(rows) * (COLUMN_ROWS // 1000)
    offsets = np.arange(COLUMN_ROWS + 1, dtype=np.int64) * len(rows[0])  # all are of one length
    array = np.frombuffer(data, np.uint8)
    some = offsets[: HASHED_ROWS + 1]
    yield Pair(
        "columns of 1,000,000",
        lambda: decode_buffer(data, offsets),
        "numpy copy of the bytes",
        array.copy,
        0.2,
        COLUMN_ROWS,
    )
    yield Pair(
        "columns of 100,000 with every hash",
        lambda: decode_buffer(data, some, hashes=HASHES),
        "numpy copy of the bytes",
        array[: some[-1]].copy,
        0.008,
        HASHED_ROWS,
    )


def verify_pairs() -> Iterator[Pair]:
    """Verify of each scheme against the call of its library, keys parsed beforehand."""
    (message,) = message_line(1)
    for scheme in SignatureScheme:
        header = signing_key(scheme).sign_header(message.header)
        assert verify_header(header)
        against, limit = library_verify(header)
        yield Pair(f"verify {scheme.name}", partial(verify_header, header), against, limit, 0.9)


def library_verify(header: MsgHeader) -> tuple[str, Callable[[], object]]:
    """Return the name of a scheme's library and its bare verify of this header."""
    scheme, key, signature = header.sender_pub_key[0], header.sender_pub_key[1:], header.signature
    signed = header.header_hash
    if scheme == SignatureScheme.ED25519:
        return "libsodium", partial(bindings.crypto_sign_open, signature + signed, key)
    if scheme == SignatureScheme.SECP256K1:
        der = cdata_to_der(deserialize_compact(signature))
        point = PublicKey(key)
        return "libsecp256k1 (coincurve)", lambda: point.verify(der, signed, None)
    if scheme == SignatureScheme.HYBRID_ED25519_ML_DSA_65:
        quantum = mldsa.MLDSA65PublicKey.from_public_bytes(key[32:])
        attached = signature[:64] + signed

        def both() -> None:
            bindings.crypto_sign_open(attached, key[:32])
            quantum.verify(signature[64:], signed)

        return "libsodium and OpenSSL", both
    if scheme == SignatureScheme.ML_DSA_65:
        verify = mldsa.MLDSA65PublicKey.from_public_bytes(key).verify
    else:
        verify = mldsa.MLDSA87PublicKey.from_public_bytes(key).verify
    return "OpenSSL", partial(verify, signature, signed)


def main() -> None:
    """Measure everything; under a minute."""
    for pair in (*codec_pairs(), *verify_pairs(), *column_pairs()):
        measure(pair)


if __name__ == "__main__":
    main()
