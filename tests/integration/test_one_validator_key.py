"""One key in one list: gossip's trust, the sync port's share and finality follow from it."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from luxrelay.bus import MsgHeader, SigningKey, lane, topic_namespace
from luxrelay.bus.vouching import TLS_PROOF_MAX
from luxrelay.cli.main import main
from luxrelay.client import LaneSigner, RelayClient
from luxrelay.errors import ConfigError, LuxRelayError, SyncArgumentError
from luxrelay.node.config import parse_config
from luxrelay.node.folder import Runtime
from luxrelay.node.gateway.tokens import TokenFile
from luxrelay.sync import ClientTls
from luxrelay.testing.certificates import TestAuthority

if TYPE_CHECKING:
    from tests.conftest import NodeProcess

pytestmark = pytest.mark.slow
AUTHORITY = TestAuthority("ca", at_ms=time.time_ns() // 1_000_000)
PARENT = topic_namespace("/chat/1/room")
Run = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs a command that must succeed, and returns what it printed; a validator's key is there."""

    def run(*arguments: object) -> str:
        assert main([str(each) for each in arguments]) == 0
        return capsys.readouterr().out.strip()

    run("keys", "new", tmp_path / "validator.pem")
    return run


def with_tls(node: NodeProcess) -> NodeProcess:
    """Give a node a certificate, which it shows to both sides, and a gateway."""
    node.folder.mkdir()
    shown = AUTHORITY.sign(node.folder.name)
    (node.folder / "relay.pem").write_bytes(shown.certificate)
    (node.folder / "relay.key").write_bytes(shown.key)
    (node.folder / "ca.pem").write_bytes(AUTHORITY.certificate)
    node.sections["sync"] |= {
        "tls_certificate": "relay.pem",
        "tls_key": "relay.key",
        "tls_client_ca": "ca.pem",
        "tls_peer_ca": "ca.pem",
    }
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    return node


