"""Install what the benchmarks measure us against: Redis by the distribution, NATS by Go.

What is there already is left alone. A peer that cannot be installed is named; the benchmarks then
say so in their table in place of its ratio.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / ".peers"
NATS = "github.com/nats-io/nats-server/v2@v2.15.2"
GO_PLACES = ("/usr/local/go/bin/go", "/usr/lib/go/bin/go")


def redis() -> None:
    """Install redis-server by apt."""
    if shutil.which("redis-server"):
        return
    for command in (["apt-get", "update"], ["apt-get", "install", "--yes", "redis-server"]):
        subprocess.run(
            [*command, "-qq"],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdout=subprocess.DEVNULL,
            check=True,
        )


def nats() -> None:
    """Build nats-server from its module."""
    if (FOLDER / "nats-server").exists():
        return
    go = shutil.which("go") or next((place for place in GO_PLACES if Path(place).exists()), None)
    if go is None:
        raise FileNotFoundError("the Go toolchain")
    subprocess.run([go, "install", NATS], env={**os.environ, "GOBIN": str(FOLDER)}, check=True)


def main() -> None:
    """Install both; say which failed."""
    FOLDER.mkdir(exist_ok=True)
    for install in (redis, nats):
        try:
            install()
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{install.__name__} is not installed: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
