"""Our errors on their way through the JVM and back.

Spark hands an exception of a worker to the driver as the text of its traceback. `carry` notes an
error's parts in that text, `recover` finds them again, so that a user sees our error with its
code and remedy and not a page of Java. Pure.
"""

from __future__ import annotations

import json
import re
from typing import Final, TypeVar

from luxrelay import errors
from luxrelay.errors import ArchiveError, LuxRelayError

_MARK: Final = "luxrelay-error "
_NOTE: Final = re.compile(re.escape(_MARK) + r"(\{.*\})")
_FAILED_HINT: Final = "run it again: what was written stays and is not written twice"
_CAUSE_CHARS: Final = 400
_TEXT_MAX: Final = 1_000
"""Characters of each part that travel."""

ErrorT = TypeVar("ErrorT", bound=LuxRelayError)


def carry(error: ErrorT) -> ErrorT:
    """Return ``error`` with a note that `recover` understands in its printed traceback."""
    parts = {
        "kind": type(error).__name__,
        "what": error.what[:_TEXT_MAX],
        "where": error.where[:_TEXT_MAX],
        "hint": error.hint[:_TEXT_MAX],
        "code": error.code,
    }
    error.add_note(_MARK + json.dumps(parts))
    return error


def recover(text: str) -> LuxRelayError | None:
    """Return the error that `carry` noted in ``text``; None when there is none; never raises."""
    found = _NOTE.search(text)
    if found is None:
        return None
    try:
        parts = json.loads(found[1])
        kind = getattr(errors, parts["kind"])
        error = kind(parts["what"], where=parts["where"], hint=parts["hint"], code=parts["code"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return error if isinstance(error, LuxRelayError) else None


def failure(error: Exception, what: str) -> LuxRelayError:
    """Return our own error that Spark carried in ``error``, or one that says Spark failed.

    Raise it ``from None``: the chain would print pages of Java, which are in Spark's log.
    """
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return recover(text) or ArchiveError(
        f"Spark ended {what} with an error: {lines[0][:_CAUSE_CHARS] if lines else type(error)}",
        hint=_FAILED_HINT,
        code="archive.failed",
    )
