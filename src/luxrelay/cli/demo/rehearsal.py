"""The course of the demonstration: relays, an outage, a rogue, and the final check.

What must be true at the end: read back from every relay over RelaySync, never assumed.
"""

from __future__ import annotations

import hashlib
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from luxrelay.bus import NamespaceId, topic_namespace
from luxrelay.bus import constants as c
from luxrelay.cli.demo.attack import Attack, counts_of, kind_outcome
from luxrelay.cli.demo.outcome import CorruptOutcome, RelayOutcome
from luxrelay.cli.demo.patience import DemoPatience
from luxrelay.cli.demo.plan import Plan
from luxrelay.cli.demo.publishing import DemoPublisher, Signer, content_topic
from luxrelay.cli.demo.relays import RelayProcess, Sampler
from luxrelay.cli.demo.rogue import Rogue
from luxrelay.cli.output import Progress
from luxrelay.errors import DemoError, LuxRelayError
from luxrelay.sync import RelaySyncClient, SyncClientConfig

_TIMESTAMP = slice(c.OFFSET_TIMESTAMP, c.OFFSET_TIMESTAMP + 8)


@dataclass(frozen=True, slots=True)
class Holdings:
    """Everything one relay holds under the given parents."""

    received_at: Mapping[bytes, int]
    """Digest of each header to its arrival, Unix milliseconds."""
    timestamps: Mapping[bytes, int]
    """Digest of each header to its timestamp, Unix milliseconds."""
    contiguous: bool
    """Every namespace that holds messages reaches its latest one without a hole."""
    namespaces: int
    """Namespaces that hold messages."""


def read_holdings(address: str, parents: Iterable[NamespaceId]) -> Holdings:
    """Return what the relay at ``address`` serves, page by page to every head.

    Raises:
        SyncUnreachableError, SyncRemoteError: the relay does not answer, or wrongly.

    """
    received: dict[bytes, int] = {}
    timestamps: dict[bytes, int] = {}
    contiguous, namespaces = True, 0
    with RelaySyncClient(address) as relay:
        for parent in parents:
            for head in list(relay.list_heads(parent)):
                if not head.messages:
                    continue
                namespaces += 1
                contiguous &= head.contiguous_seq == head.latest_seq == head.messages
                for page in relay.iter_pages(head.namespace_id):
                    for message in page.messages:
                        digest = hashlib.sha3_256(message.header).digest()
                        received[digest] = message.received_at
                        timestamps[digest] = int.from_bytes(message.header[_TIMESTAMP], "big")
    return Holdings(received, timestamps, contiguous, namespaces)


def latencies_ms(
    holdings: Sequence[Holdings], published: Iterable[bytes], without: frozenset[bytes]
) -> list[int]:
    """Return milliseconds from signature to commit, for each message and relay.

    Args:
        holdings: Of the relays that gossip brought the messages to.
        published: Digests.
        without: Digests to leave out.

    """
    return [
        max(0, relay.received_at[digest] - relay.timestamps[digest])
        for digest in published
        if digest not in without
        for relay in holdings
        if digest in relay.received_at
    ]


def caught_up_s(
    samples: Sequence[tuple[float, int | None]], published_at_s: Sequence[float], back_s: float
) -> float:
    """Return the seconds from a relay's return until it held what was published by then.

    Publishing may go on meanwhile: the relay has caught up at the first sample in which it holds as
    many messages as were acknowledged one sample earlier. When it never does, the last sample's
    time counts.

    Args:
        samples: (seconds, messages stored or None while it was away), in order.
        published_at_s: When each message was acknowledged, seconds, in order.
        back_s: When the relay was back, seconds.

    """
    known = last = back_s
    for at_s, stored in samples:
        if at_s < back_s or stored is None:
            continue
        last = at_s
        if stored >= bisect_right(published_at_s, known):
            break
        known = at_s
    return last - back_s


def percentile(values: Sequence[int], share: float) -> int:
    """Return the nearest-rank percentile; 0 of nothing."""
    if not values:
        return 0
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * share // 1))
    return ordered[int(rank) - 1]


