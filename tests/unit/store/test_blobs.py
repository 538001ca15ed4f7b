"""Blobs are kept once or inline, found by commitment, and gone with their last message."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from luxrelay.bus import ContentId, sha3_commitment
from luxrelay.errors import StoreArgumentError, StoreError
from luxrelay.store import NamespaceQuery, PutOutcome, layout
from luxrelay.store.blobs import place_of
from luxrelay.store.layout import BlobPlace

Opener = Callable[..., Any]
LARGE = b"x" * 5000


@pytest.mark.parametrize(
    ("blob", "expected"),
    [
        (None, BlobPlace.ABSENT),
        (b"", BlobPlace.ABSENT),
        (b"1234", BlobPlace.INLINE),
        (b"12345", BlobPlace.APART),
    ],
)
def test_place_a_blob_by_its_length(blob: bytes | None, expected: BlobPlace) -> None:
    """Up to inline_blob_bytes_max a blob rides with its header, above it has its own row."""
    assert place_of(blob, 4) is expected


@pytest.mark.parametrize("blob", [b"small", LARGE])
def test_find_a_blob_by_its_commitment(
    forge: Any, open_store: Opener, now: int, blob: bytes
) -> None:
    """`get_blob` gives the bytes committed to, inline or apart (21-37)."""
    store = open_store()
    store.put_many([forge.message(1, blob=blob)], now)

    assert store.get_blob(sha3_commitment(blob)) == blob
    assert store.get_blob(sha3_commitment(b"another")) is None
    assert store.has_blob(sha3_commitment(blob))
    assert not store.has_blob(sha3_commitment(b"another"))


def test_an_expired_message_lends_no_blob(forge: Any, open_store: Opener, now: int) -> None:
    """With a time given, a blob held by expired messages only is not there (P14)."""
    store = open_store()
    store.put_many([forge.message(1)], now)

    assert store.get_blob(sha3_commitment(b"hello"), now + 599_999) == b"hello"
    assert store.get_blob(sha3_commitment(b"hello"), now + 600_000) is None
    assert store.has_blob(sha3_commitment(b"hello"), now + 599_999)
    assert not store.has_blob(sha3_commitment(b"hello"), now + 600_000)


def test_a_header_alone_is_no_blob(forge: Any, open_store: Opener, now: int) -> None:
    """A blob is held once a message came with it, not when a header names it."""
    store = open_store()
    message = forge.message(1)
    store.put_many([replace(message, blob=None)], now)
    assert not store.has_blob(message.header.blob_commitment)

    store.put_many([message], now)

    assert store.has_blob(message.header.blob_commitment)
    with pytest.raises(StoreArgumentError, match="32 bytes"):
        store.has_blob(b"short")


@pytest.mark.parametrize("blob", [b"small", LARGE])
def test_a_shared_blob_stays_until_its_last_message_goes(
    forge: Any, open_store: Opener, now: int, blob: bytes
) -> None:
    """Two messages share a blob; it goes with the second (21-39, P29)."""
    store = open_store()
    store.put_many(
        [forge.message(1, blob=blob, at=now), forge.message(2, blob=blob, at=now + 1000)], now
    )
    store.expire(now + 600_000)

    assert store.head(forge.message(1).parent).messages == 1
    assert store.get_blob(sha3_commitment(blob)) == blob
    assert store.verify() == []
    store.expire(now + 601_000)

    assert store.get_blob(sha3_commitment(blob)) is None
    assert list(store._ledger.slices.keys(layout.BLOBS, b"", b"")) == []
    assert store.verify() == []


def test_a_shared_blob_goes_when_all_go_together(forge: Any, open_store: Opener, now: int) -> None:
    """One chunk that removes every message of a blob removes the blob."""
    store = open_store()
    store.put_many([forge.message(seq, blob=LARGE) for seq in (1, 2, 3)], now)
    store.expire(now + 600_000)

    assert list(store._ledger.slices.keys(layout.BLOBS, b"", b"")) == []
    assert store.verify() == []


def test_a_blob_that_comes_later_is_added(forge: Any, open_store: Opener, now: int) -> None:
    """A header stored without its blob takes it from a later copy, for the charge of the blob."""
    store = open_store()
    store.put_many([forge.message(1, with_blob=False)], now)
    namespace = forge.message(1).header.namespace_id
    before = store.head(namespace).size_bytes
    assert store.get_messages([forge.message(1).header.message_id], now)[0][0].blob is None

    outcomes = store.put_many([forge.message(1)], now)

    assert outcomes == [PutOutcome.DUPLICATE]
    assert store.get_messages([forge.message(1).header.message_id], now)[0][0].blob == b"hello"
    assert store.head(namespace).size_bytes > before + len(b"hello")
    assert store.verify() == []


def test_a_later_large_blob_is_added_apart(forge: Any, open_store: Opener, now: int) -> None:
    """The same for a blob with a row of its own."""
    store = open_store()
    store.put_many([forge.message(1, blob=LARGE, with_blob=False)], now)
    store.put_many([forge.message(1, blob=LARGE)], now)

    assert store.get_blob(sha3_commitment(LARGE)) == LARGE
    assert store.verify() == []


def test_a_blob_that_does_not_fit_is_not_added(forge: Any, open_store: Opener, now: int) -> None:
    """A full store leaves the message as it was (P2)."""
    store = open_store(max_storage_bytes=2_000)
    store.put_many([forge.message(1, blob=LARGE, with_blob=False)], now)
    before = store.stats().size_bytes
    store.put_many([forge.message(1, blob=LARGE)], now)

    assert store.stats().size_bytes == before
    assert store.get_blob(sha3_commitment(LARGE)) is None
    assert store.verify() == []


def test_an_empty_blob_needs_no_row(forge: Any, open_store: Opener, now: int) -> None:
    """A header with blobLen 0 has an empty blob whether or not one was brought (H11)."""
    store = open_store()
    store.put_many([forge.message(1, blob=b""), forge.message(2, blob=b"", with_blob=False)], now)
    ids = [forge.message(seq, blob=b"").header.message_id for seq in (1, 2)]

    assert [message.blob for message in store.get_messages(ids, now)[0]] == [b"", b""]


def test_a_replaced_candidate_gives_its_blob_up(forge: Any, open_store: Opener, now: int) -> None:
    """When a sender's lower content takes the slot, the other's large blob goes (J11)."""
    store = open_store()
    low, high = sorted(
        (forge.message(1, nonce=nonce, blob=LARGE + bytes([nonce])) for nonce in (1, 2)),
        key=lambda message: message.header.content_id,
    )
    store.put_many([high], now)
    store.put_many([low], now)

    assert store.get_blob(high.header.blob_commitment) is None
    assert store.get_blob(low.header.blob_commitment) == low.blob
    assert store.verify() == []


def test_a_blob_added_in_the_batch_that_drops_another_user_stays(
    forge: Any, open_store: Opener, now: int
) -> None:
    """One batch drops one user of a blob and adds another: the blob stays."""
    store = open_store()
    low, high = sorted(
        (forge.message(1, nonce=nonce, blob=LARGE) for nonce in (1, 2)),
        key=lambda message: message.header.content_id,
    )
    store.put_many([high], now)
    store.put_many([forge.message(2, blob=LARGE), low], now)

    assert store.get_blob(sha3_commitment(LARGE)) == LARGE
    assert store.verify() == []


def test_a_blob_of_another_length_is_corruption(forge: Any, open_store: Opener, now: int) -> None:
    """A blob row that does not fit its header is reported when read."""
    store = open_store()
    store.put_many([forge.message(1, blob=LARGE)], now)
    batch = store._database.batch()
    (table,) = [each.table for each in store._ledger.slices.live]
    batch.put_rows(table, [(layout.BLOBS + sha3_commitment(LARGE), b"cut")])
    store._database.write(batch)

    with pytest.raises(StoreError) as caught:
        store.get_blob(sha3_commitment(LARGE))
    assert caught.value.code == "store.corrupt"


@pytest.mark.parametrize("blob", [b"", b"small", LARGE])
def test_a_sidecar_is_a_second_blob(
    forge: Any, open_store: Opener, now: int, parent: Any, blob: bytes
) -> None:
    """It is found by its own commitment, and shown with its length (11-35)."""
    store = open_store()
    message = forge.message(1, blob=blob, ciphertext=LARGE)
    plain = forge.message(2, blob=b"plain")
    assert store.put_many([message, plain], now) == [PutOutcome.STORED] * 2

    reference = message.header.tfhe_sidecar.commitment
    assert store.get_blob(reference) == message.sidecar
    assert store.has_sidecar(reference)
    assert not store.has_blob(reference)
    assert store.get_blob(message.header.blob_commitment) == (blob or None)
    assert not store.has_sidecar(message.header.blob_commitment)
    page = store.query(NamespaceQuery(namespace_id=parent), now)
    assert [each.sidecar_len for each in page.messages] == [len(message.sidecar), 0]
    found, _ = store.get_messages([message.header.message_id], now)
    assert [each.sidecar_len for each in found] == [len(message.sidecar)]
    assert store.encoded_header(message.header.content_id) == message.header.encode()
    assert store.encoded_header(ContentId(bytes(32))) is None
    assert store.verify() == []


@pytest.mark.parametrize("blob", [b"", b"small", LARGE])
@pytest.mark.parametrize("first", ["blob", "sidecar", "both"])
def test_blob_and_sidecar_come_one_after_the_other(
    forge: Any, open_store: Opener, now: int, blob: bytes, first: str
) -> None:
    """Whichever comes later is added, once, to the header that refers to it."""
    store = open_store()
    message = forge.message(1, blob=blob, ciphertext=b"opaque")
    reference = message.header.tfhe_sidecar.commitment
    bare = replace(message, blob=None, sidecar=None)
    part = replace(
        message,
        blob=None if first == "sidecar" else message.blob,
        sidecar=None if first == "blob" else message.sidecar,
    )
    for each in (bare, part, message, message):
        store.put_many([each], now)

    assert store.get_blob(reference) == message.sidecar
    assert store.get_blob(message.header.blob_commitment) == (blob or None)
    assert store.stats().messages == 1
    assert store.verify() == []


def test_a_sidecar_is_added_to_its_own_header_only(
    forge: Any, open_store: Opener, now: int
) -> None:
    """The same signed content with another reference brings nothing to the one stored (H3)."""
    store = open_store()
    own = forge.message(1, ciphertext=b"own", with_sidecar=False)
    other = forge.message(1, ciphertext=b"other")
    assert own.header.content_id == other.header.content_id
    store.put_many([own], now)

    assert store.put_many([other], now) == [PutOutcome.DUPLICATE]
    assert store.encoded_header(own.header.content_id) == own.header.encode()
    assert not store.has_sidecar(other.header.tfhe_sidecar.commitment)
    assert store.verify() == []


def test_a_sidecar_goes_with_its_message(forge: Any, open_store: Opener, now: int) -> None:
    """Past its time it is not found, and after the cycle nothing is left of it."""
    store = open_store()
    message = forge.message(1, ciphertext=LARGE)
    store.put_many([message], now)
    reference = message.header.tfhe_sidecar.commitment

    assert store.has_sidecar(reference, now + 599_999)
    assert not store.has_sidecar(reference, now + 600_000)
    assert store.get_blob(reference, now + 600_000) is None
    store.expire(now + 10_000_000)
    assert store.get_blob(reference) is None
    assert store.stats().size_bytes == 0
    assert store.verify() == []


def test_a_contender_that_goes_takes_its_sidecar_along(
    forge: Any, open_store: Opener, now: int
) -> None:
    """Of two contents of one sender the lower id stays, and only its sidecar (J11)."""
    store = open_store()
    both = [forge.message(1, nonce=nonce, ciphertext=b"%d" % nonce) for nonce in (1, 2)]
    store.put_many(both, now)

    kept, gone = sorted(both, key=lambda each: each.header.content_id)
    assert store.has_sidecar(kept.header.tfhe_sidecar.commitment)
    assert not store.has_sidecar(gone.header.tfhe_sidecar.commitment)
    assert store.verify() == []


def test_bytes_that_are_a_blob_and_a_sidecar_are_both(
    forge: Any, open_store: Opener, now: int
) -> None:
    """A blob with a sidecar's bytes is no sidecar, and neither takes the other along."""
    store = open_store(slice_ms=60_000)
    message = forge.message(1, ciphertext=LARGE, at=now + 90_000)
    copy = forge.message(2, blob=message.sidecar)
    reference = message.header.tfhe_sidecar.commitment
    store.put_many([copy], now)
    assert (store.has_blob(reference), store.has_sidecar(reference)) == (True, False)
    store.put_many([message], now)
    assert (store.has_blob(reference), store.has_sidecar(reference)) == (True, True)

    store.expire(now + 610_000)
    assert (store.has_blob(reference), store.has_sidecar(reference)) == (False, True)
    assert store.get_blob(reference) == message.sidecar
    assert store.verify() == []


def test_a_sidecar_is_refused_by_a_header_without_reference(forge: Any) -> None:
    """A caller's mistake does not reach the disk."""
    with pytest.raises(StoreArgumentError):
        replace(forge.message(1), sidecar=b"opaque")
    with pytest.raises(StoreArgumentError):
        replace(forge.message(1, ciphertext=b"x"), sidecar=b"")
