"""A scenario: network, traffic, faults, expectations.

A TOML file, or the same built in Python. The ones that ship are found by name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Final, TypeVar

from luxrelay.errors import GossipArgumentError, ScenarioError
from luxrelay.gossip import DiversityParams, GossipParams, ScoreParams
from luxrelay.sim.faults import SimFault, read_fault
from luxrelay.sim.links import LinkPlan
from luxrelay.sim.recovery import RecoveryPlan
from luxrelay.sim.settings import check_fields, read_table, setting
from luxrelay.sim.traffic import TrafficPlan, ValidationPlan

FILE_BYTES_MAX: Final = 1024 * 1024
"""Largest scenario file that is read."""
NODES_MAX: Final = 20_000
"""Most nodes of a run; 10,000 take a few gigabytes."""
NODES_MIN: Final = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """How many nodes there are and whom they know."""

    nodes: int = setting(1000, "Nodes, hostile ones included", low=NODES_MIN, high=NODES_MAX)
    dials: int = setting(10, "Connections that a node opens and keeps open", low=1, high=1000)
    book: int = setting(40, "Others that a node knows and may dial", low=1, high=NODES_MAX)
    seeds: int = setting(
        0, "Nodes that everybody knows instead of a book of their own; 0 for none", high=NODES_MAX
    )
    start_spread_s: float = setting(1.0, "Time over which the nodes start", unit="seconds")
    redial_s: float = setting(
        2.0, "Time between two looks at whether connections are lacking", unit="seconds", low=0.05
    )
    tick_ms: float = setting(1.0, "Resolution of virtual time", unit="milliseconds", low=0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurePlan:
    """Which deliveries count and how often the mesh is looked at."""

    duration_s: float = setting(36.0, "How long the run lasts", unit="seconds", low=0.1, high=1e6)
    join_s: float = setting(
        3.0, "A node that runs for less when a message is published need not get it", unit="seconds"
    )
    settle_s: float = setting(
        6.0, "A node that ends sooner after a message is published need not get it", unit="seconds"
    )
    sample_s: float = setting(0.35, "Time between two looks at the mesh", unit="seconds", low=0.01)
    check_s: float = setting(10.0, "Time between two checks of all bounds", unit="seconds", low=0.1)
    calm: bool = setting(
        False, "Run it without its faults as well, and measure the ratio of the two (p99_ratio)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a measure must be."""

    measure: str = setting("", "Name of the measure, as in the report")
    at_least: float = setting(float("-inf"), "Smallest value that is right", low=float("-inf"))
    at_most: float = setting(float("inf"), "Largest value that is right", high=float("inf"))

    def holds(self, value: float | None) -> bool:
        """Return True when a measured value is right; a value that could not be had is not."""
        return value is not None and self.at_least <= value <= self.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a run depends on.

    Raises:
        ScenarioError: a value is out of bounds, or two do not fit together.

    """

    name: str = "scenario"
    """What it is called."""
    sentence: str = ""
    """What it shows."""
    seed: int = 1
    """Where all chance of a run comes from."""
    network: NetworkPlan = field(default_factory=NetworkPlan)
    links: LinkPlan = field(default_factory=LinkPlan)
    traffic: TrafficPlan = field(default_factory=TrafficPlan)
    validation: ValidationPlan = field(default_factory=ValidationPlan)
    sync: RecoveryPlan = field(default_factory=RecoveryPlan)
    measure: MeasurePlan = field(default_factory=MeasurePlan)
    gossip: Mapping[str, float] = field(default_factory=dict)
    """Fields of `GossipParams` that differ from their default."""
    score: Mapping[str, float] = field(default_factory=dict)
    """Fields of `ScoreParams` that differ from their default."""
    diversity: Mapping[str, float] = field(default_factory=dict)
    """Fields of `DiversityParams` that differ from their default."""
    faults: tuple[SimFault, ...] = ()
    """What goes wrong."""
    expect: tuple[Expectation, ...] = ()
    """What must come out."""

    def __post_init__(self) -> None:
        """Refuse what cannot be run; the error names the place."""
        for name in SECTIONS:
            check_fields(getattr(self, name), name)
        hostile = sum(fault.hostile_share for fault in self.faults)
        if hostile >= 1:
            raise ScenarioError("no honest node is left", where="fault")
        self.params()
        self.scores()
        self.diversities()

    def params(self) -> GossipParams:
        """Return the parameters of every router.

        Raises:
            ScenarioError: a name is unknown or the values do not fit together.

        """
        return _overridden(GossipParams, self.gossip, "gossip")

    def scores(self) -> ScoreParams:
        """Return what behaviour is worth in every router.

        Raises:
            ScenarioError: a name is unknown or the values do not fit together.

        """
        return _overridden(ScoreParams, self.score, "score")

    def diversities(self) -> DiversityParams:
        """Return how different the peers of every router have to be.

        Raises:
            ScenarioError: a name is unknown or the values do not fit together.

        """
        return _overridden(DiversityParams, self.diversity, "diversity")

    def resized(self, nodes: int) -> Scenario:
        """Return the same with another number of nodes, at most a fifth of which publish.

        Raises:
            ScenarioError: the number is out of bounds.

        """
        publishers = max(1, min(self.traffic.publishers, nodes // 5))
        return replace(
            self,
            network=replace(self.network, nodes=nodes),
            traffic=replace(self.traffic, publishers=publishers),
        )


def _overridden(kind: type[T], table: Mapping[str, float], where: str) -> T:
    """Return the parameters of a kind with what a table changes."""
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    for name in table:
        if name not in known:
            raise ScenarioError(f"unknown key {name!r}", where=where)
    try:
        return kind(**table)
    except (GossipArgumentError, TypeError) as error:
        raise ScenarioError(str(error), where=where) from error


SECTIONS: Final[dict[str, type]] = {
    "network": NetworkPlan,
    "links": LinkPlan,
    "traffic": TrafficPlan,
    "validation": ValidationPlan,
    "sync": RecoveryPlan,
    "measure": MeasurePlan,
}
"""The sections of a file besides [gossip], [score], [diversity], [[fault]] and [[expect]]."""


def shipped() -> list[str]:
    """Return the names of the scenarios that ship, sorted."""
    folder = resources.files("luxrelay.sim") / "scenarios"
    names = [item.name for item in folder.iterdir() if item.name.endswith(".toml")]
    return sorted(name.removesuffix(".toml") for name in names)


def load_scenario(name: str) -> Scenario:
    """Return a scenario that ships, by its name, or the one in a file.

    Args:
        name: A name such as ``propagation``, or the path of a TOML file.

    Raises:
        ScenarioError: there is none, it cannot be read, or a value does not fit.

    """
    if name in shipped():
        text = (resources.files("luxrelay.sim") / "scenarios" / f"{name}.toml").read_text()
        return parse_scenario(text, source=name)
    try:
        with Path(name).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ScenarioError(f"the file is larger than {FILE_BYTES_MAX} bytes", where=name)
        text = data.decode()
    except OSError as error:
        raise ScenarioError(
            f"no such scenario: {error.strerror or error}",
            where=name,
            hint=f"give the path of a TOML file, or one of {', '.join(shipped())}",
        ) from error
    except (UnicodeDecodeError, ValueError) as error:
        if isinstance(error, ScenarioError):
            raise
        raise ScenarioError("the file is not UTF-8", where=name) from error
    return parse_scenario(text, source=name)


def parse_scenario(text: str, *, source: str) -> Scenario:
    """Return the scenario of a TOML text.

    Raises:
        ScenarioError: says which key of ``source`` is wrong and what fits.

    """
    try:
        document = tomllib.loads(text)
    except ValueError as error:
        raise ScenarioError(f"not TOML: {error}", where=source) from error
    except RecursionError as error:
        raise ScenarioError("nested too deeply", where=source) from error
    known = {
        "name",
        "sentence",
        "seed",
        "gossip",
        "score",
        "diversity",
        "fault",
        "expect",
        *SECTIONS,
    }
    unknown = [name for name in document if name not in known]
    if unknown:
        raise ScenarioError(f"unknown key {unknown[0]!r}", where=source)
    try:
        return Scenario(
            name=_text(document, "name", Path(source).stem),
            sentence=_text(document, "sentence", ""),
            seed=_seed(document),
            gossip=_numbers(document, "gossip"),
            score=_numbers(document, "score"),
            diversity=_numbers(document, "diversity"),
            faults=tuple(
                read_fault(table, f"fault {number}")
                for number, table in enumerate(_list(document, "fault"), 1)
            ),
            expect=tuple(
                read_table(Expectation, table, f"expect {number}")
                for number, table in enumerate(_list(document, "expect"), 1)
            ),
            **{
                name: read_table(kind, document.get(name, {}), name)
                for name, kind in SECTIONS.items()
            },
        )
    except ScenarioError as error:
        raise ScenarioError(
            error.what, where=f"{source}: {error.where}", hint=error.hint
        ) from error


def _text(document: Mapping[str, object], name: str, default: str) -> str:
    value = document.get(name, default)
    if not isinstance(value, str):
        raise ScenarioError("expected text", where=name)
    return value


def _seed(document: Mapping[str, object]) -> int:
    value = document.get("seed", 1)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ScenarioError("expected a whole number", where="seed")
    return value


def _list(document: Mapping[str, object], name: str) -> list[object]:
    value = document.get(name, [])
    if not isinstance(value, list):
        raise ScenarioError(f"expected tables [[{name}]]", where=name)
    return value


def _numbers(document: Mapping[str, object], name: str) -> dict[str, float]:
    table = document.get(name, {})
    if not isinstance(table, Mapping):
        raise ScenarioError("expected a table", where=name)
    for key, value in table.items():
        if not isinstance(value, (int, float)):
            raise ScenarioError("expected a number, true or false", where=f"{name}.{key}")
    return dict(table)
