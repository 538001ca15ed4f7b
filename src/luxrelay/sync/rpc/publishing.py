"""`NodeServicer`: the Publish call of RelayNode, handed on to whoever takes messages.

Source: decisions P37; verdict codes of LP-6400.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from luxrelay.bus import constants as c
from luxrelay.errors import SyncArgumentError
from luxrelay.sync.rpc import relay_node_pb2 as pb
from luxrelay.sync.rpc.backing import Publisher
from luxrelay.sync.rpc.calls import CallBook
from luxrelay.sync.rpc.config import SyncServerConfig
from luxrelay.sync.rpc.frames import from_receipts, to_items
from luxrelay.sync.rpc.relay_node_pb2_grpc import RelayNodeServicer


class NodeServicer(RelayNodeServicer):
    """Forwards to ``publisher``; without one the call is UNIMPLEMENTED."""

    def __init__(
        self, publisher: Publisher | None, config: SyncServerConfig, calls: CallBook
    ) -> None:
        self._publisher = publisher
        self._config = config
        self._calls = calls

    def Publish(  # noqa: N802 - the name in relay_node.proto
        self, request_iterator: Iterator[pb.PublishRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.PublishReceipts]:
        """Answer each request with its receipts before the next one is taken."""
        with self._calls.call("Publish", context, stream=True) as call:
            if self._publisher is None:
                call.refuse(
                    grpc.StatusCode.UNIMPLEMENTED,
                    "this relay takes no messages here; publish to another node",
                )
            for request in request_iterator:
                call.renew()
                yield self._publish(self._publisher, request)

    def _publish(self, publisher: Publisher, request: pb.PublishRequest) -> pb.PublishReceipts:
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
        receipts = publisher.publish(items)
        assert len(receipts) == len(items), "a publisher gives one receipt an item"
        return from_receipts(receipts)
