"""libp2p's pubsub RPC: bytes to values and back, split and coalesced.

The fields of a frame are repeated, and concatenated encodings merge. So a message is encoded once,
as the fragment ``publish = [message]`` of an RPC, and the same fragment goes into the frames of all
peers. ``control`` is the exception: it is a single field, and some decoders take its last copy
instead of merging, so a frame has at most one, made of concatenated bodies.

StrictNoSign: a message has data and a topic and nothing else; the envelope in the data carries the
signature. A message with ``from``, ``seqno``, ``signature`` or ``key`` is malformed.

Source: LP-6420 §7.2; libp2p pubsub, signature policies; decision G29.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from google.protobuf.message import DecodeError

from luxrelay.bus import MessageId
from luxrelay.errors import RpcError
from luxrelay.gossip.envelope import TOPIC_MAX
from luxrelay.gossip.params import GossipParams
from luxrelay.gossip.rpc_pb2 import (
    RPC,
    ControlGraft,
    ControlIDontWant,
    ControlIHave,
    ControlIWant,
    ControlMessage,
    ControlPrune,
    PeerInfo,
)
from luxrelay.wire import read_varint, varint

PROTOCOLS: Final = ("/meshsub/1.2.0", "/meshsub/1.1.0")
"""What we speak, best first (G29). 1.2 adds IDONTWANT, which only a peer that speaks it is sent."""
MESSAGE_ID_WIRE_BYTES: Final = 34
"""A 32-byte message id inside an IHAVE or IWANT: tag, length, id."""

_PUBLISH_TAG: Final = b"\x12"
_DATA_TAG: Final = 0x12
_TOPIC_TAG: Final = 0x22
_FORBIDDEN: Final[tuple[Literal["from", "seqno", "signature", "key"], ...]] = (
    "from",
    "seqno",
    "signature",
    "key",
)
"""Fields that StrictNoSign forbids in a message, also empty ones."""
_LENGTH_BYTES_MAX: Final = 3
"""Bytes of the longest length that a frame within its bound can have."""
_CONTROL_TAG: Final = b"\x1a"
_CONTROL_OVERHEAD: Final = 6
"""Most bytes before the body of ``control``: its tag and a length of up to five bytes."""
_ENTRY_OVERHEAD: Final = TOPIC_MAX + 16
"""Most bytes of an IHAVE besides its ids."""


@dataclass(slots=True)
class Rpc:
    """A frame taken apart; topics as the peer spelled them."""

    subscriptions: list[tuple[bool, str]] = field(default_factory=list)
    """Subscribe or unsubscribe, and the topic; the last one on a topic holds."""
    messages: list[tuple[str, bytes]] = field(default_factory=list)
    """Topic and data of each well-formed message."""
    malformed: int = 0
    """Messages left out because they break StrictNoSign or miss a field."""
    ihave: list[tuple[str, Sequence[bytes]]] = field(default_factory=list)
    """Topic and announced ids, of any length."""
    iwant: list[bytes] = field(default_factory=list)
    """Ids asked for, of any length."""
    idontwant: list[bytes] = field(default_factory=list)
    """Ids not to be sent, of any length (gossipsub 1.2)."""
    graft: list[str] = field(default_factory=list)
    """Topics."""
    prune: list[tuple[str, int]] = field(default_factory=list)
    """Topics and back-off in seconds; 0 when none was given."""
    pulls_s: int = 0
    """For so many seconds the peer fetches messages by catching up, as a PRUNE says (G41)."""
    suggested: list[tuple[str, bytes, bytes]] = field(default_factory=list)
    """Topic, peer id and signed peer record of each peer suggested in a PRUNE, the latter two of
    any length; at most ``px_peers_max`` a PRUNE."""

    def has_control(self) -> bool:
        """Return True when there is any control message."""
        return bool(self.ihave or self.iwant or self.idontwant or self.graft or self.prune)


def decode_rpc(data: bytes, params: GossipParams) -> Rpc:
    """Return the values of a frame; unknown fields are passed over, as protobuf has it.

    Args:
        data: One RPC without its length prefix.
        params: For ``frame_max``, ``subscriptions_max``, ``messages_max``, ``controls_max`` and
            ``px_peers_max``.

    Raises:
        RpcError: the bytes are no RPC or exceed a limit.

    """
    # Most frames are one message: read by hand, which is faster than protobuf, and only in the one
    # form that has no second reading.
    lone = _lone_message(data) if len(data) <= params.frame_max else None
    if lone is not None:
        return Rpc(messages=[lone])
    frame = _opened(data, params)
    rpc = Rpc()
    if frame.subscriptions:
        rpc.subscriptions = [(bool(s.subscribe), s.topicid) for s in frame.subscriptions]
    for message in frame.publish:
        topic, payload = message.topic, message.data
        if not topic or not payload or any(map(message.HasField, _FORBIDDEN)):
            rpc.malformed += 1
        else:
            rpc.messages.append((topic, payload))
    if frame.HasField("control"):
        _take_control(rpc, frame.control, params)
    return rpc


def check_rpc(data: bytes, params: GossipParams) -> None:
    """Look only whether a frame can be read, and not at what its entries say.

    For a peer that is not heard: it may send for as long as it likes, so it must cost little.

    Raises:
        RpcError: as `decode_rpc`, for the same frames.

    """
    frame = _opened(data, params)
    if frame.HasField("control"):
        _check_control(frame.control, params)


def _opened(data: bytes, params: GossipParams) -> RPC:
    """Return a frame whose bytes and entries outside its control are within the limits."""
    if len(data) > params.frame_max:
        raise RpcError(f"a frame of {len(data)} bytes is above {params.frame_max}")
    try:
        frame = RPC.FromString(data)
    except DecodeError:
        raise RpcError("the frame is not protobuf") from None
    if len(frame.subscriptions) > params.subscriptions_max:
        raise RpcError(f"{len(frame.subscriptions)} subscriptions in one frame")
    if len(frame.publish) > params.messages_max:
        # Looked at one by one, the half million that fit 1 MiB would hold the loop for a second.
        raise RpcError(f"{len(frame.publish)} messages in one frame")
    return frame


def _lone_message(data: bytes) -> tuple[str, bytes] | None:
    """Return topic and data of a frame that is one message in the usual order, as most are.

    Only what protobuf would read in the same way; None for everything else, which it is left to.
    """
    if data[:1] != _PUBLISH_TAG:
        return None
    try:
        size, at = read_varint(data, 1, _LENGTH_BYTES_MAX)
        if at + size != len(data) or data[at] != _DATA_TAG:
            return None
        size, at = read_varint(data, at + 1, _LENGTH_BYTES_MAX)
        end = at + size
        if not size or data[end] != _TOPIC_TAG:
            return None
        size, name_at = read_varint(data, end + 1, _LENGTH_BYTES_MAX)
        if not size or name_at + size != len(data):
            return None
        return data[name_at:].decode("ascii"), data[at:end]
    except (IndexError, UnicodeDecodeError):
        return None


def _check_control(control: ControlMessage, params: GossipParams) -> None:
    """Raise when there are too many control entries."""
    entries = (
        len(control.ihave)
        + len(control.iwant)
        + len(control.idontwant)
        + len(control.graft)
        + len(control.prune)
    )
    if entries > params.controls_max:
        raise RpcError(f"{entries} control entries in one frame")


def _take_control(rpc: Rpc, control: ControlMessage, params: GossipParams) -> None:
    """Move the control entries into ``rpc``, or raise when there are too many."""
    _check_control(control, params)
    if control.ihave:
        rpc.ihave = [(entry.topicID, entry.messageIDs) for entry in control.ihave]
    if control.iwant:
        rpc.iwant = [wanted for entry in control.iwant for wanted in entry.messageIDs]
    if control.idontwant:
        rpc.idontwant = [spared for entry in control.idontwant for spared in entry.messageIDs]
    if control.graft:
        rpc.graft = [entry.topicID for entry in control.graft]
    for entry in control.prune:
        rpc.prune.append((entry.topicID, entry.backoff))
        if entry.pulls:
            rpc.pulls_s = max(rpc.pulls_s, entry.backoff)
        if entry.peers:
            rpc.suggested += [
                (entry.topicID, info.peerID, info.signedPeerRecord)
                for info in entry.peers[: params.px_peers_max]
            ]


def encode_message(topic: str, data: bytes) -> bytes:
    """Return a frame with one message, which is also a fragment of any larger frame.

    Written by hand, in the order of the fields as protobuf does, in half of its time.
    """
    name = topic.encode()
    head, tail = b"\x12" + varint(len(data)), b"\x22" + varint(len(name)) + name
    return b"".join((b"\x12", varint(len(head) + len(data) + len(tail)), head, data, tail))


def respell_message(fragment: bytes, topic: str) -> bytes:
    """Return the same message under another spelling of its topic (G5)."""
    return encode_message(topic, RPC.FromString(fragment).publish[0].data)


def encode_subscription(topic: str, *, subscribe: bool) -> bytes:
    """Return a fragment that subscribes to a topic or unsubscribes from it."""
    return RPC(subscriptions=[RPC.SubOpts(subscribe=subscribe, topicid=topic)]).SerializeToString()


def encode_graft(topic: str) -> bytes:
    """Return a control body with one GRAFT."""
    return ControlMessage(graft=[ControlGraft(topicID=topic)]).SerializeToString()


def encode_prune(
    topic: str,
    backoff_s: int,
    suggested: Sequence[tuple[bytes, bytes]] = (),
    rpc_max: int = 64 * 1024,
    *,
    pulls: bool = False,
) -> bytes:
    """Return a control body with one PRUNE.

    Args:
        topic: Topic.
        backoff_s: Back-off in whole seconds.
        suggested: Peer ids and signed records; those that do not fit ``rpc_max`` are left out.
        rpc_max: Longest frame, bytes.
        pulls: Whether we fetch messages by catching up as long as it runs (G41).

    """
    room = rpc_max - _CONTROL_OVERHEAD - _ENTRY_OVERHEAD
    peers = []
    for peer, record in suggested:
        room -= len(peer) + len(record) + 16
        if room >= 0:
            peers.append(PeerInfo(peerID=peer, signedPeerRecord=record))
    return ControlMessage(
        prune=[ControlPrune(topicID=topic, backoff=backoff_s, peers=peers, pulls=pulls or None)]
    ).SerializeToString()


def encode_ihave(topic: str, ids: Sequence[MessageId], rpc_max: int) -> list[bytes]:
    """Return control bodies that announce ``ids``, each small enough for a frame of its own."""
    return [
        ControlMessage(ihave=[ControlIHave(topicID=topic, messageIDs=part)]).SerializeToString()
        for part in _split(ids, rpc_max)
    ]


def encode_iwant(ids: Sequence[MessageId], rpc_max: int) -> list[bytes]:
    """Return control bodies that ask for ``ids``, each small enough for a frame of its own."""
    return [
        ControlMessage(iwant=[ControlIWant(messageIDs=part)]).SerializeToString()
        for part in _split(ids, rpc_max)
    ]


def encode_idontwant(ids: Sequence[MessageId], rpc_max: int) -> list[bytes]:
    """Return control bodies that decline ``ids``, each small enough for a frame of its own."""
    return [
        ControlMessage(idontwant=[ControlIDontWant(messageIDs=part)]).SerializeToString()
        for part in _split(ids, rpc_max)
    ]


def _split(ids: Sequence[MessageId], rpc_max: int) -> list[Sequence[MessageId]]:
    size = max(1, (rpc_max - _CONTROL_OVERHEAD - _ENTRY_OVERHEAD) // MESSAGE_ID_WIRE_BYTES)
    return [ids[start : start + size] for start in range(0, len(ids), size)]


class RpcPacker:
    """Puts fragments and control bodies into frames of at most ``rpc_max`` bytes, in order.

    A fragment that is longer by itself goes alone.
    """

    __slots__ = ("_control", "_control_size", "_frames", "_parts", "_rpc_max", "_size")

    def __init__(self, rpc_max: int) -> None:
        self._rpc_max = rpc_max
        self._frames: list[bytes] = []
        self._parts: list[bytes] = []
        self._size = 0
        self._control: list[bytes] = []
        self._control_size = 0

    def add_fragment(self, fragment: bytes) -> None:
        """Add a subscription or a message."""
        size = len(fragment)
        if self._filled() + size > self._rpc_max:
            self._flush()
        self._parts.append(fragment)
        self._size += size

    def add_control(self, body: bytes) -> None:
        """Add a control body."""
        size = len(body)
        overhead = 0 if self._control else _CONTROL_OVERHEAD
        if self._filled() + overhead + size > self._rpc_max:
            self._flush()
        self._control.append(body)
        self._control_size += size

    def cut(self) -> None:
        """End the frame, so that what was added travels ahead of what follows."""
        self._flush()

    def finish(self) -> list[bytes]:
        """Return the frames."""
        self._flush()
        return self._frames

    def _filled(self) -> int:
        control = self._control_size + _CONTROL_OVERHEAD if self._control else 0
        return self._size + control

    def _flush(self) -> None:
        if self._control:
            self._parts += (_CONTROL_TAG, varint(self._control_size), *self._control)
            self._control = []
            self._control_size = 0
        if self._parts:
            self._frames.append(b"".join(self._parts))
            self._parts = []
            self._size = 0
