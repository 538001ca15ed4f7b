"""Messages in validation."""

from __future__ import annotations

from luxrelay.bus import MessageId
from luxrelay.gossip import GossipParams, MessageType, PeerId
from luxrelay.gossip.seen import EnvelopeDigest, Pending, PendingTable

P, Q = PeerId(b"p"), PeerId(b"q")
SLOT = ("/a", MessageId(b"i" * 32))


def add(table: PendingTable, peer: PeerId, number: int, size: int = 10) -> Pending:
    """Let a message wait."""
    return table.add(
        peer,
        slot=SLOT,
        digest=EnvelopeDigest(bytes([number]) * 32),
        kind=MessageType.HEADER,
        data=bytes(size),
        now=float(number),
    )


def test_a_message_is_known_until_its_verdict() -> None:
    """By token, by bytes and by slot, and then no more."""
    table = PendingTable(GossipParams())
    pending = add(table, P, 1)

    assert table.by_digest(pending.digest) is pending
    assert table.note_holder(SLOT, Q)
    assert table.take(pending.token) is pending
    assert list(pending.holders) == [Q]
    assert table.take(pending.token) is None
    assert table.by_digest(pending.digest) is None
    assert not table.note_holder(SLOT, Q)
    assert (len(table), table.size_bytes) == (0, 0)


def test_validation_is_bounded_three_ways() -> None:
    """By number, by bytes, and by number of one peer, so that the others find room."""
    table = PendingTable(
        GossipParams(pending_max=3, pending_peer_max=2, pending_bytes_max=1_000, message_max=1_000)
    )
    first = add(table, P, 1)
    add(table, P, 2)

    assert not table.room(P, 1)
    assert table.room(Q, 980)
    assert not table.room(Q, 981)
    add(table, Q, 3)
    assert not table.room(Q, 1)
    table.take(first.token)
    assert table.room(P, 1)


def test_senders_and_holders_are_bounded_by_peers() -> None:
    """Peers that come and go do not pile up on a message."""
    table = PendingTable(GossipParams(peers_max=2))
    pending = add(table, P, 1)

    for number in range(9):
        pending.add_sender(PeerId(b"%d" % number), 2)
        table.note_holder(SLOT, PeerId(b"%d" % number))

    assert len(pending.senders) == len(pending.holders) == 2


def test_overdue_messages_are_named_oldest_first() -> None:
    """validation_timeout_s after it came a message is overdue."""
    params = GossipParams()
    table = PendingTable(params)
    tokens = [add(table, P, n).token for n in range(3)]

    assert table.overdue(params.validation_timeout_s + 1) == tokens[:2]
