"""The lab leaves nothing behind: namespaces and the wire go, whatever ends the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from netlab import lab
from netlab.lab import LabError, LabNotPermittedError, NetworkLab, remove_leftovers
from netlab.scenario import LabScenario, NetworkPlan, RelayPlan

PLAN = LabScenario(name="two", network=NetworkPlan(relays=2, chords=(1,), sync=(1,)))


class FakeWire:
    """A wire that takes every command."""

    made: list[FakeWire]

    def __init__(self, seed: int) -> None:
        del seed
        self.asked: list[dict[str, Any]] = []
        self.closed = False
        FakeWire.made.append(self)

    def ask(self, **command: Any) -> dict[str, Any]:
        """Note it."""
        self.asked.append(command)
        return {}

    def close(self) -> None:
        """Note it."""
        self.closed = True


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Namespaces that stand in a set, and a command that may be made to fail."""
    state: dict[str, Any] = {"namespaces": set(), "fails": None, "listed": ""}
    FakeWire.made = []

    def ip(*words: str, check: bool = True) -> str:
        if words == state["fails"] and check:
            raise LabError("no")
        if words[:2] == ("netns", "add"):
            state["namespaces"].add(words[2])
        if words[:2] == ("netns", "del"):
            state["namespaces"].discard(words[2])
        return state["listed"] if words == ("netns", "list") else ""

    monkeypatch.setattr(lab, "ip", ip)
    monkeypatch.setattr(lab, "WireProcess", FakeWire)
    monkeypatch.setattr(NetworkLab, "_make_token", lambda _: None)
    return state


def test_a_network_is_there_while_it_is_used_and_then_gone(
    machine: dict[str, Any], tmp_path: Path
) -> None:
    """Its names have the run's process id; each relay knows the others' addresses."""
    run = os.getpid()
    with NetworkLab(PLAN, tmp_path / "nodes") as made:
        assert machine["namespaces"] == {f"luxlab{run}-0", f"luxlab{run}-1"}
        config = (made.relays[0].place.folder / "relay.toml").read_text()
        assert made.relays[1].address in config
        assert 'peers = ["10.77.0.2:9641"]' in config

    assert machine["namespaces"] == set()
    assert FakeWire.made[0].closed


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_or_a_signal_leaves_nothing(
    machine: dict[str, Any], tmp_path: Path, error: type[BaseException]
) -> None:
    """A signal becomes an exception in the command."""
    with pytest.raises(error), NetworkLab(PLAN, tmp_path / "nodes"):
        raise error

    assert machine["namespaces"] == set()
    assert FakeWire.made[0].closed


def test_a_network_that_cannot_be_made_leaves_nothing(
    machine: dict[str, Any], tmp_path: Path
) -> None:
    """What had been made by then is removed."""
    machine["fails"] = ("link", "set", f"lx{os.getpid()}t1", "netns", f"luxlab{os.getpid()}-1")

    with pytest.raises(LabError), NetworkLab(PLAN, tmp_path / "nodes"):
        pytest.fail("it was made")

    assert machine["namespaces"] == set()
    assert FakeWire.made[0].closed


def test_what_a_killed_run_left_is_removed_and_other_runs_are_not(machine: dict[str, Any]) -> None:
    """A run whose process is there still has its namespaces."""
    dead, alive = f"{lab.NAMES}4194305-0", f"{lab.NAMES}{os.getpid()}-0"
    machine["listed"] = f"{dead} (id: 1)\n{alive} (id: 2)\nsomebody-1\n"
    machine["namespaces"] |= {dead, alive}

    assert remove_leftovers() == [dead]
    assert machine["namespaces"] == {alive}


def test_a_relay_beside_another_has_its_namespace_and_other_ports(
    machine: dict[str, Any], tmp_path: Path
) -> None:
    """It reaches the other one over the loopback alone."""
    plan = LabScenario(
        name="beside",
        network=NetworkPlan(relays=2, chords=(), sync=()),
        relays=(RelayPlan(relay=1, beside=0),),
    )
    with NetworkLab(plan, tmp_path / "nodes") as made:
        one, other = made.relays
        assert other.place.namespace == one.place.namespace
        config = (other.place.folder / "relay.toml").read_text()
        assert 'peers = ["127.0.0.1:9641"]' in config
        assert 'listen = "127.0.0.1:9742"' in config
        assert len(machine["namespaces"]) == 1


def test_links_are_both_ways_unless_they_are_not(machine: dict[str, Any], tmp_path: Path) -> None:
    """Senders that are named, and all others as receivers when none are."""
    del machine
    plan = LabScenario(name="three", network=NetworkPlan(relays=3))
    with NetworkLab(plan, tmp_path / "nodes") as made:
        wire = FakeWire.made[0]
        wire.asked.clear()
        made.set_links([2], [], {"drop": True}, one_way=False)
        made.set_links([0], [1], {"loss": 0.5}, one_way=True)

    pairs = [(each["from"], each["to"]) for each in wire.asked]
    assert pairs == [(["r2"], ["r0", "r1"]), (["r0", "r1"], ["r2"]), (["r0"], ["r1"])]


def test_without_root_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is made."""
    monkeypatch.setattr(lab.os, "geteuid", lambda: 1000)

    with pytest.raises(LabNotPermittedError, match="need root"):
        lab.require_permission()
