"""Which policy was in force when: history, grace, and where policies come from.

Theory of operation
-------------------
*Decides* which policies a header of a namespace may bind to, given its sequence and timestamp.
*Does not know* chains, files or clocks. A namespace's history is a tuple of records in rising
version; a change replaces the tuple, so readers on other threads see the old or the new history,
never half of one. Changes are made by one caller at a time.
*Rule*: a record is active for (seq, ms) from its activation on; the newest active one is in
force. The one before it is admitted too until ``grace_ms`` after the activation (H19). Lanes have
sequences of their own, so for them only the time counts.
*Sources*: a signed document whose namespace id proves its owner (`create`), one that the operator
trusts (`register`), a policy without an owner who could sign (`pin`), a resolver, or a shelf of
documents that outlives the process. A document from a shelf is checked again.
*Bounds*: ``namespaces_max``, ``history_max`` (the oldest record goes), one resolver call a miss.
A resolver answers from memory: it is asked once for every message of an unknown namespace.

Source: LP-6410 §2, LP-6411 §2.6; decisions H19, H20, H21, S2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol

from luxrelay.bus.authorization import IdentityCheck
from luxrelay.bus.header import NamespaceId
from luxrelay.bus.namespace import RESERVED_FIRST_BYTES, is_reserved, namespace_id
from luxrelay.bus.policy import IdentityType, NamespacePolicy, default_policy
from luxrelay.bus.signed_policy import SignedPolicy, check_first, check_update
from luxrelay.errors import BusArgumentError, PolicyError
from luxrelay.wire import ByteReader

_U32: Final = Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """Bounds and times of a registry."""

    network: str = "devnet"
    """Documents of another network are refused."""
    grace_ms: int = 60_000
    """How long the previous policy is admitted after a change, milliseconds; 0 for not at all."""
    namespaces_max: int = 65_536
    """Most namespaces held in memory."""
    history_max: int = 64
    """Most policies kept of one namespace."""
    reserved: frozenset[int] = RESERVED_FIRST_BYTES
    """First bytes that `create` refuses (S2, S3)."""

    def __post_init__(self) -> None:
        """Refuse bounds that hold nothing."""
        if self.grace_ms < 0 or self.namespaces_max < 1 or self.history_max < 1:
            raise BusArgumentError("bounds begin at 1, the grace at 0", where="RegistryConfig")


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A policy and from when it holds."""

    policy: NamespacePolicy
    """The rules."""
    policy_hash: bytes
    """What headers bind to, 32 bytes."""
    activation_seq: int = 0
    """First sequence of the namespace it holds for."""
    activation_ms: int = 0
    """First header timestamp it holds for, milliseconds."""
    document: bytes = b""
    """The signed document it came in; empty for a pinned policy."""


class PolicySource(Protocol):
    """What validation asks of a registry."""

    def in_force(
        self, namespace_id: NamespaceId, seq: int | None, timestamp: int
    ) -> tuple[PolicyRecord, ...]:
        """Return what a header may bind to, the policy in force first; empty when unknown."""


class PolicyResolver(Protocol):
    """Knows policies from elsewhere: a chain, a rule, another service."""

    def resolve(self, namespace_id: NamespaceId) -> Sequence[PolicyRecord]:
        """Return the namespace's history in rising version, or nothing; answers from memory."""


class DocumentShelf(Protocol):
    """Keeps signed documents beyond the process."""

    def get(self, namespace_id: NamespaceId) -> Sequence[bytes]:
        """Return the documents of a namespace, oldest first; empty when there are none."""

    def put(self, namespace_id: NamespaceId, documents: Sequence[bytes]) -> None:
        """Replace the documents of a namespace; durable when it returns."""


class DefaultPolicies:
    """Resolves chosen namespaces to the open policy that every node derives alike (H20)."""

    def __init__(self, namespaces: Iterable[NamespaceId]) -> None:
        """Answer for these namespaces and for no others."""
        self._records = {ns: (record_of(default_policy(ns)),) for ns in namespaces}

    def resolve(self, namespace_id: NamespaceId) -> Sequence[PolicyRecord]:
        """Return the default policy of a chosen namespace."""
        return self._records.get(namespace_id, ())


class MappingShelf:
    """A shelf on any mapping of bytes to bytes, such as a column of a key-value store.

    One value a namespace: u32 length ‖ document, repeated.
    """

    def __init__(self, rows: MutableMapping[bytes, bytes], prefix: bytes = b"policy/") -> None:
        """Keep documents under ``prefix`` ‖ namespace id."""
        self._rows = rows
        self._prefix = prefix

    def get(self, namespace_id: NamespaceId) -> Sequence[bytes]:
        """Return the documents of a namespace, oldest first."""
        value = self._rows.get(self._prefix + namespace_id, b"")
        reader = ByteReader(value, PolicyError, "policy shelf")
        found = []
        while reader.offset < len(value):
            found.append(reader.take(reader.u32()))
        return found

    def put(self, namespace_id: NamespaceId, documents: Sequence[bytes]) -> None:
        """Replace the documents of a namespace."""
        joined = b"".join(_U32.pack(len(document)) + document for document in documents)
        self._rows[self._prefix + namespace_id] = joined


