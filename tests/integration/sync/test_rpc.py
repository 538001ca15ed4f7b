"""RelaySync over real gRPC on the loopback, with the real store behind it."""

from __future__ import annotations

import os
import pickle
import queue
import resource
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import grpc
import pytest

from luxrelay.bus import message_id
from luxrelay.errors import (
    StoreError,
    SyncArgumentError,
    SyncRemoteError,
    SyncUnreachableError,
)
from luxrelay.sync import (
    PublishItem,
    PublishReceipt,
    RelaySyncClient,
    RelaySyncServer,
    SeqRange,
    SyncClientConfig,
    SyncPage,
    SyncServerConfig,
)
from luxrelay.sync.rpc import relay_node_pb2 as node_pb
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.relay_node_pb2_grpc import RelayNodeStub
from luxrelay.sync.rpc.relay_sync_pb2_grpc import RelaySyncStub

PLAIN = SyncClientConfig(frame_messages=1)


def seqs(page: SyncPage) -> list[int]:
    """Return the sequences of a page."""
    return [message.seq for message in page.messages]


def raw_frames(address: str, request: pb.SyncRequest) -> list[pb.StoredMessage]:
    """Return the frames of a page as they come from the wire."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        return list(RelaySyncStub(channel).SyncNamespace(request, timeout=10))


def refused(address: str, request: pb.SyncRequest) -> grpc.RpcError:
    """Return the status a page ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        raw_frames(address, request)
    return caught.value


# Ranges and bounds


@pytest.mark.parametrize("config", [SyncClientConfig(), PLAIN], ids=["grouped", "plain"])
def test_serve_from_exclusive_to_inclusive(harbour: Any, config: SyncClientConfig) -> None:
    """21-18, P20: the range begins above from_seq and ends with to_seq; 0 means the latest."""
    author = harbour.author()
    store = harbour.store(author.messages(range(1, 11)))
    client = harbour.client(harbour.serve(store), config)

    assert seqs(client.sync_page(author.lane, 3, 7)) == [4, 5, 6, 7]
    assert seqs(client.sync_page(author.lane, 0, 1)) == [1]
    assert seqs(client.sync_page(author.lane, 9)) == [10]
    assert seqs(client.sync_page(author.lane, 10)) == []
    assert seqs(client.sync_page(author.lane, 5, 5)) == []
    assert seqs(client.sync_page(author.lane)) == list(range(1, 11))


def test_join_time_and_sequence(harbour: Any) -> None:
    """21-19, P21: from_timestamp is inclusive milliseconds and holds together with from_seq."""
    author = harbour.author()
    client = harbour.relay([author.message(seq, at=seq * 100) for seq in range(1, 11)])
    base = harbour.base_ms

    assert seqs(client.sync_page(author.lane, from_time=base + 800)) == [8, 9, 10]
    assert seqs(client.sync_page(author.lane, from_time=base + 801)) == [9, 10]
    assert seqs(client.sync_page(author.lane, 9, from_time=base + 800)) == [10]
    assert seqs(client.sync_page(author.lane, 2, from_time=base + 1, to_time=base + 400)) == [3, 4]


def test_name_no_gaps_where_time_decides(harbour: Any) -> None:
    """P23: a sequence that a time filter leaves out is no gap, and the answer is complete."""
    author = harbour.author()
    client = harbour.relay([author.message(seq, at=seq * 100) for seq in range(1, 11)])

    status = client.sync_page(author.lane, from_time=harbour.base_ms + 800).status

    assert status.gaps == ()
    assert status.complete


def test_respect_max_messages(harbour: Any) -> None:
    """21-20, P18: max_messages bounds the page; 0 is 1,000."""
    author = harbour.author()
    client = harbour.relay(author.messages(range(1, 1_102)))

    assert len(client.sync_page(author.lane).messages) == 1_000
    assert seqs(client.sync_page(author.lane, max_messages=1)) == [1]
    assert len(client.sync_page(author.lane, max_messages=10_000).messages) == 1_101


@pytest.mark.slow
def test_cap_a_page_at_ten_thousand(harbour: Any) -> None:
    """21-20, P18: a request for more than 10,000 gets 10,000 and the word that there is more."""
    author = harbour.author()
    client = harbour.relay(author.messages(range(1, 10_002), blob=b""))

    frames = raw_frames(
        client.address,
        pb.SyncRequest(namespace_id=author.lane, max_messages=2**32 - 1, max_frame_messages=1_000),
    )

    assert sum(len(frame.batch) for frame in frames) == 10_000
    assert frames[-1].status.has_more
    assert frames[-1].status.last_seq == 10_000


def test_cap_a_page_by_bytes(harbour: Any) -> None:
    """P18: max_bytes bounds headers and blobs; one message always goes through."""
    author = harbour.author()
    client = harbour.relay(author.messages(range(1, 21), blob=b"b" * 10_000))

    page = client.sync_page(author.lane, max_bytes=35_000)
    smallest = client.sync_page(author.lane, max_bytes=1)

    assert seqs(page) == [1, 2, 3]
    assert page.status.has_more
    assert seqs(smallest) == [1]
    assert [seqs(one) for one in client.iter_pages(author.lane, max_bytes=70_000)] == [
        list(range(1, 7)), list(range(7, 13)), list(range(13, 19)), [19, 20],
    ]  # fmt: skip


