"""Overhead of a message beside its content, and the limit of the layer below.

Source: decision C9.
"""

from __future__ import annotations

from luxrelay.channel.bloom import RollingBloom
from luxrelay.channel.params import SdsConfig, SegmentationConfig, SegmentRevision
from luxrelay.channel.segments import HEADER_BYTES
from luxrelay.errors import ChannelArgumentError

ID_BYTES: int = 64
"""Hex digits of a message id."""
HINT_BYTES: int = 32
"""A hint as the layers below give it: a hash."""


def bloom_bytes(config: SdsConfig) -> int:
    """Return the bytes of a Bloom filter on the wire."""
    if not config.bloom_capacity:
        return 0
    return RollingBloom(config.bloom_capacity, config.bloom_error_rate).size_bytes + 4


def history_bytes(config: SdsConfig, sender_id: str) -> int:
    """Return the most bytes of causal history and repair requests.

    Names of other participants are taken to be as long as ours or 64 bytes, the longer.
    """
    entry = 6 + ID_BYTES + HINT_BYTES + 4 + max(len(sender_id.encode()), 64)
    return (config.causal_history_max + config.repair.requests_per_message) * entry


def fixed_bytes(channel_id: str, sender_id: str) -> int:
    """Return the bytes of ids, clock and field tags."""
    return 24 + ID_BYTES + len(channel_id.encode()) + len(sender_id.encode())


def check_fits(
    segmentation: SegmentationConfig,
    sds: SdsConfig,
    *,
    channel_id: str,
    sender_id: str,
    cipher_bytes: int,
    payload_bytes_max: int,
) -> int:
    """Return the longest message that the configuration can make, bytes.

    Args:
        segmentation: Sizes of segments.
        sds: Sizes of Bloom filter and history.
        channel_id: The channel.
        sender_id: Who we are.
        cipher_bytes: What encryption adds.
        payload_bytes_max: What the layer below takes.

    Raises:
        ChannelArgumentError: it is longer than the layer below takes; the text shows the sum.

    """
    segment = segmentation.segment_size_bytes
    if segmentation.revision is SegmentRevision.B:
        segment += HEADER_BYTES
    parts = {
        "segment": segment,
        "Bloom filter": bloom_bytes(sds),
        "history": history_bytes(sds, sender_id),
        "ids": fixed_bytes(channel_id, sender_id),
        "cipher": cipher_bytes,
    }
    total = sum(parts.values())
    if total > payload_bytes_max:
        terms = " + ".join(f"{name} {size}" for name, size in parts.items() if size)
        raise ChannelArgumentError(
            f"{terms} = {total} bytes, above the {payload_bytes_max} that the layer below takes",
            where="create_reliable_channel",
            hint="lower segment_size_bytes, bloom_capacity or causal_history_max",
        )
    return total
