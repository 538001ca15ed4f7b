"""Namespaces that the node carries: of its configuration, followed at run time, and all others.

*Followed* namespaces are those of the configuration, those that an operator has the node follow
while it runs, and with ``carry = "open"`` those that an application here asked for. Their topics
are subscribed to, and the node catches up with them. What was followed at run time is kept in a
file and outlives the process.
*Open*: such a node takes the headers of every other namespace as well, as far as its policy can be
told: it is the default one, which follows from the namespace's id, or its documents were given.
*Parents*: on ``headers/global`` a header names its parent, and a lane proves it by its key (J6). A
header without that is of a namespace that is followed, or in a lane of one.

Bounds: ``followed_max`` namespaces at run time. One that applications asked for gives way to a new
one, the one not asked for longest first; one that an operator chose does not. Applications may ask
for ``demands_per_minute``, so that nobody turns the list over. `REMEMBERED_MAX` answers.

Source: LP-6420 §2.2, §8.2; decisions J6, G28, G34, G35.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from luxrelay.bus import MsgHeader, NamespaceId, lane, topic_namespace
from luxrelay.bus.constants import NAMESPACE_BYTES
from luxrelay.bus.policy import default_policy_hash
from luxrelay.bus.registry import PolicyRegistry, RegistryConfig
from luxrelay.bus.signed_policy import SignedPolicy
from luxrelay.errors import GatewayError, LuxRelayError, NodeError, PolicyError
from luxrelay.files import read_bounded, write_whole
from luxrelay.wire import from_hex

REMEMBERED_MAX: Final = 16_384
"""Answers remembered; beyond it the one not needed for longest is forgotten."""
FOLLOWED_FILE: Final = "followed.json"
"""Where the data folder keeps what is followed at run time."""
DOCUMENTS_MAX: Final = 64
"""Most policies of one namespace: as many as a registry keeps."""
_FILE_BYTES_MAX: Final = 256 * 1024 * 1024
_VERSION: Final = 1
_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedNamespace:
    """A namespace that the node follows."""

    namespace_id: NamespaceId
    content_topic: str
    """What its id is derived from; empty when only the id is known."""
    policy_hash: bytes
    """Empty when the registry knows the policies."""
    origin: str = "file"
    """``file``: of the configuration; ``call``: an operator chose it; ``demand``: an application
    here asked for it."""
    documents: tuple[SignedPolicy, ...] = ()
    """Signed policies that came with it at run time, the first version first."""


class CarriedNamespaces:
    """The namespaces of one node; any thread may call it."""

    def __init__(
        self,
        configured: Iterable[CarriedNamespace] = (),
        *,
        network: str = "devnet",
        everything: bool = False,
        followed_max: int = 1_024,
        demands_per_minute: int = 60,
        path: Path | None = None,
        clock_ms: Callable[[], int] = lambda: 0,
        parent_held: Callable[[NamespaceId], NamespaceId | None] = lambda _: None,
        remembered_max: int = REMEMBERED_MAX,
    ) -> None:
        """Take the namespaces of the configuration, and read those of the file.

        Args:
            configured: Those of the configuration, which stay.
            network: Its name; policies of another one are refused.
            everything: Whether the node takes the headers of every namespace.
            followed_max: Most namespaces followed at run time.
            demands_per_minute: Most namespaces a minute that applications have the node follow.
            path: Where those at run time are kept; None for memory alone.
            clock_ms: Milliseconds of a clock that nobody sets.
            parent_held: The parent under which the store holds a namespace; None for an unknown.
            remembered_max: Most answers remembered.

        Raises:
            NodeError: the file is there and cannot be read.

        """
        self.everything = everything
        self.set_aside: Path | None = None
        """Where a file that could not be read was moved to."""
        self.told: Callable[[CarriedNamespace, bool], object] = lambda entry, begins: None  # noqa: ARG005
        """Told what is followed from now on (True) and no longer (False); set by the node."""
        self._configured = {entry.namespace_id: entry for entry in configured}
        # Replaced whole, so that readers need no lock.
        self._followed: dict[NamespaceId, CarriedNamespace] = {}
        self.followed_max = followed_max
        self._demands = float(demands_per_minute)
        self._demands_max = demands_per_minute
        self._demanded_at = clock_ms()
        self._path = path
        self._clock_ms = clock_ms
        self._parent_held = parent_held
        self._remembered_max = remembered_max
        self._network = network
        self._lock = threading.Lock()
        self._changes = threading.Lock()  # held while the file is written, which answers never are
        self._found: OrderedDict[tuple[NamespaceId, bytes, bytes], NamespaceId | None] = (
            OrderedDict()
        )
        self.given_way = 0
        """Namespaces that made room for others."""
        self.demands_refused = 0
        """Namespaces that applications asked for and the node did not follow."""
        self._load()
        self._parents = frozenset((*self._configured, *self._followed))

    def __contains__(self, namespace: object) -> bool:
        return namespace in self._parents

    def __len__(self) -> int:
        return len(self._parents)

    @property
    def remembered(self) -> int:
        """How many answers are remembered."""
        return len(self._found)

    def entries(self) -> tuple[CarriedNamespace, ...]:
        """Return what is followed, that of the configuration first."""
        return (*self._configured.values(), *self._followed.values())

    def numbers(self) -> dict[str, int]:
        """Return how many are followed, gave way, and were asked for in vain."""
        return {
            "followed": len(self),
            "given_way": self.given_way,
            "refused": self.demands_refused,
        }

    def caught_up(self) -> Sequence[NamespaceId | None]:
        """Return what is caught up with: each followed namespace, or everything (None)."""
        if self.everything:
            return (None,)
        return tuple(entry.namespace_id for entry in self.entries())

    def default_hashes(self, namespace: NamespaceId) -> frozenset[bytes]:
        """Return the hash of the policy that a namespace has which nobody described (H20).

        In an open node; and not of somebody's lane, which has its parent's policies.
        """
        if not self.everything or self._parent_held(namespace) not in {None, namespace}:
            return frozenset()
        return frozenset({default_policy_hash(namespace)})

    def parent_of(self, header: MsgHeader, named: bytes = b"") -> NamespaceId | None:
        """Return the namespace that a header belongs to; None when the node does not carry it.

        A first question costs a hash for each namespace that the node follows.

        Args:
            header: Any header.
            named: The namespace that ``headers/global`` says it is of; empty when nothing does.

        """
        namespace = header.namespace_id
        if namespace in self._parents:
            return namespace
        question = (namespace, header.sender_pub_key, named)
        with self._lock:
            if question in self._found:
                self._found.move_to_end(question)
                return self._found[question]
        answer = self._search(namespace, header.sender_pub_key, named)
        with self._lock:
            self._found[question] = answer
            if len(self._found) > self._remembered_max:
                self._found.popitem(last=False)
        return answer

    def _search(self, namespace: NamespaceId, key: bytes, named: bytes) -> NamespaceId | None:
        if named and named != namespace:
            parent = NamespaceId(named)
            if not (self.everything or parent in self._parents):
                return None
            return parent if lane(parent, key) == namespace else None
        found = next((each for each in self._parents if lane(each, key) == namespace), None)
        if found is not None or not (self.everything and named):
            return found
        # An id that is known as somebody's lane is no namespace of its own to others.
        return namespace if self._parent_held(namespace) in {None, namespace} else None

    def follow(
        self,
        namespace: NamespaceId,
        *,
        content_topic: str = "",
        documents: Sequence[SignedPolicy] = (),
    ) -> bool:
        """Follow a namespace that an operator chose; False when nothing changes by it.

        One that an application asked for is the operator's from then on, and does not give way.

        Args:
            namespace: Its id, 20 bytes.
            content_topic: What the id is derived from, when that is known.
            documents: Its signed policies, the first version first; none for the default policy.

        Raises:
            GatewayError: there is no room, or it is one of the configuration.
            PolicyError: a document does not check, or is of another namespace.
            OSError: the file cannot be written; nothing has changed.

        """
        entry = CarriedNamespace(
            namespace_id=namespace,
            content_topic=content_topic,
            policy_hash=b"" if documents else default_policy_hash(namespace),
            origin="call",
            documents=tuple(documents),
        )
        self._check(entry)
        with self._changes:
            if namespace in self._configured:
                raise GatewayError(
                    "the namespace stands in the node's configuration",
                    where=namespace.hex(),
                    hint="change its [[namespace]] table",
                    code="gateway.conflict",
                )
            if self._followed.get(namespace) == entry:
                return False
            self._take(entry)
        return True

    def demanded(self, namespace: NamespaceId) -> bool:
        """Follow what an application here publishes or reads, if the node is open; whether it does.

        Raises:
            GatewayError: applications ask for too many, or an operator's leave no room.
            OSError: the file cannot be written; nothing has changed.

        """
        if namespace in self._configured:
            return True
        if namespace in self._parents:
            with self._changes:
                self._use(namespace)
            return True
        if not self.everything or self._parent_held(namespace) not in {None, namespace}:
            return False
        with self._changes:
            if namespace not in self._followed:
                self._pay()
                self._take(
                    CarriedNamespace(
                        namespace_id=namespace,
                        content_topic="",
                        policy_hash=default_policy_hash(namespace),
                        origin="demand",
                    )
                )
        return True

    def asked(self, namespace: NamespaceId) -> bool:
        """Return whether the node takes what comes of a namespace that a reader asks for.

        An open node follows it from now on, as far as it may. A lane counts where a message of it
        is held: before, nobody can tell whose it is.
        """
        held = self._parent_held(namespace)
        if held is not None and held != namespace and (self.everything or held in self._parents):
            return True
        try:
            return self.demanded(namespace)
        except (GatewayError, OSError):
            return False

    def unfollow(self, namespace: NamespaceId) -> bool:
        """Follow a namespace no longer; what is stored of it stays until its time is over.

        Returns:
            False when it was not followed.

        Raises:
            GatewayError: it is one of the configuration.
            OSError: the file cannot be written; nothing has changed.

        """
        with self._changes:
            if namespace in self._configured:
                raise GatewayError(
                    "the namespace stands in the node's configuration",
                    where=namespace.hex(),
                    hint="remove its [[namespace]] table and start the node again",
                    code="gateway.conflict",
                )
            if namespace not in self._followed:
                return False
            left = self._followed[namespace]
            kept = {name: each for name, each in self._followed.items() if name != namespace}
            self._put(kept)
            self.told(left, False)
        return True

    def _use(self, namespace: NamespaceId) -> None:
        """Let a namespace that an application asked for stay longer than the others."""
        entry = self._followed.get(namespace)
        if entry is None or entry.origin != "demand":
            return
        if next(reversed(self._followed)) != namespace:
            kept = {name: each for name, each in self._followed.items() if name != namespace}
            self._followed = {**kept, namespace: entry}

    def _take(self, entry: CarriedNamespace) -> None:
        """Follow one more; of those that applications asked for the oldest gives way."""
        kept = dict(self._followed)
        kept.pop(entry.namespace_id, None)
        gone = None
        if len(kept) >= self.followed_max:
            gone = next((each for each in kept.values() if each.origin == "demand"), None)
            if gone is None:
                self.demands_refused += entry.origin == "demand"
                raise GatewayError(
                    f"the node follows {len(kept)} namespaces at run time, of {self.followed_max}",
                    where="followed_max",
                    hint="unfollow one, or raise followed_max of [gossip]",
                    code="gateway.conflict",
                )
            del kept[gone.namespace_id]
        self._put({**kept, entry.namespace_id: entry})
        if gone is not None:
            self.given_way += 1
            self.told(gone, False)
        self.told(entry, True)

    def _pay(self) -> None:
        """Take one of the namespaces that applications may ask for.

        Raises:
            GatewayError: none is left for now; says when one is.

        """
        now_ms = self._clock_ms()
        per_ms = self._demands_max / _MINUTE_MS
        self._demands = min(
            self._demands_max, self._demands + per_ms * max(0, now_ms - self._demanded_at)
        )
        self._demanded_at = now_ms
        if self._demands < 1:
            self.demands_refused += 1
            error = GatewayError(
                f"applications had the node follow {self._demands_max} namespaces in a minute",
                where="follow_demands_per_minute",
                hint="ask again later, or have an operator follow it",
                code="gateway.rate",
            )
            error.retry_after_ms = round((1 - self._demands) / per_ms) if per_ms else _MINUTE_MS
            raise error
        self._demands -= 1

    def _put(self, followed: dict[NamespaceId, CarriedNamespace]) -> None:
        """Keep what is followed, on the disk first."""
        if self._path is not None:
            write_whole(self._path, _written(followed.values()))
        self._followed = followed
        with self._lock:
            self._parents = frozenset((*self._configured, *followed))
            self._found.clear()

    def _check(self, entry: CarriedNamespace) -> None:
        """Look whether documents are of the namespace, and follow from each other."""
        registry = PolicyRegistry(RegistryConfig(network=self._network))
        add_documents(registry, entry)

    def _load(self) -> None:
        if self._path is None:
            return
        try:
            found = _read(read_bounded(self._path, _FILE_BYTES_MAX))
        except FileNotFoundError:
            return
        except OSError as error:
            raise NodeError(
                f"cannot read what is followed at run time: {error.strerror}",
                where=str(self._path),
                hint="mend the file's rights or its disk; without the file nothing is followed "
                "beside the configuration",
                code="store.io",
            ) from error
        except (ValueError, TypeError, KeyError, LuxRelayError):
            self.set_aside = self._path.with_suffix(".unreadable")
            self._path.replace(self.set_aside)
            return
        for entry in found[: self.followed_max]:
            if entry.namespace_id not in self._configured:
                self._followed[entry.namespace_id] = entry


def add_documents(registry: PolicyRegistry, entry: CarriedNamespace) -> None:
    """Put the policies of a namespace that is followed at run time into a registry.

    Raises:
        PolicyError: a document does not check, or is of another namespace.

    """
    for index, document in enumerate(entry.documents):
        if document.namespace_id != entry.namespace_id:
            raise PolicyError(
                f"the document is for namespace {document.namespace_id.hex()}",
                where=f"document {index + 1}",
                hint=f"it was given for {entry.namespace_id.hex()}",
            )
        if index:
            registry.update(document)
        else:
            # The operator chose the namespace: its range is the operator's choice.
            registry.register(document, reserved=True)


def _written(entries: Iterable[CarriedNamespace]) -> bytes:
    shown = [
        {
            "namespaceId": entry.namespace_id.hex(),
            "contentTopic": entry.content_topic,
            "origin": entry.origin,
            "documents": [document.encode().hex() for document in entry.documents],
        }
        for entry in entries
    ]
    return json.dumps({"version": _VERSION, "namespaces": shown}).encode()


def _read(data: bytes) -> list[CarriedNamespace]:
    """Return the entries of a file; ValueError, TypeError or KeyError when it is none of ours."""
    value = json.loads(data)
    if value["version"] != _VERSION:
        raise ValueError("another version")
    return [_entry(each) for each in value["namespaces"]]


def _entry(value: dict[str, Any]) -> CarriedNamespace:
    name, topic, origin = value["namespaceId"], value["contentTopic"], value["origin"]
    namespace = NamespaceId(from_hex(name))
    if len(namespace) != NAMESPACE_BYTES or origin not in {"call", "demand"}:
        raise ValueError("no namespace that is followed")
    if topic and topic_namespace(topic) != namespace:
        raise ValueError("a content topic of another namespace")
    documents = tuple(SignedPolicy.decode(from_hex(each)) for each in value["documents"])
    return CarriedNamespace(
        namespace_id=namespace,
        content_topic=topic,
        policy_hash=b"" if documents else default_policy_hash(namespace),
        origin=origin,
        documents=documents,
    )
