"""Writes the Python modules of every ``.proto`` file beside it.

    python tools/generate_protos.py                 # into src
    python tools/generate_protos.py --out DIRECTORY # elsewhere, to compare

The files are compiled with paths from ``src``, so generated imports are absolute
(``luxrelay.sync.rpc...``). Services get a ``_pb2_grpc.py`` and its stub; a file without a service
does not. The stubs (``.pyi``) come from mypy-protobuf.
"""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files
from pathlib import Path
from typing import Final

SRC: Final = Path(__file__).resolve().parents[1] / "src"
WITH_SERVICES: Final = (
    "luxrelay/sync/rpc/relay_sync.proto",
    "luxrelay/sync/rpc/relay_node.proto",
    "luxrelay/sync/rpc/relay_gateway.proto",
)
MESSAGES_ONLY: Final = ("luxrelay/gossip/rpc.proto",)


def outputs(proto: str) -> tuple[str, ...]:
    """Return the paths, relative to the output folder, that ``proto`` becomes."""
    stem = proto.removesuffix(".proto")
    names = (f"{stem}_pb2.py", f"{stem}_pb2.pyi")
    services = (f"{stem}_pb2_grpc.py", f"{stem}_pb2_grpc.pyi")
    return (*names, *services) if proto in WITH_SERVICES else names


def generate(src: Path, out: Path) -> list[str]:
    """Compile each file that exists under ``src`` into ``out``; return what was written."""
    from grpc_tools import protoc

    scripts = Path(sys.executable).parent  # the plugins are commands of this environment
    include = str(files("grpc_tools") / "_proto")
    written: list[str] = []
    for proto in (*WITH_SERVICES, *MESSAGES_ONLY):
        if not (src / proto).exists():
            continue
        command = [
            "protoc",
            f"-I{src}",
            f"-I{include}",
            *(f"--plugin={scripts / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")),
            f"--python_out={out}",
            f"--mypy_out=quiet:{out}",
        ]
        if proto in WITH_SERVICES:
            command += [f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}"]
        if protoc.main([*command, proto]) != 0:
            raise SystemExit(f"protoc refused {src / proto}; the message above names the line")
        written += outputs(proto)
    return written


def main(argv: list[str]) -> int:
    """Run the command; 0 when every file was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=SRC, help="output folder (default: src)")
    out: Path = parser.parse_args(argv).out
    out.mkdir(parents=True, exist_ok=True)
    for name in generate(SRC, out):
        print(out / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
