"""Receipts of published messages, remembered for a while."""

from __future__ import annotations

from luxrelay.bus import MessageId, VerdictKind
from luxrelay.node.ingress import ReceiptBook
from luxrelay.sync import PublishReceipt


def receipt(number: int, *, peers_sent: int = 0) -> PublishReceipt:
    """Return the receipt of an accepted message."""
    return PublishReceipt(
        verdict=VerdictKind.ACCEPT,
        stored=True,
        peers_sent=peers_sent,
        message_id=bytes([number]) * 32,
        digest=bytes([100 + number]) * 32,
    )


def test_count_who_has_shown_a_message() -> None:
    """Each peer counts once, and for what was published here alone."""
    book = ReceiptBook()
    book.note(receipt(1, peers_sent=3))

    book.shown(b"a", [MessageId(b"\x01" * 32), MessageId(b"\x09" * 32)])
    book.shown(b"a", [MessageId(b"\x01" * 32)])
    book.shown(b"b", [MessageId(b"\x01" * 32)])

    (found,) = book.receipts([b"\x65" * 32])
    assert (found.seen_back, found.peers_sent, found.stored) == (2, 3, True)


def test_publishing_again_changes_nothing() -> None:
    """A second receipt of one digest keeps what is known of the first."""
    book = ReceiptBook()
    book.note(receipt(1, peers_sent=3))
    book.shown(b"a", [MessageId(b"\x01" * 32)])

    again = book.note(receipt(1, peers_sent=0))

    assert (again.peers_sent, again.seen_back) == (3, 1)
    assert len(book) == 1


def test_answer_ignore_for_what_is_not_remembered() -> None:
    """A message that was refused, or forgotten, is not known."""
    book = ReceiptBook(kept=1)
    book.note(PublishReceipt(verdict=VerdictKind.REJECT, digest=b"\x07" * 32))
    book.note(receipt(1))
    book.note(receipt(2))

    found = book.receipts([b"\x07" * 32, b"\x65" * 32, b"\x66" * 32])

    assert [each.stored for each in found] == [False, False, True]
    assert found[0].verdict == VerdictKind.IGNORE
    assert found[0].digest == b"\x07" * 32
    assert len(book) == 1


def test_bound_the_peers_of_a_message() -> None:
    """A message counts peers_kept peers at most."""
    book = ReceiptBook(peers_kept=2)
    book.note(receipt(1))

    for number in range(5):
        book.shown(bytes([number]), [MessageId(b"\x01" * 32)])

    assert book.receipts([b"\x65" * 32])[0].seen_back == 2
