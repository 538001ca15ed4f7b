"""Archive checks beyond the message bytes: signing mode and policy history. Pure.

Theory of operation
-------------------
*Decides* whether the policy a header binds to was in force, and whether it admits the sender.
*Does not know* batches, tables, relays.
A header names its policy by hash. When the namespace's history is known, or that of a namespace
whose lane it is (J6), the policy in force at its sequence and time decides, as a relay would have
decided then. When the hash is that of the open policy which every node derives, that one does.
Otherwise the message stands, with the verdict UNCHECKABLE: it is valid by itself.
*Bounds*: as many policies as the registry holds; the hash of the open policy of
``REMEMBERED_MAX`` namespaces; ``LANES_MAX`` lanes.
*Deviations*: fees, quotas, rates and the ±30 s of live messages are the relays' business and are
not checked again.

Source: LP-6411 §3.2, LP-6410 §4; decisions H3(e), H14, H19, H20, J2, J6, P39.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from luxrelay.bus import Code, MsgHeader, NamespaceId, lane
from luxrelay.bus.authorization import Access, allowed_scheme, authorize_write, sidecar_fits
from luxrelay.bus.bound import verify_header_bound
from luxrelay.bus.constants import NAMESPACE_BYTES
from luxrelay.bus.policy import NamespacePolicy, RetentionClass, default_policy_hash
from luxrelay.bus.registry import PolicyRegistry, RegistryConfig
from luxrelay.bus.signed_policy import SignedPolicy

CODE_EPHEMERAL: Final = -2
"""``CHECKED.code`` of a valid message that is never archived because its class is Ephemeral."""
REMEMBERED_MAX: Final = 65_536
"""Namespaces whose open policy's hash is kept, 0.2 KiB each."""
LANES_MAX: Final = 4096
"""Lanes kept; the key that one is derived from has 2,593 bytes at most."""


class RuleOutcome(NamedTuple):
    """What a row is: code 0 for a message, else why it is none."""

    code: int
    reason: str


GOOD: Final = RuleOutcome(0, "")


class Judgement(NamedTuple):
    """What the policy says of a message, and what the tables note of it."""

    outcome: RuleOutcome
    verdict: int = 0
    version: int | None = None
    retention: int | None = None


UNKNOWN: Final = Judgement(GOOD, int(Code.UNCHECKABLE))
"""Nobody told the archive the policy."""
_OPEN: Final = Judgement(GOOD, 0, 1, int(RetentionClass.STANDARD))


@lru_cache(maxsize=LANES_MAX)
def lane_of(parent: bytes, key: bytes) -> NamespaceId | None:
    """Return the lane of a key under a parent (J6); None when the parent is no namespace."""
    return lane(NamespaceId(parent), key) if len(parent) == NAMESPACE_BYTES else None


