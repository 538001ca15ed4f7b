"""The four layers at the doors: who is refused, what it costs, what is counted (20-46)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from luxrelay.bus import Code, MsgHeader, SigningKey, VerdictKind, lane, topic_namespace
from luxrelay.bus.limits import LimitConfig, Rate
from luxrelay.bus.policy import default_policy
from luxrelay.bus.semantics import LIVE_RULES, SYNC_RULES
from luxrelay.node.rates import LAYERS, NodeRates, policy_rate, rate_of, size_of
from luxrelay.node.stages.verify import Candidate, Judge, JudgeConfig, StoreKnowledge
from luxrelay.store import RelayStore, RelayStoreConfig

NOW = 1_704_067_200_000
PARENT = topic_namespace("/chat/1/room")
POLICY = default_policy(PARENT)
GENEROUS = LimitConfig(
    peer=rate_of(0), everything=rate_of(0), namespace=rate_of(0), sender=rate_of(0)
)


class Clock:
    """Monotonic seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RelayStore]:
    """An empty store."""
    with RelayStore.open(tmp_path / "store", RelayStoreConfig.small(), now_ms=NOW) as opened:
        yield opened


def judge_with(store: RelayStore, rates: NodeRates | None) -> Judge:
    """Return a judge of one open namespace."""
    policies = {PARENT: frozenset({POLICY.policy_hash})}
    return Judge(
        StoreKnowledge(store), policies, JudgeConfig(ttl_ms=600_000), lambda: NOW, rates=rates
    )


def message(key: SigningKey, seq: int, *, broken: bool = False) -> Candidate:
    """Return a message in the sender's lane, or one whose signature is another's."""
    header = key.sign_header(
        MsgHeader(
            namespace_id=lane(PARENT, key.public_field),
            seq=seq,
            timestamp=NOW,
            blob_commitment=bytes(32),
            blob_len=0,
            policy_hash=POLICY.policy_hash,
        )
    )
    if broken:
        header = replace(header, signature=bytes(len(header.signature)))
    return Candidate(header=header, blob=None, parent=PARENT)


def limited(**rates: Rate) -> LimitConfig:
    """Return limits that are generous but for those given."""
    layers = {"peer": rate_of(0), "everything": rate_of(0), "namespace": rate_of(0)}
    return LimitConfig(**{**layers, "sender": rate_of(0), **rates})


def test_a_sender_has_its_burst_and_then_its_rate(store: RelayStore, clock: Clock) -> None:
    """30 at once by default, then 10 a second; the rest is ignored, nobody is blamed."""
    rates = NodeRates(limited(sender=Rate(10)), clock)
    judge, key = judge_with(store, rates), SigningKey.generate()
    verdicts = judge.judge([message(key, seq) for seq in range(1, 41)], LIVE_RULES)
    judge.close()
    assert [v.accepted for v in verdicts] == [True] * 30 + [False] * 10
    assert {(v.kind, v.code) for v in verdicts[30:]} == {(VerdictKind.IGNORE, Code.RATE_LIMITED)}
    assert rates.refused() == {**dict.fromkeys(LAYERS, 0), "sender": 10}
    clock.now += 1.0
    judge = judge_with(store, rates)
    later = judge.judge([message(key, seq) for seq in range(41, 61)], LIVE_RULES)
    judge.close()
    assert sum(v.accepted for v in later) == 10


def test_nobody_spends_tokens_by_claiming_a_key(store: RelayStore, clock: Clock) -> None:
    """Forged messages of a sender are rejected and cost it neither tokens nor reputation."""
    rates = NodeRates(limited(sender=Rate(1, burst_messages=5)), clock)
    judge, key = judge_with(store, rates), SigningKey.generate()
    forged = judge.judge([message(key, s, broken=True) for s in range(1, 200)], LIVE_RULES)
    assert {v.code for v in forged} == {Code.INVALID_SIGNATURE}
    honest = judge.judge([message(key, seq) for seq in range(1, 6)], LIVE_RULES)
    judge.close()
    assert all(v.accepted for v in honest)


def test_one_sender_does_not_use_up_another(store: RelayStore, clock: Clock) -> None:
    """Each sender has a bucket of its own; the namespace's bounds them together."""
    rates = NodeRates(
        limited(sender=Rate(1, burst_messages=3), namespace=Rate(1, burst_messages=5)), clock
    )
    judge = judge_with(store, rates)
    first, second = SigningKey.generate(), SigningKey.generate()
    flood = judge.judge([message(first, seq) for seq in range(1, 101)], LIVE_RULES)
    calm = judge.judge([message(second, seq) for seq in range(1, 4)], LIVE_RULES)
    judge.close()
    assert sum(v.accepted for v in flood) == 3
    assert [v.accepted for v in calm] == [True, True, False]
    assert rates.refused()["namespace"] == 1


