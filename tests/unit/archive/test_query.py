"""Questions to an archive, against a walk over all its messages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from luxrelay.archive.answers import ArchivedMessage, ArchivePage
from luxrelay.archive.query import ArchiveReader
from luxrelay.bus import MsgHeader, sha3_commitment
from luxrelay.errors import ArchiveArgumentError, ArchiveError
from luxrelay.sync import WireMessage

Forge = Callable[..., WireMessage]
A, B = b"a" * 20, b"b" * 20
T0 = 1_704_067_200_000
DAY = 86_400_000


@pytest.fixture
def messages(forge: Forge) -> list[WireMessage]:
    """Two namespaces over three days, one slot with two contents, one payload that stands twice."""
    made = [
        forge(A, seq, blob=b"text %d" % seq, timestamp=T0 + seq * DAY // 10) for seq in range(1, 31)
    ]
    made += [forge(B, seq, blob=b"text 7", timestamp=T0 + seq * DAY // 2) for seq in (1, 2, 5)]
    return [*made, forge(A, 12, blob=b"rival", timestamp=T0 + 12 * DAY // 10)]


@pytest.fixture
def reader(
    archive_of: Callable[..., Path], messages: list[WireMessage], tmp_path: Path
) -> ArchiveReader:
    """A reader of an archive that holds them."""
    return ArchiveReader(archive_of(tmp_path / "archive", messages))


def _all(ask: Callable[[bytes], ArchivePage]) -> list[ArchivedMessage]:
    """Follow the pages to the end."""
    found: list[ArchivedMessage] = []
    cursor = b""
    while True:
        page = ask(cursor)
        found += page.messages
        cursor = page.next_cursor
        if not cursor:
            return found


def _headers(messages: list[ArchivedMessage]) -> list[bytes]:
    return [message.header for message in messages]


def _stamp(message: WireMessage) -> int:
    return MsgHeader.decode(message.header).timestamp


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
@pytest.mark.parametrize(("first", "last"), [(1, 2**63 - 1), (5, 12), (12, 12), (31, 40), (0, 1)])
def test_a_namespace_by_sequence(
    reader: ArchiveReader, messages: list[WireMessage], limit: int, first: int, last: int
) -> None:
    """Both bounds count, pages follow without a gap, candidates of a slot stand together."""
    found = _all(
        lambda cursor: reader.by_namespace(
            A, from_seq=first, to_seq=last, limit=limit, cursor=cursor
        )
    )

    wanted = {m.header for m in messages if m.namespace_id == A and first <= m.seq <= last}
    assert set(_headers(found)) == wanted
    assert len(found) == len(wanted)
    assert [message.place.seq for message in found] == sorted(m.place.seq for m in found)


@pytest.mark.parametrize("limit", [2, 100])
@pytest.mark.parametrize("namespace", [None, A, B])
def test_a_time_range(
    reader: ArchiveReader, messages: list[WireMessage], limit: int, namespace: bytes | None
) -> None:
    """Header timestamps within both bounds, in order, of one namespace or of all."""
    begin, end = T0 + DAY // 2, T0 + 2 * DAY
    found = _all(
        lambda cursor: reader.by_time(
            begin, end, namespace_id=namespace, limit=limit, cursor=cursor
        )
    )

    wanted = [
        m for m in messages if begin <= _stamp(m) <= end and namespace in {None, m.namespace_id}
    ]
    assert sorted(_headers(found)) == sorted(m.header for m in wanted)
    places = [message.place for message in found]
    assert places == sorted(places)


def test_a_sender_and_a_blob(reader: ArchiveReader, messages: list[WireMessage]) -> None:
    """Everything of an address, and every message that commits to one payload."""
    header = MsgHeader.decode(messages[0].header)

    ours = _all(lambda cursor: reader.by_sender(header.sender_address, limit=9, cursor=cursor))
    nobody = reader.by_sender(b"\x00" * 20)
    seven = reader.by_blob(sha3_commitment(b"text 7"), limit=3)

    assert len(ours) == len(messages)
    assert nobody.messages == ()
    assert [message.blob for message in seven.messages] == [b"text 7"] * 3
    assert len(_all(lambda c: reader.by_blob(sha3_commitment(b"text 7"), cursor=c, limit=1))) == 4


def test_every_message_is_proven(reader: ArchiveReader, messages: list[WireMessage]) -> None:
    """The proof leads from the message to the root of its day, for nobody else's message."""
    found = _all(lambda cursor: reader.by_time(0, T0 + 9 * DAY, cursor=cursor))

    assert len(found) == len(messages)
    for message in found:
        answer = reader.prove(message)
        assert answer is not None
        proof, root = answer
        assert proof.holds(message.place.seq, message.place.content_id, root)
        assert not proof.holds(message.place.seq + 1, message.place.content_id, root)


def test_a_day_without_a_root_has_no_proof(
    archive_of: Callable[..., Path], messages: list[WireMessage], tmp_path: Path
) -> None:
    """Roots are written at the end of a run; until then there is none, and never a wrong one."""
    reader = ArchiveReader(archive_of(tmp_path / "archive", messages, roots=False))

    (message,) = reader.by_namespace(B, to_seq=1).messages

    assert reader.prove(message) is None


def test_a_root_that_lies_is_an_error(
    archive_of: Callable[..., Path], messages: list[WireMessage], tmp_path: Path
) -> None:
    """Messages or roots that somebody changed by hand do not pass (LP-6440)."""
    path = archive_of(tmp_path / "archive", messages)
    reader = ArchiveReader(path)
    (message,) = reader.by_namespace(B, to_seq=1).messages
    roots = DeltaTable(str(path / "roots")).to_pyarrow_table()
    lies = roots.set_column(3, "root", pa.array([b"\x00" * 32] * len(roots), pa.binary()))
    write_deltalake(str(path / "roots"), lies, mode="overwrite")

    with pytest.raises(ArchiveError, match="audit"):
        reader.prove(message)


