"""Holes are waited for, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from luxrelay.archive.options import SourceOptions
from luxrelay.archive.relays import list_heads
from luxrelay.archive.source import HOLED_MAX, past_holes
from luxrelay.sync import WireMessage

Forge = Callable[..., WireMessage]
NS = b"n" * 20
OPTIONS = SourceOptions(relays=("a:1", "b:1"), hole_patience_ms=1_000)
NOW = 1_000_000


@pytest.fixture(autouse=True)
def _in_memory(memory_relays: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("luxrelay.archive.relays.RelaySyncClient", memory_relays.client)


def _past(options: SourceOptions = OPTIONS) -> dict[str, int]:
    heads, down = list_heads(options)
    return past_holes(options, heads, down, now_ms=NOW)


def _at(message: WireMessage, age_ms: int) -> WireMessage:
    return replace(message, received_at=NOW - age_ms)


def test_nobody_is_asked_when_there_is_no_hole(memory_relays: Any, forge: Forge) -> None:
    """The usual case costs nothing."""
    memory_relays.put("a:1", *(forge(NS, seq) for seq in (1, 2, 3)))
    memory_relays.put("b:1", *(forge(NS, seq) for seq in (1, 2)))

    assert _past() == {}
    assert memory_relays.looks == 0


def test_a_young_hole_is_waited_for_and_an_old_one_is_given_up(
    memory_relays: Any, forge: Forge
) -> None:
    """A message beyond the hole that has been there long enough ends the wait (H16)."""
    memory_relays.put("a:1", forge(NS, 1), _at(forge(NS, 3), 500))
    memory_relays.put("b:1", forge(NS, 1))

    assert _past() == {}
    memory_relays.held["a:1"][NS][1] = _at(forge(NS, 3), 1_000)
    assert _past() == {NS.hex(): 3}


def test_only_what_is_old_enough_is_read_past_a_hole(memory_relays: Any, forge: Forge) -> None:
    """Newer messages, and holes among them, still have their time."""
    old = [_at(forge(NS, seq), 5_000) for seq in range(3, 40)]
    new = [_at(forge(NS, seq), 10) for seq in range(40, 90) if seq % 7]
    memory_relays.put("a:1", forge(NS, 1), *old, *new)
    memory_relays.put("b:1", forge(NS, 1))

    assert _past() == {NS.hex(): 39}


def test_a_relay_that_fails_leaves_the_hole_for_later(memory_relays: Any, forge: Forge) -> None:
    """Patience is no reason for an error."""
    memory_relays.put("a:1", forge(NS, 1), _at(forge(NS, 3), 9_000))
    memory_relays.put("b:1", forge(NS, 1))
    heads, down = list_heads(OPTIONS)
    memory_relays.down.add("a:1")

    assert past_holes(OPTIONS, heads, down, now_ms=NOW) == {}


def test_a_survey_asks_of_so_many_namespaces_at_most(memory_relays: Any, forge: Forge) -> None:
    """HOLED_MAX namespaces a survey; the next survey goes on with what is left."""
    for number in range(HOLED_MAX + 5):
        name = number.to_bytes(20, "big")
        memory_relays.put("a:1", forge(name, 1), _at(forge(name, 3), 9_000))
    memory_relays.put("b:1", forge(NS, 1))

    assert len(_past()) == HOLED_MAX
    assert memory_relays.looks <= HOLED_MAX * 2
