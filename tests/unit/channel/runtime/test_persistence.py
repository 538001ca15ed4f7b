"""One contract for whatever keeps the state of channels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from luxrelay.channel import (
    ChannelScope,
    MemoryPersistence,
    Persistence,
    Row,
    SqlitePersistence,
    StateTable,
)
from luxrelay.errors import ChannelError

SCOPE = ChannelScope("chan", "alice")
OTHERS = [
    ChannelScope("chan", "bob"),
    ChannelScope("other", "alice"),
    ChannelScope("chana", "lice"),
]


def sealed(inner: Persistence) -> Persistence:
    """Return the encrypted example around another persistence."""
    if "encrypted_state" not in sys.modules:
        path = Path(__file__).parents[4] / "examples" / "encrypted_state.py"
        spec = spec_from_file_location("encrypted_state", path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["encrypted_state"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["encrypted_state"])
    made: Persistence = sys.modules["encrypted_state"].EncryptedPersistence(inner, bytes(32))
    return made


MAKERS: dict[str, Callable[[Path], Persistence]] = {
    "memory": lambda _: MemoryPersistence(),
    "sqlite": SqlitePersistence,
    "encrypted": lambda folder: sealed(SqlitePersistence(folder)),
}


@pytest.fixture(params=sorted(MAKERS))
def persistence(request: pytest.FixtureRequest, tmp_path: Path) -> Persistence:
    """Each persistence in turn."""
    return MAKERS[request.param](tmp_path / "state")


def test_rows_come_back_in_order(persistence: Persistence) -> None:
    """What was committed is there after closing, the last value of each, by table and key."""
    rows = persistence.open(SCOPE)
    rows.commit(
        [
            Row(StateTable.LOG, b"b", b"1"),
            Row(StateTable.META, b"z", b""),
            Row(StateTable.LOG, b"a", b"2"),
        ]
    )
    rows.commit(
        [
            Row(StateTable.LOG, b"b", b"3"),
            Row(StateTable.META, b"z", None),
            Row(StateTable.LOG, b"x", None),
        ]
    )
    rows.close()

    assert list(persistence.open(SCOPE).load()) == [
        Row(StateTable.LOG, b"a", b"2"), Row(StateTable.LOG, b"b", b"3"),
    ]  # fmt: skip


def test_scopes_do_not_mix(persistence: Persistence) -> None:
    """Participants and channels have rows of their own, whatever their names run into."""
    persistence.open(SCOPE).commit([Row(StateTable.META, b"a", b"1")])

    for scope in OTHERS:
        assert list(persistence.open(scope).load()) == []


def test_a_scope_has_one_opener(persistence: Persistence) -> None:
    """A second opener is told so, until the first lets go; the same for dropping."""
    rows = persistence.open(SCOPE)
    for act in (persistence.open, persistence.drop):
        with pytest.raises(ChannelError) as caught:
            act(SCOPE)
        assert caught.value.code == "channel.locked"

    rows.close()
    rows.close()
    persistence.open(SCOPE).close()


def test_drop_forgets(persistence: Persistence) -> None:
    """A dropped scope is empty, and dropping what is not there does nothing."""
    persistence.drop(SCOPE)
    rows = persistence.open(SCOPE)
    rows.commit([Row(StateTable.META, b"a", b"1")])
    rows.close()

    persistence.drop(SCOPE)

    assert list(persistence.open(SCOPE).load()) == []


def test_large_rows(persistence: Persistence) -> None:
    """A row may hold a whole message, and a key 600 bytes."""
    rows = persistence.open(SCOPE)
    row = Row(StateTable.BODIES, b"k" * 600, bytes(256 * 1024))
    rows.commit([row])

    assert list(rows.load()) == [row]


def test_sealed_rows_need_the_key(tmp_path: Path) -> None:
    """With another key the state is refused; on the disk neither values nor keys are to be seen."""
    rows = sealed(SqlitePersistence(tmp_path)).open(SCOPE)
    rows.commit([Row(StateTable.META, b"telling-name", b"secret-value")])
    rows.close()
    plain = SqlitePersistence(tmp_path)
    other = sys.modules["encrypted_state"].EncryptedPersistence(plain, bytes(31) + b"\1")

    with pytest.raises(ChannelError) as caught:
        list(other.open(SCOPE).load())
    assert caught.value.code == "channel.state"
    data = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"telling" not in data
    assert b"secret" not in data
