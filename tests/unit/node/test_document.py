"""The file as a whole: every mistake at once, the environment, profiles, the commented template."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from luxrelay.errors import ConfigError
from luxrelay.node.config import NodeConfig, parse_config, problems_of
from luxrelay.node.document import PROBLEMS_MAX, variable
from luxrelay.node.settings import KEYS, PROFILES
from luxrelay.node.subscription_config import followed_topics
from luxrelay.node.template import commented_file

MINIMAL = '[node]\ndata_dir = "data"\n'


def parse(text: str, environ: dict[str, str] | None = None) -> NodeConfig:
    """Parse a text as if it stood in /etc/relay.toml."""
    return parse_config(text, source="relay.toml", base=Path("/etc"), environ=environ)


def test_every_mistake_is_found_at_once(tmp_path: Path) -> None:
    """One reading names each with its line; running says the first and how many more."""
    path = tmp_path / "relay.toml"
    path.write_text(
        '[node]\nname = "a b"\n[store]\nttl_ms = 5\nsize = 3\n[gossip]\npeers = "x"\n'
        '[[namespace]]\ncontent_topic = "a"\n[[namespace]]\nid = "zz"\n[nodes]\n'
    )
    found = [str(problem) for problem in problems_of(path)]
    for line, words in (
        (2, "name = 'a b' does not fit"),
        (4, "ttl_ms = 5 does not fit"),
        (5, "unknown key 'size'"),
        (7, "peers = 'x' does not fit"),
        (11, "id = 'zz' does not fit"),
        (12, "unknown section 'nodes'"),
    ):
        assert any(f"relay.toml:{line}" in text and words in text for text in found), (words, found)
    assert any("data_dir is missing" in text for text in found)
    with pytest.raises(ConfigError, match=f"{len(found) - 1} more"):
        parse(path.read_text())


def test_mistakes_are_bounded() -> None:
    """A file of nothing but mistakes does not make a list without end."""
    text = MINIMAL + "[store]\n" + "".join(f"k{n} = 1\n" for n in range(3 * PROBLEMS_MAX))
    with pytest.raises(ConfigError, match=f"{PROBLEMS_MAX - 1} more"):
        parse(text)


def test_the_environment_overrides_the_file() -> None:
    """Each type of value arrives as its type; lists stand between commas."""
    config = parse(
        MINIMAL + "[store]\nttl_ms = 5000\n",
        {
            "LUXRELAY_STORE_TTL_MS": "60000",
            "LUXRELAY_NODE_NAME": "from-outside",
            "LUXRELAY_SYNC_ALLOW_PUBLISH": "true",
            "LUXRELAY_SYNC_PEERS": "a:1, b:2",
            "LUXRELAY_KEY_PASSPHRASE": "not a key of the file",
            "HOME": "/root",
        },
    )
    assert config.ttl_ms == 60_000
    assert config.name == "from-outside"
    assert config.allow_publish is True
    assert config.sync_peers == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("LUXRELAY_STORE_TTL_MS", "5", "LUXRELAY_STORE_TTL_MS"),
        ("LUXRELAY_STORE_TTL_MS", "ten", "whole number"),
        ("LUXRELAY_SYNC_ALLOW_PUBLISH", "yes", "true or false"),
        ("LUXRELAY_STORE_TTL", "60000", "no key is called LUXRELAY_STORE_TTL"),
        ("LUXRELAY_CHANNEL_KEEP", "false", "no key is called LUXRELAY_CHANNEL_KEEP"),
    ],
)
def test_a_variable_that_does_not_fit_is_named(name: str, value: str, words: str) -> None:
    """The message says that it came from the environment."""
    with pytest.raises(ConfigError, match=words) as caught:
        parse(MINIMAL, {name: value})
    assert "environment" in caught.value.where


def test_profiles_change_defaults_and_nothing_else() -> None:
    """What the file says counts more than its profile."""
    stored = parse(MINIMAL + 'profile = "store"\n')
    assert stored.profile == "store"
    assert stored.ttl_ms == 30 * 86_400_000
    chosen = parse(MINIMAL + 'profile = "store"\n[store]\nttl_ms = 7000\n')
    assert chosen.ttl_ms == 7_000
    assert parse(MINIMAL, {"LUXRELAY_NODE_PROFILE": "light"}).connections_max == 12
    with pytest.raises(ConfigError, match="does not fit"):
        parse(MINIMAL + 'profile = "archive"\n')


def test_every_profile_fits_its_keys() -> None:
    """No profile's default would be refused if it were written out."""
    keys = {(key.section, key.name): key for key in KEYS}
    for name, defaults in PROFILES.items():
        for place, value in defaults.items():
            assert keys[place].check(value) is None, (name, place)


@pytest.mark.parametrize(
    ("profile", "role"),
    [("light", "light"), ("validator", "validator"), ("relay", "relay"), ("store", "relay"),
     ("messenger", "relay")],
)  # fmt: skip
def test_a_profile_sets_the_role(profile: str, role: str) -> None:
    """A light node is in no mesh and follows no headers of others; a validator follows blocks."""
    config = parse(commented_file(profile, ["/chat/1/room"]))

    assert config.peering.role == role
    kinds = {topic.rpartition("/")[2] for topic in followed_topics(config, [])}
    assert ("global" in kinds) is (role != "light")
    assert ("proposed" in kinds) is (role == "validator")


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_the_template_says_what_holds_anyway(profile: str) -> None:
    """The file as written, and the file with every key made to count, are the same node."""
    text = commented_file(profile, ["/chat/1/room", 'odd "topic"'])
    spoken = "\n".join(line.removeprefix("#: ") for line in text.splitlines())
    assert parse(text) == parse(spoken)
    assert parse(text).profile == profile
    assert len(parse(text).namespaces) == 2
    named = tomllib.loads(spoken)
    assert all(key.name in named[key.section] for key in KEYS if key.section != "namespace"), (
        "every key stands in it"
    )


def test_the_template_without_topics_is_a_file_too() -> None:
    """It shows how a namespace is written, and carries none."""
    text = commented_file("relay")
    assert parse(text).namespaces == ()
    assert len(parse(text.replace("#: [[", "[[").replace("#: content", "content")).namespaces) == 1


def test_variables_are_named_after_their_keys() -> None:
    """One variable for each key, no two alike."""
    names = [variable(key.section, key.name) for key in KEYS]
    assert len(set(names)) == len(names)