def test_send_the_largest_messages(harbour: Any) -> None:
    """A blob of 2 MiB travels, plain and grouped, below every library's limit of 4 MiB."""
    author = harbour.author()
    blob = os.urandom(2 * 1024 * 1024)
    store = harbour.store(author.messages(range(1, 4), blob=blob))
    address = harbour.serve(store)

    for config in (SyncClientConfig(), PLAIN):
        page = harbour.client(address, config).sync_page(author.lane)
        assert [message.blob == blob for message in page.messages] == [True] * 3


def test_group_messages_into_frames(harbour: Any) -> None:
    """A client that asks for frames of many gets them; one that does not gets one a frame."""
    author = harbour.author()
    client = harbour.relay(author.messages(range(1, 11)))

    grouped = raw_frames(
        client.address, pb.SyncRequest(namespace_id=author.lane, max_frame_messages=4)
    )
    plain = raw_frames(client.address, pb.SyncRequest(namespace_id=author.lane))

    assert [len(frame.batch) for frame in grouped] == [4, 4, 2, 0]
    assert [bool(frame.header) for frame in plain] == [True] * 10 + [False]
    assert not any(frame.batch for frame in plain)


# The status


def test_say_truncated(harbour: Any) -> None:
    """21-22, P23: a page that was cut off says so and gives a cursor to go on with."""
    author = harbour.author()
    client = harbour.relay(author.messages(range(1, 11)))

    status = client.sync_page(author.lane, max_messages=4).status
    rest = client.sync_page(author.lane, cursor=status.next_cursor)

    assert (status.complete, status.has_more, status.last_seq) == (False, True, 4)
    assert seqs(rest) == [5, 6, 7, 8, 9, 10]
    assert rest.status.complete


def test_say_full_is_not_truncated(harbour: Any) -> None:
    """A page that holds exactly what there is promises no more."""
    author = harbour.author()
    client = harbour.relay(author.messages(range(1, 11)))

    status = client.sync_page(author.lane, max_messages=10).status

    assert (status.complete, status.has_more, status.next_cursor) == (True, False, b"")


def test_say_too_old(harbour: Any) -> None:
    """21-22, P23: what has expired is not complete; the status says where the relay begins."""
    author = harbour.author()
    old = [replace(author.message(seq, at=-500_000 + seq)) for seq in (1, 2, 3)]
    store = harbour.store([*old, *author.messages((4, 5))])
    client = harbour.client(harbour.serve(store, now_ms=harbour.base_ms + 200_000))

    page = client.sync_page(author.lane)

    assert seqs(page) == [4, 5]
    assert not page.status.complete
    assert page.status.earliest_seq == 4
    assert page.status.gaps == ()
    assert client.sync_page(author.lane, 3).status.complete


def test_say_empty(harbour: Any) -> None:
    """21-22: an unknown namespace is an empty page whose earliest sequence is 0."""
    client = harbour.relay()

    page = client.sync_page(bytes(20))

    assert page.messages == []
    assert (page.status.complete, page.status.has_more) == (True, False)
    assert (page.status.earliest_seq, page.status.last_seq) == (0, 0)


def test_say_gaps(harbour: Any) -> None:
    """21-22, P23: holes in the covered range are named, those beyond it are not."""
    author = harbour.author()
    client = harbour.relay(author.messages([1, 2, 5, 6, 9, 12]))

    whole = client.sync_page(author.lane)
    begin = client.sync_page(author.lane, max_messages=4)
    inner = client.sync_page(author.lane, 2, 8)

    assert whole.status.gaps == (SeqRange(3, 4), SeqRange(7, 8), SeqRange(10, 11))
    assert not whole.status.complete
    assert begin.status.gaps == (SeqRange(3, 4),)
    assert inner.status.gaps == (SeqRange(3, 4), SeqRange(7, 8))


def test_bound_the_gaps_of_a_page(harbour: Any) -> None:
    """A page ends before it would have to name more than gaps_max gaps, and goes on later."""
    author = harbour.author()
    store = harbour.store(author.messages(range(1, 41, 2)))
    client = harbour.client(harbour.serve(store, SyncServerConfig(gaps_max=3)))

    pages = list(client.iter_pages(author.lane))

    assert [len(page.status.gaps) for page in pages] == [3, 3, 3, 3, 3, 3, 1]
    assert [seq for page in pages for seq in seqs(page)] == list(range(1, 41, 2))


def test_page_through_a_contended_slot(harbour: Any) -> None:
    """J11: the candidates of one slot are served once each, wherever the page is cut."""
    authors = [harbour.author(number) for number in (1, 2, 3)]
    shared = bytes([9]) * 20
    messages = [each.message(seq, parent=shared) for seq in (1, 2, 3) for each in authors]
    client = harbour.relay(messages)
    expected = {message.header.encode() for message in messages}

    for size in (1, 2, 3, 4, 5):
        got = [
            message.header
            for page in client.iter_pages(shared, page_messages=size)
            for message in page.messages
        ]
        assert len(got) == 9
        assert set(got) == expected


# By id, heads


def test_get_messages_found_and_missing(harbour: Any) -> None:
    """21-23, P22: ids that are held are found, the others are named."""
    author = harbour.author()
    client = harbour.relay(author.messages(range(1, 4)))
    ids = [message_id(author.lane, seq) for seq in (3, 8, 1)]

    found, missing = client.get_messages(ids)

    assert sorted(message.seq for message in found) == [1, 3]
    assert missing == [ids[1]]


