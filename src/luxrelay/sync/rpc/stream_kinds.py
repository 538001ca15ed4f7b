"""The calls of RelaySync that also travel over a plain stream, and how their frames begin.

A question is one byte that names the call and the call's request as protobuf; it is answered by
frames of one byte and what belongs to it: parts (a response message each), then the end, or a
refusal (a gRPC status code and a text). One question at a time; a stream may carry many.

Source: docs/explanation/sync.md; J5, P37.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import grpc

from luxrelay.sync.rpc import relay_sync_pb2 as pb


class StreamKind(IntEnum):
    """Which call a question makes; the number is the question's first byte."""

    LIST_HELD = 1
    RECONCILE = 2
    GET_MESSAGES = 3
    SYNC_NAMESPACE = 4
    GET_NAMESPACE_HEAD = 5
    GET_DIGESTS = 6
    LIST_HEADS = 7


NAMES: Final = {
    StreamKind.LIST_HELD: "ListHeld",
    StreamKind.RECONCILE: "Reconcile",
    StreamKind.GET_MESSAGES: "GetMessages",
    StreamKind.SYNC_NAMESPACE: "SyncNamespace",
    StreamKind.GET_NAMESPACE_HEAD: "GetNamespaceHead",
    StreamKind.GET_DIGESTS: "GetDigests",
    StreamKind.LIST_HEADS: "ListHeads",
}
"""The calls' names in relay_sync.proto."""
REQUESTS: Final[dict[StreamKind, Any]] = {
    StreamKind.LIST_HELD: pb.ListHeldRequest,
    StreamKind.RECONCILE: pb.ReconcileRequest,
    StreamKind.GET_MESSAGES: pb.GetMessagesRequest,
    StreamKind.SYNC_NAMESPACE: pb.SyncRequest,
    StreamKind.GET_NAMESPACE_HEAD: pb.NamespaceHeadRequest,
    StreamKind.GET_DIGESTS: pb.DigestsRequest,
    StreamKind.LIST_HEADS: pb.ListHeadsRequest,
}
"""What each call is asked with."""
PART: Final = b"\x00"
END: Final = b"\x01"
REFUSED: Final = b"\x02"
CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
"""gRPC's status codes by number."""
TEXT_BYTES_MAX: Final = 512
"""A refusal says no more than this."""


def refusal(code: grpc.StatusCode, text: str) -> bytes:
    """Return the frame that refuses a question."""
    return REFUSED + bytes([code.value[0]]) + text.encode()[:TEXT_BYTES_MAX]
