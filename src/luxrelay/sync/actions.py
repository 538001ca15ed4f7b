"""Actions of a catch-up for its driver, and reasons of empty requests.

Source: LP-6421 §2.3; decisions P24, P25, J6.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from luxrelay.bus.header import NamespaceId


class Fault(IntEnum):
    """Why a request brought nothing."""

    UNREACHABLE = 0
    """No answer in time, or the relay is busy: it may be asked again."""
    UNUSABLE = 1
    """An answer that breaks the protocol: it is not asked for the same again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskHeads:
    """List the heads of ``parent`` and its lanes, or of every namespace, at ``peer``."""

    request: int
    """Names the request in the answer."""
    peer: str
    """Whom to ask."""
    parent: NamespaceId | None
    """None for every namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPage:
    """Fetch one page at ``peer`` and hand its messages to the sink."""

    request: int
    """Names the request in the answer."""
    peer: str
    """Whom to ask."""
    namespace_id: NamespaceId
    """The namespace."""
    parent: NamespaceId
    """The parent this peer reports; the sink checks that the namespace is a lane of it."""
    from_seq: int
    """Exclusive."""
    to_seq: int
    """Inclusive."""
    cursor: bytes
    """Where the page before ended; empty at the beginning of a range."""
    max_messages: int
    """Messages at most."""
    max_bytes: int
    """Bytes at most."""
    call: int = 0
    """Pages with the same number go out in one call, and share its bounds."""
    max_frame_bytes: int = 0
    """Bytes of a frame of several messages at most, so that a slow link shows progress; 0 for what
    the relay likes."""
    max_blob_bytes: int = 0
    """Larger blobs are left out and come by ranges; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipTo:
    """Tell the sink that nothing up to ``seq`` can be had any more."""

    namespace_id: NamespaceId
    """The namespace."""
    parent: NamespaceId
    """Its parent."""
    seq: int
    """Highest sequence given up."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing more will be asked; `CatchUp.report` is final."""


Action = AskHeads | AskPage | SkipTo | Finished