def test_refuse_too_many_ids(harbour: Any) -> None:
    """21-23, P22: 1,001 ids are refused, by the client before the call and by the server."""
    client = harbour.relay()
    ids = [index.to_bytes(32, "big") for index in range(1_001)]

    with pytest.raises(SyncArgumentError):
        client.get_messages(ids)
    with (
        grpc.insecure_channel(client.address) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        RelaySyncStub(channel).GetMessages(pb.GetMessagesRequest(ids=ids), timeout=10)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "1001 ids" in caught.value.details()
    assert len(client.get_messages(ids[:1_000])[1]) == 1_000


def test_get_more_messages_than_one_answer_holds(harbour: Any) -> None:
    """An answer is below 4 MiB; the client asks again for what was left out."""
    author = harbour.author()
    client = harbour.relay(author.messages(range(1, 8), blob=bytes(1_000_000)))
    ids = [message_id(author.lane, seq) for seq in range(1, 10)]

    found, missing = client.get_messages(ids)

    assert sorted(message.seq for message in found) == list(range(1, 8))
    assert missing == ids[7:]


def test_head_of_an_unknown_namespace(harbour: Any) -> None:
    """21-24: zeros for a namespace the relay has never seen."""
    head = harbour.relay().get_head(bytes(20))

    assert (head.earliest_seq, head.contiguous_seq, head.latest_seq) == (0, 0, 0)
    assert (head.latest_header_hash, head.latest_timestamp, head.messages) == (b"", 0, 0)


def test_head_with_a_hole(harbour: Any) -> None:
    """21-24, P25: the contiguous head stays below a hole, the latest does not."""
    author = harbour.author()
    messages = author.messages([1, 2, 3, 5, 6])
    head = harbour.relay(messages).get_head(author.lane)

    assert (head.earliest_seq, head.contiguous_seq, head.latest_seq) == (1, 3, 6)
    assert head.latest_header_hash == messages[-1].header.header_hash
    assert head.latest_timestamp == messages[-1].header.timestamp
    assert head.window_start_ms == harbour.base_ms - SyncServerConfig().window_ms
    assert head.messages == 5


def test_list_heads_of_a_parent_and_of_all(harbour: Any) -> None:
    """J6: ListHeads gives a parent's lanes, or everything, in pages of any size."""
    authors = [harbour.author(number) for number in range(1, 8)]
    other = authors[0].message(1, parent=bytes([7]) * 20)
    store = harbour.store([*(each.message(1) for each in authors), other])
    address = harbour.serve(store, SyncServerConfig(heads_read=2))

    for heads_page in (1, 3, 1_000):
        client = harbour.client(address, SyncClientConfig(heads_page=heads_page))
        lanes = [head.namespace_id for head in client.list_heads(harbour.parent)]
        everything = [head.namespace_id for head in client.list_heads()]
        assert sorted(lanes) == sorted(each.lane for each in authors)
        assert sorted(everything) == sorted([*lanes, bytes([7]) * 20])


def test_bound_the_heads_taken(harbour: Any) -> None:
    """A relay with more heads than heads_max is an error, not a full memory."""
    store = harbour.store([harbour.author(number).message(1) for number in range(1, 5)])
    client = harbour.client(harbour.serve(store), SyncClientConfig(heads_max=3))

    with pytest.raises(SyncRemoteError, match="more than 3 heads"):
        list(client.list_heads())


# The wire


def test_keep_the_source_private(harbour: Any) -> None:
    """21-53, P35: the peer a message came from is nowhere in the bytes on the wire."""
    author = harbour.author()
    client = harbour.relay(author.messages([1]))

    frames = raw_frames(client.address, pb.SyncRequest(namespace_id=author.lane))
    with grpc.insecure_channel(client.address) as channel:
        ids = [message_id(author.lane, 1)]
        answer = RelaySyncStub(channel).GetMessages(pb.GetMessagesRequest(ids=ids), timeout=10)

    assert frames[0].source_peer == b""
    dump = b"".join(frame.SerializeToString() for frame in frames) + answer.SerializeToString()
    assert author.message(1).source not in dump


def test_answer_a_client_of_the_plain_protocol(harbour: Any) -> None:
    """21-57, P37: a client generated from LP-6421's fields 1 to 5 and 1 to 4 is served."""
    author = harbour.author()
    message = author.message(1)
    client = harbour.relay([message])
    request = b"\x0a\x14" + author.lane + b"\x28\x01"  # namespace_id, max_messages = 1

    with grpc.insecure_channel(client.address) as channel:
        call = channel.unary_stream("/lux.relay.v1.RelaySync/SyncNamespace")
        first = next(iter(call(request, timeout=10)))

    header = message.header.encode()
    assert 128 <= len(header) < 256  # two bytes of varint
    assert first.startswith(b"\x0a" + bytes([len(header), 1]) + header + b"\x12\x05hello\x18")


# Bad requests


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (pb.SyncRequest(namespace_id=b"short"), "namespace_id"),
        (pb.SyncRequest(namespace_id=bytes(20), from_seq=9, to_seq=3), "to_seq"),
        (pb.SyncRequest(namespace_id=bytes(20), from_timestamp=1_700_000_000), "milliseconds"),
        (pb.SyncRequest(namespace_id=bytes(20), to_timestamp=1_700_000_000), "milliseconds"),
        (pb.SyncRequest(namespace_id=bytes(20), cursor=b"what"), "cursor"),
        (pb.SyncRequest(namespace_id=bytes(20), from_seq=9, cursor=bytes(40)), "cursor"),
    ],
)
def test_refuse_a_bad_page_request(harbour: Any, request_: pb.SyncRequest, says: str) -> None:
    """A bad request is INVALID_ARGUMENT with what, where and what to do; P8 for seconds."""
    error = refused(harbour.relay().address, request_)

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert says in error.details()
    assert error.details().count(";") >= 2


