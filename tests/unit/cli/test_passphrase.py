"""Where a passphrase comes from."""

import getpass
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from luxrelay.bus import SigningKey
from luxrelay.cli.passphrase import ask_new_passphrase, open_key, read_passphrase
from luxrelay.errors import InputError, KeyFileError, UsageError
from luxrelay.node.keyfile import create_key_file
from luxrelay.node.keystore import COST_MIN, PASSPHRASE_BYTES_MAX

Typed = Callable[..., None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """A terminal on which these lines are typed."""

    def type_lines(*lines: str) -> None:
        waiting = list(lines)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(getpass, "getpass", lambda _: waiting.pop(0))

    return type_lines


@pytest.mark.parametrize("content", [b"correct horse\n", b"correct horse", b"correct horse\r\nx\n"])
def test_first_line_is_the_passphrase(tmp_path: Path, content: bytes) -> None:
    """The line ends at its end of line, whatever follows."""
    path = tmp_path / "passphrase"
    path.write_bytes(content)

    assert read_passphrase(path) == b"correct horse"


def test_composed_forms_are_one(tmp_path: Path) -> None:
    """An accent typed as one sign or as two is the same passphrase."""
    path = tmp_path / "passphrase"
    path.write_text("e\u0301\n", encoding="utf-8")

    assert read_passphrase(path) == "\u00e9".encode()


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\xff\n", b"x" * (PASSPHRASE_BYTES_MAX + 1), b"x" * 100_000]
)
def test_refuse_passphrase_file(tmp_path: Path, content: bytes) -> None:
    """Nothing, other bytes than UTF-8 and endless lines are an InputError."""
    path = tmp_path / "passphrase"
    path.write_bytes(content)

    with pytest.raises(InputError, match="passphrase"):
        read_passphrase(path)
    with pytest.raises(InputError, match="cannot read"):
        read_passphrase(tmp_path / "none")


def test_longest_passphrase_is_read(tmp_path: Path) -> None:
    """The bound itself is allowed."""
    path = tmp_path / "passphrase"
    path.write_bytes(b"x" * PASSPHRASE_BYTES_MAX + b"\r\n")

    assert len(read_passphrase(path)) == PASSPHRASE_BYTES_MAX


def test_terminal_is_asked_for_an_encrypted_key(tmp_path: Path, typed: Typed) -> None:
    """A keystore's passphrase is asked for on the terminal; a wrong one is a clear error."""
    path, key = tmp_path / "alice.json", SigningKey.generate()
    create_key_file(path, key, b"hush", cost=COST_MIN)

    typed("hush")
    assert open_key(path, None).seed == key.seed
    typed("other")
    with pytest.raises(KeyFileError, match="wrong"):
        open_key(path, None)


def test_terminal_is_not_asked_for_a_key_in_the_clear(tmp_path: Path, typed: Typed) -> None:
    """A PEM file needs no passphrase, so nobody is asked."""
    path, key = tmp_path / "alice.pem", SigningKey.generate()
    create_key_file(path, key)

    typed()
    assert open_key(path, None).seed == key.seed


def test_new_passphrase_is_typed_twice(typed: Typed) -> None:
    """Two equal lines make a passphrase, two others do not."""
    typed("hush", "hush")
    assert ask_new_passphrase() == b"hush"
    typed("hush", "hash")
    with pytest.raises(UsageError, match="differ"):
        ask_new_passphrase()
