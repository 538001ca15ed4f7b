"""The outbox of a channel: pacing, then encryption, then a ticket for the driver.

Content leaves in the order it was sent. With `Counting.FIRST_SEGMENT` the first segment of each
message uses up one of the epoch, and everything that is not a first transmission passes by those
that wait. With `Counting.EVERY_SEGMENT` everything uses one up; a sync message that finds none left
is not sent, because a later one says more, and the rest waits in line.

Ephemeral messages are dropped while the epoch is nearly used up.

Bounds: first transmissions and retransmissions are at most the unacknowledged messages, answers at
most the repair buffer; sync and ephemeral messages never wait.

Source: reliable-channel-api (outgoing processing); decisions C1, C3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from luxrelay.channel.actions import Broadcast, Purpose
from luxrelay.channel.encryption import Encryption
from luxrelay.channel.pacing import Pacer, Slot
from luxrelay.channel.params import Counting, RateLimitConfig
from luxrelay.channel.state import Journal, Row

_RECHECK_S = 10.0
"""The wall clock may jump: the end of an epoch is looked at again at least so often."""


@dataclass(slots=True)
class Dispatch:
    """Hand a payload to the layer below; then call `dispatched` or `dispatch_failed`."""

    ticket: int
    """Names the dispatch in the answer."""
    payload: bytes
    """What goes out."""
    proof: bytes
    """A rate limit proof; empty without a provider."""
    ephemeral: bool
    """No store needs to keep it."""
    ours: bool
    """It is a message of ours, not the answer to somebody who asked for one."""


@dataclass(slots=True)
class OutboxStats:
    """What happened to what was to leave."""

    dispatched: int = 0
    """Payloads handed to the driver."""
    ephemeral_dropped: int = 0
    """Ephemeral messages dropped because the epoch was nearly used up."""
    syncs_skipped: int = 0
    """Sync messages not sent because the epoch was used up."""


class Outbox:
    """The way out of one participant in one channel.

    Args:
        config: Limit, epochs, proofs.
        journal: Where the use of the epoch is written down.
        encryption: Applied to every payload; None for none.
        starts_message: Says whether a content message is the first segment of its payload.
        still_wanted: Says whether a content message still needs an acknowledgement.

    """

    def __init__(
        self,
        config: RateLimitConfig,
        journal: Journal,
        encryption: Encryption | None,
        *,
        starts_message: Callable[[str], bool],
        still_wanted: Callable[[str], bool],
    ) -> None:
        self._config = config
        self._pacer = Pacer(config, journal)
        self._encryption = encryption
        self._starts_message = starts_message
        self._still_wanted = still_wanted
        self._queue: deque[Broadcast] = deque()
        self._tickets: dict[int, Broadcast] = {}
        self._next_ticket = 1
        self._failures: list[tuple[str, str]] = []
        self._out: list[Dispatch] = []
        self._release_at = 0.0
        self.stats = OutboxStats()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def used(self) -> tuple[int, int]:
        """The epoch of the last message that counted, and how many left in it."""
        return self._pacer.used

    def put(self, broadcast: Broadcast, now: float, now_ms: int) -> None:
        """Take something that is to leave."""
        if not self._config.enabled:
            self._leave(broadcast, None)
            return
        every = self._config.counting is Counting.EVERY_SEGMENT
        purpose = broadcast.purpose
        if purpose is Purpose.EPHEMERAL:
            slot = None if self._pacer.scarce(now_ms) else self._pacer.admit(now_ms)
            if slot is None:
                self.stats.ephemeral_dropped += 1
            else:
                self._leave(broadcast, slot)
        elif purpose is Purpose.SYNC and every:
            slot = None if self._queue else self._pacer.admit(now_ms)
            if slot is None:
                self.stats.syncs_skipped += 1
            else:
                self._leave(broadcast, slot)
        elif every or purpose is Purpose.FIRST:
            self._queue.append(broadcast)
            self.flush(now, now_ms)
        else:
            self._leave(broadcast, None)

    def flush(self, now: float, now_ms: int) -> None:
        """Let go what may leave now, in order; plan the next look when something stays."""
        every = self._config.counting is Counting.EVERY_SEGMENT
        while self._queue:
            head = self._queue[0]
            content = head.purpose in {Purpose.FIRST, Purpose.AGAIN}
            if content and not self._still_wanted(head.message_id):
                self._queue.popleft()
                continue
            slot = None
            if every or self._starts_message(head.message_id):
                slot = self._pacer.admit(now_ms)
                if slot is None:
                    wait_s = max(self._pacer.ends_ms(now_ms) - now_ms, 0) / 1000
                    self._release_at = now + min(wait_s, _RECHECK_S)
                    return
            self._leave(self._queue.popleft(), slot)

    def wake_at(self) -> float | None:
        """Return when `flush` may let something go."""
        return self._release_at if self._queue else None

    def settle(self, ticket: int) -> Broadcast | None:
        """Return and forget what a ticket stood for."""
        return self._tickets.pop(ticket, None)

    def drain(self) -> tuple[list[Dispatch], list[tuple[str, str]]]:
        """Return what leaves, in order, and what could not be encrypted, with the reason."""
        out, self._out = self._out, []
        failures, self._failures = self._failures, []
        return out, failures

    def restore(self, row: Row) -> None:
        """Go on from what was kept; rows of others are not looked at."""
        self._pacer.restore(row)

    def _leave(self, broadcast: Broadcast, slot: Slot | None) -> None:
        """Encrypt, prove, and hand over."""
        payload, proof = broadcast.data, b""
        try:
            if self._encryption is not None:
                payload = self._encryption.encrypt(payload)
            if self._config.proof_provider is not None and slot is not None:
                proof = self._config.proof_provider.prove(payload, slot.epoch, slot.nonce)
        except Exception as error:  # noqa: BLE001 - a hook of the application may raise anything
            self._failures.append((broadcast.message_id, f"{type(error).__name__}: {error}"))
            return
        ticket = self._next_ticket
        self._next_ticket += 1
        self._tickets[ticket] = broadcast
        self.stats.dispatched += 1
        ephemeral = broadcast.purpose is Purpose.EPHEMERAL
        ours = broadcast.purpose is not Purpose.ANSWER
        self._out.append(Dispatch(ticket, payload, proof, ephemeral, ours))
