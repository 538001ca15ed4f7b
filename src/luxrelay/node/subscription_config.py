"""Topics that a node follows beside its namespaces, and trusted announcers.

Source: LP-6420 §1.1, §2.2; 20-01, 20-08; decisions G10, G12, G24, G25.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from luxrelay.bus import NamespaceId
from luxrelay.gossip import (
    NodeRole,
    TopicKind,
    global_topic,
    role_topics,
    topic_for_namespace,
)

if TYPE_CHECKING:
    from luxrelay.node.config import NodeConfig

ROLE: Final = "role"
"""The entry of `global_topics` that stands for the topics of the role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """Topics and claims; ``TOPIC_KEYS`` documents each value."""

    global_topics: tuple[str, ...]
    block_proposers: tuple[str, ...]
    hint_operators: tuple[str, ...]
    carry: str
    followed_max: int
    follow_demands_per_minute: int
    blob_streams: bool
    blob_bytes_per_s: int
    blob_requests_per_s: int
    blob_silence_ms: int
    blob_partial_bytes_max: int


def following_of(gossip: Mapping[str, Any]) -> Following:
    """Return the values of the section ``gossip`` that are about global topics and blobs."""
    plain = (
        *("blob_streams", "blob_bytes_per_s", "blob_requests_per_s"),
        *("blob_silence_ms", "blob_partial_bytes_max"),
        *("carry", "followed_max", "follow_demands_per_minute"),
    )
    return Following(
        global_topics=tuple(gossip["global_topics"]),
        block_proposers=tuple(gossip["block_proposers"]),
        hint_operators=tuple(gossip["hint_operators"]),
        **{name: gossip[name] for name in plain},
    )


def global_topics_of(config: NodeConfig) -> tuple[str, ...]:
    """Return the names of the global topics a node follows, each once."""
    names: dict[str, None] = {}
    for entry in config.following.global_topics:
        if entry == ROLE:
            names |= dict.fromkeys(role_topics(NodeRole(config.peering.role), config.network))
        else:
            names[global_topic(config.network, TopicKind(entry))] = None
    return tuple(names)


def announced_topics_of(config: NodeConfig) -> frozenset[str]:
    """Return the global topics on which a node announces what is published through it.

    Headers and hints on the topics it follows; a node that follows those of its role announces on
    both whatever its role, or validators would not hear of a light node's messages.
    """
    if ROLE in config.following.global_topics:
        kinds = (TopicKind.HEADERS_GLOBAL, TopicKind.BLOBS_AVAILABLE)
        return frozenset(global_topic(config.network, kind) for kind in kinds)
    return frozenset(global_topics_of(config))


def headers_only_of(config: NodeConfig) -> frozenset[NamespaceId]:
    """Return the namespaces whose own topics a node does not follow."""
    return frozenset(entry.namespace_id for entry in config.namespaces if entry.headers_only)


def followed_topics(config: NodeConfig, namespaces: Iterable[NamespaceId]) -> tuple[str, ...]:
    """Return every topic a node follows: the global ones, then one for each of its namespaces.

    Without those whose headers ``headers/global`` brings (G25).
    """
    unheard = headers_only_of(config)
    own = [topic_for_namespace(config.network, each) for each in namespaces if each not in unheard]
    return (*global_topics_of(config), *own)
