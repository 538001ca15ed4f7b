"""Frames joined by hand are the bytes protobuf would make."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from luxrelay.store import StoredMessage
from luxrelay.sync.messages import SyncStatus
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.frames import from_status
from luxrelay.sync.rpc.pages import FrameBytes
from luxrelay.wire import varint

U64 = st.integers(0, 2**64 - 1)
ROWS = st.builds(
    StoredMessage,
    header_bytes=st.binary(min_size=1, max_size=300),
    blob=st.none() | st.binary(max_size=300) | st.integers(0, 40_000).map(bytes),
    received_at=U64 | st.integers(1_795_000_000_000, 1_796_000_000_000),
    expires_at=U64 | st.just(0),
    source=st.binary(max_size=4),
    finality=st.integers(0, 255),
)


def message(row: StoredMessage) -> pb.StoredMessage:
    """Return the row as protobuf has it."""
    return pb.StoredMessage(
        header=row.header_bytes,
        blob_data=row.blob or b"",
        received_at=row.received_at,
        expires_at=row.expires_at,
        finality=row.finality,
    )


@given(st.lists(ROWS, max_size=5), st.booleans())
def test_a_group_is_what_protobuf_makes(rows: list[StoredMessage], ends: bool) -> None:
    """21-53, 21-57: byte for byte, and where a message came from is not in it."""
    frame, wanted = FrameBytes(grouped=True), pb.StoredMessage(batch=map(message, rows))
    for row in rows:
        frame.extend([row], 7)
    if ends:
        status = from_status(SyncStatus(last_seq=9, complete=True), bytes(20))
        frame.end(status)
        wanted.batch.append(status)

    assert (frame.count, frame.size_bytes) == (len(rows) + ends, 7 * len(rows))
    assert frame.take() == wanted.SerializeToString(deterministic=True)
    assert (frame.count, frame.size_bytes, frame.take()) == (0, 0, b"")


@given(ROWS)
def test_a_single_message_is_what_protobuf_makes(row: StoredMessage) -> None:
    """21-57: the plain protocol has the fields in the frame itself."""
    frame = FrameBytes(grouped=False)

    frame.extend([row], 1)

    assert frame.take() == message(row).SerializeToString(deterministic=True)


@example(127)
@example(128)
@given(U64)
def test_varint_is_protobufs(value: int) -> None:
    """A number's bytes are those of a field, its tag apart."""
    assert varint(value) == (pb.SeqRange(first=value).SerializeToString()[1:] or b"\x00")
