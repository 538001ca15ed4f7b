"""What a run of the lab comes to: measures of a `RunRecord`, without I/O.

A *pair* is an acknowledged message and a measured relay. Times are seconds of the runner's
monotonic clock, which is the same in every namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from netlab.scenario import MeasurePlan

HEADER_BYTES: Final = 210
"""What a message costs besides its payload when it is sent once: its signed header, as measured."""
Key = tuple[bytes, int]
"""A lane and a sequence."""

MEANINGS: Final[dict[str, str]] = {
    "acknowledged": "messages that a relay gave a receipt for",
    "refused": "messages that a relay refused, or could not be asked to take, each try",
    "stored_share": "share of the pairs that the relay's store holds at the end, payload included",
    "delivered_share": "share of the pairs that a subscriber of the relay was told at the end",
    "live_share": "the same when the load ended",
    "live_of_fit": "bytes told when the load ended, of those that fit through the link by then",
    "p50_ms": "from publishing to being told, median, milliseconds",
    "p99_ms": "the same, 99th percentile; nothing when more than 1 % never came",
    "told_twice": "messages told to an application a second time",
    "gap_messages": "messages told as missing",
    "wire_bytes": "bytes sent towards the measured relays until all were whole",
    "useful_bytes": "the same if each message had been sent once to each of them",
    "bytes_ratio": "wire_bytes of useful_bytes",
    "recovery_s": "from the mark until every measured relay held everything",
    "ideal_s": "what no protocol can beat at the links' rate: each byte once through each of them",
    "recovery_ratio": "recovery_s of ideal_s",
    "recovery_beside": "recovery_s of that of the relay that was beside its source",
    "contact_s": "from the mark until packets passed both ways with the changed address",
    "rejoined_s": "from the mark until every other relay exchanged packets with it",
    "rejoined_after_contact_s": "the difference of the two",
    "peers_back_s": "from the mark until every relay had its peers again",
    "not_ready_s": "from the mark of the fault until the measured relays' health said not ready",
    "clock_told_s": "from the first message until its health said not ready for a wrong clock",
    "clock_receipt_share": "share of receipts of the relay with a wrong clock that name the clock",
    "bans_max": "most banned peers of a relay",
    "still_s_max": "longest time that a relay's catch-ups stood still",
    "stop_s_max": "longest orderly end of a relay that a step stopped",
}
Measured = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message that an application has signed."""

    at_s: float
    relay: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySample:
    """One look at a relay."""

    at_s: float
    peers: int = -1
    ready: bool = False
    clock: bool = False
    """Its health says that it is not ready, and that its clock is wrong."""
    catch_ups: int = -1
    bans: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSample:
    """One look at the wire."""

    at_s: float
    octets: Mapping[tuple[int, int], int]
    """Bytes by sender and receiver."""


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """What was seen in a run; relays by number."""

    relays: int
    began_s: float = 0.0
    load_ended_s: float = 0.0
    marks: dict[str, float] = field(default_factory=dict)
    starts: dict[str, float] = field(default_factory=dict)
    """Of marks of a start: when the processes were begun; from then on bytes count."""
    sent: dict[Key, SentMessage] = field(default_factory=dict)
    acknowledged: dict[Key, float] = field(default_factory=dict)
    refused: list[tuple[float, int, str]] = field(default_factory=list)
    receipts: list[tuple[int, str]] = field(default_factory=list)
    """Relay and reason of every receipt."""
    told: list[dict[Key, float]] = field(default_factory=list)
    told_twice: list[int] = field(default_factory=list)
    gap_messages: list[int] = field(default_factory=list)
    held: list[set[Key]] = field(default_factory=list)
    """Messages with payload in each store at the end."""
    whole_s: dict[int, float] = field(default_factory=dict)
    """When a relay's store was first seen to hold everything."""
    samples: list[list[RelaySample]] = field(default_factory=list)
    wire: list[WireSample] = field(default_factory=list)
    stops_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Every relay has an empty place."""
        for _ in range(self.relays):
            self.told.append({})
            self.told_twice.append(0)
            self.gap_messages.append(0)
            self.held.append(set())
            self.samples.append([])

    def latest(self) -> dict[bytes, int]:
        """Return the latest acknowledged sequence of each lane."""
        found: dict[bytes, int] = {}
        for lane, seq in self.acknowledged:
            found[lane] = max(found.get(lane, 0), seq)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureContext:
    """What measures are taken with."""

    plan: MeasurePlan
    moved: tuple[int, ...] = ()
    """Relays whose address a step changed."""
    beside: tuple[int, ...] = ()
    """Relays that ran beside their source."""
    wrong_clocks: tuple[int, ...] = ()
    """Relays whose clock is wrong."""
    peers_before: int = 0
    """Peers of each relay before the timeline."""


def measure(record: RunRecord, context: MeasureContext) -> Measured:
    """Return every measure by name; None where there is nothing to measure."""
    found: Measured = dict.fromkeys(MEANINGS)
    relays = context.plan.relays or tuple(range(record.relays))
    found["acknowledged"] = len(record.acknowledged)
    found["refused"] = len(record.refused)
    found["told_twice"] = sum(record.told_twice)
    found["gap_messages"] = sum(record.gap_messages)
    found["stop_s_max"] = max(record.stops_s, default=None)
    found |= _deliveries(record, context, relays)
    found |= _recovery(record, context, relays)
    found |= _contacts(record, context)
    found |= _health(record, context, relays)
    return found


def quantile(values: list[float], share: float) -> float:
    """Return the smallest value that a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _since(record: RunRecord, plan: MeasurePlan) -> float | None:
    if plan.since:
        return record.marks.get(plan.since)
    return min((each.at_s for each in record.sent.values()), default=None)


