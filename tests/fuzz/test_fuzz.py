"""Short runs of what `tests/fuzz` runs at length."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
TARGETS = (
    "envelope",
    "fee",
    "header",
    "negentropy",
    "policy",
    "sds",
    "segment",
    "sidecar",
)


def run(script: str, *arguments: str) -> str:
    """Return what a script says; fail with it when it fails."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_decoder_under_coverage_guidance(name: str) -> None:
    """From its corpus on, a decoder raises its own error and nothing else (11-48)."""
    pytest.importorskip("atheris")

    assert "Done" in run(f"fuzz_{name}.py", "-runs=20000", "-max_total_time=5", "-seed=1")


@pytest.mark.slow
def test_mutated_headers_leave_no_memory_behind() -> None:
    """Fifty thousand mutations: our error or a header, every structural code met (11-44, 11-48)."""
    said = run("million.py", "--count", "50000")

    assert said.count(" ") > 20
    assert "TRAILING_BYTES" in said


def test_every_target_has_a_corpus() -> None:
    """Each target has seeds, small ones."""
    for name in TARGETS:
        seeds = list((FOLDER / "corpus" / name).iterdir())
        assert seeds
        assert sum(seed.stat().st_size for seed in seeds) < 64 * 1024
