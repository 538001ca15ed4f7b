"""The policy command."""

import io
import json
from pathlib import Path

import pytest

from luxrelay.bus import SignedPolicy, SigningKey, topic_namespace
from luxrelay.bus.signed_policy import check_first
from luxrelay.cli.main import main
from luxrelay.node.keyfile import create_key_file
from luxrelay.node.policies import read_policy_file

V2 = (
    "0x0001010014123456789012345678901234567890123456789000000000000000006400000000001000000000012c"
    "000001000000"
)
V2_HASH = "0x25eaf8a0d82c723f329d7af08b62e058eb03723269a00157622f1b1376155059"
OWNER = {"type": "wallet", "value": "0x1234567890123456789012345678901234567890"}


def test_decode_and_encode_are_inverse(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Decode of vector V2 prints its JSON, and encode of that prints V2 again (11-23)."""
    assert main(["policy", "decode", V2]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["owner"] == OWNER
    (tmp_path / "policy.json").write_text(printed)

    assert main(["policy", "encode", str(tmp_path / "policy.json")]) == 0
    assert capsys.readouterr().out.strip() == V2


def test_hash_is_what_headers_carry(capsys: pytest.CaptureFixture[str]) -> None:
    """Both directions print the policyHash on request (11-23)."""
    for arguments in (["encode", json.dumps({"owner": OWNER})], ["decode", V2]):
        assert main(["policy", *arguments, "--hash"]) == 0
        assert capsys.readouterr().out.strip() == V2_HASH


def test_reads_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an argument the text comes from standard input."""
    monkeypatch.setattr("sys.stdin", io.StringIO(V2[2:] + "\n"))
    assert main(["policy", "decode"]) == 0
    assert '"version": 1' in capsys.readouterr().out


def test_sign_makes_a_policy_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What `policy sign` prints is a line of a policy file, signed by the key's owner (H20)."""
    key = SigningKey.generate()
    create_key_file(tmp_path / "owner.pem", key)
    form = {"owner": {"type": "raw_key", "value": "0x" + key.public_field.hex()}}
    arguments = ["policy", "sign", json.dumps(form), "--key", str(tmp_path / "owner.pem")]
    arguments += ["--network", "devnet", "--topic", "/chat/1/room", "--activation-ms", "7"]

    assert main(arguments) == 0
    (tmp_path / "room.policy").write_text(capsys.readouterr().out)

    (document,) = read_policy_file(tmp_path / "room.policy")
    check_first(document)
    assert isinstance(document, SignedPolicy)
    assert document.namespace_id == topic_namespace("/chat/1/room")
    assert (document.network, document.activation_ms) == ("devnet", 7)


def test_later_version_says_from_when_it_holds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A second version without an activation would unmake the namespace's history (H19)."""
    create_key_file(tmp_path / "owner.pem", SigningKey.generate())
    arguments = ["policy", "sign", json.dumps({"owner": OWNER, "version": 2})]
    arguments += ["--key", str(tmp_path / "owner.pem"), "--network", "devnet", "--topic", "/a"]

    assert main(arguments) == 1
    assert "--activation-ms" in capsys.readouterr().err
    assert main([*arguments, "--activation-seq", "9"]) == 0
    assert main([*arguments, "--activation-ms", "9"]) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["decode", "0x0001"],
        ["decode", "0xzz"],
        ["encode", "{"],
        ["encode", "{}"],
        ["encode", "no-such-file"],
        ["encode", "{" + " " * 600_000],
        [
            "sign",
            json.dumps({"owner": OWNER}),
            "--key",
            "no.pem",
            "--network",
            "Bad",
            "--topic",
            "/a",
        ],
        [
            "sign",
            json.dumps({"owner": OWNER}),
            "--key",
            "no.pem",
            "--network",
            "a",
            "--topic",
            "/a",
        ],
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be read or is no policy ends with 1 and one line."""
    assert main(["policy", *arguments]) == 1
    assert capsys.readouterr().err.count("\n") == 1
