"""The keys command."""

import json
import stat
from pathlib import Path

import pytest

from luxrelay.bus import SigningKey, VerifyKey, sender_address, sha3_commitment
from luxrelay.cli.keys import SCHEMES
from luxrelay.cli.main import main
from luxrelay.errors import KeyFileError
from luxrelay.node.keyfile import (
    create_key_file,
    needs_passphrase,
    read_key_file,
    read_shared_key,
)
from luxrelay.node.keystore import COST_MIN

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_new_then_show(capsys: Capture, tmp_path: Path, scheme: str) -> None:
    """A new key of any scheme is shown by its public half, the same each time."""
    path = str(tmp_path / "alice.pem")

    assert main(["keys", "new", path, "--scheme", scheme, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert main(["keys", "show", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == made

    key = VerifyKey.from_field(bytes.fromhex(made["senderPubKey"][2:]))
    assert (made["scheme"], key.scheme) == (scheme, SCHEMES[scheme])
    assert made["address"] == "0x" + sender_address(key.field).hex()


def test_new_is_ed25519_by_default(capsys: Capture, tmp_path: Path) -> None:
    """Who names no scheme gets Ed25519."""
    assert main(["keys", "new", str(tmp_path / "alice.pem")]) == 0
    assert "0x01" in capsys.readouterr().out


def test_new_refuses_an_existing_file(capsys: Capture, tmp_path: Path) -> None:
    """An existing file is exit code 1 and stays."""
    path = tmp_path / "alice.pem"
    path.write_text("precious")

    assert main(["keys", "new", str(path)]) == 1
    assert "there already" in capsys.readouterr().err
    assert path.read_text() == "precious"


@pytest.mark.slow
def test_new_with_passphrase_file(capsys: Capture, tmp_path: Path) -> None:
    """A key written with a passphrase is shown with it and not without it."""
    path, secret = tmp_path / "alice.json", tmp_path / "passphrase"
    secret.write_text("correct horse\nsecond line\n")

    assert main(["keys", "new", str(path), "--passphrase-file", str(secret), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert needs_passphrase(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert main(["keys", "show", str(path), "--passphrase-file", str(secret), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == made
    assert read_key_file(path, b"correct horse").public_field.hex() in made["senderPubKey"]


def test_show_without_passphrase_says_what_to_do(capsys: Capture, tmp_path: Path) -> None:
    """Without a terminal to ask on, the error names the option."""
    path = tmp_path / "alice.json"
    create_key_file(path, SigningKey.generate(), b"hush", cost=COST_MIN)

    assert main(["keys", "show", str(path)]) == 1
    assert "--passphrase-file" in capsys.readouterr().err


def test_export_public_prints_hex(capsys: Capture, tmp_path: Path) -> None:
    """The senderPubKey field is printed as hex and nothing else."""
    key, path = SigningKey.generate(), tmp_path / "alice.pem"
    create_key_file(path, key)

    assert main(["keys", "export-public", str(path)]) == 0
    assert capsys.readouterr().out == f"0x{key.public_field.hex()}\n"


def test_export_public_writes_a_new_file(capsys: Capture, tmp_path: Path) -> None:
    """The field goes to a new file; an existing one is never replaced."""
    key, path, out = SigningKey.generate(), tmp_path / "alice.pem", tmp_path / "alice.pub"
    create_key_file(path, key)
    command = ["keys", "export-public", str(path), "--out", str(out)]

    assert main(command) == 0
    assert capsys.readouterr().out == ""
    assert out.read_text() == f"0x{key.public_field.hex()}\n"
    assert main(command) == 1
    assert "cannot write" in capsys.readouterr().err


def test_new_with_prompt_needs_a_terminal(capsys: Capture, tmp_path: Path) -> None:
    """Where nobody can be asked, --passphrase is a clear error and no key is made."""
    path = tmp_path / "alice.json"

    assert main(["keys", "new", str(path), "--passphrase"]) in {1, 2}
    assert "no terminal" in capsys.readouterr().err
    assert not path.exists()


def test_a_shared_key_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its file is its owner's alone, is never replaced, and holds what is read again."""
    path = tmp_path / "room.key"

    assert main(["keys", "new-shared", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    key = read_shared_key(path)
    assert len(key) == 32
    assert shown["fingerprint"] == sha3_commitment(key).hex()[:16]
    assert path.stat().st_mode & 0o777 == 0o600
    assert main(["keys", "new-shared", str(path)]) == 1
    assert "a file is there already" in capsys.readouterr().err
    assert read_shared_key(path) == key


@pytest.mark.parametrize("text", [b"", b"luxrelay-shared-key 00", b"\xff" * 32, b"00" * 32])
def test_what_is_no_shared_key_is_refused(tmp_path: Path, text: bytes) -> None:
    """Nothing is guessed from bytes of another form."""
    path = tmp_path / "room.key"
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="no shared key"):
        read_shared_key(path)
