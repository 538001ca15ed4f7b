"""Topic names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import NamespaceId
from luxrelay.errors import GossipArgumentError, TopicError
from luxrelay.gossip import TopicKind, global_topic, parse_topic, topic_for_namespace
from luxrelay.gossip.envelope import fold_topic

HEX = "0123456789abcdef0123456789abcdef01234567"


@given(
    network=st.from_regex(r"[a-z0-9][a-z0-9-]{0,31}", fullmatch=True),
    namespace=st.binary(min_size=20, max_size=20),
)
def test_a_namespace_topic_parses_to_what_made_it(network: str, namespace: bytes) -> None:
    """Every network and namespace has one topic, which names both (20-07, LP-6420 §2.3)."""
    text = topic_for_namespace(network, NamespaceId(namespace))

    topic = parse_topic(text)

    assert (topic.network, topic.namespace_id, topic.name) == (network, namespace, text)
    assert text == f"/lux/{network}/relay/namespace/{namespace.hex()}"


@pytest.mark.parametrize("kind", [kind for kind in TopicKind if kind is not TopicKind.NAMESPACE])
def test_the_global_topics_parse(kind: TopicKind) -> None:
    """Each of the four global topics of LP-6420 §2.2 exists (20-07)."""
    text = global_topic("mainnet", kind)

    topic = parse_topic(text)

    assert text == f"/lux/mainnet/relay/{kind.value}"
    assert (topic.kind, topic.namespace_id, topic.name) == (kind, None, text)


def test_the_alias_is_folded() -> None:
    """A namespace topic with 0x is the same topic without it (20-09, G5)."""
    topic = parse_topic(f"/lux/mainnet/relay/namespace/0x{HEX}")

    assert topic.name == f"/lux/mainnet/relay/namespace/{HEX}"
    assert fold_topic(f"/lux/mainnet/relay/namespace/0x{HEX}") == topic.name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "/lux/mainnet/relay",
        "/lux/mainnet/relay/headers/local",
        "/lux/mainnet/relay/headers/global/",
        "/lux/mainnet/relay/headers/global\n",
        "/lux//relay/headers/global",
        "/lux/Mainnet/relay/headers/global",
        "/lux/-main/relay/headers/global",
        f"/lux/{'n' * 33}/relay/headers/global",
        f"/lux/mainnet/relay/namespace/{HEX[:-1]}",
        f"/lux/mainnet/relay/namespace/{HEX}0",
        f"/lux/mainnet/relay/namespace/{HEX.upper()}",
        f"/lux/mainnet/relay/namespace/0X{HEX}",
        f"/lux/mainnet/relay/namespace/0x0x{HEX}",
        f"/lux/mainnet/relay/namespace/{'٣' * 40}",
        f"x/lux/mainnet/relay/namespace/{HEX}",
        "/lux/mainnet/relay/headers/global" + "x" * 300,
    ],
)
def test_refuse_what_is_no_topic(text: str) -> None:
    """Anything outside the grammar is no topic (20-07)."""
    with pytest.raises(TopicError):
        parse_topic(text)

    assert fold_topic(text) is None


def test_refuse_bad_arguments() -> None:
    """A name that could not be parsed again is never made."""
    with pytest.raises(GossipArgumentError, match="20 bytes"):
        topic_for_namespace("mainnet", NamespaceId(b"short"))
    with pytest.raises(GossipArgumentError, match="network name"):
        topic_for_namespace("main/net", NamespaceId(bytes(20)))
    with pytest.raises(GossipArgumentError, match="network name"):
        global_topic("", TopicKind.HEADERS_GLOBAL)
    with pytest.raises(GossipArgumentError, match="not global"):
        global_topic("mainnet", TopicKind.NAMESPACE)
