"""`NodeServicer`: RelayNode, that is publishing, subscriptions and watermarks.

Source: verdict codes of LP-6400; decisions P37, J8.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import grpc

from luxrelay.bus import constants as c
from luxrelay.errors import SyncArgumentError
from luxrelay.sync.cost import Price, price_of_bytes, price_of_refused, price_of_sent
from luxrelay.sync.following import Followed, FollowEvent
from luxrelay.sync.messages import Watermark
from luxrelay.sync.rpc import relay_node_pb2 as pb
from luxrelay.sync.rpc.backing import FollowedNode, Handoff, Publisher
from luxrelay.sync.rpc.calls import CallBook, ServedCall
from luxrelay.sync.rpc.config import QUOTAS_MAX, RECEIPTS_MAX, SyncServerConfig
from luxrelay.sync.rpc.frames import (
    from_quota,
    from_receipts,
    from_watermark,
    to_items,
    to_watermark,
)
from luxrelay.sync.rpc.relay_node_pb2_grpc import RelayNodeServicer
from luxrelay.sync.rpc.set_answers import check_length
from luxrelay.sync.rpc.subscription_frames import KNOWS, from_events, to_wanted


class NodeServicer(RelayNodeServicer):
    """Forwards to ``publisher`` and ``handoff``; without one its calls are UNIMPLEMENTED."""

    def __init__(
        self,
        publisher: Publisher | None,
        handoff: Handoff | None,
        config: SyncServerConfig,
        calls: CallBook,
        *,
        followed: FollowedNode | None = None,
        following: CallBook | None = None,
    ) -> None:
        self._publisher = publisher
        self._handoff = handoff
        self._config = config
        self._calls = calls
        self._followed = followed
        self._following = following or calls

    def Publish(  # noqa: N802 - the name in relay_node.proto
        self, request_iterator: Iterator[pb.PublishRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.PublishReceipts]:
        """Answer each request with its receipts before the next one is taken."""
        with self._calls.call("Publish", context, stream=True, weigh=None) as call:
            if self._publisher is None:
                call.refuse(
                    grpc.StatusCode.UNIMPLEMENTED,
                    "this relay takes no messages here; publish to another node, or set "
                    "allow_publish in its [sync]",
                )
            for request in request_iterator:
                call.renew()
                yield self._publish(self._publisher, request, call)
                self._calls.pace(call, request.ByteSize())
                call.renew()  # its silence begins when it has its receipts

    def Subscribe(  # noqa: N802 - the name in relay_node.proto
        self, request: pb.SubscribeRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.SubscribeReply]:
        """Tell what is stored, then what comes, until the client leaves."""
        with self._following.call("Subscribe", context, stream=True, weigh=None) as call:
            if self._followed is None:
                call.refuse(grpc.StatusCode.UNIMPLEMENTED, "this relay tells no subscribers")
            if len(request.namespaces) > self._config.subscription_namespaces_max:
                raise SyncArgumentError(
                    f"{len(request.namespaces)} namespaces in one subscription",
                    where="SubscribeRequest.namespaces",
                    hint=f"name {self._config.subscription_namespaces_max} at most",
                )
            wanted = to_wanted(request)
            following = self._followed.follow(wanted, call.ended)
            for events in _charged(following, call):
                call.renew()
                if not events:
                    # A beat: who does not take it is gone.
                    yield pb.SubscribeReply(knows=KNOWS)
                    continue
                frames = list(from_events(events))
                size_bytes = sum(frame.ByteSize() for frame in frames)
                with self._following.share(call, context, size_bytes):
                    yield from frames
                call.settle(price_of_bytes(size_bytes))
                messages = sum(isinstance(event, Followed) for event in events)
                self._calls.counters.sent(messages=messages, size_bytes=size_bytes)

    def GetReceipts(  # noqa: N802 - the name in relay_node.proto
        self, request: pb.ReceiptsRequest, context: grpc.ServicerContext
    ) -> pb.PublishReceipts:
        """Return what has become of published messages since."""
        with self._calls.call("GetReceipts", context) as call, call.turn():
            if self._publisher is None:
                call.refuse(grpc.StatusCode.UNIMPLEMENTED, "this relay takes no messages")
            _check_count("ReceiptsRequest.digests", len(request.digests), RECEIPTS_MAX)
            for each in request.digests:
                check_length("ReceiptsRequest.digests", each, c.HASH_BYTES)
            return from_receipts(self._publisher.receipts(list(request.digests)))
        raise AssertionError  # the call above returns or aborts

    def GetQuotas(  # noqa: N802 - the name in relay_node.proto
        self, request: pb.QuotasRequest, context: grpc.ServicerContext
    ) -> pb.QuotasResponse:
        """Return what was counted of prepaid quotas."""
        with self._calls.call("GetQuotas", context) as call, call.turn():
            if self._publisher is None:
                call.refuse(grpc.StatusCode.UNIMPLEMENTED, "this relay takes no messages")
            _check_count("QuotasRequest.accounts", len(request.accounts), QUOTAS_MAX)
            for each in request.accounts:
                check_length("QuotasRequest.accounts", each, c.HASH_BYTES)
            found = self._publisher.quotas(list(request.accounts))
            return pb.QuotasResponse(quotas=map(from_quota, found))
        raise AssertionError  # the call above returns or aborts

    def SetWatermarks(  # noqa: N802 - the name in relay_node.proto
        self, request: pb.WatermarksRequest, context: grpc.ServicerContext
    ) -> pb.WatermarksResponse:
        """Take how far an archive has read, and say where each watermark stands (J8)."""
        with self._calls.call("SetWatermarks", context) as call, call.turn():
            if self._handoff is None:
                call.refuse(
                    grpc.StatusCode.PERMISSION_DENIED,
                    "this relay keeps nothing for an archive; its configuration decides",
                )
            count = len(request.watermarks)
            _check_count("WatermarksRequest.watermarks", count, self._config.watermarks_max)
            asked = [_watermark(each) for each in request.watermarks]
            for each in asked:
                if each.seq is None:
                    self._handoff.drop_watermark(each.namespace_id)
                else:
                    self._handoff.set_watermark(each.namespace_id, each.parent_id, each.seq)
            return pb.WatermarksResponse(
                watermarks=[
                    from_watermark(replace(each, seq=self._handoff.watermark(each.namespace_id)))
                    for each in asked
                ]
            )
        raise AssertionError  # the call above returns or aborts

    def _publish(
        self, publisher: Publisher, request: pb.PublishRequest, call: ServedCall
    ) -> pb.PublishReceipts:
        if len(request.items) > self._config.publish_items_max:
            raise SyncArgumentError(
                f"{len(request.items)} items in one request",
                where="PublishRequest.items",
                hint=f"send {self._config.publish_items_max} at most",
            )
        items = to_items(request)
        for item in items:
            if len(item.parent_id) not in {0, c.NAMESPACE_BYTES}:
                raise SyncArgumentError(
                    f"an id of {len(item.parent_id)} bytes",
                    where="PublishItem.parent_id",
                    hint="send 20 bytes, or none when the namespace is no lane",
                )
        self._calls.counters.published(len(items))
        taken = Price.REQUEST + len(items) * Price.SIGNATURE + price_of_bytes(request.ByteSize())
        call.pay(taken)
        receipts = publisher.publish(items)
        # Good messages are what a relay is for, and have quotas of their own.
        left = price_of_refused(receipts)
        if any(each.verdict == 0 for each in receipts):
            left -= 0.0 if call.caller.payer.known else price_of_sent(request.ByteSize())
        else:
            left += Price.REQUEST
        call.settle(left - taken)
        assert len(receipts) == len(items), "a publisher gives one receipt an item"
        return from_receipts(receipts)


def _charged(
    following: Iterator[Sequence[FollowEvent]], call: ServedCall
) -> Iterator[Sequence[FollowEvent]]:
    """Yield what is told; what the thread spent on reading and telling is its subscriber's."""
    while True:
        call.afford(Price.TURN)
        began = time.thread_time()
        events = next(following, None)
        if events is not None:
            yield events
        call.settle(call.priced_us(time.thread_time() - began) - Price.TURN)
        if events is None:
            return


def _watermark(frame: pb.Watermark) -> Watermark:
    check_length("Watermark.namespace_id", frame.namespace_id)
    if frame.parent_id:
        check_length("Watermark.parent_id", frame.parent_id)
    return to_watermark(frame)


def _check_count(name: str, count: int, most: int) -> None:
    if count > most:
        raise SyncArgumentError(f"{count} in one call", where=name, hint=f"send {most} at most")
