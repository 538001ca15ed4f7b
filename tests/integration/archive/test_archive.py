"""The archive from end to end: real stores, gRPC, Spark and Delta."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from luxrelay.archive import ArchiveSession, audit
from luxrelay.archive import ingest as ingest_and_derive
from luxrelay.archive.batches import BatchTables
from luxrelay.archive.completeness import ArchiveGap
from luxrelay.archive.folder import open_folder, writing
from luxrelay.archive.schema import WRITTEN
from luxrelay.archive.tables import open_table, prepare_tables
from luxrelay.bus import Code, MsgHeader, NamespaceId, SignatureScheme, SigningKey, sha3_commitment
from luxrelay.errors import ArchiveError, SyncUnreachableError
from luxrelay.store import IncomingMessage, RelayStore
from luxrelay.sync import RelaySyncServer, SyncServerConfig

ingest = partial(ingest_and_derive, derived=False)  # test_archive_whole.py derives
pytestmark = [pytest.mark.spark, pytest.mark.slow]
KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"\x21" * 32)
BAD = {int(Code.INVALID_SIGNATURE): 1, int(Code.BLOB_MISMATCH): 1}
A, B = NamespaceId(b"\x0a" * 20), NamespaceId(b"\x0b" * 20)


class Relay:
    """A store and its server."""

    def __init__(self, path: Path) -> None:
        self.now = int(time.time() * 1000)
        self.store = RelayStore.open(path, now_ms=self.now)
        self._server: RelaySyncServer | None = None
        self.address = ""

    def serve(self) -> None:
        """Serve on the port the system chooses, later on the same one."""
        port = int(self.address.rpartition(":")[2] or 0)
        self._server = RelaySyncServer(
            self.store, SyncServerConfig(port=port), clock_ms=lambda: self.now
        )
        self.address = f"127.0.0.1:{self._server.start()}"

    def stop(self) -> None:
        """Go away; the store stays."""
        if self._server is not None:
            self._server.stop(0)
        self._server = None

    def close(self) -> None:
        """Go away for good."""
        self.stop()
        self.store.close()

    def put(self, *messages: IncomingMessage) -> None:
        """Store messages as if they had come by gossip."""
        self.store.put_many(messages, self.now)


def _message(
    now: int, namespace: NamespaceId, seq: int, blob: bytes = b"hello", *, forged: bool = False
) -> IncomingMessage:
    header = KEY.sign_header(
        MsgHeader(
            namespace_id=namespace,
            seq=seq,
            timestamp=now - 5_000 + seq,
            blob_commitment=sha3_commitment(b"hello"),
            blob_len=5,
            policy_hash=b"p" * 32,
        )
    )
    if forged:
        data = header.encode()
        header = MsgHeader.decode(data[:-60] + bytes([data[-60] ^ 1]) + data[-59:])
    return IncomingMessage(header=header, blob=blob, parent=namespace, received_at=now)


def _started(stack: ExitStack, path: Path) -> Relay:
    relay = Relay(path)
    stack.callback(relay.close)
    relay.serve()
    return relay


def _fill(relays: tuple[Relay, Relay]) -> None:
    for relay in relays:
        relay.put(*(_message(relays[0].now, A, seq) for seq in (1, 2, 3, 4)))
        relay.put(*(_message(relays[0].now, B, seq) for seq in (1, 2)))


@pytest.fixture
def new_relay(tmp_path: Path) -> Iterator[Callable[[], Relay]]:
    """Start relays that end with the test."""
    with ExitStack() as stack:
        count = iter(range(99))
        yield lambda: _started(stack, tmp_path / f"relay-{next(count)}")


@pytest.fixture
def pair(new_relay: Callable[[], Relay]) -> tuple[Relay, Relay]:
    """Two relays that hold the same six messages in two namespaces."""
    relays = (new_relay(), new_relay())
    _fill(relays)
    return relays


def _slots(session: ArchiveSession, out: Path) -> list[tuple[bytes, int, int]]:
    table = session.spark.read.format("delta").load(str(out / "messages"))
    rows = table.select("namespace_id", "seq", "copies").collect()
    return sorted((bytes(namespace), seq, copies) for namespace, seq, copies in rows)


@pytest.fixture(scope="module")
def archived(
    spark: ArchiveSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[tuple[Relay, Relay], Path]]:
    """Two relays and an archive of three runs: six messages, nothing new, one more."""
    path = tmp_path_factory.mktemp("archived")
    with ExitStack() as stack:
        relays = _started(stack, path / "a"), _started(stack, path / "b")
        _fill(relays)
        names, out = [relay.address for relay in relays], path / "out"
        told: list[int] = []
        first = ingest(
            spark,
            relays=names,
            out=out,
            rows_per_batch=8,
            progress=lambda batch: told.append(batch.rows),
        )
        again = ingest(spark, relays=names, out=out)
        for relay in relays:
            relay.put(_message(relays[0].now, B, 3))
        later = ingest(spark, relays=names, out=out)
        # A micro-batch obeys its limit, an idle run has none, and a run goes on where one ended.
        assert told == [batch.rows for batch in first.batches] == [8, 4]
        assert (first.messages, first.rejected, first.unread) == (6, 0, {})
        assert first.rows_by_relay == dict.fromkeys(sorted(names), 6)
        assert again.batches == ()
        assert (later.rows, later.messages) == (2, 1)
        yield relays, out


def test_copies_become_one_row_and_nothing_is_read_twice(
    spark: ArchiveSession, archived: tuple[tuple[Relay, Relay], Path]
) -> None:
    """Each message stands once with its copies counted, after three runs (21-52)."""
    _, out = archived

    slots = [(bytes(A), seq, 2) for seq in (1, 2, 3, 4)] + [(bytes(B), seq, 2) for seq in (1, 2, 3)]
    assert _slots(spark, out) == slots


def test_audit_of_a_complete_archive(
    spark: ArchiveSession, archived: tuple[tuple[Relay, Relay], Path]
) -> None:
    """Nothing is missing, doubled or behind, and each relay has its share."""
    relays, out = archived
    names = [relay.address for relay in relays]

    report = audit(spark, out=out, relays=names)

    assert report.complete
    assert (report.rows, report.copies, report.duplicates, report.rejected) == (7, 14, 0, 0)
    assert report.messages_by_relay == dict.fromkeys(sorted(names), 7)
    assert [(entry.namespace, entry.first, entry.last) for entry in report.namespaces] == [
        (bytes(A), 1, 4), (bytes(B), 1, 3),
    ]  # fmt: skip


def test_columns_hold_what_the_relays_served(
    spark: ArchiveSession, archived: tuple[tuple[Relay, Relay], Path]
) -> None:
    """Header bytes, payload and times come through unchanged; columns tell their meaning."""
    relays, out = archived

    table = spark.spark.read.format("delta").load(str(out / "messages"))
    row = table.where(table.seq == 4).collect()[0]

    message = _message(relays[0].now, A, 4)
    assert bytes(row.header) == message.header.encode()
    assert bytes(row.content_id) == message.header.content_id
    assert bytes(row.blob) == b"hello"
    assert row.received_at == relays[0].now
    assert row.latency_ms == relays[0].now - message.header.timestamp
    assert row.relays == sorted(relay.address for relay in relays)
    comments = {field.name: field.metadata.get("comment") for field in table.schema}
    assert comments["seq"] == "sequence number in the namespace, from 1"


@pytest.fixture(scope="module")
def mixed(
    spark: ArchiveSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Relay, Path]]:
    """A relay that serves one good message, a forged one and one with a false payload."""
    path = tmp_path_factory.mktemp("mixed")
    with ExitStack() as stack:
        relay = _started(stack, path / "relay")
        relay.put(
            _message(relay.now, A, 1),
            _message(relay.now, A, 2, forged=True),
            _message(relay.now, A, 3, blob=b"HELLO"),
        )
        run = ingest(spark, relays=[relay.address], out=path / "out")
        assert (run.rows, run.messages, run.rejected) == (3, 1, 2)
        assert run.rejected_by_code == BAD
        yield relay, path / "out"


def test_bad_rows_land_in_rejects(spark: ArchiveSession, mixed: tuple[Relay, Path]) -> None:
    """A forged signature and a false payload are kept apart with code and bytes (H3, 11-20)."""
    relay, out = mixed

    rejects = spark.spark.read.format("delta").load(str(out / "rejects"))
    bad = rejects.where(f"code = {int(Code.INVALID_SIGNATURE)}").collect()[0]

    assert bytes(bad.header) == _message(relay.now, A, 2, forged=True).header.encode()
    assert (bad.relay, bytes(bad.namespace)) == (relay.address, bytes(A))
    assert "signature" in bad.reason
    report = audit(spark, out=out, relays=[relay.address])
    assert report.rejected_by_code == BAD
    # The table ends at 1; what the relay has beyond was read, and has still to come from somebody.
    gap = ArchiveGap(
        namespace=bytes(A), first=2, last=3, held_by=(relay.address,), rejected=tuple(sorted(BAD))
    )
    assert (report.gaps, report.behind) == ((gap,), ())


def test_a_batch_that_runs_again_writes_nothing_twice(
    spark: ArchiveSession, mixed: tuple[Relay, Path]
) -> None:
    """A crash after the tables' commit and before the stream's replays the batch (21-52)."""
    relay, out = mixed
    commits = open_folder(out).checkpoint / "commits"
    for path in [*commits.glob("0"), *commits.glob(".0.crc")]:
        path.unlink()

    replayed = ingest(spark, relays=[relay.address], out=out)

    assert replayed.rows == 3
    assert _slots(spark, out) == [(bytes(A), 1, 1)]
    report = audit(spark, out=out)
    assert (report.duplicates, report.rejected) == (0, 2)


def test_a_lost_checkpoint_merges_by_content(
    spark: ArchiveSession, pair: tuple[Relay, Relay], tmp_path: Path
) -> None:
    """Reading again adds the relays that were not counted, and no row."""
    out = tmp_path / "out"
    ingest(spark, relays=[pair[0].address], out=out)
    assert {copies for _, _, copies in _slots(spark, out)} == {1}
    shutil.rmtree(open_folder(out).checkpoint)
    for relay in pair:
        relay.put(_message(pair[0].now, B, 3))

    ingest(spark, relays=[relay.address for relay in pair], out=out)

    slots = _slots(spark, out)
    assert len(slots) == 7
    assert {copies for _, _, copies in slots} == {2}
    assert audit(spark, out=out).duplicates == 0


def test_refuse_foreign_folder(
    spark: ArchiveSession, pair: tuple[Relay, Relay], tmp_path: Path
) -> None:
    """A folder with other content is refused, and nothing in it is changed."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "sea.jpg").write_bytes(b"sea")

    with pytest.raises(ArchiveError) as caught:
        ingest(spark, relays=[pair[0].address], out=tmp_path / "photos")

    assert caught.value.code == "archive.foreign"
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["sea.jpg"]
    with pytest.raises(ArchiveError, match="no LuxRelay archive"):
        audit(spark, out=tmp_path / "photos")