class PolicyRegistry:
    """The policies a node knows; reads from any thread, changes from one at a time."""

    def __init__(
        self,
        config: RegistryConfig | None = None,
        *,
        resolvers: Sequence[PolicyResolver] = (),
        shelf: DocumentShelf | None = None,
        identities: IdentityCheck | None = None,
    ) -> None:
        """Start empty; what is not in memory is asked of the shelf, then of the resolvers."""
        self._config = config or RegistryConfig()
        self._resolvers = tuple(resolvers)
        self._shelf = shelf
        self._identities = identities
        self._held: dict[NamespaceId, tuple[PolicyRecord, ...]] = {}
        self._cached: dict[NamespaceId, tuple[PolicyRecord, ...]] = {}

    def history(self, namespace_id: NamespaceId) -> tuple[PolicyRecord, ...]:
        """Return all kept policies of a namespace, oldest first; empty when it is unknown.

        Raises:
            PolicyError: the shelf holds a document that does not check.

        """
        known = self._held.get(namespace_id) or self._cached.get(namespace_id)
        if known:
            return known
        if self._shelf is not None:
            found = self._from_shelf(namespace_id, self._shelf)
            if found:
                self._cache(namespace_id, found)
                return found
        for resolver in self._resolvers:
            resolved = tuple(resolver.resolve(namespace_id))
            if resolved:
                return resolved[-self._config.history_max :]
        return ()

    def in_force(
        self, namespace_id: NamespaceId, seq: int | None, timestamp: int
    ) -> tuple[PolicyRecord, ...]:
        """Return what a header may bind to, the policy in force first; empty when unknown.

        A change by sequence alone has no grace: an owner who wants one gives a time.

        Args:
            namespace_id: The namespace, for a lane its parent.
            seq: The header's sequence; None for a lane.
            timestamp: The header's timestamp, milliseconds; on gossip and in history alike, so
                that every node finds the same policy for the same header.

        Source: LP-6411 §2.6; H19; 11-24.

        """
        history = self.history(namespace_id)
        for index in range(len(history) - 1, -1, -1):
            current = history[index]
            if timestamp < current.activation_ms:
                continue
            if seq is not None and seq < current.activation_seq:
                continue
            if index and timestamp < current.activation_ms + self._config.grace_ms:
                return current, history[index - 1]
            return (current,)
        return ()

    def create(self, document: SignedPolicy, salt: bytes, block: int) -> PolicyRecord:
        """Take the first document of a namespace whose id proves its owner (LP-6410 §2).

        Raises:
            PolicyError: the id is known, reserved, or not derived from the owner, salt and block;
                or the document does not check.

        """
        owner = document.policy.owner
        if owner.type is not IdentityType.WALLET:
            raise PolicyError("a standard id is derived from a wallet", where="registry")
        try:
            expected = namespace_id(owner.value, salt, block)
        except BusArgumentError as error:
            raise PolicyError(error.what, where="registry") from error
        if expected != document.namespace_id:
            raise PolicyError("the id does not come from owner, salt and block", where="registry")
        return self.register(document)

    def register(self, document: SignedPolicy, *, reserved: bool = False) -> PolicyRecord:
        """Take the first document of a namespace that the caller trusts, such as a derived one.

        Args:
            document: Signed by the owner it names.
            reserved: True admits an id in a reserved range: derived ids, which nobody can roll
                again, and those an operator lists by hand (S2, S4).

        Raises:
            PolicyError: the id is known or reserved, or the document does not check.

        """
        namespace = document.namespace_id
        if not reserved and is_reserved(namespace, self._config.reserved):
            raise PolicyError(
                "the id is in a reserved range",
                where=f"namespace {namespace.hex()}",
                hint="create it with another salt (S2)",
            )
        if self.history(namespace):
            raise PolicyError("the namespace is known already", where=namespace.hex())
        self._check_network(document)
        check_first(document, self._identities)
        return self._take(namespace, (), document)

    def update(self, document: SignedPolicy) -> PolicyRecord:
        """Take a document that changes a known namespace or hands it to another owner (H21).

        Raises:
            PolicyError: the namespace is unknown, the version does not rise, the encryption mode
                changes, the signer is not the present owner, or the signature does not hold.

        """
        history = self.history(document.namespace_id)
        if not history:
            raise PolicyError("the namespace is unknown", where=document.namespace_id.hex())
        self._check_network(document)
        latest = history[-1]
        check_update(
            document,
            latest.policy,
            (latest.activation_seq, latest.activation_ms),
            self._identities,
        )
        return self._take(document.namespace_id, history, document)

    def pin(self, namespace_id: NamespaceId, policy: NamespacePolicy) -> PolicyRecord:
        """Take an unsigned policy on the caller's word, such as the default one (H20).

        Raises:
            PolicyError: the namespace is known already or the registry is full.

        """
        if self.history(namespace_id):
            raise PolicyError("the namespace is known already", where=namespace_id.hex())
        record = record_of(policy)
        self._hold(namespace_id, (record,))
        return record

    def _check_network(self, document: SignedPolicy) -> None:
        if document.network != self._config.network:
            raise PolicyError(
                f"a document of network {document.network!r}, not {self._config.network!r}",
                where="signed policy",
            )

    def _take(
        self,
        namespace: NamespaceId,
        history: tuple[PolicyRecord, ...],
        document: SignedPolicy,
    ) -> PolicyRecord:
        record = _signed_record(document)
        kept = (*history, record)[-self._config.history_max :]
        if self._shelf is None or namespace in self._held:
            self._hold(namespace, kept)
        else:
            self._shelf.put(namespace, [entry.document for entry in kept if entry.document])
            self._cache(namespace, kept)
        return record

    def _hold(self, namespace: NamespaceId, history: tuple[PolicyRecord, ...]) -> None:
        # What memory alone knows is never pushed out: a namespace too many is refused instead.
        if namespace not in self._held and len(self._held) >= self._config.namespaces_max:
            raise PolicyError(
                f"the registry holds {self._config.namespaces_max} namespaces",
                where="registry",
                hint="raise namespaces_max",
            )
        self._held[namespace] = history

    def _cache(self, namespace: NamespaceId, history: tuple[PolicyRecord, ...]) -> None:
        if len(self._cached) >= self._config.namespaces_max:
            self._cached = {}  # the shelf knows them; a fresh dict never disturbs a reader
        self._cached[namespace] = history

    def _from_shelf(self, namespace: NamespaceId, shelf: DocumentShelf) -> tuple[PolicyRecord, ...]:
        records: tuple[PolicyRecord, ...] = ()
        for data in shelf.get(namespace):
            document = SignedPolicy.decode(data)
            self._check_network(document)
            if document.namespace_id != namespace:
                raise PolicyError("a document of another namespace", where="policy shelf")
            if records:
                last = records[-1]
                check_update(
                    document,
                    last.policy,
                    (last.activation_seq, last.activation_ms),
                    self._identities,
                )
            elif not document.verify():
                # Its signer's right was checked when it was taken; what it followed may be gone.
                raise PolicyError("the signature does not verify", where="policy shelf")
            records = (*records, _signed_record(document))
        return records[-self._config.history_max :]


