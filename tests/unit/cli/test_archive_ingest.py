"""archive ingest: options that reach the source; a run needs Spark."""

from __future__ import annotations

import argparse

import pytest

from luxrelay.archive.options import PATIENCE_MAX_MS, SourceOptions
from luxrelay.cli.archive_ingest import register_ingest


def _parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    register_ingest(parser.add_subparsers())
    return parser.parse_args(["ingest", *words])


def test_a_hole_is_waited_for_as_long_as_the_operator_says() -> None:
    """In milliseconds; a minute when nothing is said, as the source by itself has it (H16)."""
    assert _parsed().hole_patience_ms == SourceOptions(relays=()).hole_patience_ms == 60_000
    assert _parsed("--hole-patience-ms", str(PATIENCE_MAX_MS)).hole_patience_ms == PATIENCE_MAX_MS


@pytest.mark.parametrize("number", ["0", str(PATIENCE_MAX_MS + 1), "1.5", "-1"])
def test_a_patience_out_of_range_is_refused(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a millisecond to a day, as the source itself has it."""
    with pytest.raises(SystemExit):
        _parsed("--hole-patience-ms", number)

    assert "--hole-patience-ms" in capsys.readouterr().err
