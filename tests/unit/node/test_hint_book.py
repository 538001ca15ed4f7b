"""Hints: who has which blob, until when."""

from luxrelay.gossip import BlobAvailabilityHint
from luxrelay.node.hint_book import HintBook


def hint(commitment: bytes, *providers: bytes, until: int = 1_000) -> BlobAvailabilityHint:
    """Return a hint."""
    return BlobAvailabilityHint(
        commitment=commitment, blob_len=5, providers=providers, expires_at_ms=until
    )


def test_providers_until_their_hint_is_over() -> None:
    """The newest provider stands first; each goes when the last hint naming it is over (G3)."""
    book = HintBook()
    book.take(hint(b"c" * 32, b"one", b"two"))
    book.take(hint(b"c" * 32, b"one", until=2_000))
    book.take(hint(b"c" * 32, b"one", until=500))

    assert book.providers(b"c" * 32, 999) == [b"one", b"two"]
    assert book.providers(b"c" * 32, 1_000) == [b"one"]
    assert book.providers(b"c" * 32, 2_000) == []
    assert book.providers(b"d" * 32, 0) == []
    assert (book.taken, len(book)) == (3, 0)


def test_memory_is_bounded() -> None:
    """The oldest blob and the oldest provider are forgotten."""
    book = HintBook(blobs_max=2, providers_max=2)
    for n in range(3):
        book.take(hint(bytes([n]) * 32, b"a", b"b", b"c"))

    assert book.providers(bytes(32), 0) == []
    assert book.providers(b"\x02" * 32, 0) == [b"c", b"b"]
    assert len(book) == 2
