"""Bearer tokens and their file."""

import json
import os
from pathlib import Path

import pytest

from luxrelay.errors import GatewayError, TokenFileError
from luxrelay.files import locked
from luxrelay.node.gateway.calls import Scope
from luxrelay.node.gateway.tokens import RELOAD_S, TokenFile

NOW_MS = 1_704_067_200_000


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    """An empty token file."""
    return TokenFile(tmp_path, 3)


def test_a_token_opens_its_scopes(tokens: TokenFile) -> None:
    """A new token is known by its text, with its scopes and rates."""
    text, token = tokens.new("phone", ["read", "publish", "read"], NOW_MS, requests_per_s=7)

    caller = tokens.caller(text, NOW_MS, 0.0)

    assert caller.scopes == {Scope.READ, Scope.PUBLISH}
    assert (caller.name, caller.requests_per_s, caller.key) == ("phone", 7, token.id.encode())


def test_the_file_holds_no_secret_and_is_private(tokens: TokenFile, tmp_path: Path) -> None:
    """Neither the text nor its random part stands in the file, which only its owner reads."""
    text, _ = tokens.new("phone", ["read"], NOW_MS)
    path = tmp_path / "tokens.json"

    assert text.split("_", 2)[2] not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "x", "lrt_00000000_" + "A" * 43, "lrt_zz_" + "A" * 43])
def test_reject_unknown_token(tokens: TokenFile, text: str) -> None:
    """What is no token of this node is refused with one code."""
    tokens.new("phone", ["read"], NOW_MS)

    with pytest.raises(GatewayError) as caught:
        tokens.caller(text, NOW_MS, 0.0)
    assert caught.value.code == "gateway.token"


def test_reject_a_changed_secret(tokens: TokenFile) -> None:
    """The id alone opens nothing."""
    text, _ = tokens.new("phone", ["read"], NOW_MS)
    changed = text[:-1] + ("A" if text[-1] != "A" else "B")

    with pytest.raises(GatewayError):
        tokens.caller(changed, NOW_MS, 0.0)


def test_a_token_expires(tokens: TokenFile) -> None:
    """It is valid up to its last millisecond."""
    text, token = tokens.new("phone", ["read"], NOW_MS, days=1)

    assert tokens.caller(text, token.expires_ms - 1, 0.0)
    with pytest.raises(GatewayError, match="expired"):
        tokens.caller(text, token.expires_ms, 0.0)


def test_a_token_made_beside_a_running_node_opens_at_once(
    tokens: TokenFile, tmp_path: Path
) -> None:
    """Whoever makes a token and uses it does not wait until the file is looked at anyway."""
    first, _ = tokens.new("first", ["read"], NOW_MS)
    assert tokens.caller(first, NOW_MS, 0.0).name == "first"
    second, _ = TokenFile(tmp_path, 3).new("second", ["read"], NOW_MS)
    assert tokens.caller(second, NOW_MS, RELOAD_S / 10).name == "second"


def test_a_revoked_token_ends_within_a_second(tokens: TokenFile, tmp_path: Path) -> None:
    """Another process revokes; this one looks again after RELOAD_S."""
    text, token = tokens.new("phone", ["read"], NOW_MS)
    assert tokens.caller(text, NOW_MS, 0.0)
    TokenFile(tmp_path, 3).revoke(token.id)

    assert tokens.caller(text, NOW_MS, RELOAD_S / 2)
    with pytest.raises(GatewayError):
        tokens.caller(text, NOW_MS, RELOAD_S)
    with pytest.raises(GatewayError) as caught:
        tokens.revoke(token.id)
    assert caught.value.code == "gateway.absent"


def test_tokens_are_bounded(tokens: TokenFile) -> None:
    """There are tokens_max tokens and no more."""
    for _ in range(3):
        tokens.new("phone", ["read"], NOW_MS)

    with pytest.raises(GatewayError, match="3 tokens"):
        tokens.new("phone", ["read"], NOW_MS)
    assert len(tokens.list()) == 3


