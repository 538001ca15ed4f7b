"""`get_blob`: how often a reading is gone on with when connections are lost."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from luxrelay.errors import SyncUnreachableError
from luxrelay.sync import RelaySyncClient
from luxrelay.sync.messages import BlobAnswer
from luxrelay.sync.rpc.set_calls import BARREN_MAX, RESUMES_MAX

BLOB = bytes(range(100))


def read(monkeypatch: pytest.MonkeyPatch, *bring: int) -> bytes | None:
    """Read a blob of which the askings bring so many bytes each, and all but the last are lost."""
    left = list(bring)

    def asked(_: RelaySyncClient, __: bytes, offset: int, *___: Any, **____: Any) -> BlobAnswer:
        def parts(count: int) -> Generator[bytes, None, None]:
            if count:
                yield BLOB[offset : offset + count]
            if left:
                raise SyncUnreachableError("the connection was lost")

        return BlobAnswer(len(BLOB), parts(left.pop(0)))

    monkeypatch.setattr(RelaySyncClient, "get_blob_parts", asked)
    with RelaySyncClient("127.0.0.1:1") as client:
        return client.get_blob(bytes(32))


def test_some_askings_in_a_row_may_bring_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """P50: those that began on a connection before it was known as lost go with it."""
    assert read(monkeypatch, 40, *[0] * BARREN_MAX, 60) == BLOB
    assert read(monkeypatch, 40, 0, 0, 0, 30, 0, 0, 30) == BLOB
    with pytest.raises(SyncUnreachableError, match="lost"):
        read(monkeypatch, 40, *[0] * (BARREN_MAX + 1), 60)


def test_a_reading_is_gone_on_with_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little each asking brings, it ends."""
    with pytest.raises(SyncUnreachableError, match="lost"):
        read(monkeypatch, *[1] * RESUMES_MAX, 92)
