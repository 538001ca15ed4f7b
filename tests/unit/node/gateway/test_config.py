"""The [gateway] section."""

from dataclasses import fields
from pathlib import Path

import pytest

from luxrelay.errors import ConfigError
from luxrelay.gate import is_loopback
from luxrelay.node.config import parse_config
from luxrelay.node.gateway.config import GATEWAY_KEYS, GatewayConfig


def gateway(text: str) -> GatewayConfig:
    """Return the section of a file."""
    whole = f'[node]\ndata_dir = "data"\n[gateway]\n{text}\n'
    return parse_config(whole, source="relay.toml", base=Path("/etc/luxrelay")).gateway


def test_defaults_are_off_and_closed() -> None:
    """Without the section nothing listens; with it, admin calls stay on loopback."""
    assert gateway("") == GatewayConfig()
    assert not GatewayConfig().listen
    assert is_loopback(GatewayConfig().admin_listen.rpartition(":")[0])


def test_every_field_is_a_key_with_a_sentence() -> None:
    """The class and the file know the same keys, and each default passes its own check."""
    assert [key.name for key in GATEWAY_KEYS] == [each.name for each in fields(GatewayConfig)]
    for key in GATEWAY_KEYS:
        assert key.check(key.default) is None
        assert key.sentence.endswith(".")


def test_paths_start_at_the_file() -> None:
    """A relative certificate lies beside the file."""
    config = gateway('tls_certificate = "c.pem"\ntls_key = "k.pem"')

    assert config.tls_certificate == "/etc/luxrelay/c.pem"


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ('listen = "0.0.0.0:9643"', 4, "in the clear"),
        ('listen = "relay.example.org:9643"', 4, "in the clear"),
        ('listen = "127.0.0.1:1"\nadmin_listen = "0.0.0.0:2"', 5, "need TLS"),
        ('admin_listen = "0.0.0.0:2"', 4, "need TLS"),
        ('grpc_listen = "0.0.0.0:9645"', 4, "in the clear"),
        ('grpc_admin_listen = "0.0.0.0:9646"', 4, "need TLS"),
        ('grpc_admin_listen = "0.0.0.0:9646"\nbehind_proxy = true', 4, "need TLS"),
        ('tls_key = "k.pem"', 3, "belong together"),
        ('listen = "127.0.0.1:70000"', 4, "address"),
        ('cors_origins = ["*"]', 4, "origin"),
        ("connections_max = 0", 4, "whole number"),
        ('anonymous = "everybody"', 4, "one of"),
    ],
)
def test_reject_what_would_be_open_by_mistake(text: str, line: int, word: str) -> None:
    """A dangerous or wrong value is named with its line."""
    with pytest.raises(ConfigError) as caught:
        gateway(text)
    said = str(caught.value)
    assert word in said
    assert f"relay.toml:{line} " in said or line == 3


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('listen = "127.0.0.1:0"', True),
        ('listen = "[::1]:0"', True),
        ('listen = "localhost:0"', True),
        ('listen = "127.0.0.1:0"\nbehind_proxy = true', False),
        ('listen = "0.0.0.0:0"\nbehind_proxy = true', False),
        ('listen = "0.0.0.0:0"\nbehind_proxy = true\nanonymous = "anybody"', True),
        ('listen = "127.0.0.1:0"\nanonymous = "nobody"', False),
    ],
)
def test_who_reads_without_a_token(text: str, *, read: bool) -> None:
    """Only on loopback, and not behind a proxy, unless the operator says anybody."""
    assert gateway(text).anonymous_read is read


@pytest.mark.parametrize("name", ["grpc_listen", "grpc_admin_listen"])
def test_reject_grpc_while_the_gateway_is_off(name: str) -> None:
    """A port that nothing would open is no setting."""
    with pytest.raises(ConfigError, match="the gateway is off"):
        gateway(f'{name} = "127.0.0.1:9645"')

    assert gateway(f'listen = "127.0.0.1:9643"\n{name} = "127.0.0.1:9645"').grpc_listen is not None
