"""The course of the demonstration: relays, an outage, a rogue, and what they hold at the end."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from luxrelay.bus import NamespaceId, topic_namespace
from luxrelay.cli.demo.checks import Holdings, latencies_ms, percentile, read_holdings
from luxrelay.cli.demo.outcome import CorruptOutcome, RelayOutcome
from luxrelay.cli.demo.publishing import Publisher, Signer, content_topic
from luxrelay.cli.demo.relays import RelayProcess, Sampler
from luxrelay.cli.demo.rogue import Corrupt, Rogue, attack
from luxrelay.cli.output import Progress
from luxrelay.errors import DemoError
from luxrelay.sim import ChatMessage
from luxrelay.sync import RelaySyncClient

CATCH_UP_S: Final = 120.0
"""Seconds the relays have to hold everything once the last message is published."""
_ROGUE_PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done."""

    messages: Sequence[ChatMessage]
    """What is said, in order."""
    relays: int
    """How many relays, from 2 when one is to be stopped."""
    corrupt: int
    """Broken messages the rogue sends."""
    rate: int
    """Messages a second; 0 for as fast as receipts come."""
    seed: int
    """Seed of keys and workload."""
    folder: Path
    """Where the relays live."""


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
    """Time from the last message until every relay held everything."""

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
        self._start()
        with ExitStack() as stack:
            sampler = Sampler(self.relays)
            stack.callback(sampler.stop)
            client = stack.enter_context(RelaySyncClient(self.relays[0].runtime.sync))
            signer = Signer(self._plan.seed)
            publisher = Publisher(client, signer, rate=self._plan.rate, seconds=sampler.seconds)
            began = time.monotonic()
            rogue = self._publish(publisher, sampler)
            publish_s = time.monotonic() - began
            settled = time.monotonic()
            self._wait_caught_up()
            catch_up_s = time.monotonic() - settled
        return self._read_back(publisher, signer, sampler, rogue, (publish_s, catch_up_s))

    def _start(self) -> None:
        self._progress.step(f"starting {len(self.relays)} relays as processes of their own")
        for relay in self.relays:
            relay.start(self.relays)
            relay.wait_ready()
        self._wait_meshed()

    def _wait_meshed(self) -> None:
        """Wait until every relay is connected to every other, so that latencies mean gossip."""
        deadline = time.monotonic() + CATCH_UP_S
        while time.monotonic() < deadline:
            states = [relay.status() for relay in self.relays]
            if all(s is not None and len(s["peers"]) >= len(self.relays) - 1 for s in states):
                return
            time.sleep(_POLL_S)
        raise DemoError("the relays did not connect to each other", where="demo")

    def _publish(self, publisher: Publisher, sampler: Sampler) -> _Attack:
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
        rogue = _Attack(self._plan, self.parents[0], self.relays[0], publisher)
        publisher.publish(messages[first:second], say)
        if absence is not None:
            self._progress.step(f"starting {absence.relay.name} again; publishing goes on")
            absence.end([relay for relay in self.relays if relay is not absence.relay])
        publisher.publish(messages[second:], say)
        if absence is not None:
            absence.join()
            self._absence = absence
        self._progress.step(f"a rogue peer sends {self._plan.corrupt:,} broken messages")
        rogue.join()
        return rogue

    def _wait_caught_up(self) -> None:
        total = len(self._plan.messages)
        self._progress.step("waiting until every relay holds every message")
        deadline = time.monotonic() + CATCH_UP_S
        held: list[int] = []
        while time.monotonic() < deadline:
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
        publisher: Publisher,
        signer: Signer,
        sampler: Sampler,
        rogue: _Attack,
        times: tuple[float, float],
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
            publish_s=times[0],
            catch_up_s=times[1],
        )


class _Absence:
    """One relay's time away: which messages it missed, and when; publishing goes on beside it."""

    def __init__(self, relay: RelayProcess, publisher: Publisher, sampler: Sampler) -> None:
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
        self, plan: Plan, parent: NamespaceId, relay: RelayProcess, publisher: Publisher
    ) -> None:
        """Make the broken messages and begin to send them."""
        self._relay = relay
        self._turned_away = 0
        self._error: Exception | None = None
        rogue = Rogue(parent, plan.seed)
        accepted = [
            (entry.item.header, entry.item.blob)
            for entry in publisher.published
            if entry.item.parent_id == parent
        ][:64]
        now_ms = time.time_ns() // 1_000_000
        self._corrupt: list[Corrupt] = rogue.make(plan.corrupt, accepted, now_ms)
        self._identity = rogue.identity
        self._thread: threading.Thread | None = None
        if self._corrupt:
            self._thread = threading.Thread(target=self._run, name="rogue", daemon=True)
            self._thread.start()

    def join(self) -> None:
        """Wait until the relay has judged what was sent.

        Raises:
            DemoError: the rogue could not reach the relay.

        """
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise DemoError(f"the rogue peer failed: {self._error}", where=self._relay.name)

    def outcome(self, held: Sequence[Holdings]) -> CorruptOutcome:
        """Return what became of the broken messages, by what the relays hold."""
        stored = sum(
            any(digest in holdings.received_at for holdings in held)
            for each in self._corrupt
            for digest in each.digests
        )
        return CorruptOutcome(
            sent=len(self._corrupt),
            stored=stored,
            rejected=self._turned_away,
            kinds=dict(Counter(each.kind for each in self._corrupt)),
        )

    def _run(self) -> None:
        try:
            attack(
                self._relay.runtime.gossip[0],
                self._identity,
                self._corrupt,
                self._settled,
                patience_s=_ROGUE_PATIENCE_S,
            )
        except Exception as error:  # noqa: BLE001  it crosses to the thread that joins
            self._error = error

    def _settled(self, peer: str, sent: int) -> bool:
        status = self._relay.status()
        counts = {} if status is None else status["peers"].get(peer, {})
        turned = ("rejected", "ignored", "malformed", "duplicates")
        self._turned_away = max(self._turned_away, sum(counts.get(name, 0) for name in turned))
        return self._turned_away >= sent
