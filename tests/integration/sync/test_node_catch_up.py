"""A node's own catch-up over real doors and real relays: forks, liars, blobs after a restart."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest

from luxrelay.bus import MsgHeader, NamespaceId, SigningKey, lane, sha3_commitment, topic_namespace
from luxrelay.bus.policy import default_policy
from luxrelay.node.catch_up import CatchUpLoop
from luxrelay.node.ingress import Doors
from luxrelay.node.missing_blobs import WantedBlobs
from luxrelay.node.stages.verify import Judge, JudgeConfig, StoreKnowledge
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig
from luxrelay.sync import SyncClientConfig, SyncServerConfig, SyncStore
from luxrelay.sync.report import PeerReport
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.stream_calls import StreamClient
from luxrelay.sync.rpc.stream_kinds import END, PART, refusal

if TYPE_CHECKING:
    from tests.integration.sync.conftest import Harbour

NOW = 1_800_000_030_000
PARENT = topic_namespace("/chat/1/room")
POLICY = default_policy(PARENT).policy_hash


class Sender:
    """Signs messages that the default policy allows."""

    def __init__(self) -> None:
        self.key = SigningKey.generate()
        self.lane: NamespaceId = lane(PARENT, self.key.public_field)

    def message(
        self, seq: int, blob: bytes = b"hello", *, ahead_ms: int = -20_000
    ) -> IncomingMessage:
        """Return a valid message."""
        header = MsgHeader(
            namespace_id=self.lane,
            seq=seq,
            timestamp=NOW + ahead_ms + seq,
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=POLICY,
        )
        signed = self.key.sign_header(header)
        return IncomingMessage(header=signed, blob=blob, parent=PARENT, received_at=NOW - 10_000)


class OwnNode:
    """Store, doors and catch-up of one node, without a network of its own."""

    def __init__(self, path: Path, peers: Sequence[str], **changes: int) -> None:
        config = replace(RelayStoreConfig.small(), **changes)  # type: ignore[arg-type]  # passed on
        self.store = RelayStore.open(path, config, now_ms=NOW)
        policies = {PARENT: frozenset({POLICY})}
        knowledge = StoreKnowledge(self.store)
        self.now = NOW
        self.judge = Judge(knowledge, policies, JudgeConfig(ttl_ms=600_000), lambda: self.now)
        self.wanted = WantedBlobs(ttl_ms=600_000)
        doors = Doors(
            store=self.store,
            judge=self.judge,
            identity=SigningKey.generate(),
            network="test",
            inline_blob_max=1024,
            clock_ms=lambda: self.now,
            spread=lambda items: [0] * len(items),
            wanted=self.wanted,
        )
        self.blamed: list[PeerReport] = []
        self.steady_ms: Callable[[], int] = lambda: 0
        self.loop = CatchUpLoop(
            self.store,
            doors,
            parents=lambda: [PARENT],
            peers=peers,
            interval_ms=5_000,
            stopping=threading.Event(),
            wanted=self.wanted,
            clock_ms=lambda: self.now,
            steady_ms=lambda: self.steady_ms(),  # noqa: PLW0108 - another one later
            blamed=self.blamed.append,
        )

    def close(self) -> None:
        """End everything."""
        self.loop.close()
        self.judge.close()
        self.store.close()


@pytest.fixture
def nodes() -> Iterator[list[OwnNode]]:
    """Nodes that are closed afterwards, before their relays."""
    opened: list[OwnNode] = []
    yield opened
    for node in opened:
        node.close()


@pytest.fixture(autouse=True)
def heard_by_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log lines reach pytest, whatever a node that ran in this process before has set."""
    monkeypatch.setattr(logging.getLogger("luxrelay"), "propagate", True)


