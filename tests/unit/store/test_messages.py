"""Messages are refused at the door when they could not be stored as they are."""

from dataclasses import replace
from typing import Any

import pytest

from luxrelay.errors import StoreArgumentError, StoreError
from luxrelay.store.messages import SOURCE_BYTES_MAX, StoredMessage


def test_refuse_sequence_zero(forge: Any) -> None:
    """Sequence numbers begin at 1 (11-13)."""
    good = forge.message(1)

    with pytest.raises(StoreArgumentError):
        replace(good, header=replace(good.header, seq=0))


def test_refuse_a_blob_of_another_length(forge: Any) -> None:
    """The blob's length is the one in the header (11-21)."""
    with pytest.raises(StoreArgumentError):
        replace(forge.message(1), blob=b"not five")


@pytest.mark.parametrize(
    "change",
    [{"parent": b"short"}, {"source": bytes(SOURCE_BYTES_MAX + 1)}, {"received_at": 1_764_000_000}],
)
def test_refuse_fields_out_of_range(forge: Any, change: dict[str, Any]) -> None:
    """Parent, source and arrival have their forms; seconds are refused (21-54)."""
    with pytest.raises(StoreArgumentError):
        replace(forge.message(1), **change)


def test_accept_the_longest_source(forge: Any) -> None:
    """A source of exactly the bound is accepted."""
    message = replace(forge.message(1), source=bytes(SOURCE_BYTES_MAX))

    assert len(message.source) == SOURCE_BYTES_MAX


def stored(header_bytes: bytes) -> StoredMessage:
    """Return the message as a store would give it back."""
    return StoredMessage(header_bytes=header_bytes, blob=b"", received_at=1, expires_at=2)


def test_read_slot_and_time_without_decoding(forge: Any) -> None:
    """Namespace, sequence and timestamp are those of the decoded header (21-08)."""
    message = forge.message(7)
    found = stored(message.header.encode())

    assert found.namespace_id == message.header.namespace_id
    assert (found.seq, found.timestamp) == (7, message.header.timestamp)
    assert found._header is None
    assert found.header == message.header
    assert found.header is found.header


def test_stored_bytes_that_are_no_header_are_corruption(forge: Any) -> None:
    """Only our own error comes out, with its code."""
    message = forge.message(7)

    with pytest.raises(StoreError) as caught:
        _ = stored(message.header.encode() + b"!").header
    assert caught.value.code == "store.corrupt"
