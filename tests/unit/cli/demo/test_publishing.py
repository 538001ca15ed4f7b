"""Signing chat messages into lanes."""

import json

from luxrelay.bus import MsgHeader, lane, topic_namespace, verify_header
from luxrelay.cli.demo.publishing import Signer, content_topic
from luxrelay.sim import ChatMessage

NOW = 1_704_067_200_000


def message(sender: str, channel: str = "#a") -> ChatMessage:
    """Return a line of chat."""
    return ChatMessage(channel, sender, 1, "hello")


def test_each_sender_has_a_lane_per_channel() -> None:
    """Sequences count up in each lane, whose id anyone can derive (J6)."""
    signer = Signer(seed=1)

    headers = [signer.sign(message(s, c), NOW)[0] for s, c in
               (("x", "#a"), ("x", "#a"), ("y", "#a"), ("x", "#b"))]  # fmt: skip

    assert [h.seq for h in headers] == [1, 2, 1, 1]
    assert len({h.namespace_id for h in headers}) == 3
    for header, channel in zip(headers, ("#a", "#a", "#a", "#b"), strict=True):
        parent = topic_namespace(content_topic(channel))
        assert header.namespace_id == lane(parent, header.sender_pub_key)
        assert verify_header(header)


def test_the_senders_own_time_stays_in_the_payload() -> None:
    """Headers are stamped when they are published; sent_ms travels in the blob."""
    header, item = Signer(seed=1).sign(message("x"), NOW)

    assert header.timestamp == NOW
    assert json.loads(item.blob)["sent_ms"] == 1
    assert MsgHeader.decode(item.header) == header


def test_timestamps_never_go_back() -> None:
    """A wall clock that jumps back does not take the stamps with it (J1)."""
    signer = Signer(seed=1)
    stamps = [signer.sign(message("x"), wall)[0].timestamp for wall in (NOW, NOW - 5000, NOW + 1)]
    assert stamps == sorted(stamps)


def test_keys_repeat_with_the_seed() -> None:
    """The same seed gives the same lanes, another seed others."""
    first, same, other = (Signer(seed=n).sign(message("x"), NOW)[0] for n in (1, 1, 2))
    assert first.namespace_id == same.namespace_id != other.namespace_id
