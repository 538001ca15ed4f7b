"""Roles and the proof of a validator."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import NamespaceId, SignatureScheme, SigningKey
from luxrelay.bus.vouching import PROOF_MAX
from luxrelay.errors import GossipArgumentError
from luxrelay.gossip import NodeRole, PeerId, role_topics, topic_for_namespace, validator_proof
from luxrelay.gossip.roles import proves_validator

Kit = Any

PEER = PeerId(b"peer-0000")
KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"v" * 32)
OTHER = SigningKey.from_seed(SignatureScheme.ED25519, b"w" * 32)
VALIDATORS = frozenset({KEY.public_field})


@pytest.mark.parametrize(
    ("role", "global_topics"),
    [
        (NodeRole.VALIDATOR, {"headers/global", "blocks/proposed", "blocks/finalized"}),
        (NodeRole.RELAY, {"headers/global", "blocks/finalized"}),
        (NodeRole.LIGHT, {"blocks/finalized"}),
        (NodeRole.DA_OPERATOR, {"headers/global", "blocks/finalized", "blobs/available"}),
    ],
)
def test_each_role_has_its_topics(kit: Kit, role: NodeRole, global_topics: set[str]) -> None:
    """Relays follow all headers, operators the blobs too, light nodes what they chose (20-01)."""
    namespace = NamespaceId(b"\x31" * 20)
    topics = role_topics(role, "net", [namespace])
    desk = kit.Desk()
    for topic in topics:
        desk.router.subscribe(topic, desk.now)

    assert set(topics) == {f"/lux/net/relay/{kind}" for kind in global_topics} | {
        topic_for_namespace("net", namespace)
    }
    assert set(desk.router.stats().mesh) == set(topics)


def test_roles_refuse_what_is_no_network() -> None:
    """A wrong network name is an error of the caller."""
    with pytest.raises(GossipArgumentError):
        role_topics(NodeRole.LIGHT, "NO", [])


@pytest.mark.parametrize("scheme", [SignatureScheme.ED25519, SignatureScheme.SECP256K1])
def test_a_validator_vouches_for_its_relay(scheme: SignatureScheme) -> None:
    """The proof holds for this peer, this key, and a registered one only (20-48, G24)."""
    key = SigningKey.from_seed(scheme, b"v" * 32)
    proof = validator_proof(key, PEER)
    validators = frozenset({key.public_field})

    assert proves_validator(PEER, proof, validators)
    field = key.public_field
    by_the_page = hashlib.sha3_256(b"lux.validator.v1\x00" + PEER).digest()
    assert proof == len(field).to_bytes(2, "big") + field + key.sign(by_the_page)
    assert not proves_validator(PeerId(b"peer-0001"), proof, validators)
    assert not proves_validator(PEER, proof, frozenset())
    assert not proves_validator(PEER, proof[:-1], validators)
    assert not proves_validator(PEER, validator_proof(OTHER, PEER), validators)
    assert not proves_validator(PEER, bytes(PROOF_MAX + 1), validators)
    forged = proof[: 2 + len(key.public_field)] + bytes(64)
    assert not proves_validator(PEER, forged, validators)


@given(st.binary(max_size=200))
def test_no_bytes_prove_by_chance(proof: bytes) -> None:
    """Any bytes are taken, and nothing is raised."""
    assert not proves_validator(PEER, proof, VALIDATORS | {b"", proof[2:35]})


def test_only_a_proof_earns_the_credit(kit: Kit) -> None:
    """A claim alone is worth nothing; a proof is worth 50 until the peer leaves (20-48, G24)."""
    desk = kit.Desk(validators=VALIDATORS)
    peer, other = desk.peers(2)

    assert not desk.router.peer_role(peer, NodeRole.VALIDATOR, desk.now)
    assert not desk.router.peer_role(other, NodeRole.VALIDATOR, desk.now, proof=b"\x00\x21junk")
    assert not desk.router.peer_role(
        other, NodeRole.VALIDATOR, desk.now, proof=validator_proof(KEY, peer)
    )
    assert not desk.router.peer_role(PeerId(b"stranger"), NodeRole.VALIDATOR, desk.now)
    assert desk.router.explain(peer, desk.now).score == 0
    proof = validator_proof(KEY, peer)
    assert desk.router.peer_role(peer, NodeRole.VALIDATOR, desk.now, proof=proof)

    assert desk.router.explain(peer, desk.now).application == 50
    assert desk.router.stats().peers[peer].score == 50
    desk.router.peer_disconnected(peer, desk.now)
    desk.router.peer_connected(peer, "/meshsub/1.1.0", False, desk.now)
    assert desk.router.explain(peer, desk.now).application == 0


def test_a_light_peer_leaves_the_mesh(kit: Kit) -> None:
    """The role says so, and no proof is needed for it (G26; 20-01)."""
    desk = kit.Desk()
    desk.router.subscribe(topic := kit.topic_of(1), desk.now)
    (peer,) = desk.peers(1, topic)

    desk.router.peer_role(peer, NodeRole.RELAY, desk.now)
    assert desk.router.stats().mesh[topic] == 1
    desk.router.peer_role(peer, NodeRole.LIGHT, desk.now)

    assert desk.router.stats().mesh[topic] == 0
