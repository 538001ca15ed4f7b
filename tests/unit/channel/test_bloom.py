"""The rolling Bloom filter."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from luxrelay.channel.bloom import RollingBloom, shows

VECTORS = json.loads((Path(__file__).parent / "data" / "sds.json").read_text())
BLOOMS = [vector for vector in VECTORS["blooms"] if "bit_positions" in vector]


def made(vector: dict[str, Any]) -> RollingBloom:
    """Return an empty filter with the options of a vector."""
    options = vector["options"]
    bits = vector["total_bits"] // options["capacity"] if "kHashes" in options else None
    return RollingBloom(
        options["capacity"],
        options["errorRate"],
        hashes=options.get("kHashes"),
        bits_per_element=bits,
    )


@pytest.mark.parametrize("vector", BLOOMS, ids=lambda v: v["name"])
def test_published_filters(vector: dict[str, Any]) -> None:
    """Size, hashes, positions and bytes are those of the JavaScript implementation."""
    bloom = made(vector)
    for item in vector["inserted"]:
        bloom.add(item)

    encoded = bloom.encode()

    assert (bloom.hashes, bloom.bits) == (vector["k_hashes"], vector["total_bits"])
    assert bloom.size_bytes == len(encoded) == vector["byte_length"]
    assert hashlib.sha256(encoded).hexdigest() == vector["sha256"]
    for item, positions in vector["bit_positions"].items():
        assert bloom.positions(item) == positions
        assert shows(encoded, bloom.marks(item))


@pytest.mark.parametrize("vector", VECTORS["hashes"], ids=lambda v: repr(v["item"]))
def test_published_positions(vector: dict[str, Any]) -> None:
    """The positions of an id are those of the JavaScript implementation."""
    bloom = RollingBloom(10_000, 0.001)

    assert bloom.bits == vector["max"]
    assert bloom.positions(vector["item"]) == vector["positions"]


def test_others_are_rarely_shown() -> None:
    """At its capacity the filter shows all it has, and about one in a thousand it has not."""
    bloom = RollingBloom(1_000, 0.001)
    for index in range(1_000):
        bloom.add(f"in{index}")
    encoded = bloom.encode()

    assert all(shows(encoded, bloom.marks(f"in{index}")) for index in range(1_000))
    wrong = sum(shows(encoded, bloom.marks(f"out{index}")) for index in range(20_000))
    assert 1 <= wrong < 80


def test_rolls_over_at_a_fifth_above_capacity() -> None:
    """One id too many leaves the newest four fifths, and the filter forgets the others."""
    bloom = RollingBloom(100, 0.001)
    for index in range(120):
        bloom.add(f"m{index}")
    assert (len(bloom), bloom.rolls) == (120, 0)

    bloom.add("m120")

    assert (len(bloom), bloom.rolls) == (80, 1)
    encoded = bloom.encode()
    assert all(shows(encoded, bloom.marks(f"m{index}")) for index in range(41, 121))
    assert sum(shows(encoded, bloom.marks(f"m{index}")) for index in range(41)) < 3


def test_adding_again_changes_nothing() -> None:
    """An id counts once."""
    bloom = RollingBloom(10, 0.01)
    bloom.add("a")
    before = bloom.encode()
    bloom.add("a")

    assert (len(bloom), bloom.encode()) == (1, before)
