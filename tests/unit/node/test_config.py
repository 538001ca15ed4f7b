"""The configuration: every key, and a line for every mistake."""

import os
from pathlib import Path

import pytest

from luxrelay.bus import SignatureScheme, SigningKey, topic_namespace
from luxrelay.bus.policy import default_policy
from luxrelay.errors import ConfigError
from luxrelay.node.config import (
    FILE_BYTES_MAX,
    NAMESPACES_MAX,
    NodeConfig,
    load_config,
    parse_config,
)
from luxrelay.node.settings import KEYS, SYNC_PEERS_MAX
from luxrelay.sync import CatchUpConfig

MINIMAL = '[node]\ndata_dir = "data"\n'
PEER = "12D3KooWGGZge4cnNezVKmNfyTU6QKrdSJiTtRqEZwAo5xGfYwa9"


def parse(text: str) -> NodeConfig:
    """Parse a text as if it stood in /etc/relay.toml."""
    return parse_config(text, source="relay.toml", base=Path("/etc"))


def test_defaults() -> None:
    """A file with a data folder is enough; the defaults are the documented ones (21-01)."""
    config = parse(MINIMAL)

    assert config.data_dir == Path("/etc/data")
    assert config.ttl_ms == 600_000
    assert config.max_storage_bytes == 1024**3
    assert config.gossip_listen == ("/ip4/127.0.0.1/tcp/9640",)
    assert (config.sync_listen, config.allow_publish) == ("127.0.0.1:9641", False)
    assert config.namespaces == ()


def test_every_default_passes_its_own_check() -> None:
    """No key's default would be refused if it were written out."""
    for key in KEYS:
        if key.default is not None:
            assert key.check(key.default) is None, key.name