def _counted(record: RunRecord, plan: MeasurePlan) -> list[Key]:
    """Return the acknowledged messages that recovery is about."""
    begin = record.marks.get(plan.backlog_from, record.began_s)
    end = record.marks.get(plan.since, float("inf")) if plan.backlog_from else float("inf")
    return [key for key in record.acknowledged if begin <= record.sent[key].at_s <= end]


def _deliveries(record: RunRecord, context: MeasureContext, relays: Iterable[int]) -> Measured:
    acknowledged = record.acknowledged
    pairs = [(key, relay) for key in acknowledged for relay in relays]
    if not pairs:
        return {}
    told = [(key, relay) for key, relay in pairs if key in record.told[relay]]
    live = [(key, r) for key, r in told if record.told[r][key] <= record.load_ended_s]
    found: Measured = {
        "stored_share": sum(key in record.held[relay] for key, relay in pairs) / len(pairs),
        "delivered_share": len(told) / len(pairs),
        "live_share": len(live) / len(pairs),
    }
    latency = [(record.told[r][key] - record.sent[key].at_s) * 1000 for key, r in told]
    if latency:
        found["p50_ms"] = quantile(latency, 0.5)
        if len(told) >= 0.99 * len(pairs):
            found["p99_ms"] = quantile(latency, 0.99)
    since = record.marks.get(context.plan.since)
    if context.plan.ideal_bits_s and since is not None and record.load_ended_s > since:
        fit = context.plan.ideal_bits_s / 8 * (record.load_ended_s - since)
        came = sum(record.sent[k].size_bytes for k, r in live if record.told[r][k] >= since)
        offered = sum(record.sent[k].size_bytes for k, _ in pairs if record.sent[k].at_s >= since)
        found["live_of_fit"] = came / min(fit, offered) if offered else None
    return found


def _recovery(record: RunRecord, context: MeasureContext, relays: tuple[int, ...]) -> Measured:
    plan = context.plan
    begin = _since(record, plan)
    counted = _counted(record, plan)
    if begin is None or not counted:
        return {}
    sizes = {key: record.sent[key].size_bytes + HEADER_BYTES for key in counted}
    owed = {r: sum(n for k, n in sizes.items() if record.sent[k].relay != r) for r in relays}
    found: Measured = {"useful_bytes": sum(owed.values())}
    if all(relay in record.whole_s for relay in relays):
        ends = max(*(record.whole_s[relay] for relay in relays), begin)
        found["recovery_s"] = ends - begin
    else:
        ends = record.wire[-1].at_s if record.wire else begin
    found["wire_bytes"] = _octets(record, record.starts.get(plan.since, begin), ends, relays)
    if found["useful_bytes"] and found["wire_bytes"] is not None:
        found["bytes_ratio"] = found["wire_bytes"] / found["useful_bytes"]
    if plan.ideal_bits_s:
        found["ideal_s"] = ideal_s(owed.values(), plan.ideal_bits_s)
    recovery, ideal = found.get("recovery_s"), found.get("ideal_s")
    if recovery is not None and ideal:
        found["recovery_ratio"] = recovery / ideal
    beside = [record.whole_s[r] for r in context.beside if r in record.whole_s]
    started = record.marks.get("beside")
    if recovery is not None and beside and started is not None and max(beside) > started:
        found["recovery_beside"] = recovery / (max(beside) - started)
    return found