def test_a_fork_comes_by_reconciliation(
    harbour: Harbour, nodes: list[OwnNode], tmp_path: Path
) -> None:
    """J5, J11: what heads do not show is found by comparing the window."""
    sender = Sender()
    messages = [sender.message(seq) for seq in range(1, 31)]
    other = sender.message(10, b"another")
    kept = min((messages[9], other), key=lambda m: m.header.content_id)
    lost = other if kept is messages[9] else messages[9]
    theirs = harbour.store([*messages[:9], kept, *messages[10:]])
    node = OwnNode(tmp_path / "own", [harbour.serve(theirs, now_ms=NOW)])
    nodes.append(node)
    node.store.put_many([*messages[:9], lost, *messages[10:]], NOW)

    node.loop.once()
    assert node.store.tree_root() != theirs.tree_root()  # heads are equal, contents are not
    node.loop.reconcile()

    assert node.store.tree_root() == theirs.tree_root()
    totals = node.loop.totals()
    assert (totals["reconciliations"], totals["reconcile_stored"]) == (1, 1)
    assert totals["reconcile_bytes"] > 0


def test_a_catch_up_that_took_long_is_followed_at_once(
    harbour: Harbour, nodes: list[OwnNode], tmp_path: Path
) -> None:
    """P24: five seconds from begin to begin; level is who lacks nothing and keeps that pace."""
    sender = Sender()
    theirs = harbour.store([])
    node = OwnNode(tmp_path / "own", [harbour.serve(theirs, now_ms=NOW)])
    nodes.append(node)
    assert not node.loop.level()

    def round_of(taken_ms: int, seq: int = 0) -> None:
        if seq:
            theirs.put_many([sender.message(seq)], NOW)
        node.steady_ms = partial(next, itertools.chain([0], itertools.repeat(taken_ms)))
        node.loop.once()

    for seq, taken_ms, pause_s, level in ((1, 1_200, 3.8, True), (2, 7_000, 0.1, False)):
        round_of(taken_ms, seq)
        assert node.loop.pause_s() == pytest.approx(pause_s)
        assert node.loop.level() is level
    for taken_ms in (7_000, 0):  # a relay that answers late and has nothing
        round_of(taken_ms)
        assert node.loop.pause_s() == 5.0
        assert node.loop.level()
    assert node.loop.totals()["stored"] == 2