def test_forgotten_messages_stop_the_run_or_show_as_a_gap(
    spark: ArchiveSession, new_relay: Callable[[], Relay], tmp_path: Path
) -> None:
    """What expired before it was read is said; on request the run goes on around it (P23, J8)."""
    relay, out = new_relay(), tmp_path / "out"
    relay.put(*(_message(relay.now, A, seq) for seq in (1, 2, 5, 6)))
    relay.store.skip_to(A, A, 4)
    relay.put(*(_message(relay.now, B, seq) for seq in (4, 5)))
    relay.store.skip_to(B, B, 3)

    with pytest.raises(ArchiveError, match="sequences 2 to 3") as caught:
        ingest(spark, relays=[relay.address], out=out, starting=f'{{"{B.hex()}": 1}}')
    assert caught.value.code == "archive.data_loss"
    assert "failOnDataLoss=false" in str(caught.value)
    run = ingest(spark, relays=[relay.address], out=out, fail_on_data_loss=False)

    assert run.messages == 6
    report = audit(spark, out=out, relays=[relay.address])
    # The relay's range spans the hole in A, so it is named; nobody is for what B has forgotten.
    assert report.gaps == (
        ArchiveGap(namespace=bytes(A), first=3, last=4, held_by=(relay.address,)),
        ArchiveGap(namespace=bytes(B), first=1, last=3),
    )
    assert not report.complete