def test_namespace_by_topic_and_by_id() -> None:
    """A namespace comes from a content topic or an id, with its default or a given policy."""
    config = parse(
        MINIMAL
        + '[[namespace]]\ncontent_topic = "/chat/1/room"\n'
        + f'[[namespace]]\nid = "0x{"22" * 20}"\npolicy_hash = "{"ab" * 32}"\n'
    )

    first, second = config.namespaces
    assert first.namespace_id == topic_namespace("/chat/1/room")
    assert first.policy_hash == default_policy(first.namespace_id).policy_hash
    assert second.namespace_id == b"\x22" * 20
    assert second.policy_hash == b"\xab" * 32


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("", "", "data_dir is missing"),
        ("[node]\nname = 5\n", ":2", "does not fit"),
        ('[node]\ndata_dir = "d"\nname = "a b"\n', ":3", "1 to 64"),
        ('[node]\ndata_dir = "d"\n\n[gossip]\nlisten = ["tcp:1"]\n', ":5", "multiaddress"),
        ('[node]\ndata_dir = "d"\n[store]\nttl_ms = 5\n', ":4", "from 1,000"),
        ('[node]\ndata_dir = "d"\n[store]\nttl_ms = true\n', ":4", "whole number"),
        ('[node]\ndata_dir = "d"\n[store]\ndurability = "maybe"\n', ":4", "fsync"),
        ('[node]\ndata_dir = "d"\n[sync]\nlisten = "9641"\n', ":4", "127.0.0.1:9641"),
        ('[node]\ndata_dir = "d"\n[sync]\nallow_publish = 1\n', ":4", "true or false"),
        ('[node]\ndata_dir = "d"\n[http]\nport = 1\n', ":4", "unknown key 'port'"),
        ('[node]\ndata_dir = "d"\n[nodes]\n', ":3", "unknown section 'nodes'"),
        ("node = 5\n", ":1", "must be a table"),
        ('[node]\ndata_dir = "d"\n[namespace]\nid = ""\n', ":3", "list of tables"),
        ('[node]\ndata_dir = "d"\n[[namespace]]\n', ":3", "content_topic or id"),
        (
            '[node]\ndata_dir = "d"\n[[namespace]]\ncontent_topic = "a"\n[[namespace]]\nid = "x"\n',
            ":6",
            "40 hex digits",
        ),
        (
            (
                '[node]\ndata_dir = "d"\n[[namespace]]\ncontent_topic = "a"\n'
                '[[namespace]]\ncontent_topic = "a"\n'
            ),
            ":5",
            "listed twice",
        ),
        (f'[node]\ndata_dir = "d"\n[[namespace]]\nid = "{"00" * 20}"\n', ":3", "all-zero"),
        ('[node\ndata_dir = "d"\n', "", "not TOML"),
        ('[node]\ndata_dir = "d"\n[gossip]\npeers = "x"\n', ":4", "a list"),
        ('[node]\ndata_dir = "d\\u0000"\n', ":2", "NUL"),
        ('[node]\ndata_dir = "d"\n[sync]\nlisten = "127.0.0.1:65536"\n', ":4", "127.0.0.1:9641"),
        ('[node]\ndata_dir = "d"\n[http]\nlisten = "127.0.0.1:99999"\n', ":4", "does not fit"),
        ('[node]\ndata_dir = "d"\n[sync]\npeers = ["h:1", "h:1"]\n', ":4", "each entry once"),
        ('[node]\ndata_dir = "d"\n[sync]\npeers = ["h:0"]\n', ":4", "127.0.0.1:9641"),
        (
            f'[node]\ndata_dir = "d"\n[sync]\npeers = {[f"h:{i}" for i in range(33)]}\n',
            ":4",
            "at most 32",
        ),
        (
            '[node]\ndata_dir = "d"\n[gossip]\nlisten = ["/ip4/127.0.0.1/tcp/65536"]\n',
            ":4",
            "multiaddress",
        ),
        (
            '[node]\ndata_dir = "d"\n[gossip]\nlisten = ["/ip4/127.0.0.256/tcp/0"]\n',
            ":4",
            "multiaddress",
        ),
        (
            '[node]\ndata_dir = "d"\n[gossip]\nlisten = ["/ip6/127.0.0.1/tcp/0"]\n',
            ":4",
            "multiaddress",
        ),
        (
            f'[node]\ndata_dir = "d"\n[gossip]\nlisten = ["/ip4/127.0.0.1/tcp/0/p2p/{PEER}"]\n',
            ":4",
            "multiaddress",
        ),
        (
            '[node]\ndata_dir = "d"\n[gossip]\npeers = ["/ip4/127.0.0.1/tcp/9640"]\n',
            ":4",
            "with the peer's id",
        ),
        (
            f'[node]\ndata_dir = "d"\n[gossip]\npeers = ["/ip4/127.0.0.1/tcp/0/p2p/{PEER}"]\n',
            ":4",
            "with the peer's id",
        ),
        (f"a = {'[' * 5000}{']' * 5000}\n", "", "nested too deeply"),
        ('[node]\ndata_dir = "d"\n[gosip]\nlisten = []\n', ":3", "did you mean 'gossip'?"),
        ('[node]\ndata_dri = "d"\n', ":2", "did you mean 'data_dir'?"),
        ('[node]\ndata_dir = "d"\nx = 1\n', ":3", "known are: name, "),
        (
            '[node]\ndata_dir = "d"\n[gateway]\nlisten = "127.0.0.1:9641"\n',
            ":4",
            "127.0.0.1:9641 is where [sync] listen listens",
        ),
        (
            '[node]\ndata_dir = "d"\n[http]\nlisten = "0.0.0.0:9640"\n',
            ":4",
            "is where [gossip] listen listens",
        ),
    ],
)
def test_reject_mistake_with_its_line(text: str, line: str, word: str) -> None:
    """Each mistake is answered with the file, the line, what is wrong and what to do."""
    with pytest.raises(ConfigError) as caught:
        parse(text)

    message = str(caught.value)
    assert word in message
    assert f"relay.toml{line}" in message
    assert "\n" not in message


def test_reject_too_many_namespaces() -> None:
    """The number of namespaces is bounded."""
    tables = "".join(f'[[namespace]]\ncontent_topic = "{i}"\n' for i in range(NAMESPACES_MAX + 1))
    with pytest.raises(ConfigError, match="more than"):
        parse(MINIMAL + tables)


