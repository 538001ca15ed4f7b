"""Many headers at once, as Arrow columns."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from luxrelay.bus import Code, MsgHeader, TFHESidecarRef
from luxrelay.bus import structure_batch as columns
from luxrelay.bus.constants import FLAG_TFHE_SIDECAR, MAX_U64
from luxrelay.bus.structure_batch import HASHES, SCHEMA, decode_buffer, decode_columns
from luxrelay.errors import BusArgumentError


def test_columns_hold_the_fields(signed: MsgHeader) -> None:
    """A header's row has what `MsgHeader.decode` says of it (11-01)."""
    (row,) = decode_columns(pa.array([signed.encode()])).to_pylist()

    assert row.pop("code") == 0
    assert row.pop("sidecar_commitment") is row.pop("sidecar_epoch") is None
    assert row == {name: getattr(signed, name) for name in row}


def test_hashes_are_made_when_asked_for(signed: MsgHeader) -> None:
    """Only the chosen hashes become columns, in one order, whatever the order of the choice."""
    batch = decode_columns(pa.array([signed.encode()]), hashes=("digest", "header_hash"))

    assert batch.schema.names == [*SCHEMA.names, "header_hash", "digest"]
    assert batch["header_hash"].to_pylist() == [signed.header_hash]
    assert batch["digest"].to_pylist() == [signed.digest]


def test_a_broken_header_stops_nobody(signed: MsgHeader) -> None:
    """Each broken one has its code and no fields; its digest is that of its bytes."""
    data = signed.encode()
    rows = [data, b"", b"\x02" + data[1:], data + b"\x00", data]

    batch = decode_columns(pa.array(rows), hashes=HASHES)

    batch.validate(full=True)
    assert batch["code"].to_pylist() == [
        0, Code.HEADER_TOO_SHORT, Code.UNSUPPORTED_VERSION, Code.TRAILING_BYTES, 0,
    ]  # fmt: skip
    assert batch["seq"].to_pylist() == [1, None, None, None, 1]
    assert batch["content_id"].to_pylist() == [signed.content_id, *[None] * 3, signed.content_id]
    assert batch["digest"].null_count == 0


def test_null_is_no_header(signed: MsgHeader) -> None:
    """Where there are no bytes there is no code either."""
    batch = decode_columns(pa.array([None, signed.encode(), None]), hashes=HASHES)

    assert batch["code"].to_pylist() == [None, 0, None]
    assert batch["digest"].to_pylist() == [None, signed.digest, None]


def test_slices_and_large_offsets(signed: MsgHeader) -> None:
    """A slice of an array is decoded from its own first row; 64-bit offsets are taken too."""
    rows = [replace(signed, seq=seq).encode() for seq in (1, 2, 3)]

    for kind in (pa.binary(), pa.large_binary()):
        batch = decode_columns(pa.array(rows, kind).slice(1, 2))
        assert batch["seq"].to_pylist() == [2, 3]


def test_blocks_join(signed: MsgHeader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a block ends leaves no trace, also with sidecars, fees and broken rows about."""
    sidecar = TFHESidecarRef(commitment=b"\x07" * 32, epoch=MAX_U64)
    flagged = replace(signed, flags=FLAG_TFHE_SIDECAR, tfhe_sidecar=sidecar)
    rows = [signed.encode(), flagged.encode(), b"x", replace(signed, fee_proof=b"\x01abc").encode()]
    array = pa.array(rows * 5)
    whole = decode_columns(array, hashes=HASHES)

    monkeypatch.setattr(columns, "BLOCK_ROWS", 3)

    assert decode_columns(array, hashes=HASHES).equals(whole)
    assert whole["sidecar_epoch"].to_pylist() == [None, MAX_U64, None, None] * 5
    assert whole["fee_proof"].to_pylist() == [b"\x00", b"\x00", None, b"\x01abc"] * 5


def test_many_lengths_of_one_field(signed: MsgHeader) -> None:
    """Beyond LENGTHS_MAX lengths in a block pieces are copied byte by byte, to the same end."""
    fees = [b"\x01" * size for size in range(1, columns.LENGTHS_MAX + 5)]

    batch = decode_columns(pa.array([replace(signed, fee_proof=fee).encode() for fee in fees]))

    assert batch["fee_proof"].to_pylist() == fees


def test_buffer_and_offsets(signed: MsgHeader) -> None:
    """Headers lying one after the other need no array around them."""
    data = signed.encode()

    batch = decode_buffer(b"??" + data * 3, np.array([2, 212, 422, 632]))

    assert batch["code"].to_pylist() == [0, 0, 0]
    assert decode_buffer(b"", np.array([0])).num_rows == 0
    assert decode_columns(pa.array([], pa.binary())).schema.equals(SCHEMA)


@pytest.mark.parametrize(
    "offsets", [[], [-1, 2], [0, 4], [2, 1], [0, 2, 1, 3], [0, 2**63 - 1, -(2**63), -1, 3]]
)
def test_reject_offsets(offsets: list[int]) -> None:
    """Offsets that descend or leave the buffer are the caller's error."""
    with pytest.raises(BusArgumentError):
        decode_buffer(b"abc", np.array(offsets, np.int64))


@pytest.mark.parametrize("offsets", [[0, 300, 200], [100, -50, 200], [0, -112, -224, 200]])
def test_reject_array_with_offsets_that_descend(offsets: list[int]) -> None:
    """Of offsets pyarrow checks the outer ones only; when inner ones descend, the error is ours."""
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(b"\1" * 210)]
    headers = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)

    with pytest.raises(BusArgumentError, match="ascend"):
        decode_columns(headers)


def test_null_with_a_header_behind_it(signed: MsgHeader) -> None:
    """Arrow lets bytes stand behind a null; even a whole header there stays null."""
    plain = pa.array([signed.encode(), signed.encode()], pa.binary())
    headers = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), *plain.buffers()[1:]])

    rows = decode_columns(headers, hashes=HASHES).to_pylist()

    assert set(rows[0].values()) == {None}
    assert rows[1]["seq"] == signed.seq
    assert rows[1]["digest"] == signed.digest


def test_reject_type_and_hash(signed: MsgHeader) -> None:
    """Another type of array, or a hash that is none, is the caller's error."""
    with pytest.raises(BusArgumentError):
        decode_columns(pa.array(["text"]))
    with pytest.raises(BusArgumentError):
        decode_columns(pa.array([signed.encode()]), hashes=["md5"])


def test_reject_more_than_the_offsets_can_say(
    signed: MsgHeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above BUFFER_BYTES_MAX bytes nothing is begun."""
    monkeypatch.setattr(columns, "BUFFER_BYTES_MAX", 209)
    with pytest.raises(BusArgumentError, match="209"):
        decode_columns(pa.array([signed.encode()]))


def test_the_room_does_not_need_arrow() -> None:
    """Importing the bus imports neither pyarrow nor its columns."""
    script = (
        "import sys, luxrelay.bus; "
        "print({'pyarrow', 'luxrelay.bus.structure_batch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
