"""Statuses as errors."""

from __future__ import annotations

import grpc
import pytest

from luxrelay.errors import SyncRemoteError, SyncUnreachableError
from luxrelay.sync.rpc.faults import DETAIL_CHARS_MAX, TRY_AGAIN, translated


class Status(grpc.RpcError):
    """A failed call."""

    def __init__(self, code: grpc.StatusCode, details: str | None) -> None:
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        """Return the status."""
        return self._code

    def details(self) -> str | None:
        """Return its text."""
        return self._details


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code.name != "OK"])
def test_every_status_is_one_of_two_errors(code: grpc.StatusCode) -> None:
    """What another try may mend is unreachable, all else an unusable answer; both say where."""
    error = translated(Status(code, "said so"), "relay:9641")

    expected = SyncUnreachableError if code in TRY_AGAIN else SyncRemoteError
    assert isinstance(error, expected)
    assert error.where == "relay:9641"
    assert "said so" in str(error)
    assert str(error).count("; ") >= 2


def test_a_relay_cannot_flood_the_message() -> None:
    """A relay's own words are cut and kept to one line."""
    error = translated(Status(grpc.StatusCode.INTERNAL, "a\nb " * 1_000), "relay:9641")

    assert "\n" not in str(error)
    assert len(str(error)) < DETAIL_CHARS_MAX + 200


def test_a_relay_may_say_nothing() -> None:
    """A status without a text has its meaning still."""
    assert "UNKNOWN" in str(translated(Status(grpc.StatusCode.UNKNOWN, None), "relay:9641"))