def test_load_reports_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing, a huge and a binary file are clear errors."""
    binary, huge = tmp_path / "b.toml", tmp_path / "h.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    huge.write_bytes(b"#" * (4 * 1024 * 1024 + 1))

    for path, word in (
        (tmp_path / "none.toml", "cannot read"),
        (binary, "UTF-8"),
        (huge, "larger"),
    ):
        with pytest.raises(ConfigError, match=word):
            load_config(path)


def test_accept_every_kind_of_address() -> None:
    """What can be listened on and what can be dialled is taken as it stands."""
    config = parse(
        MINIMAL
        + '[gossip]\nlisten = ["/ip4/0.0.0.0/tcp/0", "/ip6/::1/tcp/65535"]\n'
        + f'peers = ["/dns4/relay.example/tcp/1/p2p/{PEER}"]\n'
        + '[sync]\nlisten = "[::1]:65534"\npeers = ["relay.example:1"]\n'
    )

    assert config.gossip_listen == ("/ip4/0.0.0.0/tcp/0", "/ip6/::1/tcp/65535")
    assert config.gossip_peers == (f"/dns4/relay.example/tcp/1/p2p/{PEER}",)
    assert (config.sync_listen, config.sync_peers) == ("[::1]:65534", ("relay.example:1",))


def test_sync_peers_are_as_many_as_a_catch_up_asks() -> None:
    """No list that the configuration takes is refused by the catch-up."""
    assert CatchUpConfig().peers_max == SYNC_PEERS_MAX


def test_load_stops_reading_at_the_bound(tmp_path: Path) -> None:
    """A device that never ends is refused, not read; so is a file above the bound."""
    with pytest.raises(ConfigError, match="no regular file"):
        load_config(Path("/dev/zero"))
    large = tmp_path / "relay.toml"
    large.touch()
    os.truncate(large, FILE_BYTES_MAX + 1)
    with pytest.raises(ConfigError, match="larger"):
        load_config(large)


def test_load_reads_a_file(tmp_path: Path) -> None:
    """Relative folders start at the file's own folder."""
    path = tmp_path / "relay.toml"
    path.write_text(MINIMAL)

    assert load_config(path).data_dir == tmp_path / "data"


def test_reject_more_peers_than_connections() -> None:
    """Every configured peer gets a connection, and others find one free."""
    peers = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}" for port in (1, 2)]

    with pytest.raises(ConfigError, match=r"relay.toml:4 \[gossip\] peers"):
        parse(MINIMAL + f"[gossip]\npeers = {peers}\nconnections_max = 2\n")


def test_sync_rates_and_certificates() -> None:
    """The sync port takes its rates (21-40) and files, which start at the file's folder."""
    limits = parse(
        MINIMAL
        + '[sync]\ntls_certificate = "c.pem"\ntls_key = "k.pem"\ntls_client_ca = "/ca.pem"\n'
        f'peer_bytes_per_s = 7\nvalidators = ["{"ab" * 32}"]\nvalidator_weight = 9\n'
    ).sync_limits

    assert limits.tls_certificate == Path("/etc/c.pem")
    assert limits.tls_client_ca == Path("/ca.pem")
    assert limits.tls_peer_ca is None
    assert (limits.peer_bytes_per_s, limits.out_bytes_per_s) == (7, 8 * 1024 * 1024)
    assert limits.validators == {"ab" * 32}
    assert limits.validator_weight == 9


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('tls_certificate = "c.pem"', "belong together"),
        ('tls_key = "k.pem"', "belong together"),
        ('tls_client_ca = "ca.pem"', "in the clear"),
        ('validators = ["AB"]', "64 lower-case"),
    ],
)
def test_refuse_certificates_that_cannot_serve(text: str, why: str) -> None:
    """Half of a certificate, or an authority without one, names its line."""
    with pytest.raises(ConfigError, match=why) as caught:
        parse(MINIMAL + "[sync]\n" + text + "\n")

    assert "relay.toml:4" in str(caught.value)


KEY = SigningKey.from_seed(SignatureScheme.ED25519, bytes(32)).public_field.hex()


def test_fees_limits_and_finality() -> None:
    """Their values arrive checked; 0 limits nothing."""
    config = parse(
        MINIMAL
        + f'[fees]\nprepaid_issuers = ["0x{KEY}"]\nfree_tier = false\n'
        + f'[finality]\nfile = "final.hex"\nsigners = ["{KEY}"]\n'
        + "[limits]\nsender_messages_per_s = 0\nburst_s = 7\n"
    )
    assert config.prepaid_issuers == (bytes.fromhex(KEY),)
    assert not config.free_tier
    assert config.finality_file == Path("/etc/final.hex")
    assert config.finality_signers == (bytes.fromhex(KEY),)
    assert config.limits.sender.messages_per_s == float("inf")
    assert config.limits.peer.messages_per_s == 1000
    assert config.limits.burst_factor == 7


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ('[fees]\nprepaid_issuers = ["0102"]\n', "[fees]", "is no public key field"),
        ('[finality]\nfile = "final.hex"\n', "[finality]", "both a file and its signers"),
        (f'[finality]\nsigners = ["{KEY}"]\n', "[finality]", "both a file and its signers"),
        ("[limits]\nburst_s = 0\n", "burst_s", "does not fit"),
    ],
)
def test_reject_fees_and_finality_that_do_not_fit(text: str, where: str, words: str) -> None:
    """The line says which section is meant."""
    with pytest.raises(ConfigError, match=words) as error:
        parse(MINIMAL + text)
    assert where in error.value.where
