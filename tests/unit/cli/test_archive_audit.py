"""archive audit: what the command says of a comparison; its run needs Spark."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from luxrelay.archive.comparison import Difference, RelayComparison
from luxrelay.archive.verification import VerifyReport
from luxrelay.cli.archive_audit import _show_verified, _verify_json, register_audit
from luxrelay.cli.main import main

FOUND = RelayComparison(
    relay="b:1",
    root="differs",
    ids=7,
    namespaces=2,
    blocks_read=1,
    newer=3,
    differences=[
        Difference(
            namespace_id=b"n" * 20, seq=5, content_id=b"c" * 32, missing="here", held_by=("b:1",)
        )
    ],
)


def test_a_comparison_is_said_by_relay(capsys: pytest.CaptureFixture[str]) -> None:
    """Findings first, then a line for each relay; what a relay says cannot move the cursor."""
    silent = RelayComparison(relay="c:1", note="no\x1btree", failed="it is gone")
    report = VerifyReport(messages=9, proofs=8, wrong=2, findings=["a\x1bb"])
    report.relays = [FOUND, silent]

    _show_verified(report)

    lines = capsys.readouterr().err.splitlines()
    assert "\x1b" not in "".join(lines)
    assert lines[1].startswith("b:1: Merkle root over 7 messages differs, 2 namespaces")
    assert lines[1].endswith("1 read, 3 newer, 0 kept out")
    assert lines[2].startswith("c:1: no root")
    assert lines[3] == "9 messages looked at, 8 proven, 2 findings"


def test_a_comparison_is_json() -> None:
    """Every difference with its namespace, sequence, content id, side and holders."""
    values = json.loads(json.dumps(_verify_json(VerifyReport(wrong=1, relays=[FOUND]))))

    (relay,) = values["relays"]
    assert values["wrong"] == 1
    assert (relay["root"], relay["ids"], relay["newer"]) == ("differs", 7, 3)
    assert relay["differences"] == [
        {
            "namespaceId": "0x" + (b"n" * 20).hex(),
            "seq": 5,
            "contentId": "0x" + (b"c" * 32).hex(),
            "missing": "here",
            "heldBy": ["b:1"],
        }
    ]


def test_the_sample_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    """From one message to 100,000."""
    parser = argparse.ArgumentParser()
    register_audit(parser.add_subparsers())

    for number in ("0", "100001"):
        with pytest.raises(SystemExit):
            parser.parse_args(["audit", "--verify", number])
    assert parser.parse_args(["audit", "--verify", "7"]).verify == 7
    assert "--verify" in capsys.readouterr().err


def test_policies_that_are_not_there_are_said_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two seconds, not twenty."""
    missing = tmp_path / "none.policy"

    assert main(["archive", "audit", "--policies", str(missing), "--network", "n"]) != 0
    assert str(missing) in capsys.readouterr().err
