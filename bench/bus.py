"""The header codec and its signatures, against the bare library calls of the same run.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable

from nacl import bindings

from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    SigningKey,
    sha3_commitment,
    validate_structure,
    verify_header,
)

SECONDS = 0.5
REPEATS = 5


def rate(call: Callable[[], object]) -> float:
    """Return calls a second: the best of several runs, which other load disturbs least."""
    best = 0.0
    for _ in range(REPEATS):
        count, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < SECONDS / REPEATS:
            for _ in range(50):
                call()
            count += 50
        best = max(best, count / spent)
    return best


def result(name: str, ours: float, against: str, theirs: float, aim: float) -> None:
    """Print one result."""
    row = {
        "part": "bus",
        "name": name,
        "value": ours,
        "unit": "per second",
        "against": against,
        "ratio": ours / theirs,
        "aim": aim,
    }
    print(json.dumps(row))


def main() -> None:
    """Measure encode, decode, structure, sign and verify of an Ed25519 header."""
    key = SigningKey.generate()
    blob = bytes(200)
    header = MsgHeader(
        namespace_id=NamespaceId(b"\x22" * 20),
        seq=1,
        timestamp=1_704_067_200_000,
        blob_commitment=sha3_commitment(blob),
        blob_len=len(blob),
        policy_hash=bytes(32),
    )
    signed = key.sign_header(header)
    data = signed.encode()
    attached = signed.signature + signed.header_hash
    public, secret = key.public_field[1:], bindings.crypto_sign_seed_keypair(key.seed)[1]

    def decode_and_verify() -> bool:
        return verify_header(MsgHeader.decode(data))

    sha3 = rate(lambda: hashlib.sha3_256(data).digest())
    bare_verify = rate(lambda: bindings.crypto_sign_open(attached, public))
    bare_sign = rate(lambda: bindings.crypto_sign(signed.header_hash, secret))
    digest = "SHA3-256 of the header's bytes"
    result("decode", rate(lambda: MsgHeader.decode(data)), digest, sha3, 0.1)
    result("validate_structure", rate(lambda: validate_structure(data)), digest, sha3, 0.2)
    result("decode and verify", rate(decode_and_verify), "libsodium verify", bare_verify, 0.8)
    result("sign_header", rate(lambda: key.sign_header(header)), "libsodium sign", bare_sign, 0.3)


if __name__ == "__main__":
    main()
