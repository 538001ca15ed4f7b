"""One Spark for all tests of the archive; starting it costs more than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from luxrelay.archive import ArchiveSession
from luxrelay.archive.session import SessionConfig


@pytest.fixture(scope="session")
def spark() -> Iterator[ArchiveSession]:
    """Spark with two tasks; ask for it before any gRPC server, because starting it forks."""
    with ArchiveSession(SessionConfig(master="local[2]", tasks=2)) as session:
        yield session
