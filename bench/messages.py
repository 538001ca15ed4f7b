"""Messages for the benchmarks of the store, in the form in which they arrive, and results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, lane, sha3_commitment
from luxrelay.store import IncomingMessage

NOW = 1_764_000_000_000
"""When everything arrives, Unix milliseconds."""
PARENT = NamespaceId(b"\x22" * 20)


class Arrival(NamedTuple):
    """A message as the network gives it."""

    header: bytes
    blob: bytes
    timestamp: int


def arrivals(
    count: int,
    lanes: int,
    blob_bytes: int,
    *,
    apart_ms: float = 0,
    later_ms: int = 0,
    keys_from: int = 0,
) -> Iterator[Arrival]:
    """Yield messages of several lanes in turn, so far apart, the first ``later_ms`` after `NOW`.

    Signatures are zeros: the store does not look at them.
    """
    keys = [
        SigningKey.from_seed(SignatureScheme.ED25519, number.to_bytes(32, "big"))
        for number in range(keys_from, keys_from + lanes)
    ]
    names = [lane(PARENT, key.public_field) for key in keys]
    for number in range(count):
        blob = number.to_bytes(8, "big") * (blob_bytes // 8)
        timestamp = NOW + later_ms + int(number * apart_ms)
        header = MsgHeader(
            namespace_id=names[number % lanes],
            seq=number // lanes + 1,
            timestamp=timestamp,
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=bytes(32),
            sender_pub_key=keys[number % lanes].public_field,
            signature=bytes(64),
        )
        yield Arrival(header.encode(), blob, timestamp)


def checked(arrived: Iterable[Arrival]) -> list[IncomingMessage]:
    """Return messages as the verifying stage hands them on: decoded, with their content id."""
    messages = []
    for each in arrived:
        header = MsgHeader.decode(each.header)
        _ = header.content_id  # computed when the signature and the duplicate were checked
        messages.append(
            IncomingMessage(
                header=header, blob=each.blob, parent=PARENT, received_at=each.timestamp
            )
        )
    return messages


def result(
    name: str, ours: float, against: str, theirs: float, aim: float, *, unit: str = "messages/s"
) -> dict[str, Any]:
    """Return one result of the store."""
    return {
        "part": "store",
        "name": name,
        "value": ours,
        "unit": unit,
        "against": against,
        "ratio": ours / theirs,
        "aim": aim,
    }


def percentile(figures: list[float], share: float) -> float:
    """Return the figure below which a share of the others lies."""
    return sorted(figures)[int(share * (len(figures) - 1))]
