"""Ending the calls that others wait in."""

from __future__ import annotations

from luxrelay.sync.rpc.scope import CallScope


def test_cancel_ends_what_runs_and_what_comes() -> None:
    """Calls under way end, later ones at once; finished ones are left alone."""
    scope = CallScope()
    ended: list[str] = []

    def end_finished() -> None:
        ended.append("finished")

    scope.enter(lambda: ended.append("running"))
    scope.enter(end_finished)
    scope.leave(end_finished)
    assert not scope.cancelled
    scope.cancel()
    scope.enter(lambda: ended.append("later"))

    assert ended == ["running", "later"]
    assert scope.cancelled


def test_leave_what_was_never_entered() -> None:
    """Forgetting an unknown call is harmless."""
    CallScope().leave(lambda: None)
