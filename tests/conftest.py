"""What all tests share: hypothesis profiles, workload and vectors beside the checkout."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("quick", max_examples=60, deadline=None)
settings.register_profile(
    "ci",
    max_examples=150,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", max_examples=5000, deadline=None)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "quick")
)

SHARED = Path(__file__).resolve().parents[2] / "shared"
"""Material of the workshop beside the checkout; a user's clone stands without it."""


@pytest.fixture
def wycheproof_ed25519() -> Path:
    """The Ed25519 suite of Wycheproof, where it lies beside the checkout."""
    path = SHARED / "vectors" / "wycheproof" / "ed25519.json.gz"
    if not path.exists():
        pytest.skip("the Wycheproof suite does not lie beside this checkout")
    return path
