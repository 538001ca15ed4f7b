"""The committed modules are what the .proto files become."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
VERSIONS = re.compile(
    r"^# Protobuf Python Version: .*$|^    \d+,$|^GRPC_GENERATED_VERSION = .*$", re.MULTILINE
)
"""Lines that name the version of the generator; they differ between environments."""


@pytest.mark.slow
def test_generated_modules_are_current(tmp_path: Path) -> None:
    """`tools/generate_protos.py` gives the committed files again, versions aside."""
    pytest.importorskip("grpc_tools")
    spec = spec_from_file_location("generate_protos", ROOT / "tools" / "generate_protos.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)

    written = module.generate(ROOT / "src", tmp_path)

    assert "luxrelay/sync/rpc/relay_sync_pb2.py" in written
    stale = [
        name
        for name in written
        if VERSIONS.sub("", (tmp_path / name).read_text())
        != VERSIONS.sub("", (ROOT / "src" / name).read_text())
    ]
    assert not stale, "run python tools/generate_protos.py"
