"""Runs one target under atheris, from the committed corpus.

What libFuzzer finds goes into a temporary folder, so that a run leaves the checkout alone; a find
that is worth keeping is copied into ``corpus/`` by hand.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

CORPUS = Path(__file__).parent / "corpus"
LENGTH_MAX = 8300
"""Longest input, bytes: a little above the longest header."""


def fuzz(name: str) -> None:
    """Fuzz the target of that name; further arguments are libFuzzer's, ``-runs=20000`` say."""
    with atheris.instrument_imports(include=["luxrelay.bus", "luxrelay.gossip"]):
        from targets import TARGETS

    target = TARGETS[name]

    def one_input(data: bytes) -> None:
        target(data)

    with tempfile.TemporaryDirectory() as found:
        flags = [f"-max_len={LENGTH_MAX}", *sys.argv[1:], found, str(CORPUS / name)]
        atheris.Setup([sys.argv[0], *flags], one_input)
        atheris.Fuzz()
