"""Messages of a run and the stand-in validator."""

import random

import pytest

from luxrelay.bus import MsgHeader, VerdictKind
from luxrelay.gossip import RelayMessage, decode_header_with_blob, relay_message_id
from luxrelay.sim.traffic import NAMESPACE, TOPIC, Author, Forger, TrafficJudge, twisted

ACCEPT, REJECT = VerdictKind.ACCEPT, VerdictKind.REJECT


def test_a_message_is_real_but_for_its_signature() -> None:
    """It decodes by the product's codecs, stands in its sender's lane and counts up."""
    author = Author(7)
    first, second = author.write(b"x", b"peer", 1.0), author.write(b"", b"peer", 2.0)
    message = RelayMessage.decode(first)
    announcement, blob = decode_header_with_blob(message.payload)
    header = MsgHeader.decode(announcement.header_bytes)

    assert (message.topic, blob, header.seq) == (TOPIC, b"x", 1)
    assert header.namespace_id == author.lane != NAMESPACE
    assert TrafficJudge().examine(second) == (ACCEPT, author.lane, 2)


def test_the_judge_rejects_what_is_not_genuine() -> None:
    """Another signature, another blob, another sender's lane, and bytes that are no message."""
    author = Author(1)
    data = author.write(b"blob", b"peer", 1.0)
    judge = TrafficJudge()

    assert judge.verdict(data) is ACCEPT
    assert judge.verdict(twisted(data)) is REJECT
    assert judge.verdict(data.replace(b"blob", b"blub")) is REJECT
    assert judge.verdict(data.replace(author.lane, Author(2).lane)) is REJECT
    assert judge.verdict(b"\x01\x04\x00\x01a\x00\x00\x00\x00\x00\x00") is REJECT
    for end in range(0, len(data), 17):
        assert judge.verdict(data[:end]) is REJECT


def test_a_twisted_copy_has_the_same_id() -> None:
    """Censors squat on ids, so their copies have to have them."""
    data = Author(1).write(b"blob", b"peer", 1.0)

    assert twisted(data) != data
    assert relay_message_id(RelayMessage.decode(twisted(data))) == TrafficJudge.message_id(data)


def test_forged_messages_have_fresh_ids() -> None:
    """A flooder's messages are well-formed, invalid, and all different."""
    forger, rng, judge = Forger(), random.Random(1), TrafficJudge()
    made = [forger.next(rng) for _ in range(50)]

    assert len({TrafficJudge.message_id(data) for data in made}) == 50
    assert {judge.verdict(data) for data in made} == {REJECT}


@pytest.mark.parametrize("known_max", [1, 3])
def test_the_judge_forgets_the_oldest(known_max: int) -> None:
    """What is remembered is bounded, and verdicts do not depend on it."""
    author, judge = Author(1), TrafficJudge(known_max)
    made = [author.write(b"", b"peer", 1.0) for _ in range(6)]

    assert [judge.verdict(data) for data in made * 2] == [ACCEPT] * 12
    assert len(judge._known) == known_max
