"""archive ingest: options that reach the source; a run needs Spark."""

from __future__ import annotations

import argparse

import pytest

from luxrelay.archive.options import PATIENCE_MAX_MS, SourceOptions
from luxrelay.cli.archive_ingest import register_ingest, source_options


def _parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    register_ingest(parser.add_subparsers())
    return parser.parse_args(["ingest", *words])


def _source(*words: str) -> SourceOptions:
    return SourceOptions.parse({"relays": "a:1"} | source_options(_parsed(*words)))


def test_a_hole_is_waited_for_as_long_as_the_operator_says() -> None:
    """In milliseconds, a minute when nothing is said, beside files of TLS (H16)."""
    assert _source().hole_patience_ms == SourceOptions(relays=()).hole_patience_ms == 60_000
    assert _source("--hole-patience-ms", "1").hole_patience_ms == 1
    patient = _source("--hole-patience-ms", str(PATIENCE_MAX_MS), "--tls-ca", "ca.pem")
    assert (patient.hole_patience_ms, patient.tls_ca) == (PATIENCE_MAX_MS, "ca.pem")


@pytest.mark.parametrize("number", ["0", str(PATIENCE_MAX_MS + 1), "1.5", "-1"])
def test_a_patience_out_of_range_is_refused(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a millisecond to a day, as the source itself has it."""
    with pytest.raises(SystemExit):
        _parsed("--hole-patience-ms", number)

    assert "--hole-patience-ms" in capsys.readouterr().err
