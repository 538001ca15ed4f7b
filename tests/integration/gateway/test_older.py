"""A gateway answers from an archive what its store no longer holds; no JVM is there."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest

from luxrelay.archive.serving import ArchiveStore
from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    SigningKey,
    message_id,
    sender_address,
    sha3_commitment,
)
from luxrelay.client import LaneSigner, Live, Outgoing, Query, Subscribe, subscribe
from luxrelay.errors import ClientRefusedError
from luxrelay.store import NamespaceQuery
from luxrelay.sync import RelaySyncClient, RelaySyncServer, SyncServerConfig, WireMessage
from luxrelay.sync.following import Followed, FollowedLive, SubscribeWanted
from luxrelay.sync.rpc import relay_gateway_pb2 as gateway_pb
from luxrelay.sync.rpc.gateway_server import SearchRpcServer
from luxrelay.sync.rpc.relay_gateway_pb2_grpc import RelayGatewayStub

from .conftest import PARENT, Stand, now_ms

pytestmark = pytest.mark.slow


def _load(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / "unit" / "archive" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"older_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


FORGE = _load("conftest")


FOLLOW = {"grpc_listen": "127.0.0.1:0", "subscription_page": 2}


@dataclass(slots=True)
class Old:
    """A lane whose beginning only an archive has, and a stand in front of both."""

    stand: Stand
    signer: LaneSigner
    server: RelaySyncServer
    archived: list[Outgoing]

    @property
    def lane(self) -> NamespaceId:
        """Where the messages are."""
        return self.signer.namespace_id


@pytest.fixture
def old(stand_with: Callable[..., Stand], tmp_path: Path) -> Iterator[Old]:
    """Sequences 1 to 7 in the archive, 6 to 9 in the store."""
    key, now = SigningKey.generate(), now_ms()
    signer = LaneSigner(key, PARENT)
    line = [signer.sign(b"message %d" % seq, now) for seq in range(1, 10)]
    archived = [WireMessage(each.header, each.blob, now, now + 1) for each in line[:7]]
    path = FORGE._archive_of(tmp_path / "archive", archived, parents={signer.namespace_id: PARENT})
    server = SearchRpcServer(ArchiveStore(path), SyncServerConfig(port=0), clock_ms=now_ms)
    stand = stand_with(archive=f"127.0.0.1:{server.start()}", **FOLLOW)
    stand.store.skip_to(signer.namespace_id, PARENT, 5)
    stand.publish(line[5:])
    yield Old(stand, signer, server, line)
    server.stop(0)


def _pages(ask: Callable[[bytes], Any]) -> list[int]:
    """Return the sequences of all pages, headers decoded."""
    seqs: list[int] = []
    cursor = b""
    while True:
        page = ask(cursor)
        seqs += [MsgHeader.decode(each.header).seq for each in page.messages]
        cursor = page.next_cursor
        if not cursor:
            return seqs


def test_searches_over_http_and_grpc_are_of_both(old: Old) -> None:
    """By time and by sender, each message once; the archive gone, they say what they lack."""
    stand, sender = (
        old.stand,
        sender_address(MsgHeader.decode(old.archived[0].header).sender_pub_key),
    )
    found: dict[str, list[int]] = {}
    for by in ("", f"&sender=0x{sender.hex()}"):
        seqs, cursor = [], ""
        while True:
            answer = stand.fetch(f"/v1/messages?limit=2{by}{cursor}").json
            seqs += [int(each["header"]["seq"]) for each in answer["messages"]]
            if not answer["hasMore"]:
                break
            cursor = f"&cursor={answer['nextCursor']}"
        assert answer["complete"]
        found[by] = seqs
    with RelaySyncClient(stand.grpc) as client:
        by_time = _pages(lambda cursor: client.search(limit=2, cursor=cursor))
        by_sender = _pages(lambda cursor: client.search(sender, limit=2, cursor=cursor))
        old.server.stop(0)
        alone = client.search()
    answer = stand.fetch("/v1/messages").json

    assert [*found.values(), by_time, by_sender] == [list(range(1, 10))] * 4
    assert [MsgHeader.decode(each.header).seq for each in alone.messages] == [6, 7, 8, 9]
    assert alone.partial
    assert not answer["complete"]


def test_pages_slots_and_blobs_over_grpc(old: Old) -> None:
    """As over HTTP; what is in neither place is missing."""
    lane = old.lane
    with RelaySyncClient(old.stand.grpc) as client:
        pages = list(client.iter_pages(lane, page_messages=2))
        part = client.sync_page(lane, 2, 4)
        slots, missing = client.get_messages([message_id(lane, seq) for seq in (2, 9, 5, 77)])
        blob = client.get_blob(sha3_commitment(b"message 3"))
        none = client.get_blob(sha3_commitment(b"of nobody"))
        with grpc.insecure_channel(old.stand.grpc) as line:
            request = gateway_pb.ReadBlobRequest(commitment=sha3_commitment(b"message 4"), offset=8)
            read = RelayGatewayStub(line).ReadBlob(request, timeout=60)

    assert [each.seq for page in pages for each in page.messages] == list(range(1, 10))
    assert [each.seq for each in part.messages] == [3, 4]
    assert sorted(each.seq for each in slots) == [2, 5, 9]
    assert missing == [message_id(lane, 77)]
    assert (blob, none, read.data) == (b"message 3", None, b"4")


def _seq_of(event: Any) -> int:
    return int(event.message.seq if isinstance(event, Followed) else event.header.seq)


@pytest.mark.parametrize("door", ["websocket", "grpc"])
def test_a_subscription_begins_in_the_archive_and_goes_on_live(old: Old, door: str) -> None:
    """From a sequence that the store has no more, without a hole or a double, then what comes."""
    stand, lane = old.stand, old.lane
    later = [old.signer.sign(b"message %d" % seq, now_ms()) for seq in (10, 11)]
    with ExitStack() as stack:
        if door == "grpc":
            client = stack.enter_context(RelaySyncClient(stand.grpc))
            wanted = SubscribeWanted(namespaces=[lane], after=1, lanes=False)
            events: Any = stack.enter_context(closing(client.subscribe(wanted)))
        else:
            reader = stack.enter_context(stand.client())
            asked = Subscribe(namespaces=[lane], after=1, lanes=False)
            events = stack.enter_context(closing(subscribe(reader, asked)))
        before = list(takewhile(lambda each: not isinstance(each, FollowedLive | Live), events))
        stand.publish(later)
        after = list(islice(events, 2))

    told = [*before, *after]
    assert [_seq_of(each) for each in told] == list(range(2, 12))
    assert stand.older is not None
    assert stand.older.messages >= 4


@pytest.mark.parametrize("door", ["websocket", "grpc"])
def test_a_subscription_is_told_of_an_archive_that_is_away(old: Old, door: str) -> None:
    """What it cannot have now is a gap, and the rest comes at once."""
    old.server.stop(0)
    with ExitStack() as stack:
        if door == "grpc":
            client = stack.enter_context(RelaySyncClient(old.stand.grpc))
            wanted = SubscribeWanted(namespaces=[old.lane], after=1, lanes=False)
            events: Any = stack.enter_context(closing(client.subscribe(wanted)))
        else:
            reader = stack.enter_context(old.stand.client())
            asked = Subscribe(namespaces=[old.lane], after=1, lanes=False)
            events = stack.enter_context(closing(subscribe(reader, asked)))
        gap, *rest = takewhile(lambda each: not isinstance(each, FollowedLive | Live), events)

    assert (gap.first, gap.last) == (2, 5)
    assert getattr(gap, "reason", "unanswered") == "unanswered"
    assert getattr(gap, "expired", True)
    assert len(rest) == 4


class Stuck:
    """An archive's store that answers nothing until it is let go."""

    def __init__(self, store: ArchiveStore) -> None:
        self._store = store
        self.asked = threading.Semaphore(0)
        self.go = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def query(self, query: NamespaceQuery, now_ms: int) -> Any:
        """Return a page, one day."""
        self.asked.release()
        assert self.go.wait(60)
        return self._store.query(query, now_ms)


