"""Laws of the codecs of policies, documents, fees, sidecars and finality, over random bytes."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from luxrelay.bus import (
    FeeProof,
    Identity,
    IdentityType,
    MsgHeader,
    NamespaceId,
    NamespacePolicy,
    SignatureScheme,
    SignedPolicy,
    SigningKey,
    TFHESidecar,
    TokenGate,
    WritersMode,
)
from luxrelay.bus.cbor import decode_cbor, encode_cbor
from luxrelay.bus.constants import MAX_U32, MAX_U64
from luxrelay.bus.fee import OnChain, Prepaid, Stake, StateChannel
from luxrelay.bus.finality import FinalityRow, FinalityState, FinalityStatement
from luxrelay.bus.policy import (
    MAX_U256,
    EncryptionMode,
    PqMode,
    RetentionClass,
    TokenKind,
    encode_custom,
)
from luxrelay.bus.policy_json import policy_from_json, policy_to_json
from luxrelay.bus.sidecar import CiphertextType
from luxrelay.errors import FeeError, FinalityError, PolicyError, SidecarError

KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"\x05" * 32)
HEADER = KEY.sign_header(
    MsgHeader(
        namespace_id=NamespaceId(b"\x22" * 20),
        seq=1,
        timestamp=1_704_067_200_000,
        blob_commitment=bytes(32),
        blob_len=0,
        policy_hash=b"\x33" * 32,
    )
)

u32, u64 = st.integers(0, MAX_U32), st.integers(0, MAX_U64)
u256 = st.integers(0, MAX_U256)
address = st.binary(min_size=20, max_size=20)
hash32 = st.binary(min_size=32, max_size=32)
namespaces = address.filter(any).map(NamespaceId)
fee_keys = st.one_of(
    st.binary(min_size=32, max_size=32).map(lambda b: b"\x01" + b),
    st.binary(min_size=33, max_size=33).map(lambda b: b"\x02" + b),
)
named = st.sampled_from(
    [t for t in IdentityType if t not in {IdentityType.WALLET, IdentityType.RAW_KEY}]
)
identities = st.one_of(
    address.map(lambda value: Identity(IdentityType.WALLET, value)),
    fee_keys.map(lambda value: Identity(IdentityType.RAW_KEY, value)),
    st.builds(Identity, named, st.binary(min_size=1, max_size=40)),
)
cbor_leaves = (
    st.integers(-(2**64), MAX_U64)
    | st.binary(max_size=40)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    | st.booleans()
    | st.none()
)
text_keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
cbor_values = st.recursive(
    cbor_leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text_keys, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def gates(draw: st.DrawFn) -> TokenGate:
    """Token gates of every kind."""
    kind = draw(st.sampled_from(TokenKind))
    needs_id = kind is TokenKind.MULTI
    may_have = kind is TokenKind.NON_FUNGIBLE and draw(st.booleans())
    return TokenGate(
        kind=kind,
        chain_id=draw(u64),
        contract=bytes(20) if kind is TokenKind.NATIVE else draw(address.filter(any)),
        min_balance=draw(st.integers(1, MAX_U256)),
        token_id=draw(u256) if needs_id or may_have else None,
    )


@st.composite
def policies(draw: st.DrawFn) -> NamespacePolicy:
    """Policies of every writer mode."""
    mode = draw(st.sampled_from(WritersMode))
    listed = draw(st.sets(identities, max_size=6)) if mode is WritersMode.ALLOWLIST else set()
    encryption = draw(st.sampled_from(EncryptionMode))
    params = draw(st.dictionaries(text_keys, cbor_values, max_size=3))
    return NamespacePolicy(
        owner=draw(identities),
        version=draw(st.integers(1, 0xFFFF)),
        writers_mode=mode,
        writers=tuple(sorted(listed, key=Identity.encode)),
        token_gate=draw(gates()) if mode is WritersMode.TOKEN_GATED else None,
        messages_per_second=draw(u32),
        bytes_per_second=draw(u64),
        burst_messages=draw(u32),
        encryption_mode=encryption,
        tfhe_orch=encryption is EncryptionMode.TFHE and draw(st.booleans()),
        retention_class=draw(st.sampled_from(RetentionClass)),
        pq_mode=draw(st.sampled_from(PqMode)),
        custom=encode_custom(params),
    )


documents = st.builds(
    SignedPolicy,
    network=st.from_regex(r"[a-z0-9-]{1,32}", fullmatch=True),
    namespace_id=namespaces,
    policy=policies(),
    activation_seq=u64,
    activation_ms=u64,
).map(lambda document: document.signed_by(KEY))
prepaid = st.builds(
    Prepaid,
    owner=identities.filter(lambda i: len(i.value) <= 40),
    namespace_id=address.map(NamespaceId),
    messages=st.integers(1, MAX_U64),
    bytes_total=u64,
    expires_at=u64,
    nonce=st.binary(min_size=16, max_size=16),
    issuer=fee_keys,
    issuer_signature=st.binary(min_size=64, max_size=64),
    version=st.sampled_from([1, 2]),
)
stakes = st.lists(hash32, max_size=20).flatmap(
    lambda path: st.builds(
        Stake,
        amount=u64,
        valid_until=u64,
        root=hash32,
        index=st.integers(0, 2 ** len(path) - 1),
        path=st.just(tuple(path)),
    )
)
bodies = st.one_of(
    prepaid,
    stakes,
    st.builds(OnChain, chain_id=u64, contract=address, tx_hash=hash32, log_index=u32, amount=u256),
    st.builds(
        StateChannel,
        channel_id=hash32,
        cumulative=u256,
        voucher_signature=st.binary(min_size=64, max_size=64),
    ),
)
sidecars = st.builds(
    TFHESidecar,
    epoch=u64,
    ciphertext_type=st.sampled_from(CiphertextType),
    ciphertext=st.binary(min_size=1, max_size=200),
    binding=hash32,
    proof=st.binary(max_size=100),
)
statements = st.builds(
    lambda number, issued, rows: FinalityStatement(
        network="devnet",
        number=number,
        issued_ms=issued,
        rows=tuple(FinalityRow(*key, state) for key, state in sorted(rows.items())),
    ).signed_by(KEY),
    st.integers(1, MAX_U64),
    u64,
    st.dictionaries(
        st.tuples(address.map(NamespaceId), st.integers(1, MAX_U64), hash32),
        st.sampled_from(FinalityState),
        max_size=5,
    ),
)


def mutate(data: bytes, draw: st.DataObject) -> bytes:
    """Return the bytes with a few changed, some cut or some more."""
    raw = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        raw[draw.draw(st.integers(0, len(raw) - 1))] = draw.draw(st.integers(0, 255))
    cut = draw.draw(st.integers(max(0, len(raw) - 40), len(raw) + 3))
    return bytes(raw[:cut]) + bytes(max(0, cut - len(raw)))


@given(cbor_values)
def test_cbor_round_trip(value: object) -> None:
    """A value of the profile comes back from its one encoding."""
    data = encode_cbor(value)  # type: ignore[arg-type]

    assert decode_cbor(data) == value
    assert encode_cbor(decode_cbor(data)) == data


@given(st.binary(max_size=60))
@example(b"\xa2\x61a\x01\x61a\x02")
def test_cbor_of_random_bytes(data: bytes) -> None:
    """Random bytes are the one encoding of a value, or a PolicyError."""
    try:
        value = decode_cbor(data)
    except PolicyError:
        return
    assert encode_cbor(value) == data


@given(policies())
def test_policy_round_trip(policy: NamespacePolicy) -> None:
    """A policy comes back from its bytes, and from JSON text (11-23)."""
    assert NamespacePolicy.decode(policy.encode()) == policy
    assert policy_from_json(json.loads(json.dumps(policy_to_json(policy)))) == policy


@given(policies(), st.data())
def test_mutated_policy(policy: NamespacePolicy, data: st.DataObject) -> None:
    """Mutated bytes are the one encoding of another policy, or a PolicyError (11-48)."""
    mutated = mutate(policy.encode(), data)
    try:
        other = NamespacePolicy.decode(mutated)
    except PolicyError:
        return
    assert other.encode() == mutated


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@given(policies(), st.data(), json_values)
def test_mutated_policy_json(policy: NamespacePolicy, data: st.DataObject, value: object) -> None:
    """A form with any value anywhere is a policy or a PolicyError."""
    form = policy_to_json(policy)
    place: dict[str, object] = form
    if data.draw(st.booleans()):
        place = data.draw(st.sampled_from([v for v in form.values() if isinstance(v, dict)]))
    names = [*place, "extra"]
    place[data.draw(st.sampled_from(sorted(names)))] = value
    try:
        assert isinstance(policy_from_json(form), NamespacePolicy)
    except PolicyError:
        return


@given(documents, st.data())
def test_signed_policy(document: SignedPolicy, data: st.DataObject) -> None:
    """A document comes back and verifies; mutated, it is refused or does not verify (11-48)."""
    encoded = document.encode()
    assert SignedPolicy.decode(encoded) == document
    assert document.verify()

    mutated = mutate(encoded, data)
    try:
        other = SignedPolicy.decode(mutated)
    except PolicyError:
        return
    assert other.encode() == mutated
    assert mutated == encoded or not other.verify()


@given(bodies, st.data())
def test_fee_proof(body: OnChain, data: st.DataObject) -> None:
    """A proof comes back and is bound; mutated, it is refused or not bound (11-33, 11-34)."""
    proof = FeeProof.signed(body, HEADER, KEY, "devnet")
    encoded = proof.encode()
    assert FeeProof.decode(encoded) == proof
    assert proof.bound_to(HEADER, "devnet")

    mutated = mutate(encoded, data)
    try:
        other = FeeProof.decode(mutated)
    except FeeError:
        return
    assert other.encode() == mutated
    assert mutated == encoded or not other.bound_to(HEADER, "devnet")


@given(sidecars, st.data())
def test_sidecar(sidecar: TFHESidecar, data: st.DataObject) -> None:
    """A container comes back; mutated, it is another one or refused (11-35, 11-48)."""
    encoded = sidecar.encode()
    assert TFHESidecar.decode(encoded) == sidecar

    mutated = mutate(encoded, data)
    try:
        other = TFHESidecar.decode(mutated)
    except SidecarError:
        return
    assert other.encode() == mutated


@given(statements, st.data())
def test_finality_statement(statement: FinalityStatement, data: st.DataObject) -> None:
    """A statement comes back; mutated, it is another one or refused."""
    encoded = statement.encode()
    assert FinalityStatement.decode(encoded) == statement

    mutated = mutate(encoded, data)
    try:
        other = FinalityStatement.decode(mutated)
    except FinalityError:
        return
    assert other.encode() == mutated
    assert replace(other) == other


@given(st.binary(max_size=300))
@example(b"lux.policy.v1")
@example(b"lux.finality.v1")
def test_random_bytes_are_nothing(data: bytes) -> None:
    """Random bytes are refused by every decoder with its own error (11-48)."""
    with pytest.raises(PolicyError):
        SignedPolicy.decode(data)
    with pytest.raises(FinalityError):
        FinalityStatement.decode(data)
    for decoder, error in ((FeeProof.decode, FeeError), (TFHESidecar.decode, SidecarError)):
        try:
            decoded = decoder(data)
        except error:
            continue
        assert decoded.encode() == data
