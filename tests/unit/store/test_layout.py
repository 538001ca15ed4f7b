"""Keys sort as their tuples do; values come back as they went in; broken ones raise our error."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import NamespaceId
from luxrelay.errors import StoreError
from luxrelay.store import layout
from luxrelay.store.layout import BlobPlace, MessageRow
from luxrelay.store.namespaces import NamespaceState

U64 = st.integers(0, 2**64 - 1)
EDGES = [9, 10, 99, 100, 999, 1000, 2**32 - 1, 2**32, 2**64 - 1]


def row_of(message: Any, **changes: Any) -> MessageRow:
    """Return the row of a message with its blob inline."""
    row = MessageRow(
        message.received_at,
        message.received_at + 600_000,
        0,
        BlobPlace.INLINE,
        len(message.blob),
        message.source,
        message.header.encode(),
        message.blob,
    )
    return row._replace(**changes)


def key_of(message: Any) -> bytes:
    """Return the message key of a message."""
    header = message.header
    return layout.slot_key(header.namespace_id, header.seq) + header.content_id


@given(st.lists(st.tuples(st.binary(min_size=20, max_size=20), U64), max_size=20))
def test_slots_sort_as_namespace_and_sequence(slots: list[tuple[bytes, int]]) -> None:
    """Keys as bytes are in the order of (namespace, sequence) (11-45, 21-07)."""
    keys = [layout.slot_key(namespace, seq) for namespace, seq in slots]

    assert [layout.split_slot(key) for key in sorted(keys)] == sorted(slots)


def test_numbers_sort_across_digit_lengths() -> None:
    """9 sorts before 10 and 999 before 1000 (21-07, P5, P6)."""
    assert sorted(map(layout.u64, EDGES)) == [layout.u64(edge) for edge in EDGES]
    assert [layout.read_u64(layout.u64(edge)) for edge in EDGES] == EDGES


@given(st.binary(max_size=4), st.binary(max_size=4), st.booleans())
def test_after_bounds_exactly_the_keys_with_a_prefix(
    prefix: bytes, rest: bytes, extended: bool
) -> None:
    """A key lies in [prefix, after(prefix)) exactly when it begins with the prefix."""
    key = prefix + rest if extended else rest
    stop = layout.after(prefix)

    assert (prefix <= key and (not stop or key < stop)) == key.startswith(prefix)


def test_a_row_comes_back(forge: Any) -> None:
    """decode(encode(row)) is the row, the arrived bytes included (21-08)."""
    message = forge.message(3, source=b"peer", blob=b"some text")
    row = row_of(message)

    assert layout.decode_row(layout.encode_row(row)) == row
    assert row.timestamp == message.header.timestamp
    assert row.sender == message.header.sender_pub_key
    assert row.commitment == message.header.blob_commitment
    assert layout.blob_len_of(row.header) == message.header.blob_len


@pytest.mark.parametrize("place", list(BlobPlace))
def test_a_row_with_a_sidecar_comes_back(forge: Any, place: BlobPlace) -> None:
    """The length of the sidecar is in the row, which has one encoding (11-35, 21-08)."""
    message = forge.message(3, blob=b"some text", ciphertext=b"opaque")
    row = row_of(message, place=place, sidecar_len=len(message.sidecar))
    if place is not BlobPlace.INLINE:
        row = row._replace(inline_blob=b"")
    value = layout.encode_row(row)

    assert layout.decode_row(value) == row
    assert layout.blob_bytes_of(value) == len(b"some text") + len(message.sidecar)
    for broken in (value[:-4] + bytes(4), value[:-1], value + b"\x00", value[:-4] + b"\xff" * 4):
        with pytest.raises(StoreError):
            layout.decode_row(broken)


def test_every_truncation_of_a_row_is_corruption(forge: Any) -> None:
    """A cut or lengthened row raises our error and nothing else."""
    value = layout.encode_row(row_of(forge.message(3, source=b"peer")))

    for cut in range(len(value)):
        with pytest.raises(StoreError) as caught:
            layout.decode_row(value[:cut])
        assert caught.value.code == "store.corrupt"
    with pytest.raises(StoreError):
        layout.decode_row(value + b"\x00")


@pytest.mark.parametrize(
    "decode",
    [
        layout.decode_row,
        layout.decode_version,
        layout.split_slot,
        layout.read_u64,
        lambda value: layout.decode_state(value[:20], value[20:]),
        layout.decode_content,
        layout.decode_share,
        lambda value: layout.decode_span(value[:10], value[10:]),
        layout.expires_at_of,
    ],
)
@given(data=st.binary(max_size=400))
def test_decoders_raise_only_our_error(decode: Callable[[bytes], object], data: bytes) -> None:
    """Whatever the bytes, a decoder gives a value or `StoreError`."""
    with suppress(StoreError):
        decode(data)


def test_index_rows_name_the_message(forge: Any) -> None:
    """Time, content, blob, slot and sender rows lead to the message (21-06, P10)."""
    message = forge.message(3)
    header, key = message.header, key_of(message)
    expires_at = layout.u64(message.received_at + 600_000)
    rows = {kind: (k, v) for kind, k, v in layout.index_rows(key, row_of(message))}

    assert rows == {
        layout.TIMES: (layout.u64(header.timestamp) + key, expires_at),
        layout.CONTENTS: (
            header.content_id,
            key[:28] + layout.u64(header.timestamp) + expires_at,
        ),
        layout.REFERENCES: (header.blob_commitment + key, b"\x01"),
    }
    assert layout.slot_name(key[:28]) == header.message_id
    assert layout.sender_key(header.encode()) == header.sender_address + header.namespace_id


@given(numbers=st.tuples(U64, U64, U64, U64), exact=st.booleans())
def test_a_share_comes_back(numbers: tuple[int, int, int, int], exact: bool) -> None:
    """decode(encode(share)) is the share."""
    share = layout.Share(*numbers, exact)

    assert layout.decode_share(layout.encode_share(share)) == share


@given(number=st.integers(0, 2**32 - 1), first_ms=U64, end_ms=U64)
def test_a_span_comes_back(number: int, first_ms: int, end_ms: int) -> None:
    """A slice's row gives its number and its span."""
    key, value = layout.slice_key(number), layout.encode_span(first_ms, end_ms)

    assert layout.decode_span(key, value) == (number, first_ms, end_ms)


