"""The source of segment files, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from luxrelay.archive.schema import RAW
from luxrelay.archive.segment_files import write_segments
from luxrelay.archive.segments import SegmentOptions, SegmentSource, SegmentStreamReader
from luxrelay.archive.task_source import TASKS_DDL, read_tasks
from luxrelay.errors import ArchiveArgumentError, ArchiveError
from luxrelay.sync import WireMessage


@pytest.fixture
def folder(forge: Callable[..., WireMessage], tmp_path: Path) -> Path:
    """Five segments of one row each."""
    times = {"received_at": 1, "expires_at": 2}
    rows = [{"relay": "a:1", "seq": seq, "header": forge().header} | times for seq in range(5)]
    batches = [pa.RecordBatch.from_pylist([row], schema=RAW.arrow()) for row in rows]
    write_segments(tmp_path / "in", batches, prefix="1")
    (tmp_path / "in" / "1-000009.new").write_bytes(b"half")
    return tmp_path / "in"


def _seqs(reader: SegmentStreamReader, parts: list[InputPartition]) -> list[int]:
    return [
        seq for part in parts for batch in reader.read(part) for seq in batch["seq"].to_pylist()
    ]


def test_a_stream_reads_each_file_once_within_its_limit(folder: Path) -> None:
    """Batches follow one another by name; an unfinished file is not seen."""
    reader = SegmentStreamReader(SegmentOptions(path=folder, files_max=2))
    place, read = reader.initialOffset(), []
    while (end := reader.latestOffset(place, reader.getDefaultReadLimit())) != place:
        read.append(_seqs(reader, reader.partitions(place, end)))
        place = end

    assert read == [[0, 1], [2, 3], [4]]
    assert reader.partitions(place, place) == []
    assert reader.latestOffset({"segment": ""}, ReadAllAvailable()) == place
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxFiles)


def test_a_run_ends_at_the_files_of_its_start(folder: Path) -> None:
    """What comes meanwhile is for the next run."""
    reader = SegmentStreamReader(SegmentOptions(path=folder, files_max=100))
    reader.prepareForTriggerAvailableNow()
    (folder / "2-000000.arrow").write_bytes((folder / "1-000000.arrow").read_bytes())

    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

    assert end == {"segment": "1-000004.arrow"}


def test_a_replayed_batch_without_its_file_is_loss(folder: Path) -> None:
    """A planned file that is gone is an error, never silence."""
    reader = SegmentStreamReader(SegmentOptions(path=folder))
    parts = reader.partitions({"segment": ""}, {"segment": "1-000001.arrow"})
    (folder / "1-000001.arrow").unlink()

    with pytest.raises(ArchiveError, match="gone"):
        _seqs(reader, parts)


def test_readers_pickle_and_the_batch_reader_reads_all(folder: Path) -> None:
    """Spark sends readers to executors."""
    source = SegmentSource({"path": str(folder)})
    reader = pickle.loads(pickle.dumps(source.reader(None)))  # type: ignore[arg-type]  # noqa: S301

    assert _seqs(reader, reader.partitions()) == [0, 1, 2, 3, 4]
    assert source.name() == "luxrelay-segments"
    assert source.schema() == RAW.plain_ddl()


def test_a_task_says_which_file_it_reads(folder: Path) -> None:
    """With ``deliver=tasks`` a partition is one row, and reads the same rows elsewhere."""
    source = SegmentSource({"path": str(folder), "deliver": "tasks"})
    reader = source.reader(None)  # type: ignore[arg-type]
    tasks = [batch for part in reader.partitions() for batch in reader.read(part)]

    assert source.schema() == TASKS_DDL
    assert [batch.num_rows for batch in tasks] == [1] * 5
    seqs = [seq for batch in read_tasks(tasks) for seq in batch["seq"].to_pylist()]
    assert seqs == [0, 1, 2, 3, 4]
    (folder / "1-000001.arrow").unlink()
    with pytest.raises(ArchiveError, match="gone"):
        list(read_tasks(tasks))


def test_refuse_wrong_options_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistakes are named before a file is opened; a folder has a bound."""
    for options in (
        {},
        {"path": "x", "format": "csv"},
        {"path": "x", "maxFilesPerTrigger": "0"},
        {"path": "x", "maxFilesPerTrigger": "many"},
        {"path": "x", "deliver": "messages"},
    ):
        with pytest.raises(ArchiveArgumentError):
            SegmentSource(dict(options))
    with pytest.raises(ArchiveError, match="cannot be read"):
        SegmentOptions(path=tmp_path / "none").names()
    monkeypatch.setattr("luxrelay.archive.segments.FILES_MAX", 1)
    for name in ("1.arrow", "2.parquet"):
        (tmp_path / name).touch()
    with pytest.raises(ArchiveError, match="more than 1 files"):
        SegmentOptions(path=tmp_path).names()