def test_files_outside_the_question_are_left_alone(
    archive_of: Callable[..., Path], messages: list[WireMessage], tmp_path: Path
) -> None:
    """Days and bounds of namespaces rule files out."""
    path = tmp_path / "archive"
    for namespace in (A, B):
        archive_of(path, [m for m in messages if m.namespace_id == namespace], roots=False)
    reader = ArchiveReader(path)

    by_namespace = reader.by_namespace(B, limit=3)
    by_time = reader.by_time(T0, T0 + DAY - 1, limit=100)

    assert by_namespace.files < by_namespace.files_in_all
    assert {m.place.namespace_id for m in by_namespace.messages} == {B}
    assert by_time.files == 2
    assert by_time.files_in_all == 7


def test_a_reader_sees_news_when_it_refreshes(
    archive_of: Callable[..., Path], forge: Forge, tmp_path: Path
) -> None:
    """A page belongs to one version of the table."""
    path = archive_of(tmp_path / "archive", [forge(A, 1)])
    reader = ArchiveReader(path)
    archive_of(path, [forge(A, 2)])

    assert len(reader.by_namespace(A).messages) == 1
    reader.refresh()
    assert len(reader.by_namespace(A).messages) == 2


def test_what_comes_back_is_what_a_relay_would_send(reader: ArchiveReader, forge: Forge) -> None:
    """Header, payload and times are those that arrived."""
    message = reader.by_namespace(A, to_seq=1).messages[0].wire()

    assert message == replace(forge(A, 1, blob=b"text 1", timestamp=T0 + DAY // 10))


def test_an_older_archive_is_named_with_what_to_do(
    archive_of: Callable[..., Path], messages: list[WireMessage], tmp_path: Path
) -> None:
    """Its tables get the missing columns when they are next written to."""
    path = archive_of(tmp_path / "archive", messages)
    older = DeltaTable(str(path / "messages")).to_pyarrow_table().drop_columns(["parent_id"])
    write_deltalake(str(path / "messages"), older, mode="overwrite", schema_mode="overwrite")

    with pytest.raises(ArchiveError, match="no column parent_id") as caught:
        ArchiveReader(path)
    assert caught.value.code == "archive.foreign"


def test_refuse_questions_without_sense(reader: ArchiveReader, tmp_path: Path) -> None:
    """Lengths, ranges, limits and cursors are checked before a file is opened."""
    for ask in (
        lambda: reader.by_namespace(b"short"),
        lambda: reader.by_namespace(A, from_seq=-1),
        lambda: reader.by_namespace(A, limit=0),
        lambda: reader.by_namespace(A, limit=10_001),
        lambda: reader.by_namespace(A, cursor=b"x"),
        lambda: reader.by_time(5, 4),
        lambda: reader.by_time(2**62, 2**62),
        lambda: reader.by_sender(b"x"),
        lambda: reader.by_blob(b"x"),
    ):
        with pytest.raises(ArchiveArgumentError):
            ask()
    with pytest.raises(ArchiveError, match="no LuxRelay archive"):
        ArchiveReader(tmp_path)


def test_a_proof_is_checked_by_a_few_lines_of_hashlib(
    archive_of: Callable[..., Path], forge: Callable[..., WireMessage], tmp_path: Path
) -> None:
    """Whoever knows the page on proofs and SHA3 needs none of our code (LP-6440)."""
    messages = [forge(A, seq) for seq in range(1, 12)]
    reader = ArchiveReader(archive_of(tmp_path / "archive", messages))

    def sha3(*parts: bytes) -> bytes:
        return hashlib.sha3_256(b"".join(parts)).digest()

    for message in reader.by_namespace(A).messages:
        found = reader.prove(message)
        assert found is not None
        proof, root = found
        header = message.header
        key_at = 106  # LP-6411 §1.2: the signed bytes, then the key's scheme and length
        content = MsgHeader.decode(header)
        own = sha3(sha3(header[:key_at]), content.sender_pub_key)
        node = sha3(b"\x00", header[22:30], own)
        index, width = proof.index, proof.count
        path = list(proof.path)
        while width > 1:
            if index ^ 1 < width:
                sibling = path.pop(0)
                node = sha3(b"\x01", *((sibling, node) if index & 1 else (node, sibling)))
            index, width = index // 2, (width + 1) // 2
        day, count = proof.day.to_bytes(4, "big"), proof.count.to_bytes(8, "big")
        assert path == []
        assert sha3(b"\x02", b"lux.archive.day.v1", A, day, count, node) == root


def test_a_page_of_large_payloads_ends_by_bytes(
    archive_of: Callable[..., Path], forge: Callable[..., WireMessage], tmp_path: Path
) -> None:
    """One message at least, and the next page goes on where it ended."""
    messages = [forge(A, seq, blob=b"x" * 1_000) for seq in range(1, 8)]
    reader = ArchiveReader(archive_of(tmp_path / "archive", messages))
    sizes, cursor = [], b""
    while True:
        page = reader.by_namespace(A, cursor=cursor, max_bytes=2_999)
        sizes.append(len(page.messages))
        cursor = page.next_cursor
        if not cursor:
            break

    assert sizes == [2, 2, 2, 1]
    assert len(reader.by_namespace(A, max_bytes=1).messages) == 1