@pytest.mark.parametrize(
    ("name", "scopes"), [("", ["read"]), ("a/b", ["read"]), ("a", []), ("a", ["root"])]
)
def test_reject_a_token_that_means_nothing(tokens: TokenFile, name: str, scopes: list[str]) -> None:
    """Names are printable and short, scopes are known."""
    with pytest.raises(GatewayError):
        tokens.new(name, scopes, NOW_MS)
    assert tokens.list() == []


@pytest.mark.parametrize(
    "text", ["", "[]", '{"tokens": [{}]}', '{"tokens": [{"id": 5}]}', "\x00", "[" * 5000]
)
def test_a_broken_file_opens_nothing(tokens: TokenFile, tmp_path: Path, text: str) -> None:
    """A file that is not ours is named, and nobody is let in."""
    (tmp_path / "tokens.json").write_text(text)

    with pytest.raises(TokenFileError, match=r"tokens\.json"):
        tokens.caller("lrt_00000000_" + "A" * 43, NOW_MS, 0.0)


def test_a_widened_entry_is_refused(tokens: TokenFile, tmp_path: Path) -> None:
    """A file with a scope that does not exist is broken as a whole."""
    tokens.new("phone", ["read"], NOW_MS)
    path = tmp_path / "tokens.json"
    loaded = json.loads(path.read_text())
    loaded["tokens"][0]["scopes"] = ["everything"]
    path.write_text(json.dumps(loaded))

    with pytest.raises(TokenFileError):
        tokens.list()


BROKEN = {
    "empty": b"",
    "cut off": b'{"version": 1, "tok',
    "a list": b"[]",
    "no tokens": b'{"version": 1}',
    "a later version": b'{"version": 2, "tokens": []}',
    "tokens of another type": b'{"version": 1, "tokens": {}}',
    "an entry of another type": b'{"version": 1, "tokens": [1]}',
    "not UTF-8": b"\xff",
    "zeros": bytes(4096),
    "deep": b"[" * 100_000,
    "members twice": b'{"version": 1, "tokens": [], "tokens": []}',
}


@pytest.mark.trial
@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_told_at_the_start_and_believed_at_no_time(
    tokens: TokenFile, tmp_path: Path, content: bytes
) -> None:
    """A new node says so; a running one keeps what it knew, and says why until it is mended."""
    text, token = tokens.new("phone", ["read"], NOW_MS)
    good = (tmp_path / "tokens.json").read_bytes()
    tokens.check()
    (tmp_path / "tokens.json").write_bytes(content)

    with pytest.raises(TokenFileError, match=r"broken: .*tokens\.json"):
        TokenFile(tmp_path, 3).check()
    assert "broken" in tokens.look(10.0)
    assert tokens.caller(text, NOW_MS, 20.0).name == "phone"
    with pytest.raises(TokenFileError):
        tokens.new("another", ["read"], NOW_MS)

    (tmp_path / "tokens.json").write_bytes(good)
    assert not tokens.look(30.0)
    tokens.revoke(token.id)
    with pytest.raises(GatewayError):
        tokens.caller(text, NOW_MS, 40.0)


def test_an_id_that_stands_twice_is_no_token_file(tokens: TokenFile, tmp_path: Path) -> None:
    """Which of the two holds nobody can tell."""
    tokens.new("phone", ["read"], NOW_MS)
    path = tmp_path / "tokens.json"
    content = json.loads(path.read_text())
    content["tokens"] *= 2
    path.write_text(json.dumps(content))

    with pytest.raises(TokenFileError, match="an id stands twice"):
        tokens.check()


def test_a_locked_token_file_is_an_error_after_the_wait(tmp_path: Path) -> None:
    """Not a hang: the text says who has it."""
    tokens = TokenFile(tmp_path, 3, lock_wait_s=0.0)
    with (
        locked(tmp_path / ".tokens.json.lock"),
        pytest.raises(TokenFileError, match=f"process {os.getpid()} has locked it"),
    ):
        tokens.new("phone", ["read"], NOW_MS)