def test_refuse_bad_ids(harbour: Any) -> None:
    """Ids of the wrong length are INVALID_ARGUMENT in every call."""
    address = harbour.relay().address

    with grpc.insecure_channel(address) as channel:
        stub = RelaySyncStub(channel)
        calls = [
            lambda: stub.GetNamespaceHead(pb.NamespaceHeadRequest(namespace_id=b"x"), timeout=5),
            lambda: list(stub.ListHeads(pb.ListHeadsRequest(parent_id=b"x"), timeout=5)),
            lambda: list(stub.ListHeads(pb.ListHeadsRequest(cursor=b"x"), timeout=5)),
            lambda: stub.GetMessages(pb.GetMessagesRequest(ids=[b"x"]), timeout=5),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_refuse_a_request_that_is_too_large(harbour: Any) -> None:
    """A request above request_bytes_max is refused, and the next one served."""
    store = harbour.store()
    address = harbour.serve(store, SyncServerConfig(request_bytes_max=64 * 1024))
    ids = [bytes(32)] * 5_000

    with grpc.insecure_channel(address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            RelaySyncStub(channel).GetMessages(pb.GetMessagesRequest(ids=ids), timeout=10)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        RelaySyncStub(channel).GetNamespaceHead(
            pb.NamespaceHeadRequest(namespace_id=bytes(20)), timeout=10
        )


def test_outlive_garbage(harbour: Any) -> None:
    """Bytes that are no gRPC, on the port or inside a call, leave the server alive."""
    author = harbour.author()
    client = harbour.relay(author.messages([1]))
    host, port = client.address.split(":")

    for garbage in (b"GET / HTTP/1.0\r\n\r\n", os.urandom(4_096), b"PRI * HTTP/2.0\r\n\r\nSM\r\n"):
        with socket.create_connection((host, int(port)), timeout=5) as peer:
            peer.sendall(garbage)
    with grpc.insecure_channel(client.address) as channel:
        call = channel.unary_stream("/lux.relay.v1.RelaySync/SyncNamespace")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(b"\xff" * 100, timeout=10))
        assert caught.value.code() in {grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT}
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/lux.relay.v1.RelaySync/NoSuchCall")(b"", timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    assert seqs(client.sync_page(author.lane)) == [1]


# The server's life


def test_notice_an_occupied_port(harbour: Any) -> None:
    """A port that is taken is ``sync.port``, not a second server on the same port."""
    address = harbour.relay().address
    port = int(address.rpartition(":")[2])

    with pytest.raises(SyncUnreachableError, match=str(port)) as caught:
        RelaySyncServer(None, SyncServerConfig(port=port), clock_ms=lambda: 0).start()

    assert caught.value.code == "sync.port"


def test_stop_twice_and_before_the_start() -> None:
    """Stopping is harmless at any time, and the port is free afterwards."""
    never = RelaySyncServer(None, SyncServerConfig(port=0), clock_ms=lambda: 0)
    never.stop()
    server = RelaySyncServer(None, SyncServerConfig(port=0), clock_ms=lambda: 0)
    port = server.start()
    server.stop()
    server.stop()

    again = RelaySyncServer(None, SyncServerConfig(port=port), clock_ms=lambda: 0)
    assert again.start() == port
    again.stop()


def test_answer_unsupported_without_a_store(harbour: Any) -> None:
    """21-56: a node without a store answers UNIMPLEMENTED, and the client says: ask another."""
    client = harbour.client(harbour.serve(None))

    for call in (
        lambda: client.get_head(bytes(20)),
        lambda: client.sync_page(bytes(20)),
        lambda: client.get_messages([bytes(32)]),
        lambda: list(client.list_heads()),
        lambda: client.publish([PublishItem(header=b"h")]),
    ):
        with pytest.raises(SyncRemoteError, match="ask another relay"):
            call()


def test_answer_unavailable_when_the_store_is_closed(harbour: Any) -> None:
    """A store that cannot answer is UNAVAILABLE: trouble of that machine, worth another try."""
    store = harbour.store()
    client = harbour.client(harbour.serve(store))
    store.close()

    with pytest.raises(SyncUnreachableError, match=r"store\.closed"):
        client.get_head(bytes(20))


def test_answer_internal_on_a_bug(harbour: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A bug behind the service is INTERNAL for the client and a line in the log; it lives on."""

    class Broken:
        def head(self, namespace_id: bytes) -> None:
            raise KeyError(namespace_id)

    client = harbour.client(harbour.serve(Broken()))

    for _ in range(2):
        with pytest.raises(SyncRemoteError, match="INTERNAL"):
            client.get_head(bytes(20))
    kinds = [getattr(each, "fields", {}).get("kind") for each in caplog.records]
    assert "GetNamespaceHead KeyError" in kinds


def test_count_what_was_served(harbour: Any) -> None:
    """LP-6421 §8: requests by method and status, messages, bytes, heads and latency are counted."""
    author = harbour.author()
    client = harbour.relay(author.messages(range(1, 4)))
    client.sync_page(author.lane)
    client.get_head(author.lane)
    refused(client.address, pb.SyncRequest())
    server = harbour.servers[0]

    harbour.eventually(lambda: server.stats().active == 0)
    stats = server.stats()

    assert stats.requests[("SyncNamespace", "OK")] == 1
    assert stats.requests[("SyncNamespace", "INVALID_ARGUMENT")] == 1
    assert stats.requests[("GetNamespaceHead", "OK")] == 1
    assert (stats.messages_sent, stats.heads_sent, stats.errors) == (3, 1, 1)
    assert stats.bytes_sent == sum(
        len(message.header.encode()) + 5 for message in author.messages(range(1, 4))
    )
    assert stats.latency["SyncNamespace"].count == 2


# Slow, many and leaving clients


def stalled(harbour: Any, address: str, namespace_id: bytes) -> Any:
    """Return a page call whose reader has taken one frame and takes no more."""
    channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
    harbour.clients.append(channel)
    call = RelaySyncStub(channel).SyncNamespace(pb.SyncRequest(namespace_id=namespace_id))
    next(iter(call))
    return call


def heavy(harbour: Any) -> tuple[Any, Any]:
    """Return an author and a store with more than a connection buffers."""
    author = harbour.author()
    return author, harbour.store(author.messages(range(1, 65), blob=os.urandom(256 * 1024)))


def test_refuse_streams_above_the_bound(harbour: Any) -> None:
    """P34: streams above streams_max are refused as busy, short calls still answered."""
    author, store = heavy(harbour)
    address = harbour.serve(store, SyncServerConfig(streams_max=2))
    client = harbour.client(address, SyncClientConfig(busy_wait_s=0))
    calls = [stalled(harbour, address, author.lane) for _ in range(2)]

    with pytest.raises(SyncUnreachableError, match="busy"):
        client.sync_page(author.lane)

    assert client.get_head(author.lane).latest_seq == 64
    for call in calls:
        call.cancel()
    harbour.eventually(lambda: harbour.servers[0].stats().active == 0)
    assert seqs(client.sync_page(author.lane, 63)) == [64]


def test_free_the_place_of_a_client_that_leaves(harbour: Any) -> None:
    """A client that goes away in the middle of a page costs nothing any more, and is counted."""
    author, store = heavy(harbour)
    address = harbour.serve(store)
    call = stalled(harbour, address, author.lane)
    server = harbour.servers[0]
    assert server.stats().active == 1

    call.cancel()

    harbour.eventually(lambda: server.stats().active == 0)
    assert server.stats().requests == {("SyncNamespace", "CANCELLED"): 1}


def test_end_a_stream_that_stalls(harbour: Any) -> None:
    """A reader that takes nothing loses its stream after stream_s."""
    author, store = heavy(harbour)
    address = harbour.serve(store, SyncServerConfig(stream_s=0.05))

    call = stalled(harbour, address, author.lane)

    harbour.eventually(lambda: harbour.servers[0].stats().active == 0)
    with pytest.raises(grpc.RpcError):
        list(call)


def test_refuse_calls_above_the_bound(harbour: Any) -> None:
    """calls_max bounds what is admitted at once; the rest is busy, not queued without end."""
    author, store = heavy(harbour)
    address = harbour.serve(store, SyncServerConfig(calls_max=1))
    call = stalled(harbour, address, author.lane)

    with pytest.raises(SyncUnreachableError, match="busy"):
        harbour.client(address).get_head(author.lane)
    call.cancel()


def test_end_a_page_before_its_deadline(harbour: Any) -> None:
    """With no time left for another slice the page ends with a cursor instead of an error."""
    author = harbour.author()
    store = harbour.store(author.messages(range(1, 101)))
    config = SyncServerConfig(read_messages=10, deadline_margin_s=30)
    client = harbour.client(harbour.serve(store, config))

    page = client.sync_page(author.lane, deadline_s=20)

    assert seqs(page) == list(range(1, 11))
    assert page.status.has_more
    assert [seq for page in client.iter_pages(author.lane) for seq in seqs(page)] == list(
        range(1, 101)
    )


@pytest.mark.slow
def test_stream_in_flat_memory(harbour: Any) -> None:
    """21-21: 60,000 messages go out ascending, and neither process grows with them."""
    author = harbour.author()
    store = harbour.store()
    for begin in range(1, 60_001, 10_000):
        store.put_many(author.messages(range(begin, begin + 10_000)), harbour.base_ms)
    client = harbour.client(harbour.serve(store))
    for page in client.iter_pages(author.lane, to_seq=20_000, page_messages=10_000):
        del page
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    last = 0
    for page in client.iter_pages(author.lane, page_messages=10_000):
        numbers = seqs(page)
        assert numbers == list(range(last + 1, last + 1 + len(numbers)))
        last = numbers[-1]

    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert last == 60_000
    assert grown_kib < 16 * 1024


# The client


def test_name_the_relay_that_cannot_be_reached() -> None:
    """Nobody at the address: SyncUnreachableError with the address and what to do."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        with RelaySyncClient(address) as client, pytest.raises(SyncUnreachableError) as caught:
            client.get_head(bytes(20))

    assert caught.value.where == address
    assert caught.value.code == "sync.unreachable"


def test_give_up_at_the_deadline() -> None:
    """A relay that accepts and says nothing costs no more than the deadline."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        config = SyncClientConfig(call_s=0.1)
        with (
            RelaySyncClient(address, config=config) as client,
            pytest.raises(SyncUnreachableError, match="in time"),
        ):
            client.get_head(bytes(20))


def test_come_back_after_the_relay_does(harbour: Any) -> None:
    """A client survives the restart of its relay."""
    server = RelaySyncServer(harbour.store(), SyncServerConfig(port=0), clock_ms=lambda: 10**12)
    port = server.start()
    client = harbour.client(f"127.0.0.1:{port}", SyncClientConfig(reconnect_s=0.1))
    client.get_head(bytes(20))
    server.stop(grace_s=0)
    with pytest.raises(SyncUnreachableError):
        client.get_head(bytes(20))

    again = RelaySyncServer(harbour.stores[0], SyncServerConfig(port=port), clock_ms=lambda: 10**12)
    harbour.servers.append(again)
    again.start()

    def back() -> bool:
        try:
            return client.get_head(bytes(20)).latest_seq == 0
        except SyncUnreachableError:
            return False

    harbour.eventually(back)


def test_travel_by_pickle(harbour: Any) -> None:
    """A client, its configuration and its errors survive pickle, as Spark's executors need."""
    author = harbour.author()
    client = harbour.relay(author.messages([1]))
    client.get_head(author.lane)

    twin = pickle.loads(pickle.dumps(client))  # noqa: S301 - our own bytes
    harbour.clients.append(twin)

    assert seqs(twin.sync_page(author.lane)) == [1]
    assert (twin.address, twin.config) == (client.address, client.config)


def test_refuse_use_after_close(harbour: Any) -> None:
    """A closed client says so; closing twice is harmless."""
    client = harbour.relay()
    client.close()
    client.close()

    with pytest.raises(SyncArgumentError, match="closed"):
        client.get_head(bytes(20))


def test_end_a_listing_early(harbour: Any) -> None:
    """A listing that is not read to its end leaves nothing running at the relay."""
    store = harbour.store([harbour.author(number).message(1) for number in range(1, 6)])
    client = harbour.client(harbour.serve(store))

    heads = client.list_heads()
    next(heads)
    heads.close()

    harbour.eventually(lambda: harbour.servers[0].stats().active == 0)


@pytest.fixture
def lie(harbour: Any) -> Any:
    """Return a client of a relay that answers SyncNamespace with the given frames."""

    def start(frames: Sequence[pb.StoredMessage]) -> RelaySyncClient:
        handler = grpc.unary_stream_rpc_method_handler(
            lambda _request, _context: iter(frames),
            response_serializer=pb.StoredMessage.SerializeToString,
        )
        server = grpc.server(ThreadPoolExecutor(2))
        server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    "lux.relay.v1.RelaySync", {"SyncNamespace": handler}
                )
            ]
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        harbour.servers.append(_Stopper(server))
        return harbour.client(f"127.0.0.1:{port}")

    return start


