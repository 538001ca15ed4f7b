"""Leopard-compatible parity."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from luxrelay.channel.parity import fits, make_parity, recover, span
from luxrelay.errors import ChannelArgumentError

VECTORS = json.loads((Path(__file__).parent / "data" / "segmentation.json").read_text())["leopard"]


def shards_of(vector: dict[str, Any]) -> list[bytes]:
    """Return the data shards of a vector by its published pattern."""
    return [
        bytes((shard * 131 + i * 7 + (i >> 6) * 29) & 255 for i in range(vector["shard_bytes"]))
        for shard in range(vector["data_shards"])
    ]


@pytest.mark.parametrize(
    "vector", VECTORS["vectors"], ids=lambda v: f"{v['data_shards']}+{v['parity_shards']}"
)
def test_leopard_makes_the_same_parity(vector: dict[str, Any]) -> None:
    """Parity shards equal those of the C++ library, and bring lost data back."""
    shards = shards_of(vector)
    count = vector["parity_shards"]

    parity = make_parity(shards, count)

    assert len(parity) == count
    for made, published in zip(parity, vector["parity"], strict=False):
        assert made.hex().startswith(published)
    lost = random.Random(len(shards)).sample(range(len(shards)), min(count, len(shards)))
    have = {index: shard for index, shard in enumerate(shards) if index not in lost}
    assert recover(have, dict(enumerate(parity)), len(shards), count) == shards


def test_any_so_many_shards_are_enough() -> None:
    """Of 4 data and 3 parity shards, each choice of four gives the data back."""
    shards = [bytes((i * (n + 3)) & 255 for i in range(64)) for n in range(4)]
    every = [*shards, *make_parity(shards, 3)]

    for chosen in itertools.combinations(range(7), 4):
        data = {i: every[i] for i in chosen if i < 4}
        parity = {i - 4: every[i] for i in chosen if i >= 4}
        assert recover(data, parity, 4, 3) == shards


def test_largest_shape() -> None:
    """128 data shards come back from 128 parity shards alone; one more of either does not fit."""
    rng = random.Random(7)
    shards = [rng.randbytes(64) for _ in range(128)]
    assert recover({}, dict(enumerate(make_parity(shards, 128))), 128, 128) == shards
    assert not fits(129, 128)
    assert not fits(128, 129)
    assert (span(1), span(2), span(3), span(128)) == (1, 2, 4, 128)


@pytest.mark.parametrize(
    ("shards", "count"),
    [
        ([], 1),
        ([bytes(63)], 1),
        ([b""], 1),
        ([bytes(64), bytes(128)], 1),
        ([bytes(64)] * 2, 3),
        ([bytes(64)] * 2, 0),
        ([bytes(64)] * 227, 29),
    ],
)
def test_refuse_shapes_that_do_not_fit(shards: list[bytes], count: int) -> None:
    """Lengths that are no multiple of 64, or numbers beyond the 8-bit field, are refused."""
    with pytest.raises(ChannelArgumentError):
        make_parity(shards, count)


def test_refuse_to_recover_from_too_few() -> None:
    """One shard too few gives nothing, and says so."""
    shards = [bytes(64), bytes(range(64)), bytes(64)]
    parity = make_parity(shards, 1)

    with pytest.raises(ChannelArgumentError):
        recover({0: shards[0]}, {0: parity[0]}, 3, 1)
