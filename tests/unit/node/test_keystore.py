"""Keys behind a passphrase."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from luxrelay.bus import SignatureScheme, SigningKey
from luxrelay.errors import KeyFileError
from luxrelay.node import keystore
from luxrelay.node.keystore import (
    COST_DEFAULT,
    COST_MAX,
    COST_MIN,
    PASSPHRASE_BYTES_MAX,
    is_keystore,
    open_keystore,
    seal_key,
)

PASSPHRASE = b"correct horse"
KEY = SigningKey.generate()
SEALED = seal_key(KEY, PASSPHRASE, cost=COST_MIN)
Content = dict[str, Any]


@pytest.mark.parametrize("scheme", list(SignatureScheme))
def test_round_trip(scheme: SignatureScheme) -> None:
    """A key of any scheme comes back from its keystore, and is nowhere readable in it."""
    key = SigningKey.generate(scheme)

    sealed = seal_key(key, PASSPHRASE, cost=COST_MIN)

    assert is_keystore(sealed)
    assert open_keystore(sealed, PASSPHRASE, "here").seed == key.seed
    assert key.seed.hex()[:64] not in sealed.decode()
    assert key.public_field.hex() in sealed.decode()


def test_two_keystores_share_nothing() -> None:
    """Salt and nonce are new each time."""
    first, second = json.loads(SEALED), json.loads(seal_key(KEY, PASSPHRASE, cost=COST_MIN))

    assert first["kdf"]["salt"] != second["kdf"]["salt"]
    assert first["cipher"]["nonce"] != second["cipher"]["nonce"]
    assert first["cipher"]["sealed"] != second["cipher"]["sealed"]


def test_default_work_is_256_mib() -> None:
    """Who says nothing gets scrypt with N = 2^18."""
    assert COST_MIN <= COST_DEFAULT == 18 <= COST_MAX


@pytest.mark.parametrize("passphrase", [b"correct horsf", b"Correct horse", b"x"])
def test_refuse_wrong_passphrase(passphrase: bytes) -> None:
    """Another passphrase is a clear error that names the file."""
    with pytest.raises(KeyFileError, match=r"passphrase is wrong or the file was changed; here"):
        open_keystore(SEALED, passphrase, "here")


@pytest.mark.parametrize("passphrase", [b"", b"x" * (PASSPHRASE_BYTES_MAX + 1)])
def test_refuse_passphrase_out_of_bounds(passphrase: bytes) -> None:
    """An empty or endless passphrase is refused both ways."""
    with pytest.raises(KeyFileError, match="1 to 1024"):
        seal_key(KEY, passphrase, cost=COST_MIN)
    with pytest.raises(KeyFileError, match="1 to 1024"):
        open_keystore(SEALED, passphrase, "here")


def other_hex(text: str) -> str:
    """Return the digits with the last one changed."""
    return text[:-1] + ("0" if text[-1] != "0" else "1")


def set_key(content: Content) -> None:
    """Put another key's public half in."""
    content["senderPubKey"] = "0x" + SigningKey.generate().public_field.hex()


def set_scheme(content: Content) -> None:
    """Claim another scheme whose seeds are as long."""
    content["scheme"] = "ml_dsa_65"


def set_cost(content: Content) -> None:
    """Ask for more work than was done."""
    content["kdf"]["cost"] += 1


def set_salt(content: Content) -> None:
    """Change the salt."""
    content["kdf"]["salt"] = other_hex(content["kdf"]["salt"])


def set_nonce(content: Content) -> None:
    """Change the nonce."""
    content["cipher"]["nonce"] = other_hex(content["cipher"]["nonce"])


def set_seal(content: Content) -> None:
    """Change the sealed seed."""
    content["cipher"]["sealed"] = other_hex(content["cipher"]["sealed"])


def set_form(content: Content) -> None:
    """Write a number in another form."""
    content["kdf"]["r"] = 8.0


@pytest.mark.parametrize(
    "change", [set_key, set_scheme, set_cost, set_salt, set_nonce, set_seal, set_form]
)
def test_refuse_changed_file(change: Callable[[Content], None]) -> None:
    """Any value exchanged breaks the seal."""
    content = json.loads(SEALED)
    change(content)

    with pytest.raises(KeyFileError, match="file was changed"):
        open_keystore(json.dumps(content).encode(), PASSPHRASE, "here")


@pytest.mark.parametrize("cost", [-1, 0, COST_MIN - 1, COST_MAX + 1, 64, 10**9, True, "18", None])
def test_refuse_absurd_cost_before_any_work(monkeypatch: pytest.MonkeyPatch, cost: object) -> None:
    """A cost out of bounds is refused before memory is taken."""
    content = json.loads(SEALED)
    content["kdf"]["cost"] = cost

    def never(*_: object, **__: object) -> bytes:
        raise AssertionError

    monkeypatch.setattr(keystore.hashlib, "scrypt", never)

    with pytest.raises(KeyFileError, match="cost"):
        open_keystore(json.dumps(content).encode(), PASSPHRASE, "here")