def test_history_is_not_measured(store: RelayStore, clock: Clock) -> None:
    """What a relay serves has passed the limits elsewhere."""
    rates = NodeRates(limited(sender=Rate(1, burst_messages=1)), clock)
    judge, key = judge_with(store, rates), SigningKey.generate()
    verdicts = judge.judge([message(key, s) for s in range(1, 51)], SYNC_RULES, live=False)
    judge.close()
    assert all(v.accepted for v in verdicts)
    assert not any(rates.refused().values())


def test_a_peer_is_stopped_before_anything_is_parsed(store: RelayStore, clock: Clock) -> None:
    """The door asks with the bytes of the envelope alone."""
    rates = NodeRates(limited(peer=Rate(2, burst_messages=2)), clock)
    judge = judge_with(store, rates)
    asked = [judge.admit(b"peer-a", 300).accepted for _ in range(3)]
    other = judge.admit(b"peer-b", 300).accepted
    judge.close()
    assert asked == [True, True, False]
    assert other
    assert rates.refused()["peer"] == 1


def test_a_good_sender_earns_twice_the_rate(store: RelayStore, clock: Clock) -> None:
    """Above 0.8 the sender's limit doubles (S8)."""
    rates = NodeRates(limited(sender=Rate(10)), clock)
    judge, key = judge_with(store, rates), SigningKey.generate()
    seq = 0
    for _ in range(400):
        clock.now += 1.0
        judge.judge([message(key, seq := seq + 1)], LIVE_RULES)
    clock.now += 10.0
    judge.judge([message(key, seq := seq + 1)], LIVE_RULES)
    verdicts = judge.judge([message(key, seq + n) for n in range(1, 101)], LIVE_RULES)
    judge.close()
    assert sum(v.accepted for v in verdicts) > 30


def test_zero_is_no_limit_and_a_policy_says_its_own(clock: Clock) -> None:
    """0 in the configuration limits nothing; a policy's numbers are its bucket (20-45)."""
    rates = NodeRates(GENEROUS, clock)
    header = message(SigningKey.generate(), 1).header
    assert size_of(header) == len(header.encode())
    assert all(rates.charge(header, PARENT, None) for _ in range(10_000))
    rate = policy_rate(POLICY)
    assert (rate.messages_per_s, rate.burst_messages) == (100, 300)
    strict = NodeRates(limited(), clock)
    taken = sum(strict.charge(header, PARENT, POLICY) for _ in range(1_000))
    assert taken == POLICY.burst_messages


def test_a_refusal_says_whose_rate_how_much_and_when_again(store: RelayStore, clock: Clock) -> None:
    """The wait it names is the wait it takes, for the sender's, the namespace's and the node's."""
    for layer, whose in (
        ("sender", "the sender's"),
        ("namespace", "the namespace's"),
        ("everything", "this node's"),
    ):
        rates = NodeRates(limited(**{layer: Rate(2, burst_messages=5)}), clock)
        judge, key = judge_with(store, rates), SigningKey.generate()
        # The sixth is refused when it is charged, the next group before its signature.
        charged = judge.judge([message(key, seq) for seq in range(1, 7)], LIVE_RULES)[-1]
        (peeked,) = judge.judge([message(key, 7)], LIVE_RULES)
        for verdict in (charged, peeked):
            assert verdict.reason.startswith(
                f"{whose} rate is used up: 2 messages/s, burst 5; again in 500 ms"
            )
            assert verdict.retry_after_ms == 500
        clock.now += 0.375
        (early,) = judge.judge([message(key, 6)], LIVE_RULES)
        assert (early.code, early.retry_after_ms) == (Code.RATE_LIMITED, 125)
        clock.now += 0.125
        assert judge.judge([message(key, 6)], LIVE_RULES)[0].accepted
        judge.close()


def test_a_message_that_never_fits_is_given_no_time(store: RelayStore, clock: Clock) -> None:
    """A rate of nothing, and a message larger than the bucket of bytes."""
    for rate, unit in ((Rate(0), "0 messages/s"), (Rate(10, 20), "20 bytes/s, burst 60")):
        judge = judge_with(store, NodeRates(limited(sender=rate), clock))
        (verdict,) = judge.judge([message(SigningKey.generate(), 1)], LIVE_RULES)
        judge.close()
        assert f"{unit}" in verdict.reason
        assert "it never fits" in verdict.reason
        assert verdict.retry_after_ms == 0
