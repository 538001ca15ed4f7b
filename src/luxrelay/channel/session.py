"""A channel without I/O: one participant's sending, receiving and events.

Theory of operation
===================

*Decides*: in which order segmentation, SDS, encryption, pacing and dispatch happen, which request
ends how, and what the application is told.

*Does not know*: the layer below, where state is kept, which loop runs it.

*Machines and their states*: `Requests` (open, ended), `Sds`, `Outbox` (waiting, leaving),
`Reassembly`, `Announcer` (events not yet taken). Outgoing: segment, SDS, encrypt, pace, dispatch.
Incoming: decrypt, SDS, reassemble, event (C1).

*Inputs and what they may cause*: ``send`` dispatches. ``dispatched`` and ``dispatch_failed``
answer a dispatch. ``receive`` may announce events, dispatch and fetch. ``taken`` forgets events.
``wake`` does what is due.

*Timers*: those of the machines below; the end of an epoch while something waits for it.

*Bounds*: those of the machines below; `ChannelConfig.events_max` and ``event_bytes_max``: while
they are reached nothing is received, so nothing is acknowledged, and the senders send again.

*Deviations from the specification*: events are kept until taken. A segment that is refused or given
up ends its request, and its other segments are not sent again.

*What else to change when you change this*: ``runtime/channel.py`` (one branch an action), the
model in ``tests/property/test_channel.py``, ``docs/explanation/channel.md``.

Source: reliable-channel-api; decisions C1, C2, C6, C7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from luxrelay.channel.actions import (
    Acknowledged,
    Action,
    Broadcast,
    DeliverMessage,
    Exhausted,
    Fetch,
    Lost,
    Purpose,
)
from luxrelay.channel.announcing import Announce, Announcer
from luxrelay.channel.budget import fixed_bytes
from luxrelay.channel.encryption import DEFAULT_OVERHEAD_BYTES, Encryption
from luxrelay.channel.events import ReliableSendId
from luxrelay.channel.outbox import Dispatch, Outbox
from luxrelay.channel.params import (
    ChannelConfig,
    EncryptionPosition,
    RateLimitConfig,
    SdsConfig,
    SegmentationConfig,
)
from luxrelay.channel.requests import Requests
from luxrelay.channel.sds import Sds
from luxrelay.channel.segmentation import Complete, Reassembly
from luxrelay.channel.segments import split
from luxrelay.channel.state import Journal, Row, StateTable
from luxrelay.channel.wire import SdsMessage
from luxrelay.errors import (
    ChannelArgumentError,
    ChannelError,
    ChannelWireError,
    CipherError,
    SegmentError,
)

if TYPE_CHECKING:
    from random import Random

LAYOUT_VERSION: Final = 1
"""Of the rows; another one is refused."""
_ECHOES_MAX: Final = 4_096
"""Payloads of ours remembered, so that they need not be decrypted when they come back."""
_SEEN_STEP_MS: Final = 10_000
"""The time of the last activity is written down when it has moved by this."""


@dataclass(slots=True)
class SessionStats:
    """What happened to what came in."""

    received: int = 0
    """Payloads from the layer below."""
    echoes: int = 0
    """Of these, ours."""
    malformed: int = 0
    """Of these, no message within our limits."""
    undecryptable: int = 0
    """Messages that did not decrypt."""
    unproven: int = 0
    """Payloads without a valid rate limit proof."""
    bad_segments: int = 0
    """Delivered contents that are no segment."""
    paused: int = 0
    """Payloads not received because the application takes no events."""


SessionAction = Dispatch | Fetch | Announce


class ChannelSession:
    """One participant in one channel. The driver's contract is that of `Sds`.

    Args:
        channel_id: The channel.
        sender_id: Who we are.
        segmentation: How payloads are cut.
        sds: How they are synchronised.
        rate_limit: How they are paced.
        config: Profiles and bounds.
        encryption: The hook; None for none.
        payload_bytes_max: What the layer below takes.
        rng: Chance.
        now: Monotonic seconds.
        now_ms: Unix milliseconds.

    """

    def __init__(
        self,
        *,
        channel_id: str,
        sender_id: str,
        segmentation: SegmentationConfig,
        sds: SdsConfig,
        rate_limit: RateLimitConfig,
        config: ChannelConfig,
        encryption: Encryption | None,
        payload_bytes_max: int,
        rng: Random,
        now: float,
        now_ms: int,
    ) -> None:
        self._segmentation = segmentation
        self._config = config
        self._proofs = rate_limit.proof_provider
        self._rng = rng
        outer = config.encryption_position is EncryptionPosition.OUTER
        self._outer = encryption if outer else None
        self._inner = None if outer else encryption
        overhead = getattr(encryption, "overhead_bytes", DEFAULT_OVERHEAD_BYTES)
        self._ephemeral_max = (
            payload_bytes_max
            - fixed_bytes(channel_id, sender_id)
            - (overhead if encryption is not None else 0)
        )
        self._journal = Journal()
        self._requests = Requests(self._journal, config.segments_remembered_max)
        self._sds = Sds(channel_id, sender_id, sds, self._journal, rng, now=now, now_ms=now_ms)
        self._outbox = Outbox(
            rate_limit,
            self._journal,
            self._outer,
            starts_message=lambda name: self._requests.index(name) == 0,
            still_wanted=self._sds.awaits,
        )
        self._reassembly = Reassembly(segmentation, self._journal)
        self._announcer = Announcer(config, self._journal)
        self._last_seen_ms = 0
        self._echoes: dict[int, None] = {}
        self._actions: list[SessionAction] = []
        self.stats = SessionStats()

    # Inputs

    def send(self, payload: bytes, now: float, now_ms: int) -> ReliableSendId:
        """Begin to send a payload of any size and return the name of the request.

        Args:
            payload: The bytes, also none.
            now: Monotonic seconds.
            now_ms: Unix milliseconds.

        Raises:
            ChannelArgumentError: more segments than allowed.
            ChannelError: ``channel.full``, see `room_for`; ``channel.cipher`` if the inner hook
                fails.

        """
        segments = split(payload, self._segmentation)
        if not self.room_for(len(payload)):
            raise ChannelError("too much is unacknowledged", where="send", code="channel.full")
        segments = [self._encrypt_inner(segment) for segment in segments]
        request_id = ReliableSendId(f"{self._rng.getrandbits(128):032x}")
        ids = [self._sds.send(segment, now, now_ms) for segment in segments]
        self._requests.add(request_id, ids)
        self._pump(now, now_ms)
        return request_id

    def send_ephemeral(self, payload: bytes, now: float, now_ms: int) -> None:
        """Send a payload once, without order, acknowledgement or repair; nobody keeps it.

        Raises:
            ChannelArgumentError: it is empty, or does not fit into one message.
            ChannelError: ``channel.cipher`` if the inner hook fails.

        """
        if not 0 < len(payload) <= self._ephemeral_max:
            raise ChannelArgumentError(
                f"an ephemeral message of {len(payload)} bytes",
                where="send_ephemeral",
                hint=f"1 to {self._ephemeral_max} bytes; send longer ones with send",
            )
        self._sds.send_ephemeral(self._encrypt_inner(payload), now_ms)
        self._pump(now, now_ms)

    def receive(
        self,
        payload: bytes,
        hint: bytes,
        proof: bytes,
        now: float,
        now_ms: int,
        *,
        fetched: bool = False,
    ) -> None:
        """Take a payload from the layer below; whatever it is, nothing is raised.

        Args:
            payload: The bytes.
            hint: The name under which a store has it; may be empty.
            proof: A rate limit proof; may be empty.
            now: Monotonic seconds.
            now_ms: Unix milliseconds.
            fetched: It came from a store.

        """
        self.stats.received += 1
        if self.paused:
            self.stats.paused += 1
            return
        if hash(payload) in self._echoes:
            self.stats.echoes += 1
            return
        if self._proofs is not None and not fetched and not self._proven(payload, proof, now_ms):
            self.stats.unproven += 1
            return
        data = self._decrypt(self._outer, payload)
        if data is None:
            return
        try:
            message = SdsMessage.decode(data)
        except ChannelWireError:
            self.stats.malformed += 1
            return
        # What cannot be read is not acknowledged, so the machine must not see it.
        if message.content and self._decrypt(self._inner, message.content) is None:
            return
        self._sds.receive(message, data, hint[:64], now, now_ms, fetched=fetched)
        self._note_activity(now_ms)
        self._pump(now, now_ms)

    def fetched(self, message_id: str, now: float) -> None:
        """Note that a fetch has ended, whatever it brought."""
        self._sds.fetched(message_id, now)

    def dispatched(self, ticket: int, hint: bytes, now: float, now_ms: int) -> None:
        """Note that the layer below has taken a payload, and under which name a store has it."""
        broadcast = self._outbox.settle(ticket)
        if broadcast is None or broadcast.purpose not in {Purpose.FIRST, Purpose.AGAIN}:
            return
        self._sds.dispatched(broadcast.message_id, hint[:64], now)
        change = self._requests.dispatched(broadcast.message_id)
        if change is not None:
            self._announcer.changed(change)
        self._note_activity(now_ms)
        self._pump(now, now_ms)

    def dispatch_failed(
        self, ticket: int, error: str, now: float, now_ms: int, *, refused: bool
    ) -> None:
        """Note that the layer below did not take a payload.

        Args:
            ticket: Which.
            error: Why.
            now: Monotonic seconds.
            now_ms: Unix milliseconds.
            refused: It never will; otherwise the payload is handed to it again later.

        """
        broadcast = self._outbox.settle(ticket)
        if broadcast is None or broadcast.purpose not in {Purpose.FIRST, Purpose.AGAIN}:
            return
        if refused:
            self._fail(broadcast.message_id, error)
            self._pump(now, now_ms)
        else:
            self._sds.dispatch_failed(broadcast.message_id, now)

    def taken(self, position: int) -> None:
        """Forget events up to a position: the application has dealt with them."""
        self._announcer.taken(position)

    def wake(self, now: float, now_ms: int) -> None:
        """Do what is due."""
        self._sds.wake(now, now_ms)
        for given in self._reassembly.wake(now):
            self._announcer.lost(given.sender_id, given.payload_hash.hex(), given.reason.value)
        self._outbox.flush(now, now_ms)
        self._pump(now, now_ms)

    def wake_at(self) -> float:
        """Return when `wake` has something to do."""
        times = (self._sds.wake_at(), self._reassembly.wake_at(), self._outbox.wake_at())
        return min(at for at in times if at is not None)

    def drain(self) -> list[SessionAction]:
        """Return what is to be done, in order, once `changes` are durable."""
        actions, self._actions = self._actions, []
        return actions

    def changes(self) -> list[Row]:
        """Return what has to be durable before the actions take effect."""
        return self._journal.drain()

    # Queries

    @property
    def paused(self) -> bool:
        """Nothing is received, because the application takes no events."""
        return self._announcer.full

    @property
    def sds(self) -> Sds:
        """The machine below; to be read only."""
        return self._sds

    @property
    def outbox(self) -> Outbox:
        """The way out; to be read only."""
        return self._outbox

    @property
    def requests(self) -> Requests:
        """Open requests; to be read only."""
        return self._requests

    @property
    def last_seen_ms(self) -> int:
        """The last activity that was kept, Unix milliseconds; 0 when there was none."""
        return self._last_seen_ms

    def room_for(self, payload_bytes: int) -> bool:
        """Return whether a payload may be sent now, beside what is unacknowledged."""
        size = self._segmentation.segment_size_bytes
        return self._sds.room_for(1 + payload_bytes // size, payload_bytes)

    # Restoring

    def restore(self, rows: list[Row], now: float, now_ms: int, *, taken: int = 0) -> None:
        """Begin from what was kept.

        Args:
            rows: All rows, in the order of table and key.
            now: Monotonic seconds.
            now_ms: Unix milliseconds.
            taken: The application has dealt with events up to this position.

        Raises:
            ChannelError: ``channel.state``, another version has written the rows.

        """
        version = LAYOUT_VERSION.to_bytes(2, "big")
        for row in rows:
            assert row.value is not None
            if row.table is StateTable.META and row.key == b"version" and row.value != version:
                raise ChannelError(
                    f"state of layout {int.from_bytes(row.value, 'big')}, not {LAYOUT_VERSION}",
                    where="create_reliable_channel",
                    code="channel.state",
                )
            if row.table is StateTable.META and row.key == b"seen":
                self._last_seen_ms = int.from_bytes(row.value, "big")
            self._outbox.restore(row)
            self._requests.restore(row)
        self._journal.put(StateTable.META, b"version", version)
        self._reassembly.restore(rows, now)
        self._announcer.restore(rows, taken)
        self._sds.restore(rows, now, now_ms)
        self._pump(now, now_ms)

    # What serves them

    def _pump(self, now: float, now_ms: int) -> None:
        """Do what SDS asks for, and pass on the rest."""
        for action in self._sds.drain():
            self._do(action, now, now_ms)
        out, failures = self._outbox.drain()
        for dispatch in out:
            if dispatch.ours:
                self._echoes[hash(dispatch.payload)] = None
            self._actions.append(dispatch)
        while len(self._echoes) > _ECHOES_MAX:
            del self._echoes[next(iter(self._echoes))]
        for message_id, error in failures:
            self._fail(message_id, error)
        self._actions += self._announcer.drain()

    def _do(self, action: Action, now: float, now_ms: int) -> None:
        """Do one action of SDS."""
        match action:
            case Broadcast():
                self._outbox.put(action, now, now_ms)
            case DeliverMessage():
                self._deliver(action, now)
            case Acknowledged():
                for change in self._requests.acknowledged(action.message_id):
                    self._announcer.changed(change)
            case Exhausted():
                times = self._sds.retransmissions_max
                error = f"no acknowledgement after {times} retransmissions"
                self._fail(action.message_id, error)
            case Lost():
                self._announcer.lost(action.sender_id, action.message_id, "it did not come in time")
            case Fetch():
                self._actions.append(action)

    def _deliver(self, action: DeliverMessage, now: float) -> None:
        """Put a segment to its payload."""
        content = self._decrypt(self._inner, action.content)
        if content is None:
            return
        if action.ephemeral:
            self._announcer.received(content, action.sender_id, ephemeral=True)
            return
        try:
            outcomes = self._reassembly.add(action.sender_id, content, now)
        except SegmentError:
            self.stats.bad_segments += 1
            return
        for outcome in outcomes:
            if isinstance(outcome, Complete):
                self._announcer.received(outcome.payload, outcome.sender_id)
            else:
                self._announcer.lost(
                    outcome.sender_id, outcome.payload_hash.hex(), outcome.reason.value
                )

    def _fail(self, message_id: str, error: str) -> None:
        """End the request of a message; its other segments are not sent again."""
        self._sds.abandon(message_id)
        change = self._requests.failed(message_id, error)
        if change is not None:
            for name in change.abandoned:
                self._sds.abandon(name)
            self._announcer.changed(change)

    def _note_activity(self, now_ms: int) -> None:
        """Write down now and then until when we were there."""
        if now_ms - self._last_seen_ms >= _SEEN_STEP_MS:
            self._last_seen_ms = now_ms
            self._journal.put(StateTable.META, b"seen", now_ms.to_bytes(8, "big"))

    def _proven(self, payload: bytes, proof: bytes, now_ms: int) -> bool:
        assert self._proofs is not None
        return bool(proof) and self._proofs.verify(payload, proof, now_ms)

    def _encrypt_inner(self, content: bytes) -> bytes:
        """Return content as the inner hook makes it.

        Raises:
            ChannelError: ``channel.cipher``: the hook failed.

        """
        if self._inner is None:
            return content
        try:
            return self._inner.encrypt(content)
        except Exception as error:
            raise ChannelError(
                f"encryption failed: {error}", where="send", hint="", code="channel.cipher"
            ) from error

    def _decrypt(self, hook: Encryption | None, payload: bytes) -> bytes | None:
        """Return what a hook makes of bytes, or None when it refuses them."""
        if hook is None:
            return payload
        try:
            return hook.decrypt(payload)
        except CipherError:
            self.stats.undecryptable += 1
        except Exception:  # noqa: BLE001 - a hook of the application may raise anything
            self.stats.undecryptable += 1
        return None