def ideal_s(owed: Iterable[int], bits_s: float) -> float:
    """Return the least seconds at this rate: each relay takes what it lacks through its downlink.

    A first holder that sends everything once through an uplink of that rate is not faster.

    Args:
        owed: Bytes that each measured relay lacks.
        bits_s: Rate of every access link, bits a second.

    """
    return max(owed, default=0) * 8 / bits_s


def _octets(record: RunRecord, begin: float, ends: float, relays: tuple[int, ...]) -> float | None:
    """Return the bytes sent towards some relays in a time."""
    before = [each for each in record.wire if each.at_s <= begin] or record.wire[:1]
    after = [each for each in record.wire if each.at_s >= ends] or record.wire[-1:]
    if not before or not after:
        return None
    wanted = set(relays)

    def total(sample: WireSample) -> int:
        return sum(n for (_, target), n in sample.octets.items() if target in wanted)

    return total(after[0]) - total(before[-1])


def _contacts(record: RunRecord, context: MeasureContext) -> Measured:
    """Return how long a relay with a new address was apart, by what the wire carried."""
    found: Measured = {}
    since = record.marks.get(context.plan.since)
    if since is None:
        return found
    wanted = context.plan.peers_min if context.plan.peers_min >= 0 else context.peers_before
    back = [
        _first(samples, lambda x: x.at_s > since and x.peers >= wanted)
        for samples in record.samples
        if samples
    ]
    if back and all(each is not None for each in back):
        found["peers_back_s"] = max(each.at_s for each in back if each is not None) - since
    for moved in context.moved:
        times = [
            _both_ways(record, moved, other, since)
            for other in range(record.relays)
            if other != moved
        ]
        known = [each for each in times if each is not None]
        if known:
            found["contact_s"] = min(known) - since
        if known and len(known) == len(times):
            found["rejoined_s"] = max(known) - since
            found["rejoined_after_contact_s"] = max(known) - min(known)
    return found


def _both_ways(record: RunRecord, one: int, other: int, since: float) -> float | None:
    """Return when packets had passed both ways, counted from the first look after a time."""
    later = [sample for sample in record.wire if sample.at_s > since]
    for sample in later[1:]:
        ways = ((one, other), (other, one))
        if all(sample.octets.get(way, 0) > later[0].octets.get(way, 0) for way in ways):
            return sample.at_s
    return None


def _health(record: RunRecord, context: MeasureContext, relays: tuple[int, ...]) -> Measured:
    found: Measured = {"bans_max": max((x.bans for s in record.samples for x in s), default=None)}
    found["still_s_max"] = max((_still(samples) for samples in record.samples), default=None)
    since = record.marks.get(context.plan.fault_from or context.plan.since)
    if since is not None:
        said = [_first(record.samples[r], lambda x: x.at_s > since and not x.ready) for r in relays]
        if said and all(each is not None for each in said):
            found["not_ready_s"] = max(each.at_s for each in said if each is not None) - since
    begin = min((each.at_s for each in record.sent.values()), default=None)
    if context.wrong_clocks and begin is not None:
        told = [_first(record.samples[r], lambda x: x.clock) for r in context.wrong_clocks]
        if all(each is not None for each in told):
            found["clock_told_s"] = max(0.0, *(x.at_s - begin for x in told if x is not None))
        reasons = [why for relay, why in record.receipts if relay in context.wrong_clocks]
        if reasons:
            named = sum("clock" in why.lower() for why in reasons)
            found["clock_receipt_share"] = named / len(reasons)
    return found


def _first(samples: list[RelaySample], wanted: Callable[[RelaySample], bool]) -> RelaySample | None:
    return next((each for each in samples if wanted(each)), None)


def _still(samples: list[RelaySample]) -> float:
    """Return the longest time in which no catch-up of a relay came to its end."""
    longest, since, last = 0.0, None, -1
    for each in samples:
        if each.catch_ups < 0:
            continue
        if since is None or each.catch_ups != last:
            since, last = each.at_s, each.catch_ups
        longest = max(longest, each.at_s - since)
    return longest
