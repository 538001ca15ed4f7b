"""What relays are told of the archive's progress; the call itself is tested with real relays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from luxrelay.archive.pipeline import committed_offsets, watermarks
from luxrelay.bus import NamespaceId
from luxrelay.errors import ArchiveError
from luxrelay.sync import PeerHead
from luxrelay.sync.messages import Watermark

A, B, PARENT = NamespaceId(b"a" * 20), NamespaceId(b"b" * 20), NamespaceId(b"p" * 20)


def _head(name: NamespaceId, latest: int, watermark: int | None = None) -> PeerHead:
    return PeerHead(
        namespace_id=name,
        parent_id=PARENT,
        earliest_seq=1,
        contiguous_seq=latest,
        latest_seq=latest,
        watermark=watermark,
    )


def _mark(name: NamespaceId, seq: int) -> Watermark:
    return Watermark(namespace_id=name, parent_id=PARENT, seq=seq)


def test_an_archive_announces_itself_where_it_is_not_known() -> None:
    """A watermark of 0 makes a relay keep everything; one that is there already is left alone."""
    heads = [_head(A, 5), _head(B, 5, watermark=3), _head(PARENT, 0)]

    assert watermarks(heads, None) == [_mark(A, 0)]


def test_watermarks_follow_the_checkpoint_and_never_go_back() -> None:
    """Namespaces that were not read have none, and no relay is told of more than it has (J8)."""
    offsets = {A.hex(): 9, B.hex(): 2}

    assert watermarks([_head(A, 7, 3), _head(B, 7, 2)], offsets) == [_mark(A, 7)]
    assert watermarks([_head(PARENT, 7, 0)], offsets) == []


def _checkpoint(path: Path, *numbers: int, committed: int) -> None:
    (path / "offsets").mkdir(parents=True)
    (path / "commits").mkdir()
    for number in numbers:
        lines = ["v1", "{}", json.dumps({A.hex(): number * 10})]
        (path / "offsets" / str(number)).write_text("\n".join(lines))
        if number <= committed:
            (path / "commits" / str(number)).write_text("v1\n{}")


def test_only_committed_batches_count(tmp_path: Path) -> None:
    """A batch that was planned and not written is not told; numbers are no text."""
    _checkpoint(tmp_path, 8, 9, 10, 11, committed=10)

    assert committed_offsets(tmp_path) == {A.hex(): 100}
    assert committed_offsets(tmp_path / "none") == {}


def test_a_checkpoint_of_another_form_is_an_error(tmp_path: Path) -> None:
    """Nothing is told that is not known."""
    _checkpoint(tmp_path, 1, committed=1)
    (tmp_path / "offsets" / "1").write_text("v1\n{}")

    with pytest.raises(ArchiveError, match="checkpoint"):
        committed_offsets(tmp_path)
