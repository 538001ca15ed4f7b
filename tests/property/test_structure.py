"""Two fast twins of the rules of structure agree with the tables, on headers and near-headers."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from luxrelay.bus import MsgHeader, validate_structure
from luxrelay.bus.structure import KEY_START, SHAPES, Spans, check_structure, read_fields
from luxrelay.bus.structure_batch import HASHES, SCHEMA, decode_buffer, decode_columns
from luxrelay.errors import HeaderError
from luxrelay.testing import breakages
from luxrelay.testing.strategies import header_bytes

FIELDS = [name for name in SCHEMA.names if name != "code" and not name.startswith("sidecar")]


@given(header_bytes)
@example(b"")
def test_quick_reader_says_yes_exactly_where_no_rule_is_broken(data: bytes) -> None:
    """`read_fields` and the ordered tables accept the same bytes and cut them alike (11-48)."""
    fields, found = read_fields(data), check_structure(data)

    assert (fields is not None) == isinstance(found, Spans)
    if fields is not None and isinstance(found, Spans):
        assert fields[8] == data[KEY_START : found.key_end]
        assert fields[9] == data[found.signature_start : found.signature_end]
        assert fields[10] == data[found.fee_start : found.fee_end]
        assert fields[11] == (found.end != found.fee_end)
        assert MsgHeader.decode(data).encode() == data
    else:
        with pytest.raises(HeaderError) as caught:
            MsgHeader.decode(data)
        assert caught.value.verdict_code == found


@given(st.lists(header_bytes, max_size=12), st.booleans())
def test_columns_agree_with_the_decoder(rows: list[bytes], large: bool) -> None:
    """Each row has the code of `validate_structure` and the fields of `MsgHeader.decode`."""
    array = pa.array(rows, pa.large_binary() if large else pa.binary())

    batch = decode_columns(array, hashes=HASHES)

    batch.validate(full=True)
    for data, row in zip(rows, batch.to_pylist(), strict=True):
        assert row["code"] == validate_structure(data).code
        assert row["digest"] == hashlib.sha3_256(data).digest()
        if row["code"]:
            assert [value for name, value in row.items() if name not in {"code", "digest"}] == (
                [None] * (len(row) - 2)
            )
            continue
        header = MsgHeader.decode(data)
        for name in [*FIELDS, *HASHES]:
            assert row[name] == getattr(header, name), name
        sidecar = header.tfhe_sidecar
        reference = (None, None) if sidecar is None else (sidecar.commitment, sidecar.epoch)
        assert (row["sidecar_commitment"], row["sidecar_epoch"]) == reference


def test_every_known_breakage_has_its_code() -> None:
    """All broken headers in one buffer: the tables, the columns and the list agree (11-04)."""
    broken = breakages()
    places = np.cumsum([0, *(len(b.data) for b in broken)])

    batch = decode_buffer(b"".join(b.data for b in broken), places)

    expected = [(b.name, int(b.code)) for b in broken]
    assert list(zip([b.name for b in broken], batch["code"].to_pylist(), strict=True)) == expected
    assert [(b.name, int(validate_structure(b.data).code)) for b in broken] == expected


def test_shapes_are_those_of_the_schemes() -> None:
    """Five schemes, with and without sidecar and KZG: twenty shapes, no two alike (11-09)."""
    assert len(SHAPES) == 20
