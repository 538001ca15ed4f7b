"""A version of messages under a reader, while others write and remove files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from luxrelay.archive.folder import open_folder
from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.schema import MAX_I64
from luxrelay.archive.serving import ArchiveStore
from luxrelay.archive.snapshot import Snapshot
from luxrelay.bus import NamespaceId
from luxrelay.errors import ArchiveError
from luxrelay.store import NamespaceQuery
from luxrelay.sync import WireMessage

A, B = NamespaceId(b"a" * 20), NamespaceId(b"b" * 20)


@pytest.fixture
def archive(
    archive_of: Callable[..., Path], forge: Callable[..., WireMessage], tmp_path: Path
) -> Path:
    """An archive of two namespaces."""
    messages = [forge(name, seq) for name in (A, B) for seq in (1, 2, 3)]
    return archive_of(tmp_path / "archive", messages)


def _erase(archive: Path, namespace: bytes) -> None:
    """Delete a namespace as `erase` does: its rows, and every file that held them."""
    table = DeltaTable(str(archive / "messages"))
    kept = table.to_pyarrow_table().to_pylist()
    rows = [row for row in kept if row["namespace_id"] != namespace]
    schema = table.to_pyarrow_table().schema
    write_deltalake(table, schema.empty_table().from_pylist(rows, schema), mode="overwrite")
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)


def test_a_file_that_is_removed_meanwhile_is_read_from_its_successor(archive: Path) -> None:
    """A reader that was opened before an erasure answers, without what was erased."""
    reader, store = ArchiveReader(archive), ArchiveStore(archive)
    proven = reader.by_namespace(A).messages[0]
    _erase(archive, B)

    assert [message.place.seq for message in reader.by_namespace(A).messages] == [1, 2, 3]
    assert reader.by_namespace(B).messages == ()
    assert reader.prove(proven) is not None
    page = store.query(NamespaceQuery(namespace_id=B), 0)
    assert (page.messages, page.has_more) == ([], False)


def test_a_file_of_the_newest_version_that_is_gone_or_broken_is_damage(archive: Path) -> None:
    """The error says which table, and is ours."""
    reader = ArchiveReader(archive)
    (path,) = (archive / "messages").rglob("*.parquet")
    path.write_bytes(b"PAR1" * 9)

    with pytest.raises(ArchiveError, match="cannot be read") as broken:
        ArchiveReader(archive).by_namespace(A)
    path.unlink()
    with pytest.raises(ArchiveError, match="cannot be read") as gone:
        reader.by_namespace(A)

    assert {broken.value.code, gone.value.code} == {"archive.failed"}
    assert gone.value.where == str(archive / "messages")


def test_a_look_says_whether_anything_has_changed(
    archive: Path, archive_of: Callable[..., Path], forge: Callable[..., WireMessage]
) -> None:
    """Days, files and the highest sequence are those of the version that is read."""
    snapshot = Snapshot(open_folder(archive))
    assert (len(snapshot.days), snapshot.files, snapshot.last_seq) == (1, 1, 3)
    assert not snapshot.refresh()

    archive_of(archive, [forge(A, 9)], roots=False)

    assert (snapshot.files, snapshot.last_seq) == (1, 3)
    assert snapshot.refresh()
    assert (snapshot.files, snapshot.last_seq) == (2, 9)


def test_an_empty_archive_and_an_archive_of_one_row(
    archive_of: Callable[..., Path], forge: Callable[..., WireMessage], tmp_path: Path
) -> None:
    """Every question has an answer, at the ends of every range too."""
    for count in (0, 1):
        path = tmp_path / f"all {count}"
        if count:
            last = forge(A, 2**63 - 1, timestamp=253_402_300_799_999)
            archive_of(path, [replace(last, received_at=last.expires_at)])
        else:
            archive_of(path, [forge(B, 1)])
            DeltaTable(str(path / "messages")).delete()
        reader = ArchiveReader(path)
        found = [
            reader.by_namespace(A).messages,
            reader.by_namespace(A, from_seq=MAX_I64, to_seq=MAX_I64).messages,
            reader.by_time(0, 2**63 - 1).messages,
            reader.by_time(253_402_300_799_999, 2**63 - 1, namespace_id=A).messages,
        ]
        assert [len(each) for each in found] == [count] * 4
        assert reader.by_time(0, 253_402_300_799_998).messages == ()
        assert len(reader.reaches()) == len(reader.namespaces()) == count
        assert all(reader.prove(message) for message in found[0])
        store = ArchiveStore(path)
        for after, served in ((2**63 - 2, count), (2**63 - 1, 0), (2**64 - 1, 0)):
            page = store.query(NamespaceQuery(namespace_id=A, from_seq=after, to_seq=2**64 - 1), 0)
            assert (len(page.messages), page.has_more) == (served, False)