class _Stopper:
    def __init__(self, server: grpc.Server) -> None:
        self._server = server

    def stop(self, grace_s: float) -> None:
        self._server.stop(grace_s).wait()


def frame(message: Any) -> pb.StoredMessage:
    """Return the frame of a message."""
    return pb.StoredMessage(header=message.header.encode(), blob_data=message.blob)


def end(last_seq: int = 0, **fields: Any) -> pb.StoredMessage:
    """Return a status frame."""
    return pb.StoredMessage(status=pb.SyncStatus(last_seq=last_seq, **fields))


def test_refuse_the_lies_of_a_relay(harbour: Any, lie: Any) -> None:
    """Wrong namespace, order, range, size or status: SyncRemoteError that says which."""
    author, other = harbour.author(1), harbour.author(2)
    one, two, nine = (frame(author.message(seq)) for seq in (1, 2, 9))
    lies = {
        "another namespace": [frame(other.message(1)), end(1)],
        "outside the asked range": [one, nine, end(9)],
        "follows": [two, one, end(1)],
        "more than 3 messages": [one, one, one, one, end(1)],
        "without a status": [one],
        "follows the status": [one, end(1), two],
        "another last sequence": [one, end(2)],
        "no way on": [end(0, has_more=True, next_cursor=b"x")],
        "a header of 3 bytes": [pb.StoredMessage(header=b"abc"), end(0)],
        "gaps out of order": [one, end(1, gaps=[pb.SeqRange(first=5, last=2)])],
    }
    for says, frames in lies.items():
        client = lie(frames)
        with pytest.raises(SyncRemoteError, match=says) as caught:
            client.sync_page(author.lane, 0, 5, 3)
        assert caught.value.where == client.address


