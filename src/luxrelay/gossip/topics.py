"""Topic names: their grammar, the four global topics, one topic a namespace, one alias.

Source: LP-6420 §2, §8.2; decisions G5, G25.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from luxrelay.bus import NamespaceId
from luxrelay.errors import GossipArgumentError, TopicError

TOPIC_MAX: Final = 256
"""Longest topic name, bytes of ASCII (G6)."""
NAMESPACE_BYTES: Final = 20

_NETWORK: Final = r"[a-z0-9][a-z0-9-]{0,31}"
_TOPIC: Final = re.compile(
    rf"/lux/(?P<network>{_NETWORK})/relay/"
    r"(?:namespace/(?:0x)?(?P<namespace>[0-9a-f]{40})"
    r"|(?P<kind>headers/global|blocks/proposed|blocks/finalized|blobs/available))"
)
_NETWORK_NAME: Final = re.compile(_NETWORK)
_FOLDED_MAX: Final = 4096
"""Names whose meaning is remembered; it depends on the text alone."""


class TopicKind(StrEnum):
    """What travels on a topic (LP-6420 §2.2, §2.3)."""

    NAMESPACE = "namespace"
    """Headers of one namespace and of its lanes (J6)."""
    HEADERS_GLOBAL = "headers/global"
    """All headers; for validators and indexers."""
    BLOCKS_PROPOSED = "blocks/proposed"
    """Announcements of proposed blocks; for validators."""
    BLOCKS_FINALIZED = "blocks/finalized"
    """Announcements of finalized blocks; for everyone."""
    BLOBS_AVAILABLE = "blobs/available"
    """Blob availability hints; for DA operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic taken apart."""

    network: str
    """Name of the network: 1 to 32 characters of ``a-z 0-9 -``, not starting with ``-``."""
    kind: TopicKind
    """Which family of topics it belongs to."""
    namespace_id: NamespaceId | None = None
    """The namespace of a namespace topic; None for the four global ones."""

    @property
    def name(self) -> str:
        """The canonical text: 40 lower-case hexadecimal digits without ``0x`` (G5)."""
        if self.namespace_id is not None:
            return f"/lux/{self.network}/relay/{self.kind}/{self.namespace_id.hex()}"
        return f"/lux/{self.network}/relay/{self.kind}"


@lru_cache(maxsize=_FOLDED_MAX)
def parse_topic(text: str) -> Topic:
    """Return the parts of a topic; ``0x`` before a namespace id is folded away (G5).

    Raises:
        TopicError: the text is no topic of LP-6420 §2.1.

    Source: LP-6420 §2.1; 20-07, 20-09.

    """
    match = _TOPIC.fullmatch(text) if len(text) <= TOPIC_MAX else None
    if match is None:
        raise TopicError("not a topic", where=repr(text[:80]))
    network, namespace, kind = match.group("network", "namespace", "kind")
    if namespace is not None:
        return Topic(
            network=network,
            kind=TopicKind.NAMESPACE,
            namespace_id=NamespaceId(bytes.fromhex(namespace)),
        )
    return Topic(network=network, kind=TopicKind(kind))


def topic_for_namespace(network: str, namespace_id: NamespaceId) -> str:
    """Return the canonical topic of a namespace.

    Raises:
        GossipArgumentError: the network name or the length of the id is wrong.

    Source: LP-6420 §2.3, §8.2, G5.

    """
    if len(namespace_id) != NAMESPACE_BYTES:
        raise GossipArgumentError(
            f"a namespace id has {NAMESPACE_BYTES} bytes, found {len(namespace_id)}",
            where="topic_for_namespace",
        )
    _check_network(network)
    return Topic(network=network, kind=TopicKind.NAMESPACE, namespace_id=namespace_id).name


def global_topic(network: str, kind: TopicKind) -> str:
    """Return the name of one of the four global topics (LP-6420 §2.2).

    Raises:
        GossipArgumentError: the network name is wrong, or ``kind`` needs a namespace.

    """
    if kind is TopicKind.NAMESPACE:
        raise GossipArgumentError(
            "a namespace topic is not global",
            where="global_topic",
            hint="use topic_for_namespace",
        )
    _check_network(network)
    return Topic(network=network, kind=kind).name


@lru_cache(maxsize=_FOLDED_MAX)
def fold_topic(text: str) -> str | None:
    """Return the canonical name of ``text``, or None when it is no topic of ours.

    Peers of other applications may share a connection, so a foreign topic is no fault.
    """
    try:
        return parse_topic(text).name
    except TopicError:
        return None


def _check_network(network: str) -> None:
    if _NETWORK_NAME.fullmatch(network) is None:
        raise GossipArgumentError(
            f"network name {network[:40]!r} is not 1 to 32 characters of a-z, 0-9 and -",
            where="topic",
            hint="choose a name such as mainnet",
        )
