"""A run: the timeline of a scenario in its network, watched, and what it comes to."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from luxrelay.errors import LuxRelayError
from netlab.lab import LabError, LabRelay, NetworkLab
from netlab.links import LINK_FIELDS
from netlab.load import Publisher, RunningLoads, Subscriber
from netlab.measures import (
    MeasureContext,
    Measured,
    RelaySample,
    RunRecord,
    WireSample,
    measure,
)
from netlab.scenario import CasePlan, Expected, LabScenario, LoadPlan, StepPlan

LOOK_S: Final = 1.0
"""Time between two looks at a relay."""
WHOLE_LOOK_S: Final = 0.1
FEW: Final = 3
"""Seconds between two looks whether a relay holds everything, of so many relays at most: what takes
a second is measured by these. Of more relays as often as at the wire."""
WIRE_LOOK_S: Final = 0.25
"""Time between two looks at the wire, and at whether a relay holds everything."""
OVERRUN_S: Final = 180.0
"""How long loads that have a number of messages may go on after their time."""
PEERS_S: Final = 120.0
"""Longest time until the relays have their peers, before the timeline begins."""
RECOVER_S: Final = 60.0
"""Longest time over good links between two cases, until everything is everywhere."""
LOG_KINDS: Final = 20
"""Kinds of log lines that a report keeps."""
_TURN_S: Final = 0.05
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What one run of a timeline came to."""

    scenario: LabScenario
    case: CasePlan
    measures: Measured
    seconds: float
    wire: dict[str, Any] = field(default_factory=dict)
    """Lateness and drops of the wire."""
    refusals: dict[str, int] = field(default_factory=dict)
    """Why messages were refused, and how often."""
    log: dict[str, int] = field(default_factory=dict)
    """Warnings and errors of the nodes, and how often."""
    error: str = ""
    """Why it could not be run to its end."""
    simulated: Measured | None = None
    """What the simulator predicts; None where it cannot."""
    not_simulated: str = ""
    """Why it cannot."""

    @property
    def name(self) -> str:
        """Scenario and case."""
        return f"{self.scenario.name}: {self.case.name}" if self.case.name else self.scenario.name

    @property
    def failed(self) -> tuple[Expected, ...]:
        """Expectations that do not hold."""
        return tuple(x for x in self.scenario.expected if not x.holds(self.measures.get(x.measure)))

    @property
    def held(self) -> bool:
        """Whether everything held."""
        return not self.error and not self.failed


