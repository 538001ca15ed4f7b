"""Raw rows into checked rows in one process, against bare PyNaCl on the same signatures.

Prints one JSON line a result: part, name, value, unit, against, ratio, aim. Signatures are the
bottleneck of the archive; the ratio says how much everything else costs beside them: structure,
four hashes, payload, Arrow columns. Copies that several relays serve are verified once, so their
rows go faster than signatures alone. Ours and the limit take turns; the best round of each counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pyarrow as pa
from nacl import bindings

from luxrelay.archive.decode import check_batch
from luxrelay.archive.schema import RAW
from luxrelay.testing import message_line, signing_key

MESSAGES = 4_000
SENDERS = 40
BLOB_BYTES = 400
COPIES = 3
ROUNDS = 5


def rows(copies: int) -> pa.RecordBatch:
    """Return a batch in which each message stands as often as relays served it."""
    values = []
    for sender in range(SENDERS):
        line = message_line(
            MESSAGES // SENDERS,
            key=signing_key(number=sender),
            blob=lambda seq: seq.to_bytes(4, "big") * (BLOB_BYTES // 4),
        )
        for message in line:
            header = message.header
            values += [
                {
                    "relay": f"127.0.0.1:{9641 + copy}",
                    "namespace": header.namespace_id,
                    "seq": header.seq,
                    "header": header.encode(),
                    "blob": message.blob,
                    "received_at": header.timestamp + 40,
                    "expires_at": header.timestamp + 600_000,
                }
                for copy in range(copies)
            ]
    return pa.RecordBatch.from_pylist(values, schema=RAW.arrow())


def signatures(batch: pa.RecordBatch) -> list[tuple[bytes, bytes]]:
    """Return what libsodium needs of each row: signature and message in one, and the key."""
    checked = check_batch(batch)
    assert set(checked.column("code").to_pylist()) == {0}
    names = ("signature", "header_hash", "sender_pub_key")
    fields = zip(*(checked.column(name).to_pylist() for name in names), strict=True)
    return [(signature + digest, key[1:]) for signature, digest, key in fields]


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(copies: int, aim: float) -> None:
    """Print the rate of one batch against its signatures alone, one for each row."""
    batch = rows(copies)
    signed = signatures(batch)

    def bare() -> None:
        for joined, key in signed:
            bindings.crypto_sign_open(joined, key)

    ours = limit = float("inf")
    for _ in range(ROUNDS):
        ours = min(ours, seconds(lambda: check_batch(batch)))
        limit = min(limit, seconds(bare))
    name = "decode and verify" + (f", {copies} copies" if copies > 1 else "")
    result = {
        "part": "archive",
        "name": name,
        "value": batch.num_rows / ours,
        "unit": "rows/s",
        "against": "PyNaCl verification of each row",
        "ratio": limit / ours,
        "aim": aim,
    }
    print(json.dumps(result), flush=True)


def main() -> None:
    """Measure rows that stand once, and rows that three relays served."""
    measure(1, 0.75)
    measure(COPIES, 1.75)


if __name__ == "__main__":
    main()
