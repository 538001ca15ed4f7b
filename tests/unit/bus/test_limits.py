"""Four layers of buckets and reputation, in virtual time."""

import random
from dataclasses import replace

import pytest

from luxrelay.bus import LimitConfig, RateLimiter
from luxrelay.bus.limits import (
    IMPACT_ACCEPTED,
    IMPACT_INVALID,
    NEUTRAL,
    UNLIMITED,
    Layer,
    Rate,
    Reputation,
    TokenBucket,
)
from luxrelay.errors import BusArgumentError

NS, ALICE, BOB = b"namespace", b"alice", b"bob"


def passed(
    limiter: RateLimiter, count: int, now: float, sender: bytes = ALICE, **more: object
) -> int:
    """Return how many of ``count`` messages of 100 bytes pass at ``now``."""
    return sum(
        limiter.charge(NS, sender, 100, now, **more) is None  # type: ignore[arg-type]
        for _ in range(count)
    )


def test_sender_layer_has_three_seconds_of_burst() -> None:
    """A sender may send 30 at once and 10 a second after (LP-6422)."""
    limiter = RateLimiter()

    assert passed(limiter, 40, 0.0) == 30
    assert limiter.peek(NS, ALICE, 100, 0.0) is Layer.SENDER
    assert passed(limiter, 40, 1.0) == 10
    assert passed(limiter, 40, 100.0) == 30
    assert passed(limiter, 40, 100.0, BOB) == 30


@pytest.mark.parametrize("layer", [Layer.GLOBAL, Layer.NAMESPACE, Layer.SENDER])
def test_each_layer_refuses_by_itself(layer: Layer) -> None:
    """The layer whose bucket is empty is the one that is named."""
    names = {Layer.GLOBAL: "everything", Layer.NAMESPACE: "namespace", Layer.SENDER: "sender"}
    limiter = RateLimiter(replace(LimitConfig(), **{names[layer]: Rate(1)}))

    assert passed(limiter, 5, 0.0) == 3
    assert limiter.charge(NS, ALICE, 100, 0.0) is layer


def test_policy_sets_the_namespace_rate() -> None:
    """A policy's rate and burst replace the default of the namespace layer (S1)."""
    limiter = RateLimiter(LimitConfig(sender=Rate(UNLIMITED)))
    policy = Rate(2, 1000, burst_messages=5)

    assert passed(limiter, 20, 0.0, namespace_rate=policy) == 5
    assert passed(limiter, 20, 1.0, namespace_rate=policy) == 2
    assert limiter.peek(NS, BOB, 3001, 9.0, namespace_rate=policy) is Layer.NAMESPACE
    assert limiter.peek(NS, BOB, 3000, 9.0, namespace_rate=policy) is None


def test_peer_is_asked_before_anything_else() -> None:
    """A peer's bucket is taken at once and has 3,000 messages (G20)."""
    limiter = RateLimiter()

    assert sum(limiter.admit_peer(b"peer", 10, 0.0) for _ in range(4000)) == 3000
    assert limiter.admit_peer(b"other", 10, 0.0)
    assert sum(limiter.admit_peer(b"peer", 10, 1.0) for _ in range(4000)) == 1000


def test_bytes_and_messages_are_taken_together() -> None:
    """A message that fails on bytes costs no message token (S9)."""
    limiter = RateLimiter(LimitConfig(sender=Rate(1, 100)))

    assert limiter.charge(NS, ALICE, 200, 0.0) is None
    for _ in range(10):
        assert limiter.charge(NS, ALICE, 200, 0.0) is Layer.SENDER
    assert limiter.charge(NS, ALICE, 100, 0.0) is None
    assert limiter.charge(NS, ALICE, 0, 0.0) is None
    assert limiter.charge(NS, ALICE, 0, 0.0) is Layer.SENDER


def test_refusal_takes_nothing_from_the_other_layers() -> None:
    """A message that one layer refuses costs the layers before it nothing."""
    limiter = RateLimiter(LimitConfig(everything=Rate(10), sender=Rate(1)))
    for _ in range(100):
        limiter.charge(NS, ALICE, 1, 0.0)

    assert sum(limiter.charge(NS, bytes([n]), 1, 0.0) is None for n in range(50)) == 27


