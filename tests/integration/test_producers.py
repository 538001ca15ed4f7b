"""What operators and developers sign by command, and what a running node makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from luxrelay.bus import MsgHeader, NamespaceId, SigningKey, lane, topic_namespace
from luxrelay.bus.namespace import (
    Intent,
    Naming,
    derived_namespace,
    direct_namespace,
    dkg_namespace,
    group_namespace,
    intent_namespace,
    key_directory_namespace,
    namespace_id,
)
from luxrelay.cli.main import main
from luxrelay.client import Outgoing, RelayClient
from luxrelay.errors import LuxRelayError
from luxrelay.node.gateway.tokens import TokenFile

if TYPE_CHECKING:
    from tests.conftest import NodeProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def said() -> Callable[..., str]:
    """Runs a command that must succeed, as users run it, and returns what it printed."""

    def run(*arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "luxrelay", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def key(tmp_path: Path, said: Callable[..., str]) -> Path:
    """A key file."""
    said("keys", "new", tmp_path / "key.pem")
    return tmp_path / "key.pem"


def public(said: Callable[..., str], key: Path) -> str:
    """Return the public key field of a key file, hex."""
    return said("keys", "export-public", key)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--topic", "/chat/1/room"], topic_namespace("/chat/1/room")),
        (["--namespace", "11" * 20], b"\x11" * 20),
        (["--parent", "11" * 20, "--path", "a/b"], derived_namespace(b"\x11" * 20, b"a/b")),  # type: ignore[arg-type]
        (
            ["--owner", "22" * 20, "--salt", "33" * 32, "--block", "7"],
            namespace_id(b"\x22" * 20, b"\x33" * 32, 7),
        ),
        (["--direct", "44" * 20, "55" * 20], direct_namespace(b"\x44" * 20, b"\x55" * 20)),
        (
            ["--direct", "55" * 20, "44" * 20, "--spec-names"],
            direct_namespace(b"\x44" * 20, b"\x55" * 20, naming=Naming.SPEC),
        ),
        (["--group", "66" * 32], group_namespace(b"\x66" * 32)),
        (["--ceremony", "77" * 20], dkg_namespace(NamespaceId(b"\x77" * 20))),
        (["--ceremony"], dkg_namespace()),
        (["--intent", "swap"], intent_namespace(Intent.SWAP)),
        (["--directory"], key_directory_namespace()),
    ],
)
def test_ids_are_derived(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: bytes
) -> None:
    """Each way of LP-6410, and the lane of a sender in it (J6)."""
    field = SigningKey.generate().public_field

    assert main(["namespace", "derive", *arguments, "--lane", field.hex()]) == 0

    found = json.loads(capsys.readouterr().out)

    assert found["namespaceId"] == "0x" + expected.hex()
    wanted = lane(NamespaceId(expected), field)
    assert found["lane"] == "0x" + wanted.hex()


def test_a_new_id_of_a_wallet_comes_with_its_salt(said: Callable[..., str]) -> None:
    """The salt gives the same id again, and each call draws another (S2)."""
    asked = ("namespace", "derive", "--owner", "22" * 20, "--block", "9")

    first, second = json.loads(said(*asked)), json.loads(said(*asked))

    assert json.loads(said(*asked, "--salt", first["salt"])) == first
    assert second["namespaceId"] != first["namespaceId"]


def test_an_id_that_lacks_a_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With the part that is needed."""
    for arguments, part in (
        (["--parent", "11" * 20], "--path"),
        (["--owner", "22" * 20], "--block"),
        (["--ceremony", "--spec-names"], "parent"),
        (["--owner", "22" * 20, "--salt", "33" * 32], "--block"),
        (["--topic", "/a", "--lane", "zz"], "--lane"),
    ):
        assert main(["namespace", "derive", *arguments]) != 0
        assert part in capsys.readouterr().err