def test_nobody_is_level_while_the_first_page_of_a_long_catch_up_is_on_its_way(
    harbour: Harbour, nodes: list[OwnNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G41: a node that lives by it would else take part again over the same narrow link."""
    sender = Sender()
    theirs = harbour.store([sender.message(1)])
    node = OwnNode(tmp_path / "own", [harbour.serve(theirs, now_ms=NOW)])
    nodes.append(node)
    node.loop.once()
    assert node.loop.level()
    theirs.put_many([sender.message(2)], NOW)
    node.steady_ms = partial(next, itertools.chain([0], itertools.repeat(7_000)))
    accept, seen = node.loop._sink.accept, []

    def looking(*page: Any) -> Any:
        seen.append(node.loop.level())
        return accept(*page)

    monkeypatch.setattr(node.loop._sink, "accept", looking)
    node.loop.once()

    assert seen == [False]


AHEAD_MS = 300_000


def test_messages_of_the_future_are_asked_once_and_again_when_they_are_due(
    harbour: Harbour, nodes: list[OwnNode], tmp_path: Path
) -> None:
    """By catch-up and by comparison: one fetch a relay, told in numbers, then none (G36)."""
    sender = Sender()
    early = [sender.message(seq) for seq in range(1, 6)]
    late = [sender.message(seq, ahead_ms=AHEAD_MS) for seq in range(6, 26)]
    relay = harbour.serve(harbour.store([*early, *late]), now_ms=NOW + AHEAD_MS)
    node = OwnNode(tmp_path / "own", [relay])
    nodes.append(node)

    node.loop.once()
    totals = node.loop.totals()
    assert (totals["received"], totals["stored"], totals["early"]) == (25, 5, 20)
    for _ in range(5):
        node.loop.once()
        node.loop.reconcile()
    again = node.loop.totals()
    assert (again["received"], again["early"], again["rejected"]) == (25, 20, 0)
    view = node.loop.view()
    assert (view["complete"], view["postponed"]) == (False, 20)
    assert sum(node.loop.lag().values()) == 20

    node.now = NOW + AHEAD_MS
    node.loop.once()
    assert node.store.head(sender.lane).contiguous_seq == 25
    assert node.loop.totals()["received"] == 45
    assert (node.loop.view()["complete"], node.loop.view()["postponed"]) == (True, 0)


def test_a_message_of_the_future_keeps_no_other_relays_message_away(
    harbour: Harbour, nodes: list[OwnNode], tmp_path: Path
) -> None:
    """What one relay is not asked for is asked of the others (G36)."""
    sender = Sender()
    honest = [sender.message(seq) for seq in range(1, 6)]
    planted = [*honest[:2], *(sender.message(seq, ahead_ms=AHEAD_MS) for seq in (3, 4, 5))]
    first = harbour.serve(harbour.store(planted), now_ms=NOW + AHEAD_MS)
    node = OwnNode(tmp_path / "own", [first])
    nodes.append(node)
    node.loop.once()
    node.loop.close()
    assert node.store.head(sender.lane).contiguous_seq == 2
    node.loop._peers = [first, harbour.serve(harbour.store(honest), now_ms=NOW)]

    node.loop.once()

    assert node.store.head(sender.lane).contiguous_seq == 5


class Answers:
    """Answers every question over a stream with the same frames."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._frames = frames

    def ask(self, question: bytes, timeout_s: float) -> Iterator[bytes]:
        """Yield the frames."""
        del question, timeout_s
        yield from self._frames

    def drop(self) -> None:
        """Nothing to drop."""


def held_lanes(count: int) -> list[bytes]:
    """Return an answer that lists so many lanes of the parent, with nothing in them."""
    lanes = [pb.HeldNamespace(namespace_id=bytes([n] * 20), parent_id=PARENT) for n in range(count)]
    return [*(PART + each.SerializeToString() for each in lanes), END]


@pytest.mark.parametrize(
    ("frames", "blamed"),
    [
        ([refusal(grpc.StatusCode.UNIMPLEMENTED, "this relay holds no messages")], 0),
        ([refusal(grpc.StatusCode.INTERNAL, "a fault of this relay")], 0),
        (held_lanes(9), 0),  # more than our heads_max
        ([PART + b"\xff", END], 1),
        ([b"rubbish"], 1),
        ([PART + pb.HeldNamespace(namespace_id=b"short").SerializeToString(), END], 1),
    ],
    ids=["unimplemented", "internal", "long", "unreadable", "no frame", "short id"],
)
def test_only_a_broken_protocol_is_blamed(
    nodes: list[OwnNode], tmp_path: Path, frames: list[bytes], blamed: int
) -> None:
    """A refusal or an answer above our own bound costs a peer nothing (verdict table, sync)."""
    node = OwnNode(tmp_path / "own", [])
    nodes.append(node)
    peer = StreamClient("p2p:peer", Answers(frames), SyncClientConfig(heads_max=8))

    node.loop.reconcile([peer])

    assert node.loop.totals()["failures"] == 1
    assert [report.unusable for report in node.blamed] == [1] * blamed


class Later:
    """A relay that lists nothing before the first one has served a page."""

    def __init__(self, store: RelayStore, harbour: Harbour) -> None:
        self._store = store
        self._harbour = harbour

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def heads(self, *asked: Any) -> Any:
        """Return the heads."""
        first = self._harbour.servers[0]
        self._harbour.eventually(lambda: ("SyncNamespace", "OK") in first.stats().requests)
        return self._store.heads(*asked)


def test_a_liar_is_named_and_asked_last(
    harbour: Harbour, nodes: list[OwnNode], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """21-27, 21-28: it stands in log and status; over a plain port nobody is a liar (G38)."""
    sender = Sender()
    messages = [sender.message(seq) for seq in range(1, 21)]
    forged = replace(messages[4], header=replace(messages[4].header, signature=bytes(64)))
    liar = harbour.serve(harbour.store([*messages[:4], forged, *messages[5:]]), now_ms=NOW)
    good = harbour.serve(Later(harbour.store(messages), harbour), now_ms=NOW)
    node = OwnNode(tmp_path / "own", [liar, good])
    nodes.append(node)

    with caplog.at_level("WARNING"):
        node.loop.once()

    assert "answers over a plain port do not hold" in caplog.text
    assert "lies" not in caplog.text
    view = node.loop.view()
    assert list(view["penalties"]) == [liar]
    assert view["complete"]
    assert node.store.head(sender.lane).contiguous_seq == 20
    assert node.loop.lag() == {PARENT: 0}
    assert [client.address for client in node.loop._best_first()] == [good, liar]


@pytest.mark.parametrize("forged", [True, False])
def test_a_liar_in_a_reconciliation_is_blamed(
    forged: bool, harbour: Harbour, nodes: list[OwnNode], tmp_path: Path
) -> None:
    """21-28: what a peer forged is passed on; a time that does not fit is nobody's fault."""
    sender = Sender()
    messages = [sender.message(seq) for seq in range(1, 6)]
    header = messages[4].header
    changed = (
        replace(header, signature=bytes(64))
        if forged
        else sender.key.sign_header(replace(header, timestamp=NOW + 60_000))
    )
    last = replace(messages[4], header=changed)
    peer = harbour.serve(harbour.store([*messages[:4], last]), now_ms=NOW)
    node = OwnNode(tmp_path / "own", [peer])
    nodes.append(node)

    node.loop.reconcile()

    (report,) = node.blamed
    assert report.peer == peer
    assert (report.rejected > 0) is forged
    assert node.store.stats().messages == 4


def test_a_missing_blob_is_asked_for_after_a_restart(
    harbour: Harbour, nodes: list[OwnNode], tmp_path: Path
) -> None:
    """J7: a header that was stored without its blob before a restart gets it afterwards."""
    sender = Sender()
    message = sender.message(1, b"a large payload")
    address = harbour.serve(harbour.store([message]), now_ms=NOW)
    before = RelayStore.open(tmp_path / "own", RelayStoreConfig.small(), now_ms=NOW)
    before.put_many([replace(message, blob=None)], NOW)
    before.close()
    node = OwnNode(tmp_path / "own", [address])
    nodes.append(node)
    assert len(node.wanted) == 0

    node.loop.once()

    commitment = message.header.blob_commitment
    harbour.eventually(lambda: node.store.get_blob(commitment) == b"a large payload")
    harbour.eventually(lambda: not node.loop.view()["fetching"] and not len(node.wanted))
    node.loop.fetch_blobs()  # counts what came since
    assert node.loop.totals()["blobs"] == 1


def test_blobs_that_made_room_do_not_come_back_with_a_restart(
    harbour: Harbour, nodes: list[OwnNode], tmp_path: Path
) -> None:
    """21-36: what was let go for blob_cache_bytes is not asked for again."""
    sender = Sender()
    messages = [sender.message(seq, b"a large payload") for seq in (1, 2)]
    address = harbour.serve(harbour.store(messages), now_ms=NOW)
    before = OwnNode(tmp_path / "own", [address], blob_cache_bytes=15)
    before.store.put_many(messages, NOW)
    assert before.store.stats().blobs_dropped == 1
    before.close()
    node = OwnNode(tmp_path / "own", [address], blob_cache_bytes=15)
    nodes.append(node)

    node.loop.once()

    assert len(node.wanted) == 0
    assert node.store.stats().blobs_dropped == 0


def test_nothing_is_compared_while_a_catch_up_brings_it(
    harbour: Harbour, nodes: list[OwnNode], tmp_path: Path
) -> None:
    """P46: what is lacking comes once over a link; a catch-up that stands still is no reason."""
    sender = Sender()
    store = harbour.store([sender.message(seq) for seq in range(1, 61)])
    begun, released, reads = threading.Event(), threading.Event(), itertools.count(1)

    class Stalling:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def query(self, *asked: Any) -> Any:
            if next(reads) == 3:
                begun.set()
                released.wait(60)
            return store.query(*asked)

    address = harbour.serve(
        cast("SyncStore", Stalling()), SyncServerConfig(read_messages=8), now_ms=NOW
    )
    node = OwnNode(tmp_path / "own", [address])
    nodes.append(node)

    def compared() -> int:
        return harbour.servers[0].stats().requests.get(("ListHeld", "OK"), 0)

    run = threading.Thread(target=node.loop.once)
    run.start()
    try:
        assert begun.wait(60)
        assert node.loop.expects(PARENT)
        node.loop.reconcile()
        assert compared() == 0
        node.loop.reconcile()  # it has not moved on since
        assert compared() == 1
    finally:
        released.set()
        run.join()
    assert node.store.tree_root() == store.tree_root()
    assert not node.loop.expects(PARENT)
    node.loop.reconcile()
    assert compared() == 2
