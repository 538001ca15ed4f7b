"""What the judge adds to the rules: full policies from a registry."""

from collections.abc import Iterator

import pytest

from luxrelay.bus import (
    Code,
    ContentId,
    Identity,
    IdentityType,
    MsgHeader,
    NamespaceId,
    NamespacePolicy,
    PolicyRegistry,
    SignatureScheme,
    SignedPolicy,
    SigningKey,
    TokenGate,
    Verdict,
    VerdictKind,
    WritersMode,
    lane,
    topic_namespace,
)
from luxrelay.bus.policy import TokenKind
from luxrelay.bus.semantics import LIVE_RULES, SYNC_RULES
from luxrelay.node.stages.verify import Candidate, Judge, JudgeConfig

NOW = 1_704_067_200_000
PARENT = topic_namespace("/chat/1/room")
OWNER, ALICE, BOB = (SigningKey.generate() for _ in range(3))


class Nothing:
    """A store that holds nothing."""

    def has(self, content_id: ContentId) -> bool:
        """Return False."""
        assert content_id
        return False

    def contiguous_seq(self, namespace_id: NamespaceId) -> int:
        """Return 0."""
        assert namespace_id
        return 0

    def predecessor(self, namespace_id: NamespaceId, seq: int) -> tuple[int, int] | None:
        """Return None."""
        assert namespace_id
        assert seq
        return None


def raw(key: SigningKey) -> Identity:
    """Return the identity of a key."""
    return Identity(IdentityType.RAW_KEY, key.public_field)


def policy(version: int, *writers: SigningKey) -> NamespacePolicy:
    """Return an allowlist."""
    listed = tuple(sorted(map(raw, writers), key=Identity.encode))
    return NamespacePolicy(
        owner=raw(OWNER), version=version, writers_mode=WritersMode.ALLOWLIST, writers=listed
    )


FIRST, SECOND = policy(1, ALICE), policy(2, BOB)


def message(
    key: SigningKey, bound_to: NamespacePolicy, timestamp: int = NOW, seq: int = 1
) -> Candidate:
    """Return a message in the sender's lane."""
    header = MsgHeader(
        namespace_id=lane(PARENT, key.public_field),
        seq=seq,
        timestamp=timestamp,
        blob_commitment=bytes(32),
        blob_len=0,
        policy_hash=bound_to.policy_hash,
    )
    return Candidate(header=key.sign_header(header), blob=None, parent=PARENT)


@pytest.fixture
def registry() -> PolicyRegistry:
    """A registry in which the writers change an hour before now."""
    known = PolicyRegistry()
    for rules, since in ((FIRST, 0), (SECOND, NOW - 3_600_000)):
        document = SignedPolicy(
            network="devnet",
            namespace_id=PARENT,
            policy=rules,
            activation_ms=since,
            activation_seq=0 if since == 0 else 1000,
        ).signed_by(OWNER)
        if since:
            known.update(document)
        else:
            known.register(document, reserved=True)
    return known


@pytest.fixture
def judge(registry: PolicyRegistry) -> Iterator[Judge]:
    """A judge with that registry."""
    config = JudgeConfig(ttl_ms=86_400_000)
    made = Judge(Nothing(), {PARENT: frozenset()}, config, lambda: NOW, registry=registry)
    yield made
    made.close()


def one(judge: Judge, candidate: Candidate, rules: object = LIVE_RULES) -> Verdict:
    """Return the verdict on one candidate."""
    return judge.judge([candidate], rules)[0]  # type: ignore[arg-type]


def test_writers_of_the_policy_in_force(judge: Judge) -> None:
    """A relay with the full policy takes its writers and rejects others (11-39)."""
    assert one(judge, message(BOB, SECOND)).accepted
    stranger = one(judge, message(ALICE, SECOND))
    assert (stranger.kind, stranger.code) == (VerdictKind.REJECT, Code.POLICY_VIOLATION)
    past = one(judge, message(ALICE, FIRST))
    assert (past.kind, past.code) == (VerdictKind.IGNORE, Code.POLICY_VIOLATION)


def test_history_binds_to_the_policy_of_its_time(judge: Judge) -> None:
    """Messages from before the change are judged by what held then (11-24, H19)."""
    then = NOW - 3_600_001

    assert one(judge, message(ALICE, FIRST, then), SYNC_RULES).accepted
    assert not one(judge, message(BOB, SECOND, then), SYNC_RULES).accepted
    assert one(judge, message(ALICE, FIRST, then + 30_000), SYNC_RULES).accepted
    assert not one(judge, message(ALICE, FIRST, then + 60_001), SYNC_RULES).accepted


def test_other_scheme_than_the_policys_mode(judge: Judge) -> None:
    """A post-quantum key in a classical namespace is rejected (11-40)."""
    verdict = one(judge, message(SigningKey.generate(SignatureScheme.ML_DSA_65), SECOND))
    assert (verdict.kind, verdict.code) == (VerdictKind.REJECT, Code.POLICY_VIOLATION)


def test_token_gate_without_a_chain_is_ignored(registry: PolicyRegistry) -> None:
    """A relay that sees no chain ignores what only a balance could allow (11-39)."""
    gate = TokenGate(kind=TokenKind.NATIVE, chain_id=1, contract=bytes(20), min_balance=1)
    gated = NamespacePolicy(
        owner=raw(OWNER), version=3, writers_mode=WritersMode.TOKEN_GATED, token_gate=gate
    )
    document = SignedPolicy(
        network="devnet",
        namespace_id=PARENT,
        policy=gated,
        activation_ms=NOW - 1,
        activation_seq=1000,
    )
    registry.update(document.signed_by(OWNER))
    judge = Judge(Nothing(), {}, JudgeConfig(ttl_ms=600_000), lambda: NOW, registry=registry)

    verdict = one(judge, message(BOB, gated))
    judge.close()

    assert (verdict.kind, verdict.code) == (VerdictKind.IGNORE, Code.UNCHECKABLE)


def test_hash_only_as_before() -> None:
    """Without a registry the hash alone decides, whoever writes (H20)."""
    hashes = {PARENT: frozenset({FIRST.policy_hash})}
    judge = Judge(Nothing(), hashes, JudgeConfig(ttl_ms=600_000), lambda: NOW)

    verdict = one(judge, message(BOB, FIRST))
    judge.close()

    assert verdict.accepted