def test_refuse_a_cursor_that_stands_still(harbour: Any, lie: Any) -> None:
    """A relay that repeats one page for ever is found out after the second."""
    author = harbour.author()
    client = lie([frame(author.message(1)), end(1, has_more=True, next_cursor=b"x")])

    with pytest.raises(SyncRemoteError, match="does not move on"):
        list(client.iter_pages(author.lane))


def test_refuse_a_frame_that_is_too_large(harbour: Any) -> None:
    """A frame above frame_bytes_max is refused before it is in memory."""
    author = harbour.author()
    store = harbour.store(author.messages([1], blob=bytes(500_000)))
    client = harbour.client(harbour.serve(store), SyncClientConfig(frame_bytes_max=64 * 1024))

    with pytest.raises(SyncUnreachableError, match="too large"):
        client.sync_page(author.lane)


# Publish


class Post:
    """A publisher that accepts everything it is given."""

    def __init__(self) -> None:
        self.batches: list[list[PublishItem]] = []
        self.lock = threading.Lock()

    def publish(self, items: Sequence[PublishItem]) -> list[PublishReceipt]:
        """Return one receipt an item."""
        with self.lock:
            self.batches.append(list(items))
        return [
            PublishReceipt(
                verdict=1, code=1207, reason="known", stored=True, peers_sent=3,
                message_id=item.header[:32].ljust(32, b"\0"), expected_seq=7,
            )
            for item in items
        ]  # fmt: skip


