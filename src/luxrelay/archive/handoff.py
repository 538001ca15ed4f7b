"""The handoff: relays are told how far the archive has read, and keep what it has not (J8).

A relay that has been told of an archive keeps what is past its time until the watermark of its
namespace has passed it. So each run first announces itself (a watermark of 0 where there is none),
reads, and when its last batch is committed moves the watermarks to where the checkpoint stands.
A watermark never goes back, and one that could not be told is told by the next run.

Source: decisions J8, P42; 21-51.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from luxrelay.archive.offsets import Offsets, parse_offsets
from luxrelay.archive.options import SourceOptions
from luxrelay.archive.relays import connect
from luxrelay.errors import ArchiveError, SyncRemoteError, SyncUnreachableError
from luxrelay.sync.heads import Head
from luxrelay.sync.messages import Watermark

BATCH: Final = 1_000
"""Watermarks told in one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoffReport:
    """What became of the watermarks."""

    told: dict[str, int]
    """Relays, and how many of their namespaces were moved."""
    refused: dict[str, str]
    """Relays that took none, and why."""


def announce(options: SourceOptions) -> HandoffReport:
    """Ask every relay to keep what is not archived yet, where it does not do so already."""
    return _tell(options, None)


def hand_off(options: SourceOptions, offsets: Mapping[str, int]) -> HandoffReport:
    """Move the watermarks of every relay to ``offsets``."""
    return _tell(options, offsets)


def committed_offsets(checkpoint: Path) -> Offsets:
    """Return how far the committed batches of a checkpoint have read; empty before the first.

    Raises:
        ArchiveError: ``archive.failed``: the checkpoint is not of a form that Spark writes.

    """
    numbers = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    if not numbers:
        return {}
    path = checkpoint / "offsets" / str(max(numbers))
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return parse_offsets(json.loads(lines[2]))
    except (OSError, ValueError, IndexError) as error:
        raise ArchiveError(
            f"the checkpoint cannot be read: {error}", where=str(path), code="archive.failed"
        ) from None


def _tell(options: SourceOptions, offsets: Mapping[str, int] | None) -> HandoffReport:
    told: dict[str, int] = {}
    refused: dict[str, str] = {}
    for relay in options.relays:
        try:
            with connect(relay, options) as client:
                heads = (
                    [client.get_head(namespace) for namespace in options.namespaces]
                    if options.namespaces
                    else list(client.list_heads(options.parent))
                )
                marks = watermarks(heads, offsets)
                for first in range(0, len(marks), BATCH):
                    client.set_watermarks(marks[first : first + BATCH])
                told[relay] = len(marks)
        except (SyncUnreachableError, SyncRemoteError) as error:
            refused[relay] = error.what
    return HandoffReport(told=told, refused=refused)


def watermarks(heads: Sequence[Head], offsets: Mapping[str, int] | None) -> list[Watermark]:
    """Return the watermarks that a relay with these heads is to be told.

    Args:
        heads: What it holds, with the watermarks it knows.
        offsets: How far the archive has read; None to announce an archive only.

    """
    marks = []
    for head in heads:
        if not head.latest_seq:
            continue
        seq = 0 if offsets is None else offsets.get(head.namespace_id.hex())
        if seq is None or (head.watermark is not None and head.watermark >= seq):
            continue
        marks.append(
            Watermark(
                namespace_id=head.namespace_id,
                parent_id=head.parent_id,
                # Beyond its own head a relay has nothing that was read.
                seq=min(seq, head.latest_seq),
            )
        )
    return marks