def test_an_archive_that_is_stuck_holds_up_nobody_else(
    stand_with: Callable[..., Stand], tmp_path: Path
) -> None:
    """With every place taken over HTTP and gRPC, whoever needs no archive is answered.

    One question too many is refused; what waited is answered when the archive is.
    """
    key, now = SigningKey.generate(), now_ms()
    signer = LaneSigner(key, PARENT)
    line = [signer.sign(b"message %d" % seq, now) for seq in range(1, 7)]
    lane = signer.namespace_id
    archived = [WireMessage(each.header, each.blob, now, now + 1) for each in line[:4]]
    path = FORGE._archive_of(tmp_path / "archive", archived, parents={lane: PARENT})
    stuck = Stuck(ArchiveStore(path))
    server = RelaySyncServer(stuck, SyncServerConfig(port=0), clock_ms=now_ms)  # type: ignore[arg-type]
    stand = stand_with(
        archive=f"127.0.0.1:{server.start()}",
        grpc_listen="127.0.0.1:0",
        work_max=1,
        archive_calls_max=4,  # callers without a token have half of these
        archive_waiting_max=2,
    )
    stand.publish(line[4:])
    path_of_lane = f"/v1/namespaces/0x{lane.hex()}/messages"
    found: list[list[int]] = []

    def over_http() -> None:
        answer = stand.fetch(path_of_lane).json
        found.append([int(each["header"]["seq"]) for each in answer["messages"]])

    def over_grpc() -> None:
        with RelaySyncClient(stand.grpc) as client:
            found.append([each.seq for each in client.sync_page(lane, 0, 4).messages])

    threads = [threading.Thread(target=ask) for ask in (over_http, over_grpc, over_http)]
    aside = stand.service._holdings._aside
    try:
        for thread in threads[:2]:
            thread.start()
            assert stuck.asked.acquire(timeout=60)
        threads[2].start()
        while not stand.on_loop(lambda: aside._strangers.statistics().tasks_waiting):
            assert threads[2].is_alive()
        refused = stand.fetch(path_of_lane)
        recent = stand.fetch(f"{path_of_lane}?after_seq=4").json
        with RelaySyncClient(stand.grpc) as client:
            page = client.sync_page(lane, 4)
            head = client.get_head(lane)
    finally:
        stuck.go.set()
    for thread in threads:
        thread.join(60)
    server.stop(0)

    assert (refused.status, refused.json["code"]) == (503, "gateway.busy")
    assert [int(each["header"]["seq"]) for each in recent["messages"]] == [5, 6]
    assert [each.seq for each in page.messages] == [5, 6]
    assert head.latest_seq == 6
    assert found == [[1, 2, 3, 4]] * 3
    stats = stand.service.stats().older
    assert (stats.calls["page", "answered"], stats.busy) == (3, 1)


