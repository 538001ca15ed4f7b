"""Applications: publishers at some relays, a subscriber at each; what they see is recorded."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import Final

from luxrelay.bus import SigningKey
from luxrelay.client import (
    Gap,
    LaneSigner,
    Message,
    Outgoing,
    Place,
    RelayClient,
    Subscribe,
    subscribe,
)
from luxrelay.errors import LuxRelayError
from netlab.lab import PARENT, LabRelay, inside
from netlab.measures import Key, RunRecord, SentMessage
from netlab.scenario import LoadPlan

PUBLISH_S: Final = 15.0
"""How long a publisher waits for a receipt, seconds; then it sends the same once more."""
_PAUSE_S: Final = 0.3
_SUBSCRIBED_S: Final = 60.0


@dataclass(slots=True)
class _Pending:
    """A message that has no receipt yet."""

    signer: LaneSigner
    seq: int
    outgoing: Outgoing

    @property
    def key(self) -> Key:
        return bytes(self.signer.namespace_id), self.seq


class Publisher:
    """One load at one relay: signs, publishes, tries again, in a thread of its own.

    Args:
        relay: Where.
        plan: What and how fast; its rate is of all publishers together.
        share: How many publishers the load has.
        token: Lets it publish.
        record: Where it writes.

    """

    def __init__(
        self, relay: LabRelay, plan: LoadPlan, share: int, token: str, record: RunRecord
    ) -> None:
        self._relay, self._plan, self._record = relay, plan, record
        self._token = token
        self._pause_s = plan.batch * share / plan.rate
        self._left = -(-plan.messages // share) if plan.messages else 1 << 60
        lanes = range(plan.lanes)
        self._signers = [LaneSigner(SigningKey.generate(), PARENT) for _ in lanes]
        self._next = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Publish nothing any more."""
        self._over.set()

    def wait(self) -> None:
        """Wait until the last receipt has come or is given up."""
        self._thread.join(2 * PUBLISH_S)

    @property
    def done(self) -> bool:
        """Whether it has published everything."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        pending: list[_Pending] = []
        with inside(self._relay.place.namespace):
            client = self._relay.client(self._token, PUBLISH_S)
            next_at = time.monotonic() + random.random() * self._pause_s
            while (pending or self._left > 0) and not self._over.wait(
                max(0.0, next_at - time.monotonic())
            ):
                next_at = max(next_at + self._pause_s, time.monotonic() - 1)
                pending = pending or self._sign()
                pending = self._publish(client, pending)
            client.close()

    def _sign(self) -> list[_Pending]:
        """Sign the next messages; each is recorded as sent."""
        signed = []
        now_ms = time.time_ns() // 1_000_000 + self._relay.clock_s * 1000
        for _ in range(min(self._plan.batch, self._left)):
            signer = self._signers[self._next % len(self._signers)]
            self._next += 1
            seq = signer.next_seq
            each = _Pending(signer, seq, signer.sign(os.urandom(self._plan.size_bytes), now_ms))
            signed.append(each)
            self._record.sent[each.key] = SentMessage(
                at_s=time.monotonic(),
                relay=self._relay.place.index,
                size_bytes=self._plan.size_bytes,
            )
        self._left -= len(signed)
        return signed

    def _publish(self, client: RelayClient, pending: list[_Pending]) -> list[_Pending]:
        """Publish messages; return those to try again."""
        record, index = self._record, self._relay.place.index
        try:
            receipts = client.publish([each.outgoing for each in pending])
        except LuxRelayError as error:
            record.refused.append((time.monotonic(), index, str(error)[:200]))
            self._over.wait(_PAUSE_S)
            return pending
        for each, receipt in zip(pending, receipts, strict=True):
            record.receipts.append((index, receipt.reason))
            if receipt.stored:
                record.acknowledged[each.key] = time.monotonic()
            else:
                record.refused.append((time.monotonic(), index, receipt.reason[:200]))
                each.signer.next_seq = min(each.signer.next_seq, each.seq)
                record.sent.pop(each.key, None)
                self._left += 1
        return []


class Subscriber:
    """An application that stays subscribed at one relay, in a thread of its own.

    Args:
        relay: Where.
        record: Where it writes.

    """

    def __init__(self, relay: LabRelay, record: RunRecord) -> None:
        self._relay, self._record = relay, record
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """What comes from now on is not recorded; the thread ends with its node."""
        self._over = True

    def _run(self) -> None:
        wanted, place = Subscribe(namespaces=[PARENT], after=0, blobs="later"), Place()
        with inside(self._relay.place.namespace):
            while not self._over:
                client = self._relay.client(timeout_s=_SUBSCRIBED_S)
                with suppress(LuxRelayError, OSError, HTTPException):
                    for event in subscribe(client, wanted, place=place):
                        if self._over:
                            return
                        self._take(event)
                time.sleep(_PAUSE_S)

    def _take(self, event: object) -> None:
        record, index = self._record, self._relay.place.index
        if isinstance(event, Gap) and event.reason == "missing":
            record.gap_messages[index] += event.last - event.first + 1
        if not isinstance(event, Message) or event.blob is None:
            return  # without its payload a message is not told; it comes again with it
        key = bytes(event.header.namespace_id), event.header.seq
        if key in record.told[index]:
            record.told_twice[index] += 1
        record.told[index].setdefault(key, time.monotonic())


class RunningLoads:
    """The loads of a scenario, each begun and ended at its time.

    Args:
        plans: The loads.
        publishers: Makes the publishers of one.

    """

    def __init__(
        self, plans: tuple[LoadPlan, ...], publishers: Callable[[LoadPlan], list[Publisher]]
    ) -> None:
        self._waiting = sorted(plans, key=lambda plan: plan.from_s)
        self._make = publishers
        self._running: list[tuple[LoadPlan, list[Publisher]]] = []

    def turn(self, now_s: float) -> bool:
        """Begin and end what is due at this time of the timeline; False when all have ended."""
        while self._waiting and self._waiting[0].from_s <= now_s:
            plan = self._waiting.pop(0)
            publishers = self._make(plan)
            for publisher in publishers:
                publisher.start()
            self._running.append((plan, publishers))
        for plan, publishers in self._running:
            if plan.until_s and now_s >= plan.until_s:
                for publisher in publishers:
                    publisher.end()
        running = [each for _, publishers in self._running for each in publishers if not each.done]
        return bool(self._waiting or running)

    def end(self) -> None:
        """End all of them and wait."""
        everybody = [each for _, publishers in self._running for each in publishers]
        for publisher in everybody:
            publisher.end()
        for publisher in everybody:
            publisher.wait()
