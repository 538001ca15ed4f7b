"""Hypothesis strategies for the values of the bus. Needs hypothesis.

``headers`` are well-formed and of all five schemes; their signatures are filler, because the codec
does not look at them. ``signed_headers`` verify.
"""

from __future__ import annotations

from hypothesis import strategies as st

from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    NamespacePolicy,
    SignatureScheme,
    SigningKey,
    TFHESidecarRef,
)
from luxrelay.bus import constants as c
from luxrelay.bus.policy import (
    EncryptionMode,
    Identity,
    IdentityType,
    PqMode,
    RetentionClass,
    TokenGate,
    TokenKind,
    WritersMode,
)
from luxrelay.bus.schemes import SCHEMES
from luxrelay.bus.sidecar import CiphertextType, TFHESidecar
from luxrelay.testing.messages import breakages

u32 = st.integers(0, c.MAX_U32)
u64 = st.integers(0, c.MAX_U64)
hashes = st.binary(min_size=32, max_size=32)
addresses = st.binary(min_size=20, max_size=20)
namespace_ids = addresses.filter(any).map(NamespaceId)
sequences = st.integers(1, c.MAX_U64)
schemes = st.sampled_from(sorted(SCHEMES))
fee_proofs = st.one_of(
    st.just(c.FEE_NONE),
    st.builds(
        lambda kind, body: bytes([kind]) + body, st.integers(1, 255), st.binary(max_size=800)
    ),
)
sidecar_references = st.builds(TFHESidecarRef, commitment=hashes, epoch=u64)


@st.composite
def headers(draw: st.DrawFn) -> MsgHeader:
    """Well-formed headers of all five schemes, with and without sidecar and KZG flag."""
    spec = SCHEMES[draw(schemes)]
    sidecar = draw(st.none() | sidecar_references)
    filler = draw(st.binary(min_size=1, max_size=8))
    key = (filler * spec.key_field_bytes)[: spec.key_field_bytes - 1]
    blob_len = draw(st.sampled_from([0, 1, c.MAX_BLOB_BYTES]) | st.integers(0, c.MAX_BLOB_BYTES))
    nothing = st.sampled_from([c.ZERO_HASH, c.EMPTY_SHA3_256])
    flags = spec.flags | draw(st.sampled_from([0, c.FLAG_KZG_COMMITMENT]))
    return MsgHeader(
        namespace_id=draw(namespace_ids),
        seq=draw(sequences),
        timestamp=draw(u64),
        blob_commitment=draw(hashes.filter(any) if blob_len else nothing),
        blob_len=blob_len,
        policy_hash=draw(hashes),
        sender_pub_key=bytes([spec.scheme]) + key,
        signature=(filler * spec.signature_bytes)[: spec.signature_bytes],
        fee_proof=draw(fee_proofs),
        flags=flags | (c.FLAG_TFHE_SIDECAR if sidecar else 0),
        tfhe_sidecar=sidecar,
    )


signing_keys = st.binary(min_size=32, max_size=32).map(
    lambda seed: SigningKey.from_seed(SignatureScheme.ED25519, seed)
)
"""Ed25519 keys."""


@st.composite
def signed_headers(draw: st.DrawFn) -> MsgHeader:
    """Headers whose Ed25519 signature holds."""
    return draw(signing_keys).sign_header(draw(headers()))


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes that are ``data`` with some of them changed, or cut, or longer.

    Half of the changes hit the places that decide: flags, lengths, the scheme byte.
    """
    raw = bytearray(data)
    decisive = [0, 1, 70, 71, 72, 73, 106, 107, 108, 141, 142, 207, 208, 209]
    places = st.sampled_from(decisive) | st.integers(0, max(len(raw) - 1, 0))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(places)
        if place < len(raw):
            raw[place] = draw(st.sampled_from([0, 1, 2, 4, 255]) | st.integers(0, 255))
    size = draw(st.just(len(raw)) | st.integers(0, len(raw) + 41))
    return bytes(raw[:size]) + draw(st.binary(min_size=1, max_size=1)) * max(0, size - len(raw))


header_bytes = st.one_of(
    headers().map(MsgHeader.encode),
    headers().map(MsgHeader.encode).flatmap(mutated),
    st.sampled_from(breakages()).map(lambda breakage: breakage.data),
    st.sampled_from(breakages()).flatmap(lambda breakage: mutated(breakage.data)),
    st.binary(max_size=400),
)
"""Headers, nearly headers, and no headers."""


@st.composite
def identities(draw: st.DrawFn) -> Identity:
    """Owners and writers of every type."""
    kind = draw(st.sampled_from(IdentityType))
    if kind is IdentityType.WALLET:
        return Identity(kind, draw(addresses))
    if kind is IdentityType.RAW_KEY:
        spec = SCHEMES[draw(st.sampled_from([1, 2]))]
        size = spec.key_field_bytes - 1
        return Identity(kind, bytes([spec.scheme]) + draw(st.binary(min_size=size, max_size=size)))
    return Identity(kind, draw(st.binary(min_size=1, max_size=60)))


@st.composite
def policies(draw: st.DrawFn) -> NamespacePolicy:
    """Policies of every mode, without custom parameters."""
    mode = draw(st.sampled_from(WritersMode))
    listed = draw(st.lists(identities(), max_size=4)) if mode is WritersMode.ALLOWLIST else []
    gate = None
    if mode is WritersMode.TOKEN_GATED:
        gate = TokenGate(
            kind=TokenKind.MULTI,
            chain_id=draw(u64),
            contract=draw(addresses.filter(any)),
            min_balance=draw(st.integers(1, 2**256 - 1)),
            token_id=draw(st.integers(0, 2**256 - 1)),
        )
    encryption = draw(st.sampled_from(EncryptionMode))
    return NamespacePolicy(
        owner=draw(identities()),
        version=draw(st.integers(1, 0xFFFF)),
        writers_mode=mode,
        writers=tuple(
            sorted(
                {identity.encode(): identity for identity in listed}.values(), key=Identity.encode
            )
        ),
        token_gate=gate,
        messages_per_second=draw(u32),
        bytes_per_second=draw(u64),
        burst_messages=draw(u32),
        encryption_mode=encryption,
        tfhe_orch=encryption is EncryptionMode.TFHE and draw(st.booleans()),
        retention_class=draw(st.sampled_from(RetentionClass)),
        pq_mode=draw(st.sampled_from(PqMode)),
    )


sidecars = st.builds(
    TFHESidecar,
    epoch=u64,
    ciphertext_type=st.sampled_from(CiphertextType),
    ciphertext=st.binary(min_size=1, max_size=200),
    binding=hashes,
    proof=st.binary(max_size=40),
)
"""TFHE sidecar containers."""
