"""One Spark for all tests of the archive; starting it costs more than most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from luxrelay.archive import ArchiveSession
from luxrelay.archive.session import SessionConfig

SMALL_DATA = (
    # Compiling a plan costs seconds and saves microseconds a row: not worth it for a few rows.
    ("spark.sql.codegen.wholeStage", "false"),
    ("spark.sql.codegen.factoryMode", "NO_CODEGEN"),
    ("spark.sql.adaptive.enabled", "false"),
)


LARGE = int(os.environ.get("LUXRELAY_ARCHIVE_MESSAGES", "0")) > 50_000
"""The corpus of test_archive_whole.py is large: Spark is to run as it does for long."""
CONFIG = (
    SessionConfig(master="local[2]", tasks=2, quick=False, driver_memory_mb=4_096)
    if LARGE
    else SessionConfig(master="local[2]", tasks=2, options=SMALL_DATA)
)


@pytest.fixture(scope="session")
def spark() -> Iterator[ArchiveSession]:
    """Spark with two tasks; ask for it before any gRPC server, because starting it forks."""
    with ArchiveSession(CONFIG) as session:
        yield session