def test_a_content_row_has_the_times(forge: Any) -> None:
    """Slot, timestamp and expiry come back from the id row (J4)."""
    message = forge.message(3, at=10**12 + 5)
    rows = {kind: v for kind, _, v in layout.index_rows(key_of(message), row_of(message))}

    assert layout.decode_content(rows[layout.CONTENTS]) == (
        key_of(message)[:28],
        10**12 + 5,
        10**12 + 5 + 600_000,
    )


@pytest.mark.parametrize("watermark", [None, 0, 7, 2**64 - 1])
def test_a_watermark_comes_back(watermark: int | None) -> None:
    """No handoff and a watermark of 0 are two things (J8)."""
    name = NamespaceId(b"n" * 20)
    state = NamespaceState(namespace_id=name, parent=name, watermark=watermark)

    assert layout.decode_state(name, layout.encode_state(state)).watermark == watermark


def test_a_message_without_blob_refers_to_none(forge: Any) -> None:
    """No reference row stands for a blob that is not here."""
    message = forge.message(3)
    row = row_of(message, place=BlobPlace.ABSENT, blob_len=0, inline_blob=b"")

    kinds = {kind for kind, _, _ in layout.index_rows(key_of(message), row)}
    assert layout.REFERENCES not in kinds


@pytest.mark.parametrize("ciphertext", [b"", b"opaque"])
@pytest.mark.parametrize("place", list(BlobPlace))
def test_the_charge_is_the_bytes_of_all_rows(
    forge: Any, place: BlobPlace, ciphertext: bytes
) -> None:
    """A message is charged with what its rows hold, blob and sidecar included (P1)."""
    message = forge.message(3, source=b"peer", ciphertext=ciphertext)
    sidecar = message.sidecar or b""
    row = row_of(message, place=place, sidecar_len=len(sidecar))
    if place is not BlobPlace.INLINE:
        row = row._replace(inline_blob=b"", blob_len=5 if place is BlobPlace.APART else 0)
    key = key_of(message)
    rows = [(layout.HEADERS, key, layout.encode_row(row)), *layout.index_rows(key, row)]
    rows.append((layout.SLOTS, layout.slot_name(key[:28]), key[:28]))
    rows += [(layout.SIDECARS, key, sidecar)] if sidecar else []
    written = sum(len(kind) + len(k) + len(v) for kind, k, v in rows)
    written += row.blob_len if place is BlobPlace.APART else 0

    assert layout.charge_bytes(row) == written


@given(st.lists(U64, min_size=8, max_size=8), st.binary(min_size=32, max_size=32))
def test_a_state_comes_back(numbers: list[int], digest: bytes) -> None:
    """decode(encode(state)) is the state; the runs are not part of it."""
    state = NamespaceState(
        namespace_id=NamespaceId(b"n" * 20),
        parent=NamespaceId(b"p" * 20),
        floor=numbers[0],
        contiguous=numbers[1],
        latest=numbers[2],
        earliest=numbers[3],
        finalized=numbers[4],
        latest_timestamp=numbers[5],
        messages=numbers[6],
        size_bytes=numbers[7],
        latest_hash=digest,
    )
    found = layout.decode_state(state.namespace_id, layout.encode_state(state))

    assert found.head() == state.head()
    assert not found.runs


def test_the_version_comes_back() -> None:
    """The version row holds the version."""
    assert layout.decode_version(layout.encode_version(7)) == 7
    assert layout.decode_version(layout.encode_version()) == layout.LAYOUT_VERSION
