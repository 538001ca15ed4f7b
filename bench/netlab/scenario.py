"""A scenario of the lab: nodes, links over time, load, and what must come out; a TOML file.

At the top stand `name`, `sentence`, `row` (the weakness that it is about) and `seed`. The
tables are `NetworkPlan`, `MeasurePlan`, and any number of `LoadPlan` (`[[load]]`), `StepPlan`
(`[[step]]`), `RelayPlan` (`[[relay]]`), `CasePlan` (`[[case]]`) and `Expected` (`[[expect]]`).
Times are seconds since the nodes are ready; relays are numbered from 0.

*Bounds*: a file has `FILE_BYTES_MAX`, a network `RELAYS_MAX` nodes, a timeline `SECONDS_MAX`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from luxrelay.errors import ScenarioError
from netlab.links import LINK_FIELDS, RATE_FIELDS

FOLDER: Final = Path(__file__).parent / "scenarios"
"""Where the scenarios are."""
SHORT: Final = ("calm", "loss-5", "short-cut", "catch-up-short")
"""The ones of ``make netlab-short``."""
FILE_BYTES_MAX: Final = 64 * 1024
RELAYS_MAX: Final = 12
SECONDS_MAX: Final = 3_600.0
ACTIONS: Final = ("links", "rates", "address", "freeze", "thaw", "stop", "start", "clock", "mark")
"""What a step may do."""

T = TypeVar("T")
Numbers = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """The nodes, whom they know, and their links at first."""

    relays: int = 6
    chords: tuple[int, ...] = (1, 2)
    """A relay keeps a connection to the ones that come so many places after it."""
    sync: tuple[int, ...] = (1, -1)
    """And catches up from these."""
    bootstrap: bool = False
    """Relays are told of relay 0 alone and find the others; instead of `chords`."""
    absent: tuple[int, ...] = ()
    """Relays that a step starts later."""
    peers_min: int = -1
    """Peers of each relay before the timeline begins; all that run when -1."""
    publishes_per_s: int = 100
    """`limits.sender_messages_per_s` of each relay."""
    links: Numbers = field(default_factory=dict)
    """`LinkState` of every link at first."""
    rates: Numbers = field(default_factory=dict)
    """`PortRates` of every relay at first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPlan:
    """What one relay has of its own."""

    relay: int = 0
    sync: tuple[int, ...] = ()
    """Relays that it catches up from; instead of the network's."""
    chords: tuple[int, ...] = ()
    """Relays that it keeps connections to; instead of the network's."""
    beside: int = -1
    """It runs in the namespace of this relay and reaches it over its loopback."""
    clock_s: int = 0
    """How far its wall clock is ahead once the relays have their peers, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Applications that publish."""

    name: str = "load"
    rate: float = 6.0
    """Messages a second, all publishers together."""
    size_bytes: int = 200
    publishers: tuple[int, ...] = ()
    """At which relays; all that run when empty."""
    from_s: float = 0.0
    until_s: float = 0.0
    """When it ends; 0: when all `messages` are published."""
    messages: int = 0
    """How many in all; 0: as many as fit."""
    batch: int = 1
    """Messages of one call."""
    lanes: int = 1
    """Senders at each publisher, in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Something that changes while the load runs."""

    at_s: float = 0.0
    every_s: float = 0.0
    """Done again after so many seconds, until `until_s`; 0 for once."""
    until_s: float = 0.0
    do: str = "mark"
    """One of `ACTIONS`."""
    relays: tuple[int, ...] = ()
    """Whom it concerns; all when empty. Of links: the senders."""
    to: tuple[int, ...] = ()
    """Of links: the receivers; all others when empty."""
    one_way: bool = False
    """Of links: the way back stays as it is."""
    set: Numbers = field(default_factory=dict)
    """The changed fields of `LinkState` or `PortRates`; of a clock ``ahead_s``."""
    mark: str = ""
    """A name for this moment, for measures; of a start: for when the relays answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePlan:
    """One of several ways to run the same timeline, in one network."""

    name: str = ""
    links: Numbers = field(default_factory=dict)
    rates: Numbers = field(default_factory=dict)
    size_bytes: int = 0
    """Of every load; 0 leaves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurePlan:
    """Which messages and relays the measures are of."""

    settle_s: float = 60.0
    """Longest time until every relay holds everything, after loads and steps have ended."""
    relays: tuple[int, ...] = ()
    """The relays that are measured; all when empty."""
    since: str = ""
    """The mark that recovery counts from; the first message when empty."""
    fault_from: str = ""
    """The mark that `not_ready_s` counts from; that of `since` when empty."""
    backlog_from: str = ""
    """Useful bytes count from this mark on; all when empty."""
    ideal_bits_s: float = 0.0
    """Rate of the measured relays' links for `ideal_s`; 0 when there is no ideal."""
    peers_min: int = -1
    """Peers that a relay has when it has rejoined; those before the timeline when -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a measure must be."""

    measure: str = ""
    at_least: float = float("-inf")
    at_most: float = float("inf")

    def holds(self, value: float | None) -> bool:
        """Return True when a measured value is right; one that could not be had is not."""
        return value is not None and self.at_least <= value <= self.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class LabScenario:
    """Everything that a run of the lab depends on.

    Raises:
        ScenarioError: values do not fit together.

    """

    name: str
    sentence: str = ""
    row: str = ""
    seed: int = 1
    network: NetworkPlan = field(default_factory=NetworkPlan)
    measure: MeasurePlan = field(default_factory=MeasurePlan)
    relays: tuple[RelayPlan, ...] = ()
    loads: tuple[LoadPlan, ...] = ()
    steps: tuple[StepPlan, ...] = ()
    cases: tuple[CasePlan, ...] = (CasePlan(),)
    expected: tuple[Expected, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be run; the error names the place."""
        count = self.network.relays
        if not 2 <= count <= RELAYS_MAX:
            raise ScenarioError(f"expected 2 to {RELAYS_MAX}", where="network.relays")
        _check_fields(self.network.links, LINK_FIELDS, "network.links")
        _check_fields(self.network.rates, RATE_FIELDS, "network.rates")
        for number, case in enumerate(self.cases, 1):
            _check_fields(case.links, LINK_FIELDS, f"case {number}.links")
            _check_fields(case.rates, RATE_FIELDS, f"case {number}.rates")
        for number, load in enumerate(self.loads, 1):
            _check_load(load, f"load {number}")
        for number, step in enumerate(self.steps, 1):
            _check_step(step, f"step {number}")
        marks = {step.mark for step in self.steps}
        for key in ("since", "fault_from", "backlog_from"):
            if (name := getattr(self.measure, key)) and name not in marks:
                raise ScenarioError(f"no step has the mark {name!r}", where=f"measure.{key}")
        named = [*self.measure.relays, *self.network.absent]
        named += [each for step in self.steps for each in (*step.relays, *step.to)]
        named += [each for load in self.loads for each in load.publishers]
        named += [each.relay for each in self.relays]
        if any(not 0 <= each < count for each in named):
            raise ScenarioError(f"there are relays 0 to {count - 1}", where=self.name)
        if self.seconds > SECONDS_MAX:
            raise ScenarioError(f"longer than {SECONDS_MAX:g} s", where=self.name)

    @property
    def seconds(self) -> float:
        """When the last load or step ends."""
        ends = [max(step.at_s, step.until_s) for step in self.steps]
        ends += [load.until_s or load.from_s + load.messages / load.rate for load in self.loads]
        return max(ends, default=0.0)


def _check_fields(values: Numbers, known: frozenset[str], where: str) -> None:
    for key in values:
        if key not in known:
            raise ScenarioError(
                f"unknown key {key!r}", where=where, hint=f"known are {', '.join(sorted(known))}"
            )


def _check_load(load: LoadPlan, where: str) -> None:
    if not load.until_s and not load.messages:
        raise ScenarioError("expected until_s or messages", where=where)
    if load.rate <= 0 or load.batch < 1 or load.lanes < 1 or not 8 <= load.size_bytes <= 1 << 21:
        raise ScenarioError("rate, batch, lanes or size_bytes does not fit", where=where)


def _check_step(step: StepPlan, where: str) -> None:
    known = {
        "links": LINK_FIELDS,
        "rates": RATE_FIELDS,
        "clock": frozenset({"ahead_s"}),
        "address": frozenset({"host"}),
    }
    if step.do not in ACTIONS:
        raise ScenarioError(f"unknown action {step.do!r}", where=where)
    _check_fields(step.set, known.get(step.do, frozenset()), f"{where}.set")
    if bool(step.every_s) != bool(step.until_s):
        raise ScenarioError("every_s and until_s belong together", where=where)


def names() -> list[str]:
    """Return the names of all scenarios, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_scenario(name: str) -> LabScenario:
    """Return a scenario by its name, or the one in a file.

    Raises:
        ScenarioError: there is none, or a value does not fit.

    """
    path = FOLDER / f"{name}.toml" if name in names() else Path(name)
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ScenarioError(f"the file is larger than {FILE_BYTES_MAX} bytes", where=name)
        return parse_scenario(data.decode(), source=path.stem)
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(
            "no such scenario", where=name, hint=f"known are {', '.join(names())}"
        ) from error


def parse_scenario(text: str, *, source: str) -> LabScenario:
    """Return the scenario of a TOML text.

    Raises:
        ScenarioError: says what of ``source`` is wrong.

    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"not TOML: {error}", where=source) from error
    try:
        return LabScenario(**{"name": source, **dict(map(_section, document.items()))})
    except ScenarioError as error:
        raise ScenarioError(
            error.what, where=f"{source}: {error.where}", hint=error.hint
        ) from error


_LISTS: Final[dict[str, tuple[str, type]]] = {
    "relay": ("relays", RelayPlan),
    "load": ("loads", LoadPlan),
    "step": ("steps", StepPlan),
    "case": ("cases", CasePlan),
    "expect": ("expected", Expected),
}
_TABLES: Final[dict[str, type]] = {"network": NetworkPlan, "measure": MeasurePlan}
_VALUES: Final[dict[str, type]] = {"name": str, "sentence": str, "row": str, "seed": int}


def _section(item: tuple[str, Any]) -> tuple[str, Any]:
    """Return a field of `LabScenario` and its value for what stands at the top of a file."""
    key, value = item
    if key in _LISTS:
        name, kind = _LISTS[key]
        if not isinstance(value, list):
            raise ScenarioError(f"expected tables [[{key}]]", where=key)
        tables = enumerate(value, 1)
        return name, tuple(read_table(kind, table, f"{key} {number}") for number, table in tables)
    if key in _TABLES:
        return key, read_table(_TABLES[key], value, key)
    if key not in _VALUES:
        raise ScenarioError(f"unknown key {key!r}", where=key)
    if type(value) is not _VALUES[key]:
        raise ScenarioError(f"expected a value of kind {_VALUES[key].__name__}", where=key)
    return key, value


def read_table(kind: type[T], table: object, where: str) -> T:
    """Return the dataclass that a TOML table describes; what it does not name has its default.

    Raises:
        ScenarioError: it is no table, a key is unknown, or a value is of another kind.

    """
    if not isinstance(table, Mapping):
        raise ScenarioError("expected a table", where=where)
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    values = {}
    for key, value in table.items():
        if key not in known:
            raise ScenarioError(
                f"unknown key {key!r}", where=where, hint=f"known are {', '.join(known)}"
            )
        default = known[key].default
        values[key] = _fitting({} if default is MISSING else default, value, f"{where}.{key}")
    return kind(**values)


def _fitting(default: object, value: object, where: str) -> object:
    """Return a value of the default's kind."""
    if isinstance(default, tuple) and isinstance(value, list):
        if all(isinstance(each, int) and not isinstance(each, bool) for each in value):
            return tuple(value)
        raise ScenarioError("expected whole numbers", where=where)
    if isinstance(default, dict) and isinstance(value, dict):
        if all(isinstance(each, int | float) for each in value.values()):
            return value
        raise ScenarioError("expected a table of numbers", where=where)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise ScenarioError(f"expected a value of kind {type(default).__name__}", where=where)
    return value
