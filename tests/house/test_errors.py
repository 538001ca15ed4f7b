"""The error catalogue and the code that uses it."""

import pickle
import re
from pathlib import Path

import pytest

from luxrelay import errors
from luxrelay.errors import CATALOGUE, LocalError, LuxRelayError, RemoteError, ResourceError

SRC = Path(__file__).resolve().parents[2] / "src" / "luxrelay"
LEAVES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, LuxRelayError) and kind.default_code
]


def test_codes_are_unique_and_explained() -> None:
    """Each code stands once, with a meaning and a remedy that are sentences."""
    assert len(CATALOGUE) == len(errors._ENTRIES)
    for entry in CATALOGUE.values():
        assert entry.meaning.endswith(".")
        assert entry.remedy.endswith(".")


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_every_error_says_whose_fault_it_is(kind: type[LuxRelayError]) -> None:
    """A leaf is Local, Remote or Resource, has a known code, and survives pickling."""
    assert sum(issubclass(kind, b) for b in (LocalError, RemoteError, ResourceError)) == 1
    error = kind("the thing is wrong", where="here", hint="mend it")

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes

    assert str(copy) == str(error) == "the thing is wrong; here; mend it"
    assert (type(copy), copy.code) == (kind, kind.default_code)
    assert kind("x").hint == CATALOGUE[kind.default_code].remedy


def test_every_code_in_use_is_in_the_catalogue() -> None:
    """No error is raised with a code that nobody explained."""
    used = {
        code
        for path in SRC.rglob("*.py")
        for code in re.findall(r'code="([a-z]+\.[a-z_.]+)"', path.read_text())
    }
    assert used <= set(CATALOGUE), used - set(CATALOGUE)
