"""Key files."""

import os
import stat
from pathlib import Path

import pytest

from luxrelay.bus import SignatureScheme, SigningKey
from luxrelay.errors import KeyFileError
from luxrelay.node.keyfile import (
    FILE_BYTES_MAX,
    create_key_file,
    needs_passphrase,
    read_key_file,
    read_or_create,
)
from luxrelay.node.keystore import COST_MIN


@pytest.mark.parametrize("scheme", list(SignatureScheme))
@pytest.mark.parametrize("passphrase", [None, b"hush"])
def test_round_trip_and_mode(
    tmp_path: Path, scheme: SignatureScheme, passphrase: bytes | None
) -> None:
    """A key of any scheme comes back from its file, which only its owner may read."""
    key, path = SigningKey.generate(scheme), tmp_path / "alice.pem"

    create_key_file(path, key, passphrase, cost=COST_MIN)

    assert read_key_file(path, passphrase).seed == key.seed
    assert needs_passphrase(path) == (passphrase is not None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size <= FILE_BYTES_MAX
    assert list(tmp_path.iterdir()) == [path]


def test_never_replaces_a_file(tmp_path: Path) -> None:
    """An existing file stays as it is."""
    path = tmp_path / "alice.pem"
    path.write_text("precious")

    with pytest.raises(KeyFileError, match="there already"):
        create_key_file(path, SigningKey.generate())
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o601, 0o660, 0o644])
def test_refuse_key_that_others_may_read(tmp_path: Path, mode: int) -> None:
    """A key with open permissions is not used, and the error says how to close them."""
    path = tmp_path / "alice.pem"
    create_key_file(path, SigningKey.generate())
    path.chmod(mode)

    with pytest.raises(KeyFileError, match="chmod 600"):
        read_key_file(path)


@pytest.mark.parametrize("content", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAA==\n"])
def test_refuse_what_is_no_key(tmp_path: Path, content: bytes) -> None:
    """Other bytes are a clear error."""
    path = tmp_path / "alice.pem"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(KeyFileError):
        read_key_file(path)


def test_refuse_missing_and_huge_file(tmp_path: Path) -> None:
    """A file that is not there, or far too large, is a clear error."""
    huge = tmp_path / "huge.pem"
    huge.write_bytes(bytes(FILE_BYTES_MAX + 1))
    huge.chmod(0o600)

    for path in (tmp_path / "none.pem", huge):
        with pytest.raises(KeyFileError):
            read_key_file(path)
    with pytest.raises(KeyFileError, match="cannot write"):
        create_key_file(tmp_path / "none" / "a.pem", SigningKey.generate())


def test_refuse_what_is_no_regular_file(tmp_path: Path) -> None:
    """A folder and a pipe nobody writes to are refused at once, without waiting."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)

    for path in (pipe, tmp_path):
        with pytest.raises(KeyFileError, match=r"no regular file"):
            read_key_file(path)


def test_refuse_keystore_without_passphrase(tmp_path: Path) -> None:
    """An encrypted key asks for its passphrase by the option's name."""
    path = tmp_path / "alice.json"
    create_key_file(path, SigningKey.generate(), b"hush", cost=COST_MIN)

    with pytest.raises(KeyFileError, match="--passphrase-file"):
        read_key_file(path)
    with pytest.raises(KeyFileError, match="passphrase is wrong"):
        read_key_file(path, b"hushed")


def test_refuse_passphrase_without_keystore(tmp_path: Path) -> None:
    """A passphrase for a key in the clear is an error: somebody believes it is protected."""
    path = tmp_path / "alice.pem"
    create_key_file(path, SigningKey.generate())

    with pytest.raises(KeyFileError, match="not encrypted"):
        read_key_file(path, b"hush")


def test_refused_passphrase_leaves_nothing_behind(tmp_path: Path) -> None:
    """A key that cannot be sealed makes no file."""
    with pytest.raises(KeyFileError):
        create_key_file(tmp_path / "alice.json", SigningKey.generate(), b"")
    assert not list(tmp_path.iterdir())


def test_made_on_first_use(tmp_path: Path) -> None:
    """The second reading gives the key of the first."""
    path = tmp_path / "identity.pem"

    assert read_or_create(path).seed == read_or_create(path).seed


@pytest.mark.parametrize("name", ["", "/"])
def test_refuse_a_path_without_a_name(name: str) -> None:
    """A path that names no file is an error of ours."""
    with pytest.raises(KeyFileError, match="name"):
        create_key_file(Path(name), SigningKey.generate())


def test_identity_is_ed25519(tmp_path: Path) -> None:
    """A node's identity has no other scheme (G7)."""
    path = tmp_path / "identity.pem"
    create_key_file(path, SigningKey.generate(SignatureScheme.ML_DSA_65))

    with pytest.raises(KeyFileError, match="not Ed25519"):
        read_or_create(path)
