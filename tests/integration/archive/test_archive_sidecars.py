"""A TFHE sidecar in the archive: read from a relay, checked, kept, audited and served again."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

from luxrelay.archive import ArchiveSession, audit
from luxrelay.archive import ingest as ingest_and_derive
from luxrelay.archive.folder import open_folder
from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.serving import ArchiveStore
from luxrelay.archive.store_query import message_json
from luxrelay.archive.verification import verify
from luxrelay.bus import (
    CiphertextType,
    MsgHeader,
    NamespaceId,
    SigningKey,
    TFHECiphertext,
    attach_sidecar,
    check_sidecar,
    sha3_commitment,
)
from luxrelay.store import IncomingMessage, RelayStore
from luxrelay.sync import RelaySyncClient, RelaySyncServer, SyncServerConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow]
NS = NamespaceId(b"\x0a" * 20)
KEY = SigningKey.generate()
SECRET = TFHECiphertext(type=CiphertextType.U32, data=b"opaque " * 2_000)


def message(now: int, seq: int) -> IncomingMessage:
    """A message with a sidecar."""
    unsigned = MsgHeader(
        namespace_id=NS,
        seq=seq,
        timestamp=now - 5_000 + seq,
        blob_commitment=sha3_commitment(b"hello"),
        blob_len=5,
        policy_hash=b"p" * 32,
    )
    header, sidecar = attach_sidecar(unsigned, SECRET)
    signed = KEY.sign_header(header)
    return IncomingMessage(
        header=signed, blob=b"hello", parent=NS, received_at=now, sidecar=sidecar
    )


def test_sidecars_are_archived_checked_and_served(spark: ArchiveSession, tmp_path: Path) -> None:
    """One that is held stands in `messages`, and one that is not is null (11-35, 11-36).

    The audit is complete, a relay of the archive gives it by its commitment, and a second relay
    that has what the first lacked fills it in.
    """
    now = int(time.time() * 1000)
    messages = [message(now, seq) for seq in (1, 2)]
    out = tmp_path / "out"
    with (
        RelayStore.open(tmp_path / "first", now_ms=now) as first,
        RelayStore.open(tmp_path / "second", now_ms=now) as second,
    ):
        lacking = IncomingMessage(
            header=messages[1].header, blob=b"hello", parent=NS, received_at=now
        )
        first.put_many([messages[0], lacking], now)
        second.put_many(messages, now)
        servers = [
            RelaySyncServer(store, SyncServerConfig(port=0), clock_ms=lambda: now)
            for store in (first, second)
        ]
        try:
            names = [f"127.0.0.1:{server.start()}" for server in servers]
            ingest_and_derive(spark, relays=names[:1], out=out)
            assert held(out) == [messages[0].sidecar, None]
            shutil.rmtree(open_folder(out).checkpoint)
            run = ingest_and_derive(spark, relays=names, out=out)
            assert run.rejected == 0
            assert held(out) == [each.sidecar for each in messages]
            report = audit(spark, out=out, relays=names)
        finally:
            for server in servers:
                server.stop(0)
    assert report.complete
    assert report.rejected == 0

    again = verify(ArchiveReader(out), rng=random.Random(1), sample=20)
    assert (again.messages, again.wrong) == (20, 0)

    server = RelaySyncServer(ArchiveStore(out), SyncServerConfig(port=0), clock_ms=lambda: now)
    try:
        with RelaySyncClient(f"127.0.0.1:{server.start()}") as client:
            page = client.sync_page(NS)
            lengths = [len(each.sidecar or b"") for each in messages]
            assert [each.sidecar_len for each in page.messages] == lengths
            for each in messages:
                assert each.header.tfhe_sidecar is not None
                found = client.get_blob(each.header.tfhe_sidecar.commitment)
                assert found is not None
                assert check_sidecar(each.header, found).accepted
    finally:
        server.stop(0)


def held(out: Path) -> list[bytes | None]:
    """The sidecars of the archive, by sequence; JSON shows them too."""
    reader = ArchiveReader(out)
    found = sorted(reader.by_namespace(NS).messages, key=lambda each: each.place.seq)
    for each in found:
        shown = message_json(reader, each, proof=False).get("sidecar")
        assert shown == (None if each.sidecar is None else "0x" + each.sidecar.hex())
    return [each.sidecar for each in found]