def test_peek_takes_nothing() -> None:
    """Looking a thousand times changes nothing, nor does it remember the key (G20)."""
    limiter = RateLimiter()
    for n in range(1000):
        assert limiter.peek(NS, b"%d" % n, 100, 0.0) is None

    assert [limiter.tracked(layer) for layer in Layer] == [0, 0, 0, 0]
    assert passed(limiter, 40, 0.0) == 30


def test_time_that_runs_back_adds_nothing() -> None:
    """A clock set back neither fills a bucket nor blocks it for ever."""
    limiter = RateLimiter()
    passed(limiter, 40, 100.0)

    assert passed(limiter, 40, 50.0) == 0
    assert passed(limiter, 40, 101.0) == 10


def test_reputation_moves_the_senders_limit() -> None:
    """Above 0.8 the limit doubles, below 0.3 it halves; others are not touched (S8)."""
    limiter = RateLimiter(LimitConfig(half_life_s=1e9))
    for _ in range(400):
        limiter.reputation.record(ALICE, IMPACT_ACCEPTED, 0.0)
    for _ in range(4):
        limiter.reputation.record(BOB, IMPACT_INVALID, 0.0)

    assert passed(limiter, 100, 0.0, ALICE) == 60
    assert passed(limiter, 100, 0.0, BOB) == 15
    assert passed(limiter, 100, 0.0, b"carol") == 30
    assert passed(limiter, 100, 1.0, ALICE) == 20


def test_reputation_starts_and_ends_in_the_middle() -> None:
    """A stranger has 0.5, events pull toward it, and so does time (S8)."""
    reputation = Reputation(LimitConfig(half_life_s=100))

    assert reputation.value(ALICE, 0.0) == NEUTRAL
    assert reputation.record(ALICE, IMPACT_INVALID, 0.0) == pytest.approx(0.4)
    assert reputation.record(ALICE, 0.0, 0.0) == pytest.approx(0.401)
    assert reputation.value(ALICE, 100.0) == pytest.approx(0.4505)
    assert reputation.value(ALICE, 1e6) == pytest.approx(NEUTRAL)
    for _ in range(1000):
        reputation.record(ALICE, IMPACT_ACCEPTED, 1e6)
    assert reputation.value(ALICE, 1e6) == pytest.approx(0.9, abs=0.01)
    for impact in (5.0, -5.0):
        assert 0.0 <= reputation.record(BOB, impact, 0.0) <= 1.0


def test_honest_sender_is_not_dragged_down() -> None:
    """A sender whose messages are all accepted never falls below a stranger (S8)."""
    reputation = Reputation()
    values = [reputation.record(ALICE, IMPACT_ACCEPTED, float(n)) for n in range(500)]

    assert min(values) > NEUTRAL


def test_fresh_keys_do_not_reset_a_throttled_one() -> None:
    """With ``keys_max`` buckets in use newcomers share, and who is throttled stays throttled."""
    limiter = RateLimiter(LimitConfig(keys_max=4, overflow_buckets=1, namespace=Rate(UNLIMITED)))
    assert passed(limiter, 40, 0.0) == 30
    for n in range(3):
        limiter.charge(NS, b"k%d" % n, 100, 0.0)

    newcomers = sum(limiter.charge(NS, b"n%d" % n, 100, 0.0) is None for n in range(1000))

    assert newcomers == 30
    assert limiter.tracked(Layer.SENDER) == 4
    assert limiter.charge(NS, ALICE, 100, 0.0) is Layer.SENDER


def test_only_full_buckets_are_forgotten() -> None:
    """A bucket makes room when it is full again, because a fresh one would be the same."""
    limiter = RateLimiter(LimitConfig(keys_max=2, overflow_buckets=1))
    limiter.charge(NS, ALICE, 100, 0.0)
    limiter.charge(NS, BOB, 100, 0.0)

    limiter.charge(NS, b"carol", 100, 0.1)
    assert limiter.tracked(Layer.SENDER) == 2
    limiter.charge(NS, b"dave", 100, 0.2)
    assert passed(limiter, 40, 0.2, b"dave") == 29


