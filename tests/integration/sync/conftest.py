"""Real stores behind real servers on the loopback, at ports the system chooses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    lane,
    sha3_commitment,
    topic_namespace,
    verify_header,
)
from luxrelay.store import IncomingMessage, PutOutcome, RelayStore, RelayStoreConfig
from luxrelay.sync import (
    AcceptResult,
    Outcome,
    PeerHead,
    Publisher,
    RelaySyncClient,
    RelaySyncServer,
    SyncClientConfig,
    SyncServerConfig,
    SyncStore,
    WireMessage,
)
from luxrelay.sync.rpc.backing import Handoff

PARENT = topic_namespace("/test/1/chat/proto")
BASE_MS = 1_800_000_000_000
"""The time of every test, Unix milliseconds."""
_OUTCOMES = {PutOutcome.STORED: Outcome.STORED, PutOutcome.DUPLICATE: Outcome.DUPLICATE}


@dataclass
class Author:
    """Signs messages in a lane of its own."""

    key: SigningKey

    @property
    def lane(self) -> NamespaceId:
        """Its lane under PARENT."""
        return lane(PARENT, self.key.public_field)

    def message(
        self, seq: int, *, blob: bytes = b"hello", at: int = 0, parent: NamespaceId = PARENT
    ) -> IncomingMessage:
        """Return a valid message; its timestamp is BASE_MS plus ``at``, or plus its sequence."""
        namespace_id = self.lane if parent == PARENT else parent
        header = MsgHeader(
            namespace_id=namespace_id,
            seq=seq,
            timestamp=BASE_MS + (at or seq),
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=bytes(32),
        )
        return IncomingMessage(
            header=self.key.sign_header(header),
            blob=blob,
            parent=parent,
            received_at=BASE_MS,
            source=b"who sent it first",
        )

    def messages(self, seqs: Iterable[int], *, blob: bytes = b"hello") -> list[IncomingMessage]:
        """Return one message a sequence."""
        return [self.message(seq, blob=blob) for seq in seqs]


def author(number: int = 1) -> Author:
    """Return author ``number``."""
    return Author(SigningKey.from_seed(SignatureScheme.ED25519, bytes([number]) * 32))


def forged(message: IncomingMessage) -> IncomingMessage:
    """Return the message with a signature that does not hold."""
    signature = bytes([message.header.signature[0] ^ 1]) + message.header.signature[1:]
    return replace(message, header=replace(message.header, signature=signature))


def eventually(condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
    """Return as soon as the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    pause = iter([0.001] * 10 + [0.01] * 10_000)
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(next(pause))


@dataclass
class Sink:
    """A node in miniature: verifies signatures and lanes, stores, and counts."""

    store: RelayStore
    now_ms: int = BASE_MS
    accepted: list[tuple[str, int]] = field(default_factory=list)
    skips: list[tuple[NamespaceId, NamespaceId, int]] = field(default_factory=list)

    def heads(self, parent: NamespaceId | None) -> list[PeerHead]:
        """Return our heads."""
        found, cursor = self.store.heads(parent, b"", 1_000)
        assert not cursor
        return [
            PeerHead(
                namespace_id=head.namespace_id,
                parent_id=head.parent,
                earliest_seq=head.earliest_seq,
                contiguous_seq=head.contiguous_seq,
                latest_seq=head.latest_seq,
            )
            for head in found
        ]

    def gaps(self, namespace_id: NamespaceId, limit: int) -> list[tuple[int, int]]:
        """Return our holes."""
        return self.store.gaps(namespace_id, limit)

    def accept(
        self, peer: str, parent: NamespaceId, messages: Sequence[WireMessage]
    ) -> AcceptResult:
        """Store what verifies."""
        headers = [MsgHeader.decode(message.header) for message in messages]
        valid = [
            verify_header(header) and header.namespace_id == lane(parent, header.sender_pub_key)
            for header in headers
        ]
        put = self.store.put_many(
            [
                IncomingMessage(
                    header=header,
                    # On the wire an empty blob stands for a missing one as well (J7).
                    blob=message.blob or (None if header.blob_len else b""),
                    parent=parent,
                    received_at=self.now_ms,
                )
                for header, message, good in zip(headers, messages, valid, strict=True)
                if good
            ],
            self.now_ms,
        )
        outcomes = iter(_OUTCOMES.get(outcome, Outcome.UNKEPT) for outcome in put)
        self.accepted.append((peer, len(messages)))
        return AcceptResult(
            outcomes=tuple(next(outcomes) if good else Outcome.REJECTED for good in valid),
            contiguous_seq=self.store.head(headers[0].namespace_id).contiguous_seq,
            reached={
                header.namespace_id: self.store.head(header.namespace_id).contiguous_seq
                for header in headers
            },
        )

    def skip_to(self, namespace_id: NamespaceId, parent: NamespaceId, seq: int) -> None:
        """Record it and let the store move on."""
        self.skips.append((namespace_id, parent, seq))
        self.store.skip_to(namespace_id, parent, seq)


@dataclass
class Harbour:
    """Opens stores, servers and clients, and closes all of them."""

    folder: Path
    stores: list[RelayStore] = field(default_factory=list)
    servers: list[RelaySyncServer] = field(default_factory=list)
    clients: list[RelaySyncClient] = field(default_factory=list)
    parent: NamespaceId = PARENT
    base_ms: int = BASE_MS

    author = staticmethod(author)
    forged = staticmethod(forged)
    eventually = staticmethod(eventually)
    sink = staticmethod(Sink)

    def store(self, messages: Sequence[IncomingMessage] = ()) -> RelayStore:
        """Return a new store that holds ``messages``."""
        path = self.folder / f"store{len(self.stores)}"
        store = RelayStore.open(path, RelayStoreConfig.small(), now_ms=BASE_MS)
        self.stores.append(store)
        store.put_many(messages, BASE_MS)
        return store

    def serve(
        self,
        store: SyncStore | None,
        config: SyncServerConfig | None = None,
        *,
        publisher: Publisher | None = None,
        handoff: Handoff | None = None,
        now_ms: int = BASE_MS,
    ) -> str:
        """Serve the store; return the address."""
        config = replace(config or SyncServerConfig(), port=0)
        server = RelaySyncServer(
            store, config, clock_ms=lambda: now_ms, publisher=publisher, handoff=handoff
        )
        self.servers.append(server)
        return f"127.0.0.1:{server.start()}"

    def client(self, address: str, config: SyncClientConfig | None = None) -> RelaySyncClient:
        """Return a client of a relay."""
        client = RelaySyncClient(address, config=config)
        self.clients.append(client)
        return client

    def relay(self, messages: Sequence[IncomingMessage] = ()) -> RelaySyncClient:
        """Return a client of a new relay that holds ``messages``."""
        return self.client(self.serve(self.store(messages)))

    def close(self) -> None:
        """End everything, clients first."""
        for client in self.clients:
            client.close()
        for server in self.servers:
            server.stop(grace_s=0)
        for store in self.stores:
            store.close()


@pytest.fixture
def harbour(tmp_path: Path) -> Iterator[Harbour]:
    """A place for relays that is empty again afterwards."""
    place = Harbour(tmp_path)
    yield place
    place.close()
