"""`NodeCalls`: client calls to a running node beside messages: publish and handoff.

Source: user-05, user-07; decisions P37, J8, H17.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence

from luxrelay.bus import constants as c
from luxrelay.sync.following import FollowEvent, SubscribeWanted
from luxrelay.sync.messages import PublishItem, PublishReceipt, QuotaUse, Watermark
from luxrelay.sync.rpc import relay_node_pb2 as node_pb
from luxrelay.sync.rpc.config import (
    FRAME_BYTES_MAX,
    QUOTAS_MAX,
    RECEIPTS_MAX,
    WATERMARKS_MAX,
    require,
    require_id,
)
from luxrelay.sync.rpc.connection import RelayConnection
from luxrelay.sync.rpc.frames import publish_frames, to_quota, to_receipt, to_watermark
from luxrelay.sync.rpc.patience import beating
from luxrelay.sync.rpc.relay_node_pb2_grpc import RelayNodeStub
from luxrelay.sync.rpc.subscription_frames import from_wanted, needs, to_events


class NodeCalls(RelayConnection):
    """The calls of RelayNode."""

    def publish(self, items: Iterable[PublishItem]) -> list[PublishReceipt]:
        """Return one receipt an item, in order, after the node has dealt with all of them.

        The deadline grows with what is sent: ``publish_s`` for each request it takes.

        Raises:
            SyncArgumentError: an item is above the limits of LP-6411 §5, or its parent has not
                20 bytes; nothing was sent.
            SyncUnreachableError: no answer in time; items may or may not have been taken, and
                publishing them again is harmless.
            SyncRemoteError: the node takes no messages, or answered with something else.

        Source: P37.

        """
        config = self.config
        checked = [_checked(item) for item in items]
        size = sum(len(item.header) + len(item.blob) + len(item.sidecar) for item in checked)
        rounds = 1 + len(checked) // config.publish_items + size // config.publish_bytes
        with_sidecar = any(item.sidecar for item in checked)
        sent: list[int] = []

        def requests() -> Iterator[node_pb.PublishRequest]:
            sent.clear()
            for frame in publish_frames(checked, config.publish_items, config.publish_bytes):
                sent.append(len(frame.items))
                yield frame

        receipts: list[PublishReceipt] = []
        answered = 0
        for answer in self._stream(
            lambda channel: RelayNodeStub(channel).Publish(
                requests(), timeout=config.publish_s * rounds
            ),
            None,
        ):
            if answered >= len(sent) or len(answer.receipts) != sent[answered]:
                raise self._bad("receipts that do not match the items")
            if with_sidecar and answer.knows < node_pb.PublishItem.SIDECAR_FIELD_NUMBER:
                raise self._bad("it is of an older version and takes messages without sidecars")
            try:
                receipts += [to_receipt(each) for each in answer.receipts]
            except ValueError as error:
                raise self._bad(str(error)) from None
            answered += 1
        if answered != len(sent):
            raise self._bad("the stream ended before every item had its receipt")
        return receipts

    def _follow(self, wanted: SubscribeWanted) -> Generator[FollowEvent, None, None]:
        """Yield what the node tells, as `RelaySyncClient.subscribe` does but for filled gaps."""
        request, (needed, name) = from_wanted(wanted), needs(wanted)
        silence_s = self.config.silence_s
        for frame in self._stream(
            lambda channel: beating(RelayNodeStub(channel).Subscribe(request), silence_s), None
        ):
            if frame.knows < needed:
                raise self._bad(f"it is of an older version and does not know {name!r}")
            try:
                events = to_events(frame)
            except ValueError as error:
                raise self._bad(str(error)) from None
            yield from events

    def get_receipts(self, digests: Sequence[bytes]) -> list[PublishReceipt]:
        """Return what has become of messages this node took, in the order of ``digests``.

        ``seen_back`` grows while peers announce the message to the node. A message the node does
        not remember has the verdict *ignore* and nothing stored.

        Args:
            digests: SHA3-256 of each header as published, 32 bytes, 1,000 at most.

        Raises:
            SyncArgumentError: too many, or one that has not 32 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: the node keeps no receipts, or an answer that cannot be used.

        Source: user-05.

        """
        require("len(digests)", len(digests), 0, RECEIPTS_MAX)
        for each in digests:
            require_id("digest", each, c.HASH_BYTES)
        request = node_pb.ReceiptsRequest(digests=digests)
        answer = self._unary(
            lambda channel: RelayNodeStub(channel).GetReceipts(request, timeout=self.config.call_s)
        )
        try:
            receipts = [to_receipt(each) for each in answer.receipts]
        except ValueError as error:
            raise self._bad(str(error)) from None
        if [each.digest for each in receipts] != list(digests):
            raise self._bad("receipts of other messages")
        return receipts

    def get_quotas(self, accounts: Sequence[bytes]) -> list[QuotaUse]:
        """Return what the node has counted of prepaid quotas, in the order of ``accounts``.

        Args:
            accounts: The quotas' hashes, 32 bytes, 1,000 at most.

        Raises:
            SyncArgumentError: too many, or one that has not 32 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: the node takes no messages or is of an older version, or its answer
                cannot be used.

        Source: S7.

        """
        require("len(accounts)", len(accounts), 0, QUOTAS_MAX)
        for each in accounts:
            require_id("account", each, c.HASH_BYTES)
        request = node_pb.QuotasRequest(accounts=accounts)
        answer = self._unary(
            lambda channel: RelayNodeStub(channel).GetQuotas(request, timeout=self.config.call_s)
        )
        if [each.account for each in answer.quotas] != list(accounts):
            raise self._bad("the use of other quotas")
        return [to_quota(each) for each in answer.quotas]

    def set_watermarks(self, watermarks: Sequence[Watermark]) -> list[Watermark]:
        """Return the watermarks as they stand, durably, after the relay has taken these.

        What a relay holds beyond its time waits for the archive below its watermark
        (``held=True`` in `RelaySyncClient.sync_page` reads it). A watermark never goes back.

        Raises:
            SyncArgumentError: more than 1,000, or an id that has not 20 bytes.
            SyncUnreachableError: no answer in time.
            SyncRemoteError: the relay lets nobody move its watermarks, or its answer cannot be
                used.

        Source: J8, P42.

        """
        require("len(watermarks)", len(watermarks), 0, WATERMARKS_MAX)
        request = node_pb.WatermarksRequest()
        for each in watermarks:
            require_id("namespace_id", each.namespace_id, c.NAMESPACE_BYTES)
            require_id("parent_id", each.parent_id, c.NAMESPACE_BYTES)
            require("seq", each.seq or 0, 0, c.MAX_U64)
            request.watermarks.add(
                namespace_id=each.namespace_id,
                parent_id=each.parent_id,
                seq=each.seq or 0,
                drop=each.seq is None,
            )
        answer = self._unary(
            lambda channel: RelayNodeStub(channel).SetWatermarks(
                request, timeout=self.config.publish_s
            )
        )
        try:
            stand = [to_watermark(each) for each in answer.watermarks]
        except ValueError as error:
            raise self._bad(str(error)) from None
        if [each.namespace_id for each in stand] != [each.namespace_id for each in watermarks]:
            raise self._bad("watermarks of other namespaces")
        return stand


def _checked(item: PublishItem) -> PublishItem:
    require("len(header)", len(item.header), 0, c.MAX_HEADER_BYTES)
    require("len(blob)", len(item.blob), 0, c.MAX_BLOB_BYTES)
    require("len(sidecar)", len(item.sidecar), 0, c.MAX_BLOB_BYTES)
    together = len(item.blob) + len(item.sidecar)
    require("len(blob) + len(sidecar)", together, 0, FRAME_BYTES_MAX - 2 * c.MAX_HEADER_BYTES)
    if item.parent_id:
        require_id("parent_id", item.parent_id, c.NAMESPACE_BYTES)
    return item