def test_reputations_are_bounded() -> None:
    """Of the oldest few reputations the one nearest to 0.5 goes first."""
    reputation = Reputation(LimitConfig(keys_max=3))
    reputation.record(ALICE, 0.4, 0.0)
    reputation.record(BOB, 0.01, 0.0)
    reputation.record(b"carol", 0.3, 0.0)
    reputation.record(b"dave", 0.3, 0.0)

    assert len(reputation) == 3
    assert reputation.value(BOB, 0.0) == NEUTRAL
    assert reputation.value(ALICE, 0.0) == pytest.approx(0.9)


def test_never_more_than_burst_and_rate() -> None:
    """Over any run of random arrivals a bucket passes no more than its burst plus its rate."""
    rng = random.Random(3)
    limiter = RateLimiter(LimitConfig(sender=Rate(5, 2000)))
    now, count, size = 0.0, 0, 0
    for _ in range(3000):
        now += rng.expovariate(40)
        length = rng.randrange(600)
        if limiter.charge(NS, ALICE, length, now) is None:
            count, size = count + 1, size + length
        assert count <= 15 + 5 * now + 1e-6
        assert size <= 6000 + 2000 * now + 1e-6


@pytest.mark.parametrize("keys_max", [1, 2, 5])
def test_never_more_while_others_fill_the_table(keys_max: int) -> None:
    """Going from a shared bucket to one's own and back brings nobody a message more."""
    rng = random.Random(keys_max)
    for buckets in (1, 2, 8) * 20:
        bounds = LimitConfig(
            keys_max=keys_max,
            overflow_buckets=buckets,
            namespace=Rate(UNLIMITED),
            sender=Rate(2),
        )
        limiter, now, count = RateLimiter(bounds), 0.0, 0
        for _ in range(200):
            now += rng.choice((0, 0, 0.01, 0.3))
            if rng.random() < 0.4:
                count += limiter.charge(NS, ALICE, 10, now) is None
            else:
                limiter.charge(NS, rng.choice((rng.randbytes(3), b"a", b"b")), 10, now)
            assert count <= 6 + 2 * now + 1e-6


@pytest.mark.parametrize("values", [(-1,), (1, -1), (1, 1, -1), (1, 1, 1, -1), (float("nan"),)])
def test_reject_rate(values: tuple[float, ...]) -> None:
    """A rate below zero, or none at all, is the caller's error."""
    with pytest.raises(BusArgumentError):
        Rate(*values)


@pytest.mark.parametrize(
    "change", [{"keys_max": 0}, {"overflow_buckets": 0}, {"half_life_s": 0}, {"burst_factor": 0}]
)
def test_reject_config(change: dict[str, int]) -> None:
    """Bounds that hold nothing are the caller's error."""
    with pytest.raises(BusArgumentError):
        LimitConfig(**change)  # type: ignore[arg-type]


def test_full_bucket_is_full() -> None:
    """A bucket knows whether a fresh one would be the same."""
    rate = Rate(10, 100)
    sizes = rate.sizes(3.0, 1.0)
    bucket = TokenBucket(sizes, 0.0)
    assert bucket.full(sizes)
    bucket.take(50)

    assert not bucket.full(sizes)
    bucket.refill(rate, sizes, 1.0, 0.5)
    assert bucket.full(sizes)


def test_bytes_that_were_not_sent_come_back() -> None:
    """What is given back can be taken again, never above the bucket; the message stays counted."""
    limiter = RateLimiter(LimitConfig(peer=Rate(2, 100), burst_factor=2))
    limiter.give_back_peer(b"stranger", 500)
    assert not limiter.admit_peer(b"stranger", 201, 0.0)

    assert limiter.admit_peer(b"p", 200, 0.0)
    assert not limiter.admit_peer(b"p", 1, 0.0)
    limiter.give_back_peer(b"p", 150)
    assert not limiter.admit_peer(b"p", 151, 0.0)
    limiter.give_back_peer(b"p", 1000)
    assert not limiter.admit_peer(b"p", 201, 0.0)
    assert limiter.admit_peer(b"p", 200, 0.0)
    limiter.give_back_peer(b"p", 200)
    assert limiter.admit_peer(b"p", 0, 0.0)
    assert limiter.admit_peer(b"p", 0, 0.0)
    assert not limiter.admit_peer(b"p", 0, 0.0)