def test_publish_and_get_receipts_in_order(harbour: Any) -> None:
    """Items reach the publisher in order and in groups; every field of a receipt comes back."""
    post = Post()
    address = harbour.serve(None, publisher=post)
    client = harbour.client(address, SyncClientConfig(publish_items=4))
    items = [PublishItem(header=bytes([n]) * 40, blob=b"b", parent_id=bytes(20)) for n in range(10)]

    receipts = client.publish(items)

    assert [len(batch) for batch in post.batches] == [4, 4, 2]
    assert [item for batch in post.batches for item in batch] == items
    assert [receipt.message_id for receipt in receipts] == [item.header[:32] for item in items]
    assert receipts[0] == PublishReceipt(
        verdict=1, code=1207, reason="known", stored=True, peers_sent=3,
        message_id=bytes(32), expected_seq=7,
    )  # fmt: skip
    assert client.publish([]) == []
    assert harbour.servers[0].stats().items_published == 10


def test_split_a_publication_by_bytes(harbour: Any) -> None:
    """Large items go in requests below the limit of every gRPC library."""
    post = Post()
    client = harbour.client(harbour.serve(None, publisher=post))
    items = [PublishItem(header=b"h" * 300, blob=bytes(2 * 1024 * 1024)) for _ in range(3)]

    assert len(client.publish(items)) == 3
    assert [len(batch) for batch in post.batches] == [1, 1, 1]


def test_refuse_a_bad_publication(harbour: Any) -> None:
    """Too many items or a parent of the wrong length are INVALID_ARGUMENT."""
    address = harbour.serve(None, SyncServerConfig(publish_items_max=2), publisher=Post())
    client = harbour.client(address)

    with pytest.raises(SyncRemoteError, match="3 items"):
        client.publish([PublishItem(header=b"h")] * 3)
    request = node_pb.PublishRequest(items=[node_pb.PublishItem(header=b"h", parent_id=b"short")])
    with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
        list(RelayNodeStub(channel).Publish(iter([request]), timeout=10))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "parent_id" in caught.value.details()


def test_answer_internal_when_a_publisher_miscounts(harbour: Any) -> None:
    """A publisher that forgets a receipt is our bug, and the client is told."""

    class Forgetful:
        def publish(self, items: Sequence[PublishItem]) -> list[PublishReceipt]:
            del items
            return []

    client = harbour.client(harbour.serve(None, publisher=Forgetful()))

    with pytest.raises(SyncRemoteError, match="INTERNAL"):
        client.publish([PublishItem(header=b"h")])


def test_answer_unavailable_when_a_publisher_cannot(harbour: Any) -> None:
    """A full disk behind the publisher is UNAVAILABLE: publishing again is harmless."""

    class Full:
        def publish(self, items: Sequence[PublishItem]) -> list[PublishReceipt]:
            del items
            raise StoreError("no space left")

    client = harbour.client(harbour.serve(None, publisher=Full()))

    with pytest.raises(SyncUnreachableError, match=r"store\.io"):
        client.publish([PublishItem(header=b"h")])


def test_refuse_publishers_above_the_bound(harbour: Any) -> None:
    """publishers_max bounds Publish streams; the rest is busy."""
    config = SyncServerConfig(publishers_max=0)
    client = harbour.client(harbour.serve(None, config, publisher=Post()))

    with pytest.raises(SyncUnreachableError, match="busy"):
        client.publish([PublishItem(header=b"h")])


def test_publishers_of_one_peer_are_bounded(harbour: Any) -> None:
    """`peer_publishers_max` leaves places to others; a stream that ends gives its place back."""
    address = harbour.serve(None, SyncServerConfig(peer_publishers_max=2), publisher=Post())
    done = threading.Event()
    own = [("grpc.use_local_subchannel_pool", 1)]

    def requests() -> Iterator[node_pb.PublishRequest]:
        yield node_pb.PublishRequest(items=[node_pb.PublishItem(header=b"h")])
        done.wait(60)

    with (
        grpc.insecure_channel(address, options=own) as line,
        grpc.insecure_channel(address, options=own) as other,
    ):
        held = [RelayNodeStub(each).Publish(requests()) for each in (line, line, other)]
        for call in held:
            next(call)
        with pytest.raises(grpc.RpcError) as full:
            next(RelayNodeStub(line).Publish(requests()))
        held[0].cancel()
        harbour.eventually(lambda: harbour.servers[0].stats().active == 2)
        next(RelayNodeStub(line).Publish(requests()))
        done.set()

    assert full.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "2 Publish streams at most" in full.value.details()


@pytest.mark.trial
def test_a_client_asks_a_busy_relay_again_when_that_has_said_when(harbour: Any) -> None:
    """Whoever waits for the time that a refusal names is answered; who does not is told it."""
    post = Post()
    address = harbour.serve(
        None, SyncServerConfig(publishers_max=1, publisher_silent_s=3), publisher=post
    )
    done = threading.Event()

    def requests() -> Iterator[node_pb.PublishRequest]:
        yield node_pb.PublishRequest(items=[node_pb.PublishItem(header=b"h")])
        done.wait(60)

    with grpc.insecure_channel(address) as line:
        held = RelayNodeStub(line).Publish(requests())
        next(held)  # after 3 s of silence it gives way
        hasty = harbour.client(address, SyncClientConfig(busy_wait_s=0))
        with pytest.raises(SyncUnreachableError, match=r"taken, .*; ask again in 3\.0 s") as told:
            hasty.publish([PublishItem(header=b"0")])
        patient = harbour.client(address, SyncClientConfig(busy_wait_s=600))
        receipts = patient.publish([PublishItem(header=b"1"), PublishItem(header=b"2")])
        done.set()

    assert told.value.retry_after_ms == 3_000
    assert [each.stored for each in receipts] == [True, True]
    assert [item.header for batch in post.batches for item in batch] == [b"h", b"1", b"2"]