class PoliciesInForce:
    """A registry, and hashes of which nothing else is known; replaced whole, any thread may ask.

    Reads take one reference and go on with what it refers to, so that a message is judged by the
    policies before a replacement or by those after it.
    """

    def __init__(
        self, hashes: Mapping[NamespaceId, frozenset[bytes]], registry: PolicyRegistry
    ) -> None:
        """Begin with these."""
        self._current = (hashes, registry)
        self.derived: Callable[[NamespaceId], frozenset[bytes]] | None = None
        """Gives the hashes of a namespace that nobody described; None where there are none."""

    def replace(
        self, hashes: Mapping[NamespaceId, frozenset[bytes]], registry: PolicyRegistry
    ) -> None:
        """Go on with these."""
        self._current = (hashes, registry)

    def get(self, parent: NamespaceId, default: frozenset[bytes], /) -> frozenset[bytes]:
        """Return the hashes of a namespace of which nothing else is known."""
        found = self._current[0].get(parent)
        if found is None:
            return default if self.derived is None else self.derived(parent)
        return found

    def in_force(
        self, namespace_id: NamespaceId, seq: int | None, timestamp: int
    ) -> tuple[PolicyRecord, ...]:
        """Return what a header may bind to, the policy in force first; empty when unknown."""
        return self._current[1].in_force(namespace_id, seq, timestamp)


def record_of(policy: NamespacePolicy) -> PolicyRecord:
    """Return the record of a policy that holds from the beginning."""
    return PolicyRecord(policy, policy.policy_hash)


def _signed_record(document: SignedPolicy) -> PolicyRecord:
    return PolicyRecord(
        document.policy,
        document.policy.policy_hash,
        document.activation_seq,
        document.activation_ms,
        document.encode(),
    )
