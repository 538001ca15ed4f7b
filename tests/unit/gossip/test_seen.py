"""What is remembered together."""

from __future__ import annotations

from luxrelay.bus import MessageId, VerdictKind
from luxrelay.gossip import GossipParams, MessageType
from luxrelay.gossip.seen import EnvelopeDigest, Memory

SLOT = ("/a", MessageId(b"i" * 32))
DIGEST = EnvelopeDigest(b"d" * 32)


def test_hints_are_forgotten_sooner() -> None:
    """A hint is renewed under one id, so it is known for hint_ttl_s only (G3)."""
    params = GossipParams()
    memory = Memory(params)
    memory.seen_of(MessageType.BLOB_HINT).add(SLOT, DIGEST, 0)
    assert memory.has(SLOT)
    assert memory.accepted(DIGEST)

    memory.expire(params.hint_ttl_s)

    assert not memory.has(SLOT)
    assert not memory.accepted(DIGEST)


def test_everything_ends() -> None:
    """After the longest time nothing is known any more."""
    params = GossipParams()
    memory = Memory(params)
    memory.seen_of(MessageType.HEADER).add(SLOT, DIGEST, 0)
    memory.delivered.add(SLOT[1], 0)
    memory.failures.add(DIGEST, VerdictKind.REJECT, params.rejected_ttl_s)

    memory.expire(params.seen_ttl_s - 1)
    assert memory.has(SLOT)
    assert len(memory.failures) == 0
    memory.expire(params.seen_ttl_s)

    assert not memory.has(SLOT)
    assert len(memory.delivered) == 0