@dataclass(slots=True)
class ArchiveRules:
    """What a run checks by; travels to executors by value."""

    network: str | None = None
    """Name of the network whose signatures are bound (H3e); None for LP-6411's own."""
    registry: PolicyRegistry = field(default_factory=PolicyRegistry)
    """Histories of policies."""
    parents: tuple[NamespaceId, ...] = ()
    """Namespaces whose history the registry holds."""
    _remembered: dict[bytes, bytes] = field(default_factory=dict)

    @classmethod
    def of(
        cls, documents: Iterable[SignedPolicy], *, network: str | None = None, bound: bool = False
    ) -> ArchiveRules:
        """Return the rules of a network and its policies.

        Args:
            documents: Signed policies; of each namespace its versions in rising order.
            network: Name of the network that the documents name; ``devnet`` when not given.
            bound: Signatures of this network are bound.

        Raises:
            PolicyError: a document does not check, or does not follow the one before it.

        """
        registry = PolicyRegistry(RegistryConfig(network=network or "devnet"))
        parents: dict[NamespaceId, None] = {}
        for document in documents:
            namespace = document.namespace_id
            if namespace in parents:
                registry.update(document)
            else:
                registry.register(document, reserved=True)
            parents[namespace] = None
        return cls(network if bound else None, registry, tuple(parents))

    @property
    def has_no_history(self) -> bool:
        """True when namespace, key, policy hash and parent are all that `judge` looks at."""
        return not self.parents

    def signature_holds(self, header: bytes) -> bool:
        """Return True when a bound signature holds; asked only when ``network`` is given."""
        assert self.network is not None
        return verify_header_bound(MsgHeader.decode(header), self.network)

    def judge(  # noqa: PLR0917  # a header's fields in the order of the wire, once a header
        self,
        header: bytes,
        namespace: bytes,
        seq: int,
        timestamp: int,
        key: bytes,
        policy: bytes,
        said: bytes | None = None,
    ) -> Judgement:
        """Return what the policy in force says of a header whose signature holds.

        Args:
            header: The header's bytes.
            namespace: Its namespace.
            seq: Its sequence.
            timestamp: Its timestamp, ms.
            key: Its key field.
            policy: The policy hash it binds to.
            said: The parent that the relay named; believed when the derivation holds (J6).

        """
        parent = self._parent(NamespaceId(namespace), key)
        if parent is None:
            if self._is_open(namespace, policy) or self._is_open_lane(namespace, key, policy, said):
                return _OPEN
            return UNKNOWN
        own = seq if parent == namespace else None
        for record in self.registry.in_force(parent, own, timestamp):
            if record.policy_hash == policy:
                return _judged(record.policy, header, key)
        return _violation("its policy was not in force at its sequence and time (H19)")

    def passed_over(self, namespace: NamespaceId, parent: NamespaceId) -> bool:
        """Return True when nothing of a namespace is archived: every policy of it is Ephemeral.

        Args:
            namespace: The namespace.
            parent: Whose lane a relay says it is, or itself.

        """
        records = self.registry.history(namespace) or self.registry.history(parent)
        classes = {record.policy.retention_class for record in records}
        return classes == {RetentionClass.EPHEMERAL}

    def _parent(self, namespace: NamespaceId, key: bytes) -> NamespaceId | None:
        if not self.parents:
            return None
        if self.registry.history(namespace):
            return namespace
        return next((parent for parent in self.parents if lane_of(parent, key) == namespace), None)

    def _is_open_lane(
        self, namespace: bytes, key: bytes, policy: bytes, said: bytes | None
    ) -> bool:
        if said is None or said == namespace or len(said) != NAMESPACE_BYTES:
            return False
        return self._is_open(said, policy) and lane_of(said, key) == namespace

    def _is_open(self, namespace: bytes, policy: bytes) -> bool:
        remembered = self._remembered
        if namespace not in remembered:
            if len(remembered) >= REMEMBERED_MAX:
                remembered.clear()
            remembered[namespace] = default_policy_hash(namespace)
        return remembered[namespace] == policy


def _judged(policy: NamespacePolicy, header: bytes, key: bytes) -> Judgement:
    decoded = MsgHeader.decode(header)
    if not allowed_scheme(policy, key):
        return _violation("its policy does not admit the signature scheme (H28)")
    if not sidecar_fits(policy, decoded):
        return _violation("its policy and its sidecar reference contradict each other (H22)")
    access = authorize_write(decoded, policy)
    if access is Access.DENIED:
        return _violation("its policy does not let the sender write (LP-6410 §4)")
    retention = int(policy.retention_class)
    if retention == RetentionClass.EPHEMERAL:
        passed = RuleOutcome(CODE_EPHEMERAL, "messages of this class are not archived (J2)")
        return Judgement(passed, 0, policy.version, retention)
    verdict = 0 if access is Access.ALLOWED else int(Code.UNCHECKABLE)
    return Judgement(GOOD, verdict, policy.version, retention)


def _violation(reason: str) -> Judgement:
    return Judgement(RuleOutcome(int(Code.POLICY_VIOLATION), reason))
