"""The four roles of a node, the topics each follows, and the proof that a validator is one.

Source: LP-6420 §1.1, §2.2, §2.3; decisions G24, G25, G26; 20-01, 20-48.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from enum import StrEnum
from typing import Final

from luxrelay.bus import NamespaceId, SigningKey
from luxrelay.bus.vouching import vouch, vouches
from luxrelay.gossip.envelope import PeerId, TopicKind, global_topic, topic_for_namespace

PROOF_TAG: Final = b"lux.validator.v1\x00"
"""Domain of the signature with which a validator vouches for its relay."""


class NodeRole(StrEnum):
    """What a node is for (LP-6420 §1.1)."""

    VALIDATOR = "validator"
    """Follows all headers and blocks; a namespace only when it is told to (G25)."""
    RELAY = "relay"
    """Follows all headers, finalized blocks and its namespaces; forwards all of it."""
    LIGHT = "light"
    """Follows its namespaces and finalized blocks, and is in no mesh (G26)."""
    DA_OPERATOR = "da-operator"
    """A relay that follows the blob hints as well."""


_GLOBAL: Final = {
    NodeRole.VALIDATOR: (
        TopicKind.HEADERS_GLOBAL,
        TopicKind.BLOCKS_PROPOSED,
        TopicKind.BLOCKS_FINALIZED,
    ),
    NodeRole.RELAY: (TopicKind.HEADERS_GLOBAL, TopicKind.BLOCKS_FINALIZED),
    NodeRole.LIGHT: (TopicKind.BLOCKS_FINALIZED,),
    NodeRole.DA_OPERATOR: (
        TopicKind.HEADERS_GLOBAL,
        TopicKind.BLOCKS_FINALIZED,
        TopicKind.BLOBS_AVAILABLE,
    ),
}


def role_topics(
    role: NodeRole, network: str, namespaces: Iterable[NamespaceId] = ()
) -> tuple[str, ...]:
    """Return the topics a node of a role follows, global ones first (20-01).

    Args:
        role: The role.
        network: Name of the network.
        namespaces: The namespaces it is interested in.

    Raises:
        GossipArgumentError: the network name or a namespace id is wrong.

    """
    own = (topic_for_namespace(network, namespace) for namespace in namespaces)
    return (*(global_topic(network, kind) for kind in _GLOBAL[role]), *own)


def validator_proof(key: SigningKey, peer: PeerId) -> bytes:
    """Return the proof that the holder of a validator's ``key`` runs the relay ``peer``.

    A peer id is authenticated by its connection, so a proof is worth nothing to anybody else.
    """
    return vouch(key, PROOF_TAG, peer)


def proves_validator(peer: PeerId, proof: bytes, validators: Container[bytes]) -> bool:
    """Return True when a key in ``validators`` vouches for ``peer``; never raises (20-48, G24).

    Args:
        peer: The peer id, authenticated by its connection.
        proof: What it sent, any bytes.
        validators: The key fields (scheme byte and key) of the validators.

    """
    return vouches(proof, PROOF_TAG, peer, validators)