@pytest.mark.trial
def test_silent_publish_streams_do_not_shut_the_port(harbour: Any) -> None:
    """Those that send nothing give way, the oldest first; the one that speaks is answered on."""
    config = SyncServerConfig(publishers_max=4, publisher_silent_s=0.05)
    address = harbour.serve(None, config, publisher=Post())
    done = threading.Event()
    more: queue.Queue[bool] = queue.Queue()
    own = [("grpc.use_local_subchannel_pool", 1)]
    one = node_pb.PublishRequest(items=[node_pb.PublishItem(header=b"h")])

    def silence() -> Iterator[node_pb.PublishRequest]:
        done.wait(60)
        yield from ()

    def speech() -> Iterator[node_pb.PublishRequest]:
        while more.get(timeout=60):
            yield one

    with ExitStack() as stack:
        lines = [stack.enter_context(grpc.insecure_channel(address, options=own)) for _ in range(8)]
        speaker = RelayNodeStub(lines[0]).Publish(speech())
        more.put(True)
        next(speaker)
        held = [RelayNodeStub(each).Publish(silence()) for each in lines[1:4]]
        harbour.eventually(lambda: harbour.servers[0].stats().active == 4)
        for line in lines[4:]:
            more.put(True)
            next(speaker)
            harbour.eventually(lambda line=line: _published(line, one))
        more.put(False)
        done.set()
        ended = [call for call in held if call.code() is grpc.StatusCode.CANCELLED]

    assert ended
    assert harbour.servers[0].stats().streams_crowded >= 1


def _published(line: grpc.Channel, request: node_pb.PublishRequest) -> bool:
    try:
        return bool(list(RelayNodeStub(line).Publish(iter([request]))))
    except grpc.RpcError:
        return False  # nobody has been silent for long enough yet


def test_leave_a_publication(harbour: Any) -> None:
    """A publisher client that goes away frees its stream and is no error."""
    address = harbour.serve(None, publisher=Post())
    gone = threading.Event()

    def requests() -> Iterator[node_pb.PublishRequest]:
        gone.wait(10)
        yield from ()

    with grpc.insecure_channel(address) as channel:
        call = RelayNodeStub(channel).Publish(requests())
        harbour.eventually(lambda: harbour.servers[0].stats().active == 1)
        call.cancel()
        harbour.eventually(lambda: harbour.servers[0].stats().active == 0)
        gone.set()

    assert harbour.servers[0].stats().errors == 0


def test_load_no_database_in_a_client() -> None:
    """Importing the client loads neither RocksDB nor libp2p."""
    script = textwrap.dedent("""
        import sys
        import luxrelay.sync
        assert luxrelay.sync.RelaySyncClient("localhost:1")
        assert not {"rocksdict", "libp2p", "trio"} & set(sys.modules)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_connection_above_the_bound_takes_the_place_of_an_idle_one(harbour: Any) -> None:
    """connections_max: nobody shuts the port; who lost its connection comes back with the next."""
    store = harbour.store()
    address = harbour.serve(store, SyncServerConfig(connections_max=1))
    first, second = harbour.client(address), harbour.client(address)
    for _ in range(2):
        first.get_head(bytes(20))
        second.get_head(bytes(20))

    stats = harbour.servers[0].stats()
    assert stats.connections == 1
    assert stats.connections_crowded == 3


def test_end_a_publication_that_stalls(harbour: Any) -> None:
    """publisher_s: a client that opens a Publish stream and sends nothing loses it."""
    address = harbour.serve(None, SyncServerConfig(publisher_s=0.05), publisher=Post())
    ended = threading.Event()

    def requests() -> Iterator[node_pb.PublishRequest]:
        ended.wait(10)
        yield from ()

    with grpc.insecure_channel(address) as channel:
        call = RelayNodeStub(channel).Publish(requests())
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        ended.set()

    assert caught.value.code() is grpc.StatusCode.CANCELLED
    harbour.eventually(lambda: harbour.servers[0].stats().active == 0)


def test_give_up_on_a_page_at_its_deadline(harbour: Any) -> None:
    """page_s: a relay whose store hangs costs the deadline, and its stream ends afterwards."""
    release = threading.Event()

    class Hanging:
        def head(self, namespace_id: bytes) -> Any:
            release.wait(10)
            raise StoreError(namespace_id.hex())

    client = harbour.client(harbour.serve(Hanging()), SyncClientConfig(page_s=0.1))

    with pytest.raises(SyncUnreachableError, match="in time"):
        client.sync_page(bytes(20))
    release.set()
    harbour.eventually(lambda: harbour.servers[0].stats().active == 0)


def test_look_up_ids_in_groups(harbour: Any) -> None:
    """ids_read: the store is asked for a few ids at a time, whatever the call asks."""
    author = harbour.author()
    store = harbour.store(author.messages(range(1, 6)))
    asked: list[int] = []

    class Watched:
        def get_messages(self, ids: Sequence[Any], now_ms: int) -> Any:
            asked.append(len(ids))
            return store.get_messages(ids, now_ms)

    client = harbour.client(harbour.serve(Watched(), SyncServerConfig(ids_read=2)))
    found, missing = client.get_messages([message_id(author.lane, seq) for seq in range(1, 8)])

    assert (len(found), len(missing)) == (5, 2)
    assert max(asked) == 2