def test_a_relay_that_is_down_is_counted(
    spark: ArchiveSession, pair: tuple[Relay, Relay], tmp_path: Path
) -> None:
    """The other serves the range; with nobody left the run ends with an error (P26)."""
    relays, out = [relay.address for relay in pair], tmp_path / "out"
    pair[1].stop()

    run = ingest(spark, relays=relays, out=out)

    assert run.messages == 6
    assert run.unread == {relays[1]: 1}
    assert {copies for _, _, copies in _slots(spark, out)} == {1}
    assert audit(spark, out=out, relays=relays).unreachable == (relays[1],)
    pair[0].stop()
    with pytest.raises(SyncUnreachableError, match="no relay answers"):
        ingest(spark, relays=relays, out=out)


def test_the_format_serves_plain_spark_reads(
    spark: ArchiveSession, pair: tuple[Relay, Relay]
) -> None:
    """Users read relays with options alone, one relay a range if they like."""
    reader = spark.spark.read.format("luxrelay").option("relays", pair[0].address)

    rows = reader.option("namespaces", f"parent:{A.hex()}").load()
    either = spark.spark.read.format("luxrelay").options(
        relays=",".join(relay.address for relay in pair), readMode="any"
    )

    assert sorted(row.seq for row in rows.collect()) == [1, 2, 3, 4]
    assert either.load().count() == 6


def test_a_batch_that_is_appended_makes_the_rows_of_one_that_is_merged(
    spark: ArchiveSession, pair: tuple[Relay, Relay], tmp_path: Path
) -> None:
    """Executors that write files and Spark that joins by key come to the same tables."""
    first, second = pair
    first.put(_message(first.now - 9, B, 3, forged=True), _message(first.now, B, 4, blob=b"jello"))
    second.put(_message(first.now - 7, B, 5))
    relays = ",".join(relay.address for relay in pair)
    raw = spark.spark.read.format("luxrelay").options(relays=relays, heads="latest").load()
    found = []

    for name, again in (("appended", False), ("merged", True)):
        with writing(tmp_path / name) as folder:
            prepare_tables(folder)
            counts = BatchTables(folder=folder, again=again).write(raw, 0)
            tables = [
                open_table(folder, table).to_pyarrow_table().drop_columns("ingested_at").to_pylist()
                for table in WRITTEN
            ]
        told = (counts.report.rows, counts.report.messages, counts.rejected_by_code)
        found.append((told, [sorted(map(str, rows)) for rows in tables]))

    assert found[0] == found[1]
    assert found[0][0] == (15, 7, BAD)