class Watch:
    """Looks at relays and wire while a timeline runs, in threads of its own.

    Args:
        lab: The network.
        record: Where looks are kept.

    """

    def __init__(self, lab: NetworkLab, record: RunRecord) -> None:
        self._lab, self._record = lab, record
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._look_at, args=(relay,), daemon=True)
            for relay in lab.relays
        ]
        self._threads += [
            threading.Thread(target=self._wait_whole, args=(relay,), daemon=True)
            for relay in lab.relays
        ]
        self._threads.append(threading.Thread(target=self._look_at_wire, daemon=True))

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Look no more."""
        self._over.set()
        for thread in self._threads:
            thread.join(10)

    def _look_at(self, relay: LabRelay) -> None:
        while not self._over.wait(LOOK_S):
            if relay.running:
                with suppress(OSError, HTTPException, ValueError):
                    self._record.samples[relay.place.index].append(look(relay))

    def _wait_whole(self, relay: LabRelay) -> None:
        """Note when a relay holds everything, from when nothing more is published."""
        record, index = self._record, relay.place.index
        while not self._over.wait(WHOLE_LOOK_S if record.relays <= FEW else WIRE_LOOK_S):
            if record.load_ended_s and relay.running and relay.holds(record.latest()):
                record.whole_s[index] = time.monotonic()
                return

    def _look_at_wire(self) -> None:
        while not self._over.wait(WIRE_LOOK_S):
            with suppress(LabError):
                sample = WireSample(at_s=time.monotonic(), octets=self._lab.octets())
                self._record.wire.append(sample)


def look(relay: LabRelay) -> RelaySample:
    """Return what a relay tells of itself now."""
    status, text = relay.get("/healthz")
    shown = json.loads(text)
    samples = relay.metrics()
    return RelaySample(
        at_s=time.monotonic(),
        peers=int(samples.get("relay_peer_count", -1)),
        ready=status == 200,
        clock=status != 200 and shown.get("clock", {}).get("state") == "wrong",
        catch_ups=int(samples.get("luxrelay_catch_up_runs_total", -1)),
        bans=int(samples.get("luxrelay_net_bans", 0)),
    )


class Timeline:
    """The steps of a scenario, each done at its time.

    Args:
        lab: The network.
        steps: What is to be done; repeated ones are spread out.
        record: Takes marks and ends.

    """

    def __init__(self, lab: NetworkLab, steps: tuple[StepPlan, ...], record: RunRecord) -> None:
        self._lab, self._record = lab, record
        self._waiting = sorted(occurrences(steps), key=lambda each: each[0])

    def turn(self, now_s: float) -> bool:
        """Do what is due; False when nothing is left."""
        while self._waiting and self._waiting[0][0] <= now_s:
            _, step = self._waiting.pop(0)
            began = time.monotonic()
            self._do(step)
            if step.do == "start":
                self._record.starts.setdefault(step.mark, began)
                began = time.monotonic()
            if step.mark:
                self._record.marks.setdefault(step.mark, began)
        return bool(self._waiting)

    def _do(self, step: StepPlan) -> None:
        lab = self._lab
        chosen = step.relays or tuple(range(len(lab.relays)))
        relays = [lab.relays[index] for index in chosen]
        match step.do:
            case "links":
                lab.set_links(step.relays, step.to, step.set, one_way=step.one_way)
            case "rates":
                lab.set_rates(step.relays, step.set)
            case "address":
                lab.set_address(chosen[0], int(step.set["host"]))
            case "start":
                lab.start(chosen)
            case "stop":
                self._record.stops_s += [relay.stop() for relay in relays]
            case other:
                _do_at_each(other, relays, step)


def _do_at_each(action: str, relays: list[LabRelay], step: StepPlan) -> None:
    for relay in relays:
        if action == "freeze":
            relay.freeze()
        elif action == "thaw":
            relay.thaw()
        elif action == "clock":
            relay.set_clock(int(step.set["ahead_s"]))


def occurrences(steps: tuple[StepPlan, ...]) -> Iterator[tuple[float, StepPlan]]:
    """Yield every time at which a step is to be done."""
    for step in steps:
        at_s = step.at_s
        yield at_s, step
        while step.every_s and (at_s := at_s + step.every_s) <= step.until_s:
            yield at_s, step


def run_scenario(scenario: LabScenario, folder: Path, say: Say) -> list[CaseResult]:
    """Return what each case of a scenario comes to, all in one network.

    A case that cannot be run to its end is a result with an error, and ends the scenario.
    """
    results: list[CaseResult] = []
    began = time.monotonic()
    try:
        with NetworkLab(scenario, folder / scenario.name) as lab:
            peers = _begin(lab, say)
            for case in scenario.cases:
                began = time.monotonic()
                results.append(_run_case(lab, case, peers))
                _tell(results[-1], say)
            for relay in lab.relays:
                relay.stop()
    except (LabError, LuxRelayError, OSError) as error:
        case = scenario.cases[min(len(results), len(scenario.cases) - 1)]
        seconds = time.monotonic() - began
        failed = CaseResult(
            scenario=scenario, case=case, measures={}, seconds=seconds, error=str(error)[:1000]
        )
        results.append(failed)
        _tell(failed, say)
    return results


def _tell(result: CaseResult, say: Say) -> None:
    say(f"{'held' if result.held else 'FAILED'}  {result.name}  {result.seconds:.0f} s")
    if result.error:
        say(f"    {result.error}")
    for each in result.failed:
        value = result.measures.get(each.measure)
        say(f"    {each.measure} is {value}, expected {each.at_least} to {each.at_most}")


def _begin(lab: NetworkLab, say: Say) -> int:
    """Start the network; return the peers that each relay has."""
    plan = lab.scenario.network
    present = [r.place.index for r in lab.relays if r.place.index not in plan.absent]
    wanted = len(present) - 1 if plan.peers_min < 0 else plan.peers_min
    began = time.monotonic()
    lab.start(present)
    if not lab.wait_peers(present, wanted, PEERS_S):
        counts = [int(lab.relays[i].metrics().get("relay_peer_count", 0)) for i in present]
        if not min(counts):
            raise LabError(f"after {PEERS_S:.0f} s the relays have {counts} peers, not {wanted}")
        say(f"        the relays have {counts} peers, not {wanted}")
        wanted = min(counts)
    for own in lab.scenario.relays:
        # Not before: a library that starts would wait for the difference to its own clock.
        lab.relays[own.relay].set_clock(own.clock_s)
    say(f"began   {lab.scenario.name}: {len(present)} relays in {time.monotonic() - began:.0f} s")
    return wanted


@contextmanager
def _watched(lab: NetworkLab, record: RunRecord) -> Iterator[None]:
    """While this runs, subscribers and looks are recorded."""
    subscribers = [Subscriber(relay, record) for relay in lab.relays]
    watch = Watch(lab, record)
    for subscriber in subscribers:
        subscriber.start()
    watch.start()
    try:
        yield
    finally:
        for subscriber in subscribers:
            subscriber.end()
        watch.end()


def _run_case(lab: NetworkLab, case: CasePlan, peers: int) -> CaseResult:
    scenario = lab.scenario
    record = RunRecord(relays=len(lab.relays))
    lab.set_links([], [], {**scenario.network.links, **case.links}, one_way=False)
    lab.set_rates([], {**scenario.network.rates, **case.rates})
    logs = {relay.place.index: _size(relay.log) for relay in lab.relays}
    lab.wire.ask(op="counts")  # lateness counts from here
    began = time.monotonic()
    with _watched(lab, record):
        time.sleep(LOOK_S)
        _play(lab, case, record)
        _settle(lab, record, scenario.measure.settle_s)
    for relay in lab.relays:
        if relay.running:
            with suppress(LuxRelayError, OSError, HTTPException):
                record.held[relay.place.index] = relay.held(lab.token)
    counts, seconds = lab.wire.ask(op="counts"), time.monotonic() - began
    if case is not scenario.cases[-1]:
        _recover(lab, record)
    plan = scenario.measure
    if case.rates and plan.ideal_bits_s:
        rates = [value for key, value in case.rates.items() if key.endswith("_bits_s")]
        plan = replace(plan, ideal_bits_s=min(rates))
    return CaseResult(
        scenario=scenario,
        case=case,
        measures=measure(record, _context(replace(scenario, measure=plan), peers)),
        seconds=seconds,
        wire={key: counts[key] for key in ("tail_drops", "strays", "late_ms")},
        refusals=dict(Counter(why for _, _, why in record.refused).most_common(LOG_KINDS)),
        log=_warnings(lab, logs),
    )


def _context(scenario: LabScenario, peers: int) -> MeasureContext:
    steps = scenario.steps
    clocks = {each.relay for each in scenario.relays if each.clock_s}
    clocks |= {r for s in steps if s.do == "clock" and s.set["ahead_s"] for r in s.relays}
    return MeasureContext(
        plan=scenario.measure,
        moved=tuple({r for s in steps if s.do == "address" for r in s.relays}),
        beside=tuple(each.relay for each in scenario.relays if each.beside >= 0),
        wrong_clocks=tuple(sorted(clocks)),
        peers_before=peers,
    )


def _play(lab: NetworkLab, case: CasePlan, record: RunRecord) -> None:
    """Run loads and steps to their end."""
    scenario = lab.scenario
    size = case.size_bytes
    plans = tuple(replace(x, size_bytes=size) if size else x for x in scenario.loads)

    def publishers(plan: LoadPlan) -> list[Publisher]:
        indexes = plan.publishers or tuple(r.place.index for r in lab.relays if r.running)
        return [
            Publisher(lab.relays[index], plan, len(indexes), lab.token, record) for index in indexes
        ]

    loads = RunningLoads(plans, publishers)
    timeline = Timeline(lab, scenario.steps, record)
    record.began_s = time.monotonic()
    while True:
        now_s = time.monotonic() - record.began_s
        publishing = loads.turn(now_s)
        if not publishing and not record.load_ended_s:
            record.load_ended_s = time.monotonic()
        stepping = timeline.turn(now_s)
        if (not publishing and not stepping) or now_s > scenario.seconds + OVERRUN_S:
            break
        time.sleep(_TURN_S)
    loads.end()
    record.load_ended_s = record.load_ended_s or time.monotonic()


def _settle(lab: NetworkLab, record: RunRecord, seconds: float) -> None:
    """Wait until every relay holds, and its subscriber was told, everything."""
    keys = set(record.acknowledged)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        there = [relay.place.index for relay in lab.relays if relay.running]
        whole = all(index in record.whole_s for index in there)
        if whole and all(keys <= record.told[index].keys() for index in there):
            return
        time.sleep(WIRE_LOOK_S)


def _recover(lab: NetworkLab, record: RunRecord) -> None:
    """Give the relays good links until they hold everything, so that the next case begins clean."""
    lab.set_links([], [], dict.fromkeys(LINK_FIELDS, 0.0), one_way=False)
    lab.set_rates([], {"up_bits_s": 0.0, "down_bits_s": 0.0})
    ends = time.monotonic() + RECOVER_S
    while time.monotonic() < ends:
        if all(relay.holds(record.latest()) for relay in lab.relays if relay.running):
            return
        time.sleep(WIRE_LOOK_S)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _lines(path: Path, begin: int) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(begin)
        for line in file.read().splitlines():
            with suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    yield value


def _warnings(lab: NetworkLab, begins: dict[int, int]) -> dict[str, int]:
    """Return what the nodes warned of, the most frequent kinds."""
    found: Counter[str] = Counter()
    for relay in lab.relays:
        for line in _lines(relay.log, begins[relay.place.index]):
            if str(line.get("level", "")).upper() in {"WARNING", "ERROR"}:
                found[f"{line.get('level')} {line.get('module', '')}: {line.get('event')}"] += 1
    return dict(found.most_common(LOG_KINDS))
