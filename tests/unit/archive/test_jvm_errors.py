"""Our errors through the text of a traceback."""

import traceback

from luxrelay.archive.jvm_errors import carry, failure, recover
from luxrelay.errors import ArchiveError, SyncUnreachableError


def _printed(error: Exception) -> str:
    try:
        raise error
    except type(error):
        return "java.lang.Exception: boom\n" + traceback.format_exc() + "\n at scala.Foo"


def test_error_survives_a_traceback() -> None:
    """Kind, text, remedy and code come back."""
    error = ArchiveError("all gone", where="namespace ab", code="archive.data_loss")

    found = recover(_printed(carry(error)))

    assert isinstance(found, ArchiveError)
    assert (str(found), found.code) == (str(error), "archive.data_loss")


def test_other_kinds_survive_too() -> None:
    """An error of another room keeps its kind."""
    found = recover(_printed(carry(SyncUnreachableError("silence", where="h:1"))))

    assert isinstance(found, SyncUnreachableError)


def test_long_texts_are_cut() -> None:
    """What travels is bounded."""
    found = recover(_printed(carry(ArchiveError("x" * 100_000))))

    assert found is not None
    assert len(found.what) == 1_000


def test_foreign_text_brings_nothing() -> None:
    """Text without our note, or with a broken one, is no error of ours."""
    assert recover("java.lang.NullPointerException") is None
    assert recover("luxrelay-error {broken}") is None
    assert recover('luxrelay-error {"kind": "os", "what": ""}') is None
    assert (
        recover('luxrelay-error {"kind": "CATALOGUE", "what": "", "where": "", "hint": ""}') is None
    )


def test_our_errors_come_back_from_spark() -> None:
    """An error a worker carried is raised as itself."""
    inner = carry(SyncUnreachableError("silence", where="a:1"))
    text = "\n".join(["Job aborted", *inner.__notes__])

    found = failure(RuntimeError(text), "ingest")

    assert isinstance(found, SyncUnreachableError)


def test_other_errors_are_named() -> None:
    """Anything else says that Spark failed, in its first line, and what to do."""
    found = failure(RuntimeError("\n  Disk is full \n at java"), "ingest")

    assert isinstance(found, ArchiveError)
    assert found.code == "archive.failed"
    assert "Disk is full; " in str(found)
    assert "java" not in str(found)
