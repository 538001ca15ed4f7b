"""Groups of the publish command."""

import pytest

from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, VerdictKind
from luxrelay.bus.verdict import Code
from luxrelay.cli.publish import _BATCH_BYTES, LanePublisher, PublishPace, _batches
from luxrelay.sync import PeerHead, PublishItem, PublishReceipt


def test_groups_are_bounded_in_number_and_bytes() -> None:
    """A group ends at its size or before its bytes are too many; nothing is lost or reordered."""
    small = [bytes([i]) for i in range(7)]
    large = [bytes(_BATCH_BYTES - 1), b"ab", b"c"]

    assert [len(group) for group in _batches(small, 3)] == [3, 3, 1]
    assert [blob for group in _batches(small, 3) for blob in group] == small
    assert [len(group) for group in _batches(large, 3)] == [1, 2]
    assert list(_batches([], 3)) == []


def test_typed_lines_go_out_one_by_one() -> None:
    """With a size of one a line does not wait for the next."""
    lines = iter([b"first", b"second"])
    groups = _batches(lines, 1)

    assert next(groups) == [b"first"]
    assert next(lines) == b"second"


def test_a_pace_waits_as_it_is_told_until_nothing_is_taken_for_too_long() -> None:
    """Progress begins the patience anew; without any it ends, and 0 waits never."""
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = PublishPace(10, clock=lambda: now[0], sleep=sleep)
    assert all(pace.wait(4_000, taken=3) for _ in range(5))
    assert slept == [4.0] * 5
    assert pace.wait(4_000, taken=0)
    assert not pace.over
    assert not pace.wait(4_000, taken=0)
    assert pace.over

    once = PublishPace(0, clock=lambda: now[0], sleep=sleep)
    assert not once.wait(1, taken=1)
    assert not once.over, "what follows is sent, once"
    assert len(slept) == 6


def test_whoever_waits_is_told_how_far_and_why_now_and_then() -> None:
    """Not for a moment's wait; then every ten seconds, with the relay's words."""
    now, said = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    pace = PublishPace(60, clock=lambda: now[0], sleep=sleep, say=said.append)
    for _ in range(9):
        pace.wait(2_000, taken=4, why="2 messages/s are allowed\x1b")

    assert [line.partition(",")[0] for line in said] == [
        "luxrelay: 16 lines settled so far",
        "luxrelay: 36 lines settled so far",
    ]
    assert said[0].endswith("waiting: 2 messages/s are allowed·")


class Relay:
    """A relay that holds whoever publishes for a while, once."""

    def __init__(self, now_ms: list[int], held_ms: int, skew_ms: int = 0) -> None:
        self.now_ms, self.held_ms, self.skew_ms = now_ms, held_ms, skew_ms
        self.calls = 0

    def publish(self, items: list[PublishItem]) -> list[PublishReceipt]:
        """Refuse what is more than 30 s behind this relay's clock."""
        self.calls += 1
        self.now_ms[0] += self.held_ms
        self.held_ms = 0
        headers = [MsgHeader.decode(item.header) for item in items]
        late = [self.now_ms[0] + self.skew_ms - each.timestamp > 30_000 for each in headers]
        return [
            PublishReceipt(
                verdict=VerdictKind.IGNORE if old else VerdictKind.ACCEPT,
                code=Code.TIMESTAMP_INVALID if old else Code.OK,
                reason="the timestamp is behind our clock" if old else "",
                stored=not old,
                digest=header.digest,
            )
            for header, old in zip(headers, late, strict=True)
        ]


@pytest.mark.parametrize(
    ("held_ms", "skew_ms", "stored", "calls"),
    [(40_000, 0, 3, 3), (0, 60_000, 0, 1), (40_000, 60_000, 0, 3)],
    ids=["held by the relay", "a clock that is wrong", "both"],
)
def test_what_grew_old_while_the_relay_held_it_is_signed_again(
    monkeypatch: pytest.MonkeyPatch, held_ms: int, skew_ms: int, stored: int, calls: int
) -> None:
    """Once, and in its own sequence; a time that is refused when it is fresh is our clock's."""
    now_ms = [1_764_000_000_000]
    monkeypatch.setattr("luxrelay.cli.publish._now_ms", lambda: now_ms[0])
    key = SigningKey.from_seed(SignatureScheme.ED25519, b"\7" * 32)
    publisher = LanePublisher(key, NamespaceId(bytes(19) + b"\1"), bytes(32))
    relay = Relay(now_ms, held_ms, skew_ms)
    pace = PublishPace(60, clock=lambda: 0.0, sleep=lambda _: None, say=lambda _: None)

    sent = dict(publisher.publish(relay, [b"a", b"b", b"c"], pace))  # type: ignore[arg-type]

    assert sum(receipt.stored for _, receipt in sent.values()) == stored
    assert [sent[place][0].seq for place in range(3)] == [1, 2, 3]
    assert relay.calls == calls


def test_a_clock_that_is_set_back_between_two_commands_does_not_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second goes on behind the relay's head, in sequence and in time (J1)."""
    now_ms = [1_764_000_000_000]
    monkeypatch.setattr("luxrelay.cli.publish._now_ms", lambda: now_ms[0])
    key = SigningKey.from_seed(SignatureScheme.ED25519, b"\7" * 32)
    parent = NamespaceId(bytes(19) + b"\1")
    first = LanePublisher(key, parent, bytes(32)).sign(b"a", now_ms[0])
    now_ms[0] -= 20_000

    again = LanePublisher(key, parent, bytes(32))
    again.follow(
        PeerHead(
            namespace_id=again.namespace_id,
            parent_id=parent,
            latest_seq=first.seq,
            latest_timestamp=first.timestamp,
        )
    )
    second = again.sign(b"b", now_ms[0])

    assert (second.seq, second.timestamp) == (2, first.timestamp)


def test_behind_a_message_that_is_signed_again_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that keeps its old time behind a newer one would go back."""
    now_ms = [1_764_000_000_000]
    monkeypatch.setattr("luxrelay.cli.publish._now_ms", lambda: now_ms[0])
    key = SigningKey.from_seed(SignatureScheme.ED25519, b"\7" * 32)
    publisher = LanePublisher(key, NamespaceId(bytes(19) + b"\1"), bytes(32))
    waiting = {0: (publisher.sign(b"a", now_ms[0]), b"a")}
    now_ms[0] += 10_000
    waiting[1] = (publisher.sign(b"b", now_ms[0]), b"b")
    now_ms[0] += 5_000  # the first is too old to be sent, the second is not

    publisher._refresh(waiting, [0, 1])

    stamps = [header.timestamp for header, _ in waiting.values()]
    assert stamps[0] == now_ms[0]
    assert stamps[1] >= stamps[0]
    assert [header.seq for header, _ in waiting.values()] == [1, 2]
