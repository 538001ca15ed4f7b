"""`GossipParams`: every number that steers the router, checked as a set when it is built.

Source: LP-6420 §1.2, §4.1; decisions G1, G13, G14, G15, G21, G25, G26.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf

from luxrelay.errors import GossipArgumentError
from luxrelay.gossip.envelope import ENVELOPE_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipParams:
    """Degrees, timers and bounds of a `GossipRouter`; the defaults are LP-6420's and libp2p's."""

    # The mesh (LP-6420 §4.1, G13).
    d: int = 6
    """Mesh degree a topic tends to, peers. Higher: faster, and more copies of each message."""
    d_lo: int = 4
    """Below this many mesh peers the heartbeat grafts up to ``d``."""
    d_hi: int = 12
    """Above this many mesh peers the heartbeat prunes down to ``d``."""
    d_score: int = 4
    """When pruning, this many of the best-scored peers stay; the rest is chance. At most ``d``."""
    d_out: int = 2
    """Outbound peers a mesh keeps, so that dialing in cannot fill it. Below ``d_lo``, at most
    half of ``d``."""
    d_lazy: int = 6
    """Peers outside the mesh that each heartbeat tells what was received, per topic."""

    # Timers.
    heartbeat_interval_s: float = 0.7
    """Seconds between heartbeats."""
    heartbeat_initial_s: float = 0.1
    """Seconds from the first input to the first heartbeat."""
    graft_delay_s: float = 0.1
    """Seconds from the appearance of a subscriber to grafting, while a mesh is below ``d_lo``;
    long enough that a network that starts together does not crowd around its first node."""
    fanout_ttl_s: float = 60.0
    """Seconds since the last publish after which the peers of a topic we only publish to are
    forgotten."""
    prune_backoff_s: float = 60.0
    """Seconds a pruned peer has to wait before it may graft again (G14)."""
    unsubscribe_backoff_s: float = 10.0
    """The same after we left the topic: we may well come back (G14)."""
    backoff_max_s: float = 3600.0
    """Longest back-off that a peer may impose on us, seconds."""
    backoffs_max: int = 32_768
    """Back-offs remembered over all topics and peers; beyond it the oldest is forgotten."""

    # Validation and duplicates (G1).
    validation_timeout_s: float = 30.0
    """Seconds after which a message without a verdict is let go as ignored."""
    pending_max: int = 8_192
    """Messages in validation; one more is ignored as busy."""
    pending_bytes_max: int = 64 * 1024 * 1024
    """Bytes of the messages in validation."""
    pending_peer_max: int = 2_048
    """Messages in validation that one peer may have brought; keeps room for the others."""
    digests_max: int = 4
    """Distinct validated messages per message id (G1)."""
    seen_ttl_s: float = 120.0
    """Seconds an accepted message is known after it came last (G14); the store knows it for
    longer."""
    hint_ttl_s: float = 30.0
    """The same for blob hints, which are renewed (G3)."""
    hint_renewals_max: int = 64
    """Hints of one blob that are let through in ``hint_ttl_s``, each with something new (G3)."""
    topic_bytes_per_s: float = 8.0 * 1024 * 1024
    """Bytes that may be accepted on a topic in a second, three seconds' worth at once; more is
    ignored without blame. 0 limits nothing (G24; 20-47)."""
    seen_max: int = 131_072
    """Message ids known at once; beyond it the one that came longest ago is forgotten."""
    rejected_ttl_s: float = 30.0
    """Seconds the digest of a rejected message is kept, so that the same bytes cost no second
    validation."""
    ignored_ttl_s: float = 2.0
    """The same for an ignored one: short, because what was in the way may pass."""
    published_max: int = 8_192
    """Messages of ours of which it is told who has shown them; beyond it the oldest is
    forgotten."""
    failures_max: int = 16_384
    """Digests of failed messages kept; beyond it the oldest is forgotten."""

    # The message cache and lazy gossip (LP-6420 §4.1, G14, G15).
    history_length: int = 5
    """Heartbeats for which a message can be asked for."""
    history_gossip: int = 3
    """Heartbeats for which it is announced; at most ``history_length``."""
    cache_messages_max: int = 65_536
    """Messages in the cache; beyond it the oldest goes."""
    cache_bytes_max: int = 64 * 1024 * 1024
    """Bytes in the cache; beyond it the oldest goes."""
    ihave_ids_max: int = 5_000
    """Ids announced to a peer, heard from a peer and asked of a peer, each per heartbeat."""
    ihave_messages_max: int = 10
    """RPCs with an IHAVE that are heard from a peer per heartbeat."""
    iwant_ids_max: int = 5_000
    """Ids that a peer may ask for per heartbeat."""
    iwant_retransmit_max: int = 3
    """Times the same message is sent to the same peer on request."""
    iwant_followup_s: float = 3.0
    """Seconds a peer has to deliver what it announced and was asked for."""
    idontwant_size_min: int = 1_024
    """Size of a message, bytes, from which mesh peers are told not to send it once it is accepted
    (gossipsub 1.2); above ``message_max`` nobody is told."""
    idontwant_ids_max: int = 1_000
    """Ids that a peer may decline per heartbeat."""
    idontwant_heartbeats: int = 3
    """Heartbeats for which an id stays declined."""
    wanted_max: int = 50_000
    """Ids asked for and not yet received; half of them are shares of ``peers_max`` peers, which no
    other peer can take."""
    wanted_peer_max: int = 5_000
    """Of these, asked of one peer."""

    # Peers and frames (G21, G25).
    peers_max: int = 50
    """Peers the router speaks with; one more is disconnected."""
    topics_max: int = 2_048
    """Topics a peer may subscribe to, topics we may subscribe to, and topics with a fan-out."""
    subscriptions_max: int = 2_048
    """Subscriptions in one RPC; a frame with more is malformed."""
    messages_max: int = 4_096
    """Messages in one RPC; a frame with more is malformed. One that is worth sending has more than
    256 bytes, so that 1 MiB never holds as many."""
    controls_max: int = 4_096
    """IHAVE, IWANT, GRAFT and PRUNE entries in one RPC; a frame with more is malformed."""
    frame_max: int = 1024 * 1024
    """Longest RPC accepted, bytes; libp2p's own limit."""
    rpc_max: int = 64 * 1024
    """Longest RPC sent, bytes, unless a single message is longer."""
    message_max: int = ENVELOPE_MAX
    """Longest message, bytes."""
    queue_bytes_max: int = 4 * 1024 * 1024
    """Bytes of messages and gossip waiting for a peer until the next `drain`; gossip is dropped
    first, then new messages."""

    # Behaviour.
    flood_publish: bool = True
    """Send our own messages to every subscriber, not to the mesh alone (G14)."""
    exempt_loopback: bool = False
    """Peers on this machine are neither a crowd at one address nor one network: for development
    networks only (G23)."""
    light: bool = False
    """We are a light node: no mesh of ours, we are reached by flood publish and IHAVE (G26)."""
    opportunistic_graft_heartbeats: int = 60
    """Heartbeats between looks for better peers for a mesh of poor ones (G14)."""
    opportunistic_graft_peers: int = 2
    """Better peers grafted at such a look, per topic."""
    peer_exchange: bool = False
    """Suggest peers in a PRUNE, and ask the driver to `Dial` those that are suggested to us; the
    driver has to hand in signed records with `GossipRouter.peer_record` (LP-6420 §1.2, G21)."""
    px_peers_max: int = 16
    """Peers suggested in a PRUNE, and taken from one."""
    px_record_max: int = 2_048
    """Longest signed peer record, bytes; a longer one is not passed on."""
    px_dials_max: int = 16
    """`Dial` asked for in one heartbeat, whoever suggests peers."""

    def __post_init__(self) -> None:
        """Refuse a set of numbers that does not fit together; the error names each fault."""
        faults = [*self._range_faults(), *self._relation_faults()]
        if faults:
            raise GossipArgumentError(", ".join(faults), where="GossipParams")

    @classmethod
    def small(cls) -> GossipParams:
        """Return a preset for small networks and tests: degrees of 2 to 6, tenths of seconds."""
        return cls(
            d=3,
            d_lo=2,
            d_hi=6,
            d_score=2,
            d_out=1,
            d_lazy=2,
            heartbeat_interval_s=0.1,
            heartbeat_initial_s=0.05,
            graft_delay_s=0.02,
            fanout_ttl_s=5.0,
            prune_backoff_s=2.0,
            unsubscribe_backoff_s=1.0,
            validation_timeout_s=5.0,
            pending_max=1_024,
            pending_peer_max=512,
            seen_ttl_s=20.0,
            hint_ttl_s=5.0,
            seen_max=4_096,
            rejected_ttl_s=5.0,
            ignored_ttl_s=0.3,
            iwant_followup_s=0.5,
            topics_max=64,
            subscriptions_max=64,
            controls_max=256,
        )

    def _range_faults(self) -> list[str]:
        """Return what is wrong with single values."""
        may_be_zero = {
            "d_score",
            "d_out",
            "d_lazy",
            "opportunistic_graft_peers",
            "topic_bytes_per_s",
        }
        faults = []
        for field in fields(self):
            value = getattr(self, field.name)
            low = 0 if field.name in may_be_zero else 1e-9
            # Written so that a value that is not a number is a fault as well.
            if not isinstance(value, bool) and not low <= value < inf:
                faults.append(f"{field.name} is {value}")
        return faults

    def _relation_faults(self) -> list[str]:
        """Return which values do not fit each other."""
        rules = (
            (self.d_lo <= self.d <= self.d_hi, "d_lo ≤ d ≤ d_hi does not hold"),
            (self.d_out < self.d_lo, "d_out is not below d_lo"),
            (self.d_out <= self.d // 2, "d_out is above half of d"),
            (self.d_score <= self.d, "d_score is above d"),
            (
                self.history_gossip <= self.history_length,
                "history_gossip is above history_length",
            ),
            (self.prune_backoff_s <= self.backoff_max_s, "prune_backoff_s is above backoff_max_s"),
            (
                self.unsubscribe_backoff_s <= self.backoff_max_s,
                "unsubscribe_backoff_s is above backoff_max_s",
            ),
            (self.rpc_max >= 1024, "rpc_max is below 1024"),
            (self.rpc_max <= self.frame_max, "rpc_max is above frame_max"),
            (self.message_max <= ENVELOPE_MAX, f"message_max is above {ENVELOPE_MAX}"),
            # A message travels with its topic and a few bytes of framing around it.
            (self.message_max + 1024 <= self.frame_max, "message_max does not fit frame_max"),
            (
                self.message_max + 1024 <= self.queue_bytes_max,
                "message_max does not fit queue_bytes_max",
            ),
            (
                self.message_max <= self.pending_bytes_max,
                "message_max is above pending_bytes_max",
            ),
            (
                self.message_max + 1024 <= self.cache_bytes_max,
                "message_max does not fit cache_bytes_max",
            ),
        )
        return [text for holds, text in rules if not holds]
