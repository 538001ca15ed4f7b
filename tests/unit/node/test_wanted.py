"""Blobs that stored headers lack: remembered, asked for in turn, forgotten within bounds."""

from luxrelay.bus import MsgHeader, NamespaceId, sha3_commitment
from luxrelay.node.wanted import WantedBlobs

NOW = 1_704_067_200_000
PARENT = NamespaceId(bytes(19) + b"\x01")


def header(seq: int, timestamp: int = NOW) -> MsgHeader:
    """Return a header that commits to a blob of its own."""
    blob = f"blob {seq}".encode()
    return MsgHeader(
        namespace_id=PARENT,
        seq=seq,
        timestamp=timestamp,
        blob_commitment=sha3_commitment(blob),
        blob_len=len(blob),
        policy_hash=bytes(32),
        sender_pub_key=b"\x01" + bytes(32),
        signature=bytes(64),
    )


def test_take_gives_each_its_turn() -> None:
    """What was asked for comes last the next time."""
    wanted = WantedBlobs(ttl_ms=1000)
    headers = [header(seq) for seq in (1, 2, 3)]
    for each in headers:
        wanted.add(each, PARENT)

    first = [each.message_id for each in wanted.take(2, NOW)]
    second = [each.message_id for each in wanted.take(2, NOW + 1000)]

    assert first == [headers[0].message_id, headers[1].message_id]
    assert second == [headers[2].message_id, headers[0].message_id]


def test_settle_drops_what_is_held_or_expired() -> None:
    """A blob that arrived is counted; one whose message has expired is only dropped."""
    wanted = WantedBlobs(ttl_ms=1000)
    arrived, expired, missing = header(1), header(2, NOW - 1000), header(3)
    for each in (arrived, expired, missing):
        wanted.add(each, PARENT)

    assert wanted.settle(lambda commitment: commitment == arrived.blob_commitment, NOW) == 1
    assert [each.message_id for each in wanted.take(9, NOW)] == [missing.message_id]


def test_find_by_commitment() -> None:
    """What is wanted is found by what its header commits to."""
    wanted = WantedBlobs(ttl_ms=1000)
    each = header(1)
    wanted.add(each, PARENT)

    found = wanted.find(each.blob_commitment)

    assert found is not None
    assert (found.header, found.parent) == (each, PARENT)
    assert wanted.find(bytes(32)) is None


def test_forget_the_oldest_when_full() -> None:
    """The list never grows above its bound, and says how much it has lost."""
    wanted = WantedBlobs(ttl_ms=1000, wanted_max=2)
    for seq in (1, 2, 2, 3):
        wanted.add(header(seq), PARENT)

    assert len(wanted) == 2
    assert wanted.forgotten == 1
    assert [each.message_id for each in wanted.take(9, NOW)] == [
        header(2).message_id,
        header(3).message_id,
    ]


def test_a_blob_that_would_not_be_kept_is_not_asked_for() -> None:
    """At the largest it is, above it is not."""
    size = header(1).blob_len
    for largest, expected in ((size, 1), (size - 1, 0)):
        wanted = WantedBlobs(ttl_ms=1000, largest=largest)
        wanted.add(header(1), PARENT)
        assert len(wanted) == expected
