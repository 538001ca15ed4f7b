"""The store command on a folder with a few messages."""

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from luxrelay.archive.segment_files import read_segment
from luxrelay.bus import MsgHeader
from luxrelay.cli.main import main
from luxrelay.store import RelayStore, RelayStoreConfig, layout
from luxrelay.store.rocks import Database


def _load_oracle() -> ModuleType:
    path = Path(__file__).parents[2] / "oracle" / "store.py"
    spec = importlib.util.spec_from_file_location("store_oracle", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


FORGE = _load_oracle().Forge()


@pytest.fixture
def now() -> int:
    """The real clock: the command has no other."""
    return time.time_ns() // 1_000_000


@pytest.fixture
def folder(tmp_path: Path, now: int) -> Path:
    """A node's data folder whose store has three messages, one of them expired."""
    data = tmp_path / "data"
    with RelayStore.open(data / "store", RelayStoreConfig.small(), now_ms=now) as store:
        old = [FORGE.in_lane(1, 1, at=now - 599_000)]
        store.put_many([*old, FORGE.in_lane(2, 1, at=now), FORGE.in_lane(1, 2, at=now)], now)
        store.set_watermark(FORGE.lane(2), FORGE.in_lane(1, 2).parent, 1)
    return data


def test_stats_of_a_running_store(
    folder: Path, now: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counts, sizes, root and heads are shown while the store is open elsewhere."""
    with RelayStore.open(folder / "store", RelayStoreConfig.small(), now_ms=now) as store:
        assert main(["store", "stats", str(folder), "--json"]) == 0
        root, size = store.tree_root(), store.stats().size_bytes
    found = json.loads(capsys.readouterr().out)

    assert (found["messages"], found["namespaces"], found["sizeBytes"]) == (3, 2, size)
    assert found["merkleRoot"] == "0x" + root.hex()
    assert found["namespacesArchived"] == 1
    assert 599 <= found["windowSeconds"] < 700
    assert [row["messages"] for row in found["largest"]] == [2, 1]
    assert [row["watermark"] for row in found["largest"]] == [None, 1]


def test_stats_for_people(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table names the largest namespaces, as many as asked for; the store itself will do."""
    assert main(["store", "stats", str(folder / "store"), "--largest", "1"]) == 0
    text = capsys.readouterr().out

    assert FORGE.lane(1).hex() in text
    assert FORGE.lane(2).hex() not in text
    assert main(["store", "stats", str(folder), "--largest", "0"]) == 0
    assert FORGE.lane(1).hex() not in capsys.readouterr().out


def test_verify_a_sound_store(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing on standard output and 0."""
    assert main(["store", "verify", str(folder)]) == 0

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "3 messages checked, 0 findings\n"


def test_verify_a_damaged_store(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line a finding and 1."""
    database = Database.open(
        folder / "store" / "db",
        layout.FAMILIES,
        write_buffer_bytes=1 << 20,
        block_cache_bytes=1 << 20,
    )
    batch = database.batch()
    name = next(name for name in database.names if name.startswith("slice"))
    batch.put_rows(database.table(name), [(layout.TIMES + bytes(68), bytes(8))])
    database.write(batch)
    database.close()

    assert main(["store", "verify", str(folder)]) == 1
    assert capsys.readouterr().out.startswith("times 0000")


def test_gc_removes_the_expired(
    folder: Path, now: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is past its time goes, whatever the node's limits are."""
    monkeypatch.setattr("luxrelay.cli.store._now_ms", lambda: now + 2_000)

    assert main(["store", "gc", str(folder)]) == 0
    assert capsys.readouterr().out == "1 messages removed, 2 left\n"


def test_a_program_reads_what_was_done(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json verify, export and import, repair and gc print one object each."""

    def told(*words: str) -> Any:
        assert main(["store", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    lines, other = tmp_path / "messages.jsonl", str(tmp_path / "other")
    assert told("verify", str(folder)) == {"messages": 3, "findings": []}
    assert main(["store", "export", str(folder), "--out", str(lines)]) == 0
    capsys.readouterr()
    taken = told("import", other, str(lines))
    assert (taken["stored"], taken["held"], taken["refused"]) == (3, 0, 0)
    assert told("import", other, str(lines))["held"] == 3
    assert told("repair", str(folder), "--out", str(tmp_path / "new"))["messages"] == 3
    removed = told("gc", str(folder))
    assert removed["removed"] + removed["left"] == 3


@pytest.mark.parametrize("words", [["gc"], ["repair", "--out", "new"]])
def test_a_mistyped_folder_is_not_made_a_store(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is opened, made or called done where no store is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()

    for name in ("none", "empty"):
        assert main(["store", words[0], name, *words[1:]]) == 1
        assert f"there is no store here; {name}" in capsys.readouterr().err

    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert not list((tmp_path / "empty").iterdir())


def test_gc_of_a_running_store_is_refused(
    folder: Path, now: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only one process writes; the line says so."""
    with RelayStore.open(folder / "store", RelayStoreConfig.small(), now_ms=now):
        assert main(["store", "gc", str(folder)]) == 1

    assert "open already" in capsys.readouterr().err


def test_export_everything(folder: Path, tmp_path: Path) -> None:
    """Each message is one JSON line with header, blob and times, in order."""
    out = tmp_path / "messages.jsonl"

    assert main(["store", "export", str(folder), "--out", str(out)]) == 0
    lines: list[dict[str, Any]] = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 3
    for line in lines:
        header = MsgHeader.decode(bytes.fromhex(line["header"][2:]))
        assert "0x" + header.namespace_id.hex() == line["namespaceId"]
        assert (header.seq, header.timestamp) == (line["seq"], line["timestamp"])
        assert bytes.fromhex(line["blob"][2:]) == b"hello"


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_export_segments_for_the_archive(folder: Path, tmp_path: Path, kind: str) -> None:
    """Every message with its blob, times and parent, in files that the archive's source reads."""
    out = tmp_path / "segments"
    command = ["store", "export", str(folder), "--out", str(out), "--format", kind]

    assert main([*command, "--relay", "a:1"]) == 0
    assert main(command) == 0  # a second export sorts above the first

    first, second = sorted(out.iterdir())
    rows = [row for batch in read_segment(first) for row in batch.to_pylist()]
    assert sorted((row["namespace"], row["seq"]) for row in rows) == sorted(
        [(FORGE.lane(1), 1), (FORGE.lane(1), 2), (FORGE.lane(2), 1)]
    )
    for row in rows:
        header = MsgHeader.decode(row["header"])
        assert (header.namespace_id, header.seq) == (row["namespace"], row["seq"])
        assert row["relay"] == "a:1"
        assert row["parent"] == FORGE.in_lane(1, 1).parent
        assert row["expires_at"] > row["received_at"]
    assert sum(batch.num_rows for batch in read_segment(second)) == 3


@pytest.mark.parametrize("kind", ["json", "arrow"])
def test_a_sidecar_is_exported_with_its_message(tmp_path: Path, now: int, kind: str) -> None:
    """In lines, which `store import` takes again, and in segments."""
    message = FORGE.in_lane(1, 1, at=now, ciphertext=b"opaque")
    with RelayStore.open(tmp_path / "data" / "store", now_ms=now) as store:
        store.put_many([message, FORGE.in_lane(2, 1, at=now)], now)
    out = tmp_path / "out"
    export = ["store", "export", str(tmp_path / "data"), "--out", str(out), "--format", kind]

    assert main(export) == 0

    if kind == "arrow":
        (path,) = out.iterdir()
        rows = [row for batch in read_segment(path) for row in batch.to_pylist()]
        assert [row["sidecar"] for row in rows] == [message.sidecar, None]
        return
    assert main(["store", "import", str(tmp_path / "again"), str(out)]) == 0
    reference = message.header.tfhe_sidecar
    with RelayStore.open(tmp_path / "again" / "store", now_ms=now) as store:
        assert store.get_blob(reference.commitment) == message.sidecar
        assert store.verify() == []
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    lines[0]["sidecar"] = lines[0]["sidecar"][:-2] + "ff"
    out.write_text(json.dumps(lines[0]) + "\n")
    assert main(["store", "import", str(tmp_path / "wrong"), str(out)]) != 0


def test_segments_need_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They cannot go to standard output."""
    assert main(["store", "export", str(folder), "--format", "arrow"]) == 1
    assert "--out" in capsys.readouterr().err


def test_export_one_namespace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--namespace leaves the others out; without --out lines go to standard output."""
    assert main(["store", "export", str(folder), "--namespace", FORGE.lane(1).hex()]) == 0
    captured = capsys.readouterr()

    assert [json.loads(line)["seq"] for line in captured.out.splitlines()] == [1, 2]
    assert captured.err == "2 messages exported\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stats", "{}/nothing"], "there is no such folder"),
        (["export", "{}", "--namespace", "12"], "--namespace"),
        (["export", "{}", "--out", "{}/no/such/folder"], "cannot write it"),
    ],
)
def test_say_what_is_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    """A wrong folder, namespace or file is one line and 1."""
    assert main(["store", *(word.format(folder) for word in words)]) == 1

    assert said in capsys.readouterr().err
