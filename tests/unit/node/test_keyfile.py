"""Key files."""

import stat
from pathlib import Path

import pytest

from luxrelay.bus import SigningKey
from luxrelay.errors import KeyFileError
from luxrelay.node.keyfile import FILE_BYTES_MAX, create_key_file, read_key_file, read_or_create


def test_round_trip_and_mode(tmp_path: Path) -> None:
    """A key comes back from its file, which only its owner may read."""
    key, path = SigningKey.generate(), tmp_path / "alice.pem"

    create_key_file(path, key)

    assert read_key_file(path).seed == key.seed
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_never_replaces_a_file(tmp_path: Path) -> None:
    """An existing file stays as it is."""
    path = tmp_path / "alice.pem"
    path.write_text("precious")

    with pytest.raises(KeyFileError, match="there already"):
        create_key_file(path, SigningKey.generate())
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_refuse_key_that_others_may_read(tmp_path: Path) -> None:
    """A key with open permissions is not used, and the error says how to close them."""
    path = tmp_path / "alice.pem"
    create_key_file(path, SigningKey.generate())
    path.chmod(0o640)

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


def test_made_on_first_use(tmp_path: Path) -> None:
    """The second reading gives the key of the first."""
    path = tmp_path / "identity.pem"

    assert read_or_create(path).seed == read_or_create(path).seed
