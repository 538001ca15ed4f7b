"""What every decoder promises, as functions of bytes: one documented error, or the bytes again.

A function returns True when the bytes decoded. Anything else that is raised is our bug.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from luxrelay.bus import MsgHeader, NamespacePolicy, validate_structure
from luxrelay.bus.fee import FeeProof
from luxrelay.bus.policy_json import policy_from_json, policy_to_json
from luxrelay.bus.sidecar import TFHESidecar
from luxrelay.bus.structure import Spans, check_structure
from luxrelay.channel.params import SegmentationConfig, SegmentRevision
from luxrelay.channel.segments import Segment
from luxrelay.channel.wire import SdsMessage
from luxrelay.errors import (
    ChannelWireError,
    EnvelopeError,
    FeeError,
    HeaderError,
    PolicyError,
    ReconcileError,
    SegmentError,
    SidecarError,
)
from luxrelay.gossip import (
    BlobAvailabilityHint,
    BlockAnnouncement,
    HeaderAnnouncement,
    RelayMessage,
    relay_message_id,
)
from luxrelay.sync.idset import SortedIds
from luxrelay.sync.negentropy import Initiator, Responder

SEGMENTATIONS = [SegmentationConfig(revision=revision) for revision in SegmentRevision]


def header(data: bytes) -> bool:
    """A header comes back from bytes and from JSON; both readers of structure agree."""
    found = check_structure(data)
    assert validate_structure(data).accepted == isinstance(found, Spans)
    try:
        decoded = MsgHeader.decode(data)
    except HeaderError as error:
        if error.verdict_code != found:
            raise AssertionError(f"{error.verdict_code} is not {found}") from error
        return False
    assert decoded.encode() == data
    assert MsgHeader.from_json(decoded.to_json()) == decoded
    return True


def policy(data: bytes) -> bool:
    """A policy is its one encoding, and comes back from JSON."""
    try:
        decoded = NamespacePolicy.decode(data)
    except PolicyError:
        return False
    assert decoded.encode() == data
    assert policy_from_json(policy_to_json(decoded)) == decoded
    return True


def fee(data: bytes) -> bool:
    """A fee proof is its one encoding."""
    try:
        decoded = FeeProof.decode(data)
    except FeeError:
        return False
    assert decoded.encode() == data
    return True


def sidecar(data: bytes) -> bool:
    """A sidecar is its one encoding."""
    try:
        decoded = TFHESidecar.decode(data)
    except SidecarError:
        return False
    assert decoded.encode() == data
    return True


def negentropy(data: bytes) -> bool:
    """A reconciliation message is answered by either side, or is the one error."""
    held = SortedIds.of([(stamp, bytes([stamp]) * 32) for stamp in range(40)])
    try:
        Initiator(held).receive(data)
        return Responder(held).receive(data)[:1] == b"\x61"
    except ReconcileError:
        return False


def envelope(data: bytes) -> bool:
    """An envelope and each payload are their one encoding."""
    for kind in (HeaderAnnouncement, BlobAvailabilityHint, BlockAnnouncement):
        try:
            assert kind.decode(data).encode() == data
        except EnvelopeError:
            continue
    try:
        decoded = RelayMessage.decode(data)
    except EnvelopeError:
        return False
    assert decoded.encode() == data
    with suppress(EnvelopeError):
        relay_message_id(decoded)
    return True


def sds(data: bytes) -> bool:
    """A channel's message comes back from its own encoding."""
    try:
        decoded = SdsMessage.decode(data)
    except ChannelWireError:
        return False
    assert SdsMessage.decode(decoded.encode()) == decoded
    return True


def segment(data: bytes) -> bool:
    """A segment comes back from its own encoding, in the revision it was read in."""
    read = False
    for config in SEGMENTATIONS:
        try:
            decoded = Segment.decode(data, config)
        except SegmentError:
            continue
        assert Segment.decode(decoded.encode(config.revision), config) == decoded
        read = True
    return read


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "envelope": envelope,
    "fee": fee,
    "header": header,
    "negentropy": negentropy,
    "policy": policy,
    "sds": sds,
    "segment": segment,
    "sidecar": sidecar,
}
"""By name; ``corpus/`` has a folder of each name."""
