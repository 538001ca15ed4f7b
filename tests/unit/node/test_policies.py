"""Policy files and the registry a node makes of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from luxrelay.bus import (
    Identity,
    IdentityType,
    NamespacePolicy,
    SignedPolicy,
    SigningKey,
    topic_namespace,
)
from luxrelay.errors import ConfigError
from luxrelay.node.carried import CarriedNamespaces
from luxrelay.node.config import parse_config
from luxrelay.node.policies import (
    DOCUMENTS_MAX,
    FILE_BYTES_MAX,
    CurrentPolicies,
    load_registry,
    read_policy_file,
)

TOPIC = "/chat/1/room"
OWNER = SigningKey.generate()


def document(version: int = 1, **changes: object) -> SignedPolicy:
    """Return a signed policy of the topic."""
    fields: dict[str, object] = {
        "network": "devnet",
        "namespace_id": topic_namespace(TOPIC),
        "policy": NamespacePolicy(
            owner=Identity(IdentityType.RAW_KEY, OWNER.public_field), version=version
        ),
        **changes,
    }
    return SignedPolicy(**fields).signed_by(OWNER)  # type: ignore[arg-type]


def write(path: Path, *documents: SignedPolicy) -> None:
    """Write a policy file."""
    lines = ["# policies of the room", "", *("0x" + d.encode().hex() for d in documents)]
    path.write_text("\n".join(lines) + "\n")


def config(folder: Path, more: str = "") -> str:
    """Return a node's configuration that names the policy file."""
    return f"""
[node]
data_dir = "{folder}/data"
[[namespace]]
content_topic = "{TOPIC}"
policy_file = "room.policy"
{more}"""


def test_documents_come_in_order(tmp_path: Path) -> None:
    """Comments and empty lines are skipped, hex may begin with 0x."""
    write(tmp_path / "room.policy", document(), document(2))
    assert read_policy_file(tmp_path / "room.policy") == [document(), document(2)]


def test_registry_of_a_configuration(tmp_path: Path) -> None:
    """A namespace with a policy file has its history, one without has none (H19, H20)."""
    write(tmp_path / "room.policy", document(), document(2, activation_ms=1000))
    text = config(tmp_path) + '[[namespace]]\ncontent_topic = "/other"\n'
    loaded = parse_config(text, source="relay.toml", base=tmp_path)

    registry = load_registry(loaded)

    assert loaded.namespaces[0].policy_file == tmp_path / "room.policy"
    assert loaded.namespaces[0].policy_hash == b""
    assert [r.policy.version for r in registry.history(topic_namespace(TOPIC))] == [1, 2]
    assert registry.history(topic_namespace("/other")) == ()


def test_what_is_followed_reads_no_policy_file(tmp_path: Path) -> None:
    """A file that was broken or changed meanwhile counts from the next reload on (G35, H19)."""
    file = tmp_path / "room.policy"
    write(file, document())
    loaded = parse_config(config(tmp_path), source="relay.toml", base=tmp_path)
    policies, carried = CurrentPolicies(loaded), CarriedNamespaces()
    policies.attach(carried)
    carried.told = lambda *_: policies.followed()
    file.write_text("no document\n")

    assert carried.follow(topic_namespace("/other"))

    (record,) = policies.in_force(topic_namespace(TOPIC), None, 1)
    assert record.policy.version == 1
    assert policies.get(topic_namespace("/other"), frozenset())
    with pytest.raises(ConfigError):
        policies.reload(loaded)


@pytest.mark.parametrize(
    "documents",
    [
        [document(2), document(1)],
        [document(network="mainnet")],
        [document(namespace_id=topic_namespace("/other"))],
        [replace(document(), signature=bytes(64))],
    ],
)
def test_reject_documents(tmp_path: Path, documents: list[SignedPolicy]) -> None:
    """A document out of order, of another network or namespace, or forged, is named."""
    write(tmp_path / "room.policy", *documents)
    loaded = parse_config(config(tmp_path), source="relay.toml", base=tmp_path)

    with pytest.raises(ConfigError, match=r"document [12]"):
        load_registry(loaded)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no document"),
        ("0xzz", ":1"),
        ("# one\n0x00", ":2"),
        ("Grüße", "not ASCII"),
        ("0x00\n" * 2, ":1"),
    ],
)
def test_reject_file(tmp_path: Path, text: str, words: str) -> None:
    """A file that holds something else says which line."""
    (tmp_path / "room.policy").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        read_policy_file(tmp_path / "room.policy")


def test_files_are_bounded(tmp_path: Path) -> None:
    """A missing file, one too large and one with too many documents are refused."""
    path = tmp_path / "room.policy"
    with pytest.raises(ConfigError, match="cannot read"):
        read_policy_file(path)
    path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="larger"):
        read_policy_file(path)
    write(path, *[document()] * (DOCUMENTS_MAX + 1))
    with pytest.raises(ConfigError, match="more than 64"):
        read_policy_file(path)


def test_hash_and_file_exclude_each_other(tmp_path: Path) -> None:
    """A table says its policy in one way."""
    text = config(tmp_path, f'policy_hash = "{"ab" * 32}"')
    with pytest.raises(ConfigError, match="two ways"):
        parse_config(text, source="relay.toml", base=tmp_path)
