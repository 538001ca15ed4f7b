"""A header on two topics: passed on once by each, stored and charged once."""

from dataclasses import replace
from typing import Any

import pytest

from luxrelay.bus import Code, SigningKey, VerdictKind
from luxrelay.bus.limits import LimitConfig, Rate
from luxrelay.gossip import HeaderAnnouncement, MessageType, RelayMessage, TopicKind, global_topic
from luxrelay.node.rates import NodeRates
from luxrelay.node.stages.copies import PASSED_ON, SecondCopies
from luxrelay.node.stages.verify import Candidate
from luxrelay.sync import PublishItem

ACCEPT, IGNORE, REJECT = VerdictKind.ACCEPT, VerdictKind.IGNORE, VerdictKind.REJECT
HEADERS = global_topic("test", TopicKind.HEADERS_GLOBAL)


def own(bench: Any, header: Any, blob: bytes | None = b"hello") -> Any:
    """Return a header on its namespace's topic."""
    return bench.validate(bench.envelope(header.encode(), blob))


def everywhere(bench: Any, header: Any, blob: bytes | None = None, **announced: Any) -> Any:
    """Return a header on ``headers/global``, its announcement changed."""
    message = bench.envelope(header.encode(), blob, topic=HEADERS)
    if announced:
        announcement = replace(HeaderAnnouncement.decode(message.payload), **announced)
        message = replace(message, payload=announcement.encode())
    return bench.validate(message, topic=HEADERS)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("global_first", [True, False])
def test_both_topics_pass_a_header_on(bench: Any, together: bool, global_first: bool) -> None:
    """In one batch or in two, in either order, both are accepted and one is stored (20-23, G2)."""
    header = bench.header(1)
    items = [own(bench, header), everywhere(bench, header)]
    batches = [items[::-1] if global_first else items]
    if not together:
        batches = [[item] for item in batches[0]]

    kinds = [kind for batch in batches for kind in bench.doors.gossip(batch)]

    assert kinds == [ACCEPT, ACCEPT]
    assert bench.store.stats().messages == 1
    assert bench.store.get_blob(header.blob_commitment, bench.now) == b"hello"


def test_a_topic_passes_a_header_on_once(bench: Any) -> None:
    """Further announcements of a stored header are duplicates on each topic."""
    header = bench.header(1)
    bench.doors.gossip([own(bench, header), everywhere(bench, header)])
    bench.identity = SigningKey.generate()

    kinds = bench.doors.gossip([own(bench, header), everywhere(bench, header)])

    assert kinds == [IGNORE, IGNORE]
    assert bench.doors.counts.snapshot()["gossip", IGNORE, Code.DUPLICATE] == 2


@pytest.mark.parametrize(
    ("changes", "kind", "code"),
    [
        ({"signature": bytes(64)}, REJECT, Code.SOURCE_SIGNATURE),
        ({"timestamp_ms": 1}, IGNORE, Code.TIMESTAMP_INVALID),
    ],
)
def test_a_second_copy_needs_an_announcement_of_its_own_in_order(
    bench: Any, changes: dict[str, Any], kind: VerdictKind, code: Code
) -> None:
    """Another announcement than the verified one is checked; a good one may follow (G1, G8, G9)."""
    header = bench.header(1)
    bench.doors.gossip([own(bench, header)])

    assert bench.doors.gossip([everywhere(bench, header, **changes)]) == [kind]
    assert ("gossip", kind, code) in bench.doors.counts.snapshot()
    bench.identity = SigningKey.generate()
    assert bench.doors.gossip([everywhere(bench, header)]) == [ACCEPT]


def test_a_second_copy_with_another_blob_is_rejected(bench: Any) -> None:
    """A blob beside the header has to be the header's, on every topic."""
    header = bench.header(1)
    bench.doors.gossip([own(bench, header)])

    assert bench.doors.gossip([everywhere(bench, header, b"hellO")]) == [REJECT]
    assert bench.doors.gossip([everywhere(bench, header, b"hello")]) == [ACCEPT]


def test_a_failed_first_copy_costs_the_good_one_nothing(bench: Any) -> None:
    """In one batch the first copy's announcer lies; the second is judged for itself (20-22)."""
    header = bench.header(1)

    kinds = bench.doors.gossip([everywhere(bench, header, signature=bytes(64)), own(bench, header)])

    assert kinds == [REJECT, ACCEPT]
    assert bench.store.stats().messages == 1


def test_another_namespace_is_not_stored(bench: Any) -> None:
    """A header of a namespace that the node does not carry is ignored (verdict table; 20-57)."""
    stranger = bench.header(1, namespace_id=b"\x44" * 20)

    assert bench.doors.gossip([everywhere(bench, stranger)]) == [IGNORE]
    assert ("gossip", IGNORE, Code.INVALID_NAMESPACE) in bench.doors.counts.snapshot()


def test_one_header_is_charged_once(bench: Any) -> None:
    """Neither the second topic nor the blob that comes later uses up a sender's rate (G20)."""
    bench.doors._judge._rates = NodeRates(
        LimitConfig(sender=Rate(0.001, burst_messages=2)), lambda: 1.0
    )
    first, second, third = (bench.header(seq) for seq in (1, 2, 3))

    kinds = bench.doors.gossip([everywhere(bench, first), own(bench, first)])
    assert kinds == [ACCEPT, ACCEPT]
    assert bench.doors.gossip([own(bench, second), everywhere(bench, second)]) == [ACCEPT, ACCEPT]
    assert bench.doors.gossip([own(bench, third)]) == [IGNORE]
    assert bench.store.get_blob(first.blob_commitment, bench.now) == b"hello"


def test_memory_of_headers_is_bounded(bench: Any) -> None:
    """Beyond the bound the oldest header is judged like any other."""
    judged: list[int] = []

    def group(candidates: Any) -> list[Any]:
        judged.extend(each.header.seq for each in candidates)
        return [replace(PASSED_ON, code=Code.OK) for _ in candidates]

    copies = SecondCopies(group, lambda _: PASSED_ON, headers_max=2)
    found = [
        Candidate(header=bench.header(seq), blob=b"hello", parent=bench.parent) for seq in (1, 2, 3)
    ]
    copies.judged(found, ["a"] * 3)
    copies.judged(found[::-1], ["b"] * 3)

    assert len(copies) == 2
    assert judged == [1, 2, 3, 1]


def test_publishing_announces_on_both_topics(bench: Any) -> None:
    """What is published goes to its namespace with the blob and to ``headers/global`` without."""
    header = bench.header(1)
    (receipt,) = bench.doors.publish(
        [PublishItem(header=header.encode(), blob=b"hello", parent_id=bench.parent)]
    )

    assert receipt.peers_sent == 2
    assert [topic for topic, _ in bench.spread] == [bench.topic, HEADERS]
    kinds = [RelayMessage.decode(data).type for _, data in bench.spread]
    assert kinds == [MessageType.HEADER_WITH_BLOB, MessageType.HEADER]
