"""A header's namespace, told from the header alone."""

from dataclasses import replace

from luxrelay.bus import MsgHeader, NamespaceId, lane, topic_namespace
from luxrelay.node.parent_lookup import Carried

ROOM, HALL = topic_namespace("/chat/1/room"), topic_namespace("/chat/1/hall")
KEY = b"\x01" + bytes(range(32))


def header(namespace: NamespaceId, key: bytes = KEY) -> MsgHeader:
    """Return a header of a namespace."""
    return MsgHeader(
        namespace_id=namespace,
        seq=1,
        timestamp=1,
        blob_commitment=bytes(32),
        blob_len=0,
        policy_hash=bytes(32),
        sender_pub_key=key,
        signature=bytes(64),
    )


def test_namespaces_and_lanes_are_told_apart() -> None:
    """A carried namespace, a lane of one by the sender's key, and nothing else (J6, G28)."""
    carried = Carried([ROOM, HALL])

    assert carried.parent_of(header(ROOM)) == ROOM
    assert carried.parent_of(header(lane(HALL, KEY))) == HALL
    assert carried.parent_of(header(lane(topic_namespace("/other"), KEY))) is None
    assert carried.parent_of(header(NamespaceId(bytes(20)))) is None


def test_another_senders_lane_is_no_lane() -> None:
    """Whoever names a lane with another key than the header's has no namespace here."""
    carried = Carried([ROOM])
    own = header(lane(ROOM, KEY))

    assert carried.parent_of(replace(own, sender_pub_key=b"\x01" + bytes(32))) is None
    assert carried.parent_of(own) == ROOM


def test_answers_are_bounded_and_stay_right() -> None:
    """Beyond the bound the longest unneeded answer is forgotten and found again."""
    carried = Carried([ROOM], remembered_max=3)
    known = header(lane(ROOM, KEY))

    for n in range(10):
        assert carried.parent_of(known) == ROOM
        assert carried.parent_of(header(NamespaceId(bytes([n + 1]) * 20))) is None

    assert len(carried) == 3