def pages(place: Runtime) -> float:
    """Return how many pages proven validators have asked a node for, as its page says."""
    with urllib.request.urlopen(f"http://{place.http}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    name = "luxrelay_sync_validator_pages_total "
    return next(float(line[len(name) :]) for line in lines if line.startswith(name))


def score(place: Runtime, peer: str) -> float:
    """Return what a node's application has to say for a peer, 0 for one that is not connected."""
    with RelayClient(place.gateway) as client:
        peers = client.described("/v1/peers")["peers"]
    found = (each["score"] for each in peers if each["peerId"] == peer)
    return (next(found, None) or {"application": 0.0})["application"]


def test_a_key_that_is_listed_once_is_a_validator_everywhere(
    new_node: Callable[[str], NodeProcess],
    eventually: Callable[..., Any],
    said: Run,
    tmp_path: Path,
) -> None:
    """`[validators] keys`: gossip's bonus (G24), sync's share (21-41, P33), finality (J9)."""
    key, statements = tmp_path / "validator.pem", tmp_path / "statements.hex"
    statements.write_text("")
    relay = with_tls(new_node("relay"))
    relay.sections["validators"] = {"keys": [said("keys", "export-public", key)]}
    relay.sections["finality"] = {"file": str(statements), "refresh_ms": 200}
    place = relay.start()

    plain, trusted = with_tls(new_node("plain")), with_tls(new_node("trusted"))
    peers = {}
    for node in (plain, trusted):
        node.sections["sync"]["peers"] = [place.sync.replace("127.0.0.1", "localhost")]
        peers[node.folder.name] = node.start().peer_id
        node.stop()
        node.sections["gossip"]["peers"] = list(place.gossip)
    sync, gossip = trusted.sections["sync"], trusted.sections["gossip"]
    gossip["validator_proof"] = said("keys", "vouch", key, "--peer", peers["trusted"])
    certificate = trusted.folder / "relay.pem"
    sync["validator_proof"] = said("keys", "vouch", key, "--tls-certificate", certificate)

    text, _ = TokenFile(relay.folder / "data", 8).new("tester", ["read", "publish"], 0)
    sender = SigningKey.generate()
    message = LaneSigner(sender, PARENT).sign(b"hello", time.time_ns() // 1_000_000)
    with RelayClient(place.gateway, token=text) as client:

        def stored() -> bool:
            try:
                return client.publish([message])[0].stored
            except LuxRelayError:
                return False  # the token is not known yet

        eventually(stored, seconds=30)
        here = plain.start()
        eventually(lambda: holds(here, sender), seconds=60)
        assert pages(place) == 0
        trusted.start()
        eventually(lambda: pages(place) > 0, seconds=60)
        eventually(lambda: score(place, peers["trusted"]) > 0, seconds=60)
        assert score(place, peers["plain"]) <= 0

        header = MsgHeader.decode(message.header)
        row = f"{header.namespace_id.hex()}:1:{header.header_hash.hex()}"
        line = said("finality", "sign", "--key", key, "--network", "test", "--number", 1, row)
        with statements.open("a") as file:
            file.write(line + "\n")
        eventually(
            lambda: client.head(lane(PARENT, sender.public_field)).finalized_seq == 1, seconds=30
        )


def holds(place: Runtime, sender: SigningKey) -> bool:
    """Return whether a node holds the sender's message."""
    with RelayClient(place.gateway) as client:
        return client.head(lane(PARENT, sender.public_field)).latest_seq == 1


def test_lists_of_their_own_go_before(tmp_path: Path) -> None:
    """Who names gossip.validators or finality.signers means those alone there."""
    keys = [SigningKey.generate().public_field for _ in range(3)]
    (tmp_path / "statements.hex").write_text("")
    text = f"""
[node]
data_dir = "data"
[gossip]
validators = ["{keys[1].hex()}"]
[finality]
file = "statements.hex"
signers = ["{keys[2].hex()}"]
[validators]
keys = ["{keys[0].hex()}"]
"""
    config = parse_config(text, source="relay.toml", base=tmp_path)

    assert config.peering.validators == {keys[1]}
    assert config.finality_signers == (keys[2],)
    assert config.sync_limits.validator_keys == {keys[0]}
    bare = parse_config(
        f'[node]\ndata_dir = "data"\n[validators]\nkeys = ["{keys[0].hex()}"]\n',
        source="relay.toml", base=tmp_path,
    )  # fmt: skip
    assert bare.peering.validators == {keys[0]}
    assert bare.finality_signers == ()


def test_a_proof_that_cannot_be_used_is_refused(
    said: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For another certificate, without one, of a key whose proof is too long, of no file."""
    key = tmp_path / "validator.pem"
    mine, other = AUTHORITY.sign("mine"), AUTHORITY.sign("other")
    (tmp_path / "mine.pem").write_bytes(mine.certificate)
    proof = bytes.fromhex(said("keys", "vouch", key, "--tls-certificate", tmp_path / "mine.pem"))

    ClientTls(certificate=mine.certificate, key=mine.key, validator_proof=proof)
    for shown, given in (
        ({"certificate": other.certificate, "key": other.key}, proof),
        ({"certificate": mine.certificate, "key": mine.key}, proof[:-1] + bytes([proof[-1] ^ 1])),
        ({"certificate": mine.certificate, "key": mine.key}, bytes(TLS_PROOF_MAX + 1)),
        ({}, proof),
    ):
        with pytest.raises(SyncArgumentError, match="validator's proof"):
            ClientTls(**shown, validator_proof=given)
    said("keys", "new", tmp_path / "large.pem", "--scheme", "ml-dsa-65")
    for name, file, words in (
        ("large.pem", "mine.pem", "2,048"),
        ("validator.pem", "absent.pem", "cannot read it"),
        ("validator.pem", "validator.pem", "not PEM"),
    ):
        vouch = ["keys", "vouch", str(tmp_path / name), "--tls-certificate", str(tmp_path / file)]
        assert main(vouch) == 1
        assert words in capsys.readouterr().err
    text = f'[node]\ndata_dir = "data"\n[sync]\nvalidator_proof = "{proof.hex()}"\n'
    with pytest.raises(ConfigError, match="tls_peer_ca"):
        parse_config(text, source="relay.toml", base=tmp_path)
