"""The benchmark of the bus runs to its end and measures what it says."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from luxrelay.bus import SignatureScheme

BENCH = Path(__file__).resolve().parents[2] / "bench" / "bus.py"


@pytest.mark.slow
def test_rates_are_published_for_every_scheme(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encode, decode, columns and verify of each scheme, each against a limit (11-49)."""
    spec = importlib.util.spec_from_file_location("bench_bus", BENCH)
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_bus", bench)
    spec.loader.exec_module(bench)
    for name, value in (("ROUNDS", 1), ("ROUND_S", 0.001), ("COLUMN_ROUNDS", 1)):
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(bench, "COLUMN_ROWS", 2000)
    monkeypatch.setattr(bench, "HASHED_ROWS", 1000)

    bench.main()

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = {row["name"] for row in rows}
    assert {"decode", "encode", "validate_structure"} <= names
    assert {f"verify {scheme.name}" for scheme in SignatureScheme} <= names
    assert all(row["part"] == "bus" and row["value"] > 0 and row["ratio"] > 0 for row in rows)