def token_of(node: NodeProcess) -> str:
    """Return a token of a running node that may read and publish."""
    text, _ = TokenFile(node.folder / "data", 8).new("tester", ["read", "publish"], 0)
    return text


def test_a_header_signed_by_command_is_published_and_finalized(
    new_node: Callable[[str], NodeProcess],
    eventually: Callable[..., Any],
    said: Callable[..., str],
    key: Path,
    tmp_path: Path,
) -> None:
    """`header sign`, HTTP, `finality sign`, and the node's own file of statements (J9)."""
    node, statements = new_node("relay"), tmp_path / "statements.hex"
    statements.write_text("")
    node.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    node.sections["finality"] = {"file": str(statements), "signers": [public(said, key)[2:]]}
    ids = json.loads(
        said("namespace", "derive", "--topic", node.topics[0], "--lane", public(said, key))
    )
    (tmp_path / "blob").write_bytes(b"hello")
    (tmp_path / "header.json").write_text(
        json.dumps(
            {
                "namespaceId": ids["lane"],
                "seq": 1,
                "timestamp": time.time_ns() // 1_000_000,
                "policyHash": ids["defaultPolicyHash"],
            }
        )
    )
    signed = said(
        "header", "sign", tmp_path / "header.json", "--key", key, "--blob", tmp_path / "blob"
    )
    header = MsgHeader.decode(bytes.fromhex(signed[2:]))
    message = Outgoing(
        header=header.encode(), blob=b"hello", parent=bytes.fromhex(ids["namespaceId"][2:])
    )
    place = node.start()
    with RelayClient(place.gateway, token=token_of(node)) as client:

        def published() -> bool:
            try:
                return client.publish([message])[0].stored
            except LuxRelayError:
                return False  # the token is not known yet

        eventually(published, seconds=30)
        row = f"{header.namespace_id.hex()}:1:{header.header_hash.hex()}"
        line = said("finality", "sign", "--key", key, "--network", "test",
                    "--number", "1", row)  # fmt: skip
        statements.write_text(line + "\n")
        node.stop()
        place = node.start()
    with RelayClient(place.gateway, token=token_of(node)) as client:
        assert client.head(header.namespace_id).finalized_seq == 1


def test_statements_that_are_none_are_refused(
    key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what is wrong with which row; the same message twice as well."""
    row = f"{'11' * 20}:1:{'33' * 32}"
    for rows in (["zz"], [f"{row}:done"], [f"{'11' * 20}:0:{'33' * 32}"], [f"{'11' * 19}:1:00"],
                 [row, row]):  # fmt: skip
        sign = ["finality", "sign", "--key", str(key), "--network", "devnet", "--number", "1"]
        assert main([*sign, *rows]) != 0
        assert capsys.readouterr().err.startswith("luxrelay: ")


def test_a_validator_vouches_for_a_relay(
    new_node: Callable[[str], NodeProcess],
    eventually: Callable[..., Any],
    said: Callable[..., str],
    key: Path,
) -> None:
    """`keys vouch`: a node that knows the validator scores the relay as one (G24)."""
    relay, other = new_node("relay"), new_node("other")
    for each in (relay, other):
        each.sections["gateway"] = {"listen": "127.0.0.1:0", "admin_listen": ""}
    first = relay.start()
    peer = first.gossip[0].rpartition("/p2p/")[2]
    relay.stop()
    relay.sections["gossip"]["validator_proof"] = said("keys", "vouch", key, "--peer", peer)
    first = relay.start()
    other.sections["gossip"]["validators"] = [public(said, key)[2:]]
    other.sections["gossip"]["peers"] = list(first.gossip)
    place = other.start()

    def vouched() -> bool:
        with RelayClient(place.gateway) as client:
            peers = client.described("/v1/peers")["peers"]
        scores = {each["peerId"]: each["score"] or {} for each in peers}
        return scores.get(peer, {}).get("application", 0.0) > 0.0

    eventually(vouched, seconds=30)
