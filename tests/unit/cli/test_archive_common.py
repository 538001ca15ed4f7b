"""Options that the archive's subcommands share."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from luxrelay.archive.statements import Statements
from luxrelay.cli.archive_common import (
    add_finality,
    add_rules,
    add_tls,
    rules_of,
    statements_of,
    tls_of,
)
from luxrelay.errors import UsageError


def _parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_finality(parser)
    parser.add_argument("--network")
    return parser.parse_args(words)


def test_statements_are_named_whole_or_not_at_all() -> None:
    """A file, its signers and their network belong together; a key field may begin with 0x."""
    given = ("--finality", "said", "--finality-signer", "0x01aa", "--finality-signer", "01bb")

    assert statements_of(_parsed()) is None
    assert statements_of(_parsed("--network", "main")) is None
    assert statements_of(_parsed(*given, "--network", "main")) == Statements(
        path=Path("said"), network="main", signers=(b"\x01\xaa", b"\x01\xbb")
    )
    for words in (given, given[:2], (*given[2:], "--network", "main")):
        with pytest.raises(UsageError, match="their network"):
            statements_of(_parsed(*words))


def test_refuse_a_key_field_that_is_no_hex() -> None:
    """The option is named."""
    words = ("--finality", "said", "--finality-signer", "xyz", "--network", "main")

    with pytest.raises(UsageError, match="in hex") as caught:
        statements_of(_parsed(*words))

    assert caught.value.where == "--finality-signer"


def test_rules_and_tls_come_from_options() -> None:
    """A bound network has a name; files of TLS become options of the source."""
    parser = argparse.ArgumentParser()
    add_rules(parser)
    add_tls(parser)
    words = ("--network", "closed", "--bound", "--tls-ca", "ca.pem", "--tls-key", "key.pem")

    parsed = parser.parse_args(words)
    assert rules_of(parsed).network == "closed"
    assert tls_of(parsed) == {"tlsCa": "ca.pem", "tlsKey": "key.pem"}
    assert rules_of(parser.parse_args([])).network is None
    assert tls_of(parser.parse_args([])) == {}
    with pytest.raises(UsageError, match="name their network"):
        rules_of(parser.parse_args(["--bound"]))
