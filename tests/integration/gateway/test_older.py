"""A gateway answers from an archive what its store no longer holds; no JVM is there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from luxrelay.archive.serving import ArchiveStore
from luxrelay.bus import SigningKey, message_id, sha3_commitment
from luxrelay.client import LaneSigner, Query
from luxrelay.errors import ClientRefusedError
from luxrelay.sync import RelaySyncServer, SyncServerConfig, WireMessage

from .conftest import PARENT, now_ms

pytestmark = pytest.mark.slow


def _load(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / "unit" / "archive" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"older_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


FORGE = _load("conftest")


def test_what_the_store_has_forgotten_comes_from_the_archive(
    stand_with: Callable[..., Any], tmp_path: Path
) -> None:
    """Pages begin in the archive and end in the store, by slot and by blob too (LP-6440).

    Without the archive the same questions say that something is missing.
    """
    key, now = SigningKey.generate(), now_ms()
    signer = LaneSigner(key, PARENT)
    old = [signer.sign(b"old %d" % seq, now) for seq in range(1, 6)]
    archived = [WireMessage(each.header, each.blob, now, now + 1) for each in old]
    lane = signer.namespace_id
    path = FORGE._archive_of(tmp_path / "archive", archived, parents={lane: PARENT})
    server = RelaySyncServer(ArchiveStore(path), SyncServerConfig(port=0), clock_ms=now_ms)
    stand = stand_with(archive=f"127.0.0.1:{server.start()}")
    stand.store_line(4, key=key, first=6)

    with stand.client() as client:
        page = client.page(Query(namespace_id=lane, limit=3))
        every = list(client.messages(Query(namespace_id=lane, limit=3)))
        joined = client.page(Query(namespace_id=lane, limit=5))
        whole = client.page(Query(namespace_id=lane, after_seq=3, to_seq=5))
        newest = client.page(Query(namespace_id=lane, after_seq=5))
        slot = stand.fetch(f"/v1/messages/0x{message_id(lane, 2).hex()}").json
        blob = client.blob(sha3_commitment(b"old 1"))
        server.stop(0)
        alone = client.page(Query(namespace_id=lane))
        with pytest.raises(ClientRefusedError, match=r"gateway\.absent"):
            client.blob(sha3_commitment(b"old 2"))

    assert [m.header.seq for m in page.messages] == [1, 2, 3]
    assert (page.has_more, page.complete) == (True, False)
    assert [m.header.seq for m in every] == list(range(1, 10))
    assert [m.blob for m in every[4:6]] == [b"old 5", b"message 6"]
    assert {m.parent for m in every} == {PARENT}
    assert (len(joined.messages), joined.has_more) == (5, True)
    assert [m.header.seq for m in whole.messages] == [4, 5]
    assert [m.header.seq for m in newest.messages] == [6, 7, 8, 9]
    assert newest.complete
    assert [each["header"]["seq"] for each in slot["messages"]] in ([2], ["2"])
    assert blob == b"old 1"
    assert [m.header.seq for m in alone.messages] == [6, 7, 8, 9]
    assert not alone.complete
