"""Signing modes and policies, header by header."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from luxrelay.archive.rules import CODE_EPHEMERAL, LANES_MAX, ArchiveRules, Judgement, lane_of
from luxrelay.bus import Code, MsgHeader, NamespaceId, SignatureScheme, SigningKey, lane
from luxrelay.bus.bound import sign_header_bound
from luxrelay.bus.policy import (
    Identity,
    IdentityType,
    NamespacePolicy,
    PqMode,
    RetentionClass,
    WritersMode,
    default_policy,
)
from luxrelay.bus.signed_policy import SignedPolicy
from luxrelay.errors import PolicyError

NS = NamespaceId(b"\x21" * 20)
OWNER = SigningKey.from_seed(SignatureScheme.ED25519, b"\x07" * 32)
OTHER = SigningKey.from_seed(SignatureScheme.ED25519, b"\x08" * 32)
T0 = 1_704_067_200_000


def _policy(**changed: object) -> NamespacePolicy:
    owner = Identity(IdentityType.RAW_KEY, OWNER.public_field)
    return replace(NamespacePolicy(owner=owner), **changed)  # type: ignore[arg-type]


def _document(policy: NamespacePolicy, **changed: object) -> SignedPolicy:
    document = SignedPolicy(network="devnet", namespace_id=NS, policy=policy, **changed)  # type: ignore[arg-type]
    return document.signed_by(OWNER)


def _header(policy_hash: bytes, **changed: object) -> MsgHeader:
    values = {
        "namespace_id": NS,
        "seq": 5,
        "timestamp": T0,
        "blob_commitment": b"\x00" * 32,
        "blob_len": 0,
        "policy_hash": policy_hash,
    } | changed
    return MsgHeader(**values)  # type: ignore[arg-type]


def _judge(rules: ArchiveRules, header: MsgHeader, key: SigningKey = OWNER) -> Judgement:
    signed = key.sign_header(header)
    return rules.judge(
        signed.encode(),
        signed.namespace_id,
        signed.seq,
        signed.timestamp,
        signed.sender_pub_key,
        signed.policy_hash,
    )


def test_a_policy_that_nobody_told_leaves_the_message_unjudged() -> None:
    """It is valid by itself; the table says that its policy is not known."""
    found = _judge(ArchiveRules(), _header(b"p" * 32))

    assert (found.outcome.code, found.verdict, found.version, found.retention) == (
        0, Code.UNCHECKABLE, None, None,
    )  # fmt: skip


def test_the_open_policy_needs_nobody_to_tell_it() -> None:
    """Every node derives it from the namespace (H20)."""
    found = _judge(ArchiveRules(), _header(default_policy(NS).policy_hash))

    assert (found.outcome.code, found.verdict, found.version) == (0, 0, 1)
    assert found.retention == RetentionClass.STANDARD


def test_a_lane_of_an_open_topic_is_known_by_its_parent() -> None:
    """The relay says whose lane it is; a parent that it made up changes nothing (J6)."""
    own = lane(NS, OWNER.public_field)
    signed = OWNER.sign_header(_header(default_policy(NS).policy_hash, namespace_id=own))
    fields = (
        signed.encode(), own, signed.seq, signed.timestamp, signed.sender_pub_key,
        signed.policy_hash,
    )  # fmt: skip

    assert ArchiveRules().judge(*fields, NS).verdict == 0
    for said in (None, own, b"\x22" * 20, b"short"):
        assert ArchiveRules().judge(*fields, said).verdict == Code.UNCHECKABLE


def test_the_policy_in_force_decides_over_writers_and_lanes() -> None:
    """The owner may write, also in a lane; others may not (LP-6410 §4, J6)."""
    policy = _policy(writers_mode=WritersMode.OWNER_ONLY, retention_class=RetentionClass.PERMANENT)
    rules = ArchiveRules.of([_document(policy)])
    header = _header(policy.policy_hash)
    own_lane = replace(header, namespace_id=lane(NS, OWNER.public_field))

    for allowed in (_judge(rules, header), _judge(rules, own_lane)):
        assert (allowed.outcome.code, allowed.verdict) == (0, 0)
        assert allowed.retention == RetentionClass.PERMANENT
    assert _judge(rules, header, OTHER).outcome.code == Code.POLICY_VIOLATION


def test_history_decides_by_sequence_and_time() -> None:
    """A message binds to the policy that was in force when it was sent (H19)."""
    first = _policy()
    second = replace(first, version=2, retention_class=RetentionClass.ARCHIVE)
    rules = ArchiveRules.of([_document(first), _document(second, activation_ms=T0)])
    late = _header(second.policy_hash, timestamp=T0 + 120_000)

    assert _judge(rules, late).retention == RetentionClass.ARCHIVE
    assert _judge(rules, replace(late, timestamp=T0 - 1)).outcome.code == Code.POLICY_VIOLATION
    old = _header(first.policy_hash, timestamp=T0 - 1)
    assert _judge(rules, old).version == 1
    assert _judge(rules, replace(old, timestamp=T0 + 120_000)).outcome.code == (
        Code.POLICY_VIOLATION
    )


def test_ephemeral_messages_are_passed_over() -> None:
    """Their class says that nothing keeps them (J2, 21-51)."""
    policy = _policy(retention_class=RetentionClass.EPHEMERAL)
    rules = ArchiveRules.of([_document(policy)])

    assert _judge(rules, _header(policy.policy_hash)).outcome.code == CODE_EPHEMERAL


def test_schemes_and_sidecars_are_the_policys_business() -> None:
    """A classical key under a post-quantum policy, and a sidecar that is missing, are refused."""
    for policy in (_policy(pq_mode=PqMode.PQ_ONLY),):
        rules = ArchiveRules.of([_document(policy)])
        assert _judge(rules, _header(policy.policy_hash)).outcome.code == Code.POLICY_VIOLATION


def test_bound_signatures_are_of_one_network() -> None:
    """Neither a literal signature nor that of another network holds (H3, H4)."""
    rules = ArchiveRules.of([], network="closed", bound=True)
    header = _header(b"p" * 32)

    assert rules.signature_holds(sign_header_bound(OWNER, header, "closed").encode())
    assert not rules.signature_holds(sign_header_bound(OWNER, header, "other").encode())
    assert not rules.signature_holds(OWNER.sign_header(header).encode())


def test_rules_travel_to_executors() -> None:
    """What comes out at the other end judges the same."""
    policy = _policy(writers_mode=WritersMode.OWNER_ONLY)
    rules = pickle.loads(pickle.dumps(ArchiveRules.of([_document(policy)])))  # noqa: S301

    assert _judge(rules, _header(policy.policy_hash)).verdict == 0
    assert _judge(rules, _header(policy.policy_hash), OTHER).outcome.code


def test_hashes_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of REMEMBERED_MAX namespaces; a stranger's names and hashes do not fill the memory."""
    monkeypatch.setattr("luxrelay.archive.rules.REMEMBERED_MAX", 3)
    rules = ArchiveRules()
    for number in range(1, 21):
        namespace = NamespaceId(bytes([number]) * 20)
        for policy in (b"p" * 32, default_policy(namespace).policy_hash):
            found = _judge(rules, _header(policy, namespace_id=namespace))
            assert (found.verdict == 0) == (policy != b"p" * 32)

    assert 0 < len(rules._remembered) <= 3


def test_lanes_are_remembered_within_a_bound() -> None:
    """LANES_MAX of them; what is no namespace has none."""
    for number in range(LANES_MAX + 10):
        assert lane_of(NS, number.to_bytes(33)) == lane(NS, number.to_bytes(33))

    assert lane_of.cache_info().currsize == LANES_MAX
    assert lane_of(b"short", OWNER.public_field) is None


def test_documents_are_checked() -> None:
    """A document of another network is refused before anything is read."""
    with pytest.raises(PolicyError):
        ArchiveRules.of([_document(_policy())], network="other")
