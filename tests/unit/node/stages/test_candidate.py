"""What the node counts of verdicts."""

from luxrelay.bus import Code
from luxrelay.bus.verdict import ACCEPTED, ignore, reject
from luxrelay.node.stages.verify import PeerVerdicts


def test_refusals_are_counted_by_peer_and_code() -> None:
    """What was accepted is none."""
    counts = PeerVerdicts(peers_max=2)

    counts.add(b"a", reject(Code.WRONG_TOPIC, ""))
    counts.add(b"a", ignore(Code.DUPLICATE, ""))
    counts.add(b"a", ignore(Code.DUPLICATE, ""))
    counts.add(b"a", ACCEPTED)
    counts.add(b"b", ACCEPTED)

    assert counts.of(b"a") == {Code.WRONG_TOPIC: 1, Code.DUPLICATE: 2}
    assert counts.of(b"b") == {}


def test_so_many_peers_are_remembered() -> None:
    """The one that was refused longest ago is forgotten."""
    counts = PeerVerdicts(peers_max=2)

    for peer in (b"a", b"b", b"a", b"c"):
        counts.add(peer, reject(Code.WRONG_TOPIC, ""))

    assert [bool(counts.of(peer)) for peer in (b"a", b"b", b"c")] == [True, False, True]
