"""`FairQueue`: fair shares of the store among many readers.

Theory of operation
===================

*Decides*: which waiting call reads next; how long a peer waits for its rate; which call is refused
because its peer has too many; which one is ended because its reader takes nothing.

*Does not know*: gRPC, threads, the store, clocks. It is told what was asked, read and taken.

*Machines and their states*: a **call** is opened, then by turns *waiting* (`ask`), *reading* (it
was granted a turn), *sending* (`done`: what it read is held in memory until its reader has taken
it), and in the end closed. A **peer** has its calls in order of arrival; the first
``peer_streams_max`` of them take part, later ones wait for a place. Its two buckets hold bytes and
requests; both may go into debt, and a peer in debt waits.

*Order*: start-time fair queueing. A peer's turn starts where its last one ended, or up to
`credit_bytes` before the virtual time of the queue when it was idle; it ends ``bytes / weight``
later. The lowest start is next, less
what a call has gained by waiting (`ageing_bytes_per_s`), so that a low weight is slower and never
starves (P33). Bytes are known only when read: a turn is charged an estimate, corrected afterwards.

*Inputs and what they may cause*: ``open`` a refusal; ``ask``, ``done``, ``close`` and ``wake``
grants; ``wake`` also the end of a stalled call.

*Timers*: one for the soonest rate that allows a waiting call, and one for the soonest reader that
has taken nothing for ``stall_s``.

*Bounds*: `FairnessConfig`; each field names one. A scan over the waiting calls per grant.

*Deviations from the specification*: LP-6421 §6.2 adds 1000, 100 and 50 points; here they are
weights in the same order, because points alone starve everybody else (P33). Its ages in seconds are
milliseconds (P32).

*What else to change when you change this*: ``rpc/turns.py`` (the driver), ``rpc/calls.py``.

Source: LP-6421 §6.1, §6.2; decisions P32, P33, P34; 21-40 to 21-42.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

from luxrelay.errors import SyncArgumentError
from luxrelay.sync.cost import Budget

RECENT_MS: Final = 60_000
"""What is younger counts as recent (LP-6421 §6.2, P32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessConfig:
    """Shares of one server; a rate of 0 means that nothing is limited."""

    turns_max: int = 4
    """Calls that read the store at once."""
    held_bytes_max: int = 64 * 1024 * 1024
    """Bytes read and not yet taken by their readers, all calls together; beyond it nobody reads."""
    peer_streams_max: int = 4
    """Calls of one peer that take part at once; further ones wait (P34)."""
    peer_calls_max: int = 32
    """Calls of one peer, waiting ones included; further ones are refused."""
    out_bytes_per_s: float = 8.0 * 1024 * 1024
    """Bytes sent a second, all peers together (P34)."""
    in_bytes_per_s: float = 8.0 * 1024 * 1024
    """Published bytes taken a second, all peers together (P34)."""
    peer_bytes_per_s: float = 1024.0 * 1024
    """Bytes a second to or from one peer (P34)."""
    peer_requests_per_s: float = 20.0
    """Calls a second of one peer (P34)."""
    burst_s: float = 2.0
    """Seconds worth of a rate that may be used at once, or owed (P34)."""
    stall_s: float = 10.0
    """A call whose reader has taken nothing for this long is ended, seconds."""
    ageing_bytes_per_s: float = 256.0 * 1024
    """What a waiting call gains a second, in bytes of another's service (P33)."""
    credit_bytes: float = 4.0 * 1024 * 1024
    """Share that a peer keeps while it does not ask, bytes."""
    validator_weight: float = 4.0
    """Share of a proven validator, relative to anybody else's 1 (P33)."""
    recent_weight: float = 2.0
    """Factor for a request of recent messages (LP-6421 §6.2)."""
    subscribed_weight: float = 1.25
    """Factor for a namespace that this node subscribes to (LP-6421 §6.2)."""
    peers_max: int = 4_096
    """Idle peers whose debts are remembered; the longest idle is forgotten."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, and weights that break the order of LP-6421 §6.2."""
        for each in fields(self):
            low = 0 if each.name.endswith("bytes_per_s") or "requests" in each.name else 1e-9
            if not getattr(self, each.name) >= low:
                raise SyncArgumentError(f"{each.name} must be positive", where="FairnessConfig")
        if not 1 < self.subscribed_weight < self.recent_weight or not (
            self.recent_weight * self.subscribed_weight < self.validator_weight
        ):
            raise SyncArgumentError(
                "the weights must rise: subscribed, recent, both together, validator",
                where="FairnessConfig",
            )

    def weight(self, *, validator: bool, recent: bool, subscribed: bool) -> float:
        """Return the share of a request (LP-6421 §6.2, 21-41)."""
        share = self.validator_weight if validator else 1.0
        share *= self.recent_weight if recent else 1.0
        return share * (self.subscribed_weight if subscribed else 1.0)


def is_recent(from_timestamp: int, now_ms: int) -> bool:
    """Return True when a request begins within the last minute; an unset time never does (P32)."""
    return from_timestamp > 0 and 0 <= now_ms - from_timestamp < RECENT_MS


@dataclass(frozen=True, slots=True)
class Grant:
    """It is the call's turn."""

    call: int
    """Which one."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """The call's reader takes nothing; end it."""

    call: int
    """Which one."""


@dataclass(slots=True)
class _Peer:
    """One client, as far as it can be told from others."""

    outgoing: Budget
    incoming: Budget
    requests: Budget
    calls: list[int] = field(default_factory=list)
    """Its calls in the order of arrival."""
    finish: float = 0.0
    """Virtual time at which its last turn ends."""


@dataclass(slots=True)
class _Call:
    peer: str
    weight: float
    not_before: float
    asked_at: float = 0.0
    start: float = 0.0
    """Virtual time at which its turn starts, set when it asks."""
    waiting: bool = False
    reading: bool = False
    held: int = 0
    stalled_at: float = float("inf")
    estimate: int = 64 * 1024


class FairQueue:
    """Shares out turns at the store; see the theory above.

    The driver's contract: feed inputs; after each, `drain` and do the actions in order; sleep
    until `wake_at`; `wake(now)`; never call the machine from inside one of its own actions.
    """

    def __init__(self, config: FairnessConfig, now: float) -> None:
        self._config = config
        self._out = Budget.full(config.out_bytes_per_s, config.burst_s, now)
        self._in = Budget.full(config.in_bytes_per_s, config.burst_s, now)
        self._peers: dict[str, _Peer] = {}
        self._calls: dict[int, _Call] = {}
        self._virtual = 0.0
        self._reading = 0
        self._held = 0
        self._actions: list[Grant | Stalled] = []
        self._wake_at: float | None = None

    # Inputs

    def open(
        self, call: int, peer: str, *, weight: float, limited: bool, now: float
    ) -> tuple[str, float]:
        """Take a call in, or refuse it.

        Args:
            call: Names it.
            peer: Whose it is.
            weight: Its share (`FairnessConfig.weight`).
            limited: False for a peer to which only the limits on all together apply.
            now: Monotonic seconds.

        Returns:
            Why it is refused, empty when it is not; and the seconds after which it may come back.

        """
        config = self._config
        record = self._peer(peer, limited=limited, now=now)
        if len(record.calls) >= config.peer_calls_max:
            return f"{config.peer_calls_max} calls of this peer are waiting already", 1.0
        if record.requests.rate and record.requests.owed(now) + 1 > record.requests.burst:
            wait = record.requests.wait(now)
            return f"more than {config.peer_requests_per_s:g} calls a second", wait
        record.requests.take(1, now)
        record.calls.append(call)
        self._calls[call] = _Call(peer, weight, now + record.requests.wait(now))
        return "", 0.0

    def ask(self, call: int, now: float) -> None:
        """Let the call wait for its next turn; what it held has been taken by its reader."""
        entry = self._calls[call]
        self._release(entry)
        peer = self._peers[entry.peer]
        entry.waiting, entry.asked_at = True, now
        # Who was away a moment, to send what it had read, keeps its share; who was long, does not.
        entry.start = max(self._virtual - self._config.credit_bytes, peer.finish)
        peer.finish = entry.start + entry.estimate / entry.weight
        self._pump(now)

    def done(self, call: int, size: int, now: float) -> None:
        """End the call's turn, in which ``size`` bytes were read that are now being sent."""
        entry = self._calls[call]
        peer = self._peers[entry.peer]
        entry.reading = False
        self._reading -= 1
        peer.finish += (size - entry.estimate) / entry.weight
        entry.estimate = max(1, size)
        entry.held = size
        entry.stalled_at = now + self._config.stall_s if size else float("inf")
        self._held += size
        peer.outgoing.take(size, now)
        self._out.take(size, now)
        self._pump(now)

    def close(self, call: int, now: float) -> None:
        """Forget a call that is over; one that is unknown already is none."""
        entry = self._calls.pop(call, None)
        if entry is None:
            return
        self._release(entry)
        peer = self._peers[entry.peer]
        if entry.reading:
            self._reading -= 1
        elif entry.waiting:
            peer.finish -= entry.estimate / entry.weight
        peer.calls.remove(call)
        if not peer.calls:  # the longest idle are forgotten first
            self._peers[entry.peer] = self._peers.pop(entry.peer)
            self._forget()
        self._pump(now)

    def received(self, peer: str, size: int, *, limited: bool, now: float) -> float:
        """Charge ``size`` published bytes; return the seconds to wait before taking more."""
        record = self._peer(peer, limited=limited, now=now)
        record.incoming.take(size, now)
        self._in.take(size, now)
        return max(record.incoming.wait(now), self._in.wait(now))

    def wake(self, now: float) -> None:
        """Do what was put off until now."""
        for call, entry in self._calls.items():
            if entry.stalled_at <= now:
                self._release(entry)
                self._actions.append(Stalled(call))
        self._pump(now)

    # Outputs

    def drain(self) -> list[Grant | Stalled]:
        """Return the actions since the last call, in order."""
        actions, self._actions = self._actions, []
        return actions

    def wake_at(self) -> float | None:
        """Return when `wake` has something to do, monotonic seconds; None for never."""
        soonest = min((each.stalled_at for each in self._calls.values()), default=float("inf"))
        if self._wake_at is not None:
            soonest = min(soonest, self._wake_at)
        return None if soonest == float("inf") else soonest

    @property
    def waiting(self) -> int:
        """Calls that wait for a turn."""
        return sum(each.waiting for each in self._calls.values())

    @property
    def held_bytes(self) -> int:
        """Bytes read and not yet taken."""
        return self._held

    @property
    def peers(self) -> int:
        """Peers remembered."""
        return len(self._peers)

    # Turns

    def _pump(self, now: float) -> None:
        """Grant turns while there are some and somebody may have one."""
        self._wake_at = None
        while self._reading < self._config.turns_max and self._held < self._config.held_bytes_max:
            chosen = self._next(now)
            if chosen is None:
                return
            entry = self._calls[chosen]
            self._virtual = max(self._virtual, entry.start)
            entry.waiting, entry.reading = False, True
            self._reading += 1
            self._actions.append(Grant(chosen))

    def _next(self, now: float) -> int | None:
        """Return the waiting call with the lowest start, and note when one may be added."""
        best: int | None = None
        lowest = float("inf")
        pause = float("inf")
        general = self._out.wait(now)
        for call, entry in self._calls.items():
            if not entry.waiting:
                continue
            peer = self._peers[entry.peer]
            if call not in peer.calls[: self._config.peer_streams_max]:
                continue  # a place of its peer becomes free with an input
            wait = max(entry.not_before - now, peer.outgoing.wait(now), general)
            if wait > 0:
                pause = min(pause, wait)
                continue
            key = entry.start - (now - entry.asked_at) * self._config.ageing_bytes_per_s
            if key < lowest:
                best, lowest = call, key
        if best is None and pause < float("inf"):
            self._wake_at = now + pause
        return best

    def _release(self, entry: _Call) -> None:
        self._held -= entry.held
        entry.held, entry.stalled_at = 0, float("inf")

    # Peers

    def _peer(self, name: str, *, limited: bool, now: float) -> _Peer:
        record = self._peers.get(name)
        if record is None:
            config = self._config
            rate = config.peer_bytes_per_s if limited else 0.0
            requests = config.peer_requests_per_s if limited else 0.0
            record = _Peer(
                finish=self._virtual,
                outgoing=Budget.full(rate, config.burst_s, now),
                incoming=Budget.full(rate, config.burst_s, now),
                requests=Budget.full(requests, config.burst_s, now),
            )
            self._peers[name] = record
            self._forget()
        return record

    def _forget(self) -> None:
        """Drop the longest idle peers above the bound."""
        if len(self._peers) > self._config.peers_max:
            idle = [name for name, peer in self._peers.items() if not peer.calls]
            for name in idle[: len(self._peers) - self._config.peers_max]:
                del self._peers[name]
