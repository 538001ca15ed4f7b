"""What a node's file says of blobs, memory and quotas is what its store holds to."""

from __future__ import annotations

from pathlib import Path

import pytest

from luxrelay.bus import Identity, IdentityType, NamespacePolicy, SignedPolicy, SigningKey
from luxrelay.bus import topic_namespace as topic
from luxrelay.bus.policy import RetentionClass
from luxrelay.errors import ConfigError
from luxrelay.node.assembly import declared_rates, require_ephemeral, store_config_of
from luxrelay.node.config import NodeConfig, parse_config
from luxrelay.node.policies import CurrentPolicies
from luxrelay.node.store_keys import STORE_KEYS
from luxrelay.store import RelayStoreConfig
from luxrelay.store.stats import capacity_warnings

NOW = 1_764_000_000_000
OWNER = SigningKey.generate()
ROOM, HALL = "/chat/1/room", "/chat/1/hall"


def parse(folder: Path, store: str = "", room: str = "", hall: str = "") -> NodeConfig:
    """Return a configuration with two namespaces."""
    text = f"""
[node]
data_dir = "data"
[store]
{store}
[[namespace]]
content_topic = "{ROOM}"
{room}
[[namespace]]
content_topic = "{HALL}"
{hall}
"""
    return parse_config(text, source="relay.toml", base=folder)


def test_defaults_are_the_store_s(tmp_path: Path) -> None:
    """A file that says nothing leaves the store's own defaults (21-36)."""
    made, default = store_config_of(parse(tmp_path)), RelayStoreConfig()
    for key in STORE_KEYS:
        assert getattr(made, key.name) == getattr(default, key.name), key.name


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("blobs_enabled", "false", False),
        ("blob_bytes_max", "1000", 1000),
        ("blob_cache_bytes", "5000", 5000),
        ("blob_ttl_ms", "60000", 60_000),
        ("hot_messages_max", "7", 7),
        ("hot_bytes_max", "8", 8),
        ("hot_ttl_ms", "9", 9),
    ],
)
def test_each_key_reaches_the_store(tmp_path: Path, name: str, text: str, value: object) -> None:
    """Under the same name (21-36, P30)."""
    made = store_config_of(parse(tmp_path, store=f"{name} = {text}"))

    assert getattr(made, name) == value


def test_a_value_out_of_range_names_its_line(tmp_path: Path) -> None:
    """Nothing is started with it."""
    with pytest.raises(ConfigError) as caught:
        parse(tmp_path, store="blob_bytes_max = 2097153")

    assert caught.value.where == "relay.toml:5 [store] blob_bytes_max"


def test_a_namespace_has_its_own_quota(tmp_path: Path) -> None:
    """Those that name one; the others share the default (P1)."""
    made = store_config_of(parse(tmp_path, room="quota_bytes = 123456"))

    assert made.namespace_quotas == {topic(ROOM): 123456}


def test_blobs_that_would_not_be_kept_are_not_asked_for(tmp_path: Path) -> None:
    """The largest is 0 where none is kept."""
    assert parse(tmp_path).store_limits.largest_blob == 2 * 1024 * 1024
    assert parse(tmp_path, store="blob_bytes_max = 9").store_limits.largest_blob == 9
    assert parse(tmp_path, store="blobs_enabled = false").store_limits.largest_blob == 0


def test_a_policy_that_brings_more_than_fits_is_told(tmp_path: Path) -> None:
    """The rate of the policy in force, against the namespace's quota (P31)."""
    policy = NamespacePolicy(
        owner=Identity(IdentityType.RAW_KEY, OWNER.public_field),
        version=1,
        messages_per_second=10,
        bytes_per_second=10_000,
    )
    document = SignedPolicy(network="devnet", namespace_id=topic(ROOM), policy=policy)
    (tmp_path / "room.policy").write_text(document.signed_by(OWNER).encode().hex() + "\n")
    file = 'policy_file = "room.policy"'
    config = parse(tmp_path, room=file)
    (rate,) = declared_rates(config, CurrentPolicies(config), NOW)
    assert (rate.namespace_id, rate.messages_per_s, rate.bytes_per_s) == (topic(ROOM), 10, 10_000)
    needed = rate.needed_bytes(store_config_of(config))

    assert capacity_warnings(store_config_of(config), [rate]) == []
    for quota, lines in ((needed, 0), (needed - 1, 1)):
        small = parse(tmp_path, room=f"{file}\nquota_bytes = {quota}")
        assert len(capacity_warnings(store_config_of(small), [rate])) == lines


def test_a_namespace_is_thinned_by_its_own_ratio(tmp_path: Path) -> None:
    """Off by default; 1 would mean nothing and is refused (J3, 21-44)."""
    assert store_config_of(parse(tmp_path)).thin_ratios == {}
    made = store_config_of(parse(tmp_path, room="thin_ratio = 5"))
    assert made.thin_ratios == {topic(ROOM): 5}

    with pytest.raises(ConfigError, match="thin_ratio is 1"):
        parse(tmp_path, room="thin_ratio = 1")


@pytest.mark.parametrize("kept", list(RetentionClass))
def test_only_ephemeral_namespaces_are_thinned(tmp_path: Path, kept: RetentionClass) -> None:
    """A policy that promises history is not overruled by a configuration file (P16, J3)."""
    policy = NamespacePolicy(
        owner=Identity(IdentityType.RAW_KEY, OWNER.public_field), version=1, retention_class=kept
    )
    document = SignedPolicy(network="devnet", namespace_id=topic(ROOM), policy=policy)
    (tmp_path / "room.policy").write_text(document.signed_by(OWNER).encode().hex() + "\n")
    config = parse(tmp_path, room='policy_file = "room.policy"\nthin_ratio = 5')

    if kept is RetentionClass.EPHEMERAL:
        require_ephemeral(config, CurrentPolicies(config), NOW)
    else:
        with pytest.raises(ConfigError, match="not Ephemeral"):
            require_ephemeral(config, CurrentPolicies(config), NOW)
    plain = parse(tmp_path, room='policy_file = "room.policy"')
    require_ephemeral(plain, CurrentPolicies(plain), NOW)