@pytest.mark.parametrize("cost", [COST_MIN - 1, COST_MAX + 1])
def test_refuse_to_seal_with_absurd_cost(cost: int) -> None:
    """Nothing is written that would not be read."""
    with pytest.raises(KeyFileError, match="cost"):
        seal_key(KEY, PASSPHRASE, cost=cost)


def test_memory_that_is_not_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the memory says so."""

    def none_left(*_: object, **__: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(keystore.hashlib, "scrypt", none_left)

    with pytest.raises(KeyFileError, match="16 MiB"):
        open_keystore(SEALED, PASSPHRASE, "here")


def without(content: Content, *path: str) -> Content:
    """Return the content without one key."""
    inner = content
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    return content


def having(content: Content, value: object, *path: str) -> Content:
    """Return the content with one key set."""
    inner = content
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return content


BROKEN: list[Callable[[Content], object]] = [
    lambda _: [],
    lambda _: "text",
    lambda c: without(c, "scheme"),
    lambda c: without(c, "kdf", "salt"),
    lambda c: without(c, "cipher", "sealed"),
    lambda c: having(c, 1, "comment"),
    lambda c: having(c, "another", "format"),
    lambda c: having(c, 2, "version"),
    lambda c: having(c, "argon2", "kdf", "name"),
    lambda c: having(c, "aes", "cipher", "name"),
    lambda c: having(c, 16, "kdf", "r"),
    lambda c: having(c, 10**6, "kdf", "p"),
    lambda c: having(c, "00", "kdf", "salt"),
    lambda c: having(c, 7, "kdf", "salt"),
    lambda c: having(c, "zz" * 24, "cipher", "nonce"),
    lambda c: having(c, "AA" * 48, "cipher", "sealed"),
    lambda c: having(c, "0" * 3, "cipher", "sealed"),
    lambda c: having(c, "00", "cipher", "sealed"),
    lambda c: having(c, "00" * 80, "cipher", "sealed"),
    lambda c: having(c, "rsa", "scheme"),
    lambda c: having(c, "hybrid_ed25519_ml_dsa_65", "scheme"),
    lambda c: having(c, ["ed25519"], "scheme"),
    lambda c: having(c, "01ab", "senderPubKey"),
    lambda c: having(c, 5, "senderPubKey"),
    lambda c: having(c, [], "kdf"),
    lambda c: having(c, None, "cipher"),
]


@pytest.mark.parametrize("change", BROKEN, ids=range(len(BROKEN)))
def test_refuse_what_is_no_keystore(change: Callable[[Content], object]) -> None:
    """Every other form is a KeyFileError."""
    with pytest.raises(KeyFileError, match="here"):
        open_keystore(json.dumps(change(json.loads(SEALED))).encode(), PASSPHRASE, "here")


@pytest.mark.parametrize(
    "text", [b"{", b"{" + b'"a":{' * 5000, b"\xff\xfe{", b'{"a": ' + b"9" * 9000 + b"}"]
)
def test_refuse_what_is_no_json(text: bytes) -> None:
    """Broken, bottomless and endless JSON is a KeyFileError."""
    with pytest.raises(KeyFileError):
        open_keystore(text, PASSPHRASE, "here")


def test_spacing_does_not_matter() -> None:
    """A keystore that another program wrote out again, keys in another order, still opens."""
    content = json.loads(SEALED)
    again = json.dumps(dict(reversed(content.items())), indent=4).encode()

    assert open_keystore(again, PASSPHRASE, "here").seed == KEY.seed


def test_refuse_capital_digits() -> None:
    """The sealed seed has one form too: lower-case digits."""
    content = json.loads(SEALED)
    sealed = content["cipher"]["sealed"]
    content["cipher"]["sealed"] = sealed.upper()
    assert content["cipher"]["sealed"] != sealed

    with pytest.raises(KeyFileError, match="sealed is not hex"):
        open_keystore(json.dumps(content).encode(), PASSPHRASE, "here")


def test_refuse_a_public_key_that_is_not_the_seeds() -> None:
    """Even whoever knows the passphrase cannot show another key than the seed gives."""
    forged = SigningKey.generate()
    forged.public_field = KEY.public_field
    sealed = seal_key(forged, PASSPHRASE, cost=COST_MIN)

    with pytest.raises(KeyFileError, match="not the key that the seed gives"):
        open_keystore(sealed, PASSPHRASE, "here")
