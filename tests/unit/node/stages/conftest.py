"""A node's doors on a real store, with a clock that stands still."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from luxrelay.bus import (
    MsgHeader,
    SigningKey,
    lane,
    sha3_commitment,
    topic_namespace,
)
from luxrelay.bus.policy import default_policy
from luxrelay.gossip import (
    HeaderAnnouncement,
    MessageType,
    PeerId,
    RelayMessage,
    TopicKind,
    Validate,
    encode_header_with_blob,
    global_topic,
    topic_for_namespace,
)
from luxrelay.node.carried import CarriedNamespace, CarriedNamespaces
from luxrelay.node.ingress import Doors
from luxrelay.node.missing_blobs import WantedBlobs
from luxrelay.node.stages.global_topics import GlobalTopics
from luxrelay.node.stages.verify import Judge, JudgeConfig, StoreKnowledge
from luxrelay.store import RelayStore, RelayStoreConfig

HEADERS = global_topic("test", TopicKind.HEADERS_GLOBAL)
HINTS = global_topic("test", TopicKind.BLOBS_AVAILABLE)
NOW = 1_704_067_200_000
PARENT = topic_namespace("/chat/1/room")


CARRIED = CarriedNamespace(namespace_id=PARENT, content_topic="/chat/1/room", policy_hash=b"")


class Bench:
    """One node without a network, and a sender."""

    def __init__(self, store: RelayStore, judge: Judge) -> None:
        self.now = NOW
        self.store = store
        self.spread: list[tuple[str, bytes]] = []
        self.announced: list[tuple[bytes, int]] = []
        self.wanted = WantedBlobs(ttl_ms=600_000)
        self.identity = SigningKey.generate()
        self.globals = GlobalTopics(
            network="test",
            identity=self.identity,
            carried=CarriedNamespaces([CARRIED]),
            announced={HEADERS, HINTS},
            proposers=frozenset(),
            operators=(),
            hinted=self.wanted.hear,
        )
        self.sender = SigningKey.generate()
        self.topic = topic_for_namespace("test", PARENT)
        self.parent = PARENT
        self.namespace_id = lane(PARENT, self.sender.public_field)
        self.doors = Doors(
            store=store,
            judge=judge,
            identity=self.identity,
            network="test",
            inline_blob_max=1024,
            clock_ms=lambda: self.now,
            spread=self._spread,
            wanted=self.wanted,
            globals_=self.globals,
            announced=lambda peer, stamp_ms: self.announced.append((peer, stamp_ms)),
        )

    def _spread(self, items: object) -> list[int]:
        taken = list(items)  # type: ignore[call-overload]
        self.spread += taken
        return [2] * len(taken)

    def header(self, seq: int, blob: bytes = b"hello", **changes: object) -> MsgHeader:
        """Return a signed header of the sender's lane; ``changes`` are made before signing."""
        fields: dict[str, object] = {
            "namespace_id": self.namespace_id,
            "seq": seq,
            "timestamp": self.now,
            "blob_commitment": sha3_commitment(blob),
            "blob_len": len(blob),
            "policy_hash": default_policy(PARENT).policy_hash,
            **changes,
        }
        return self.sender.sign_header(MsgHeader(**fields))  # type: ignore[arg-type]

    def envelope(
        self, header_bytes: bytes, blob: bytes | None = b"hello", *, topic: str | None = None
    ) -> RelayMessage:
        """Return the announcement of a header as another relay would make it."""
        announcement = HeaderAnnouncement.signed(header_bytes, self.identity, self.now)
        if blob is None:
            kind, payload = MessageType.HEADER, announcement.encode()
        else:
            kind, payload = (
                MessageType.HEADER_WITH_BLOB,
                encode_header_with_blob(announcement, blob),
            )
        return RelayMessage(type=kind, topic=topic or self.topic, payload=payload)

    def validate(
        self,
        message: RelayMessage,
        token: int = 1,
        *,
        topic: str | None = None,
        peer: bytes = b"peer",
    ) -> Validate:
        """Return what the router would ask about an envelope."""
        return Validate(
            token=token,
            peer=PeerId(peer),
            topic=topic or self.topic,
            message=message,
            data=message.encode(),
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A node that knows one namespace, on a fresh store."""
    store = RelayStore.open(tmp_path / "store", RelayStoreConfig.small(), now_ms=NOW)
    policies = {PARENT: frozenset({default_policy(PARENT).policy_hash})}
    made: list[Bench] = []
    judge = Judge(StoreKnowledge(store), policies, JudgeConfig(ttl_ms=600_000), lambda: made[0].now)
    made.append(Bench(store, judge))
    yield made[0]
    judge.close()
    store.close()
