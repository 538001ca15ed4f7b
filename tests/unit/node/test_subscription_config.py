"""Which topics a node follows and announces on."""

from pathlib import Path

import pytest

from luxrelay.bus import topic_namespace
from luxrelay.errors import ConfigError
from luxrelay.node.config import NodeConfig, parse_config
from luxrelay.node.node import changes_between
from luxrelay.node.subscription_config import (
    announced_topics_of,
    followed_topics,
    global_topics_of,
    headers_only_of,
)

HEADERS, PROPOSED, FINALIZED, BLOBS = (
    f"/lux/test/relay/{kind}"
    for kind in ("headers/global", "blocks/proposed", "blocks/finalized", "blobs/available")
)


def config_of(gossip: str, namespace: str = "") -> NodeConfig:
    """Return a configuration with one namespace."""
    text = f"""
    [node]
    data_dir = "data"
    network = "test"
    [gossip]
    {gossip}
    [[namespace]]
    content_topic = "/chat/1/room"
    {namespace}
    """
    return parse_config(text, source="relay.toml", base=Path("/etc"))


@pytest.mark.parametrize(
    ("role", "topics"),
    [
        ("validator", (HEADERS, PROPOSED, FINALIZED)),
        ("relay", (HEADERS, FINALIZED)),
        ("light", (FINALIZED,)),
        ("da-operator", (HEADERS, FINALIZED, BLOBS)),
    ],
)
def test_topics_follow_from_the_role(role: str, topics: tuple[str, ...]) -> None:
    """Each role follows its global topics and the node's namespaces (20-01, LP-6420 §1.1)."""
    config = config_of(f'role = "{role}"')
    namespace = f"/lux/test/relay/namespace/{topic_namespace('/chat/1/room').hex()}"

    names = [each.namespace_id for each in config.namespaces]
    assert followed_topics(config, names) == (*topics, namespace)
    assert announced_topics_of(config) == {HEADERS, BLOBS}


def test_topics_that_are_named_stand_alone_or_beside_the_role() -> None:
    """A list without the role is all there is; each topic is followed once."""
    some = config_of('global_topics = ["blobs/available", "blocks/proposed"]')
    more = config_of('global_topics = ["role", "blobs/available", "headers/global"]')
    none = config_of("global_topics = []")

    assert global_topics_of(some) == (BLOBS, PROPOSED)
    assert announced_topics_of(some) == {BLOBS, PROPOSED}
    assert global_topics_of(more) == (HEADERS, FINALIZED, BLOBS)
    assert global_topics_of(none) == ()
    assert announced_topics_of(none) == frozenset()


def test_a_namespace_of_headers_alone_has_no_topic() -> None:
    """Its headers come from headers/global, which the node has to follow then (20-01, G25)."""
    config = config_of('role = "validator"', "headers_only = true")
    names = [each.namespace_id for each in config.namespaces]

    assert followed_topics(config, names) == (HEADERS, PROPOSED, FINALIZED)
    assert headers_only_of(config) == set(names)
    for gossip in ('role = "light"', 'global_topics = ["blobs/available"]'):
        with pytest.raises(ConfigError, match="headers/global"):
            config_of(gossip, "headers_only = true")
    assert changes_between(config, config_of('role = "validator"')).refused == ("namespaces",)