IDLE_S: Final = 120.0
"""Seconds for which relays that have to connect or to catch up may stand still."""
_CALL_S: Final = 300.0
"""Longest call to a relay, seconds; on a busy machine a batch may take some."""
_POLL_S: Final = 0.2


@dataclass(slots=True, kw_only=True)
class Course:
    """What happened, with times in seconds since the first sample."""

    samples: dict[str, list[tuple[float, int | None]]]
    """Messages stored by each relay over time; None while it was away."""
    published_at_s: list[float]
    """When each message was acknowledged."""
    outage: tuple[str, float, float] | None
    """Name of the stopped relay, from when to when."""
    latencies_ms: list[int]
    """From signature to commit, for each message and relay that gossip reached."""
    relays: tuple[RelayOutcome, ...]
    """Each relay at the end."""
    corrupt: CorruptOutcome
    """The rogue's part."""
    senders: int
    """Distinct senders."""
    namespaces: int
    """Lanes that carry messages."""
    publish_s: float
    """Time of publishing."""
    catch_up_s: float
    """Time from the return of the relay that was away until it held what was published by then,
    seconds; 0 without one."""

    def latency(self) -> dict[str, int]:
        """Return p50, p95 and p99, milliseconds."""
        return {f"p{share}": percentile(self.latencies_ms, share / 100) for share in (50, 95, 99)}


