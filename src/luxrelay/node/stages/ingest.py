"""Stage one: an envelope becomes a candidate, or a verdict says why not.

Only bytes and the topic are looked at: type, announcement layout, header structure, and the blob's
length. Nothing is verified and no clock is read.

Source: LP-6420 §3.1, §7.1; G6, G8, J6, J7 and the verdict table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from luxrelay.bus import Code, MsgHeader, NamespaceId, Verdict
from luxrelay.bus.verdict import ignore, reject
from luxrelay.errors import EnvelopeError, HeaderError, TopicError
from luxrelay.gossip import (
    HeaderAnnouncement,
    MessageType,
    RelayMessage,
    TopicKind,
    decode_header_with_blob,
    parse_topic,
)
from luxrelay.node.stages.candidate import Candidate

_HEADER_TYPES: Final = frozenset({MessageType.HEADER, MessageType.HEADER_WITH_BLOB})


def ingest(
    topic: str,
    message: RelayMessage,
    source: bytes,
    *,
    inline_blob_max: int,
    parent_of: Callable[[MsgHeader], NamespaceId | None] | None = None,
) -> Candidate | Verdict:
    """Return the candidate in an envelope, or the verdict on bytes that hold none.

    Args:
        topic: The topic the transport named; the envelope must name the same.
        message: The decoded envelope.
        source: Peer id that brought it.
        inline_blob_max: Largest blob accepted inside an announcement, bytes (J7).
        parent_of: Tells the namespace of a header on ``headers/global``; None when the node does
            not follow that topic.

    """
    if message.topic != topic:
        return reject(Code.WRONG_TOPIC, "envelope and transport name different topics (G6)")
    if message.type not in _HEADER_TYPES:
        return ignore(Code.UNSUPPORTED_TYPE, f"type {message.type} is not taken on this topic")
    try:
        parsed = parse_topic(topic)
    except TopicError as error:
        return reject(Code.WRONG_TOPIC, str(error))
    if parsed.kind is not TopicKind.NAMESPACE and parent_of is None:
        return ignore(Code.UNSUPPORTED_TYPE, "headers are taken on namespace topics only")
    try:
        blob: bytes | None = None
        if message.type is MessageType.HEADER_WITH_BLOB:
            announcement, blob = decode_header_with_blob(message.payload, inline_blob_max)
        else:
            announcement = HeaderAnnouncement.decode(message.payload)
    except EnvelopeError as error:
        return reject(Code.MALFORMED_PAYLOAD, str(error))
    try:
        header = MsgHeader.decode(announcement.header_bytes)
    except HeaderError as error:
        return reject(Code(error.verdict_code), error.what)
    parent = parsed.namespace_id
    if parent is None and parent_of is not None:
        parent = parent_of(header)
    if parent is None:
        return ignore(Code.INVALID_NAMESPACE, "the header's namespace is not carried here")
    return Candidate(
        header=header,
        blob=blob,
        parent=parent,
        source=source,
        announcement=announcement,
    )