def test_what_the_store_has_forgotten_comes_from_the_archive(
    stand_with: Callable[..., Any], tmp_path: Path
) -> None:
    """Pages begin in the archive and end in the store, by slot and by blob too (LP-6440).

    Without the archive the same questions say that something is missing.
    """
    key, now = SigningKey.generate(), now_ms()
    signer = LaneSigner(key, PARENT)
    old = [signer.sign(b"old %d" % seq, now) for seq in range(1, 6)]
    archived = [WireMessage(each.header, each.blob, now, now + 1) for each in old]
    lane = signer.namespace_id
    path = FORGE._archive_of(tmp_path / "archive", archived, parents={lane: PARENT})
    server = RelaySyncServer(ArchiveStore(path), SyncServerConfig(port=0), clock_ms=now_ms)
    stand = stand_with(archive=f"127.0.0.1:{server.start()}")
    stand.store_line(4, key=key, first=6)

    with stand.client() as client:
        page = client.page(Query(namespace_id=lane, limit=3))
        every = list(client.messages(Query(namespace_id=lane, limit=3)))
        joined = client.page(Query(namespace_id=lane, limit=5))
        whole = client.page(Query(namespace_id=lane, after_seq=3, to_seq=5))
        newest = client.page(Query(namespace_id=lane, after_seq=5))
        slot = stand.fetch(f"/v1/messages/0x{message_id(lane, 2).hex()}").json
        blob = client.blob(sha3_commitment(b"old 1"))
        server.stop(0)
        alone = client.page(Query(namespace_id=lane))
        with pytest.raises(ClientRefusedError, match=r"gateway\.absent"):
            client.blob(sha3_commitment(b"old 2"))

    assert [m.header.seq for m in page.messages] == [1, 2, 3]
    assert (page.has_more, page.complete) == (True, False)
    assert [m.header.seq for m in every] == list(range(1, 10))
    assert [m.blob for m in every[4:6]] == [b"old 5", b"message 6"]
    assert {m.parent for m in every} == {PARENT}
    assert (len(joined.messages), joined.has_more) == (5, True)
    assert [m.header.seq for m in whole.messages] == [4, 5]
    assert [m.header.seq for m in newest.messages] == [6, 7, 8, 9]
    assert newest.complete
    assert [each["header"]["seq"] for each in slot["messages"]] in ([2], ["2"])
    assert blob == b"old 1"
    assert [m.header.seq for m in alone.messages] == [6, 7, 8, 9]
    assert not alone.complete