class Rehearsal:
    """Runs a plan; the relays stay up until `close`, so that the archive can read them."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        """Describe the relays; nothing is started yet."""
        self._plan = plan
        self._progress = progress
        channels = sorted({message.channel for message in plan.messages})
        topics = [content_topic(channel) for channel in channels]
        self.parents: list[NamespaceId] = [topic_namespace(topic) for topic in topics]
        self.relays = [
            RelayProcess(f"relay-{i + 1}", plan.folder / f"relay-{i + 1}", topics)
            for i in range(plan.relays)
        ]
        self._offline = self.relays[-1] if plan.relays > 1 else None
        self._absence: _Absence | None = None

    def close(self) -> None:
        """Stop every relay; none is left behind even when this is interrupted."""
        try:
            for relay in self.relays:
                relay.ask_to_stop()
            for relay in self.relays:
                relay.stop()
        finally:
            for relay in self.relays:
                relay.kill()

    def addresses(self) -> list[str]:
        """Return the sync address of every relay."""
        return [relay.runtime.sync for relay in self.relays]

    def run(self) -> Course:
        """Start the relays, publish with an outage and a rogue, and read back what they hold.

        Raises:
            DemoError: a relay did not start, a message was refused, or the relays did not catch
                up in time.

        """
        try:
            return self._run()
        except LuxRelayError:
            self._require_alive()  # one that has ended is the reason of whatever failed
            raise

    def _require_alive(self) -> None:
        for relay in self.relays:
            relay.require_alive()

    def _run(self) -> Course:
        self._start()
        with ExitStack() as stack:
            sampler = Sampler(self.relays)
            stack.callback(sampler.stop)
            patient = SyncClientConfig(call_s=_CALL_S, page_s=_CALL_S)
            client = stack.enter_context(
                RelaySyncClient(self.relays[0].runtime.sync, config=patient)
            )
            signer = Signer(self._plan.seed)
            publisher = DemoPublisher(client, signer, rate=self._plan.rate, seconds=sampler.seconds)
            began = time.monotonic()
            rogue = self._publish(publisher, sampler)
            publish_s = time.monotonic() - began
            self._progress.step(f"accounting for {self._plan.corrupt:,} broken messages")
            rogue.join(self._progress)
            self._wait_caught_up()
        return self._read_back(publisher, signer, sampler, rogue, publish_s)

    def _start(self) -> None:
        count = len(self.relays)
        several = "1 relay as a process" if count == 1 else f"{count} relays as processes"
        self._progress.step(f"starting {several} of {'its' if count == 1 else 'their'} own")
        for relay in self.relays:
            relay.start(self.relays)
            relay.wait_ready()
        self._wait_meshed()

    def _wait_meshed(self) -> None:
        """Wait until every relay is connected to every other, so that latencies mean gossip."""
        patience, connected = DemoPatience(IDLE_S), [0]
        while not patience.lost(connected):
            self._require_alive()
            states = [relay.status() for relay in self.relays]
            connected = [0 if s is None else len(s["peers"]) for s in states]
            if all(count >= len(self.relays) - 1 for count in connected):
                return
            time.sleep(_POLL_S)
        raise DemoError("the relays did not connect to each other", where="demo")

    def _publish(self, publisher: DemoPublisher, sampler: Sampler) -> _Attack:
        messages, total = self._plan.messages, len(self._plan.messages)
        first, second = total // 3, 2 * total // 3

        def say() -> None:
            self._progress.update(f"published {len(publisher.published):,} of {total:,} messages")

        self._progress.step(f"publishing {total:,} messages through {self.relays[0].name}")
        publisher.publish(messages[:first], say)
        absence = None
        if self._offline is not None:
            self._progress.step(f"stopping {self._offline.name}; publishing goes on")
            absence = _Absence(self._offline, publisher, sampler)
        if self._plan.corrupt:
            self._progress.step(f"a rogue peer sends {self._plan.corrupt:,} broken messages")
        rogue = _Attack(self._plan, self.parents[0], self.relays[0], publisher)
        publisher.publish(messages[first:second], say)
        if absence is not None:
            self._progress.step(f"starting {absence.relay.name} again; publishing goes on")
            absence.end([relay for relay in self.relays if relay is not absence.relay])
        publisher.publish(messages[second:], say)
        if absence is not None:
            absence.join()
            self._absence = absence
        return rogue

    def _wait_caught_up(self) -> None:
        total = len(self._plan.messages)
        self._progress.step("waiting until every relay holds every message")
        patience, held = DemoPatience(IDLE_S), [0]
        while not patience.lost(held):
            self._require_alive()
            states = [relay.status() for relay in self.relays]
            held = [0 if s is None else int(s["store"]["messages"]) for s in states]
            if all(count >= total for count in held):
                return
            shown = ", ".join(f"{count:,}" for count in held)
            self._progress.update(f"relays hold {shown} of {total:,}")
            time.sleep(_POLL_S)
        # What is missing is told relay by relay in the report.

    def _read_back(
        self,
        publisher: DemoPublisher,
        signer: Signer,
        sampler: Sampler,
        rogue: _Attack,
        publish_s: float,
    ) -> Course:
        self._progress.step("reading back what every relay holds")
        held = [read_holdings(relay.runtime.sync, self.parents) for relay in self.relays]
        digests = [bytes(entry.header.digest) for entry in publisher.published]
        missed = frozenset(digests[slice(*self._absence.missed)] if self._absence else ())
        outcomes = []
        for relay, holdings in zip(self.relays, held, strict=True):
            away = missed if self._absence and relay is self._absence.relay else frozenset()
            outcomes.append(
                RelayOutcome(
                    name=relay.name,
                    stored=sum(digest in holdings.received_at for digest in digests),
                    missed_while_offline=len(away),
                    recovered=sum(digest in holdings.received_at for digest in away),
                    contiguous=holdings.contiguous,
                )
            )
        # The first relay got the messages from us and the stopped one partly from the others'
        # stores; latency is what gossip took to the rest.
        absent = self._absence.relay if self._absence and len(self.relays) > 2 else None
        reached = [
            holdings
            for relay, holdings in zip(self.relays[1:], held[1:], strict=True)
            if relay is not absent
        ]
        return Course(
            samples=sampler.samples,
            published_at_s=[entry.at_s for entry in publisher.published],
            outage=None if self._absence is None else self._absence.span(),
            latencies_ms=latencies_ms(reached, digests, missed),
            relays=tuple(outcomes),
            corrupt=rogue.outcome(held),
            senders=len({message.sender for message in self._plan.messages}),
            namespaces=len(signer.lanes),
            publish_s=publish_s,
            catch_up_s=self._catch_up_s(publisher, sampler),
        )

    def _catch_up_s(self, publisher: DemoPublisher, sampler: Sampler) -> float:
        """Return how long the relay that was away took, as the chart shows it; 0 without one."""
        if self._absence is None:
            return 0.0
        name, _, back_s = self._absence.span()
        return caught_up_s(
            sampler.samples[name], [entry.at_s for entry in publisher.published], back_s
        )


class _Absence:
    """One relay's time away: which messages it missed, and when; publishing goes on beside it."""

    def __init__(self, relay: RelayProcess, publisher: DemoPublisher, sampler: Sampler) -> None:
        """Begin to stop the relay."""
        self.relay = relay
        self._publisher = publisher
        self._sampler = sampler
        self._error: DemoError | None = None
        self._from_s = self._until_s = sampler.seconds()
        self.missed = (0, 0)
        self._thread = threading.Thread(target=self._leave, name="absence", daemon=True)
        self._thread.start()

    def end(self, others: Sequence[RelayProcess]) -> None:
        """Start the relay again without waiting for it."""
        self._thread.join()
        self.relay.start(others)
        self._thread = threading.Thread(target=self._return, name="absence", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the relay is back.

        Raises:
            DemoError: it did not come back.

        """
        self._thread.join()
        if self._error is not None:
            raise self._error

    def span(self) -> tuple[str, float, float]:
        """Return the relay's name, and from when to when it was away."""
        return self.relay.name, self._from_s, self._until_s

    def _leave(self) -> None:
        self.relay.stop()
        self.missed = (len(self._publisher.published), len(self._publisher.published))
        self._from_s = self._sampler.seconds()

    def _return(self) -> None:
        try:
            self.relay.wait_ready()
        except DemoError as error:
            self._error = error
        self.missed = (self.missed[0], len(self._publisher.published))
        self._until_s = self._sampler.seconds()


class _Attack:
    """The rogue at work beside the publisher."""

    def __init__(
        self, plan: Plan, parent: NamespaceId, relay: RelayProcess, publisher: DemoPublisher
    ) -> None:
        """Begin to send broken messages."""
        self._plan = plan
        self._relay = relay
        self._error: LuxRelayError | None = None
        rogue = Rogue(parent, plan.seed)
        accepted = [
            (entry.item.header, entry.item.blob)
            for entry in publisher.published
            if entry.item.parent_id == parent
        ][:64]
        corrupt = rogue.make(plan.corrupt, accepted, lambda: time.time_ns() // 1_000_000)
        self._attack = Attack(relay.runtime.gossip[0], rogue, corrupt, self._watch)
        self._thread: threading.Thread | None = None
        if plan.corrupt:
            self._thread = threading.Thread(target=self._run, name="rogue", daemon=True)
            self._thread.start()

    def join(self, progress: Progress) -> None:
        """Wait until it is known what became of what was sent.

        Raises:
            DemoError: the rogue could not reach the relay.

        """
        while self._thread is not None and self._thread.is_alive():
            known = self._attack.fates.accounted()
            progress.update(f"{known:,} of {self._plan.corrupt:,} are accounted for")
            self._thread.join(_POLL_S)
        if self._error is not None:
            raise DemoError(f"the rogue peer failed: {self._error}", where=self._relay.name)

    def outcome(self, held: Sequence[Holdings]) -> CorruptOutcome:
        """Return what became of the broken messages, by what the relays hold and counted."""
        fates = self._attack.fates
        stored = sum(
            any(digest in holdings.received_at for holdings in held)
            for digests in fates.digests
            for digest in digests
        )
        return CorruptOutcome(
            sent=self._plan.corrupt,
            stored=stored,
            kinds=tuple(kind_outcome(kind, fates) for kind in sorted(fates.sent)),
            identities=fates.identities,
        )

    def _run(self) -> None:
        try:
            self._attack.run()
        except LuxRelayError as error:
            self._error = error

    def _watch(self, peer: str) -> tuple[Mapping[str, int], bool]:
        return counts_of(self._relay.status(), peer)
