"""A flipped byte or a cut anywhere in a closed database never gives a wrong message.

Each place is damaged in a copy of its own. Then the copy opens and says what is missing, or is
refused with an error that names a file and the command that helps; what it serves is what was put.
Either way the repaired copy holds only what was put as well.

LUXRELAY_DAMAGE_PLACES sets the number of places; 100 is a long run.

Source: docs/explanation/store.md.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from luxrelay.errors import StoreError
from luxrelay.store import NamespaceQuery, RelayStore, RelayStoreConfig
from luxrelay.store.maintenance.repair import salvage

PLACES = int(os.environ.get("LUXRELAY_DAMAGE_PLACES", "10"))
LANES = 5
MESSAGES = 1_000
CONFIG = RelayStoreConfig(write_buffer_bytes=1 << 16, slice_ms=60_000, block_cache_bytes=1 << 20)
Row = tuple[bytes, bytes | None, int, int]


def _load_oracle() -> Any:
    path = Path(__file__).parents[1] / "oracle" / "store.py"
    spec = spec_from_file_location("store_oracle", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


oracle = _load_oracle()


def make(folder: Path) -> set[Row]:
    """Return what a store in ``folder`` holds; half of it was written before a restart."""
    forge, rng = oracle.Forge(), random.Random(1)
    rows: set[Row] = set()
    for half in range(2):
        with RelayStore.open(folder, CONFIG, now_ms=oracle.NOW) as store:
            for number in range(half * MESSAGES // 2, (half + 1) * MESSAGES // 2, 50):
                some = [
                    forge.in_lane(
                        1 + at // LANES,
                        1 + at % LANES,
                        at=oracle.NOW + at * 100,
                        blob=rng.randbytes(rng.choice([0, 20, 300, 6_000])),
                    )
                    for at in range(number, number + 50)
                ]
                store.put_many(some, oracle.NOW)
            if half:
                rows = served(store)
    return rows


def served(store: RelayStore) -> set[Row]:
    """Return everything a store serves."""
    found: set[Row] = set()
    for head in store.heads(None, b"", 0)[0]:
        cursor = b""
        while True:
            query = NamespaceQuery(namespace_id=head.namespace_id, held=True, cursor=cursor)
            page = store.query(query, oracle.NOW)
            found |= {(m.header_bytes, m.blob, m.received_at, m.expires_at) for m in page.messages}
            if not page.has_more:
                break
            cursor = page.next_cursor
    return found


def wound(folder: Path, rng: random.Random) -> str:
    """Flip a byte or cut a file of the database; return what was done."""
    files = sorted(p for p in (folder / "db").iterdir() if p.is_file() and p.stat().st_size)
    chosen = rng.choice(files)
    data = bytearray(chosen.read_bytes())
    position = rng.randrange(len(data))
    if rng.random() < 0.5:
        data[position] ^= 1 << rng.randrange(8)
        done = f"bit flipped at {position}"
    else:
        del data[position:]
        done = f"cut at {position}"
    chosen.write_bytes(data)
    return f"{chosen.name} {done}"


def judge(folder: Path, everything: set[Row]) -> str:
    """Return how the damaged store ended: served whole, said what is missing, or refused."""
    refusal: StoreError | None
    try:
        with RelayStore.open(folder, CONFIG, now_ms=oracle.NOW) as store:
            found = served(store)
            said = store.loss is not None
    except StoreError as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:
        text = str(refusal)
        assert refusal.code in {"store.corrupt", "store.io"}, text
        assert str(folder) in text, text
        assert "luxrelay store repair" in text, text
        return f"refused {refusal.code}"
    assert found <= everything, "a message that was never put"
    if found == everything:
        return "whole"
    assert said, f"{len(everything) - len(found)} messages are missing and nothing is said"
    return "said what is missing"


@pytest.mark.slow
@pytest.mark.chaos
def test_damage_never_gives_a_wrong_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole, or refused, or said what is missing; the repaired copy holds only what was put."""
    everything = make(tmp_path / "sound")
    rng = random.Random(20_240)
    ends: Counter[str] = Counter()
    lost = 0

    for place in range(PLACES):
        folder, repaired = tmp_path / f"damaged-{place}", tmp_path / f"repaired-{place}"
        shutil.copytree(tmp_path / "sound", folder)
        what = wound(folder, rng)
        try:
            ends[judge(folder, everything)] += 1
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from error
        shutil.rmtree(folder, ignore_errors=True)  # RocksDB may still be deleting files of it
        folder = tmp_path / f"damaged-{place}-again"
        shutil.copytree(tmp_path / "sound", folder)
        rng_again = random.Random(place)
        wound(folder, rng_again)
        salvage(folder, repaired, CONFIG)
        with RelayStore.open(repaired, CONFIG, now_ms=oracle.NOW) as store:
            assert store.verify() == []
            found = served(store)
        headers = {row[0] for row in everything}
        assert {row[0] for row in found} <= headers
        assert all(row in everything or row[1] is None for row in found)
        lost += len(everything) - len(found)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(repaired, ignore_errors=True)

    with capsys.disabled():
        print(f"\n{PLACES} places: {dict(ends)}; repairs kept {1 - lost / PLACES / MESSAGES:.2%}")
