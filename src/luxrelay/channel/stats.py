"""What scalable data sync counts.

Source: docs/explanation/channel.md.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SdsStats:
    """What happened, counted since the start."""

    sent: int = 0
    """Content messages made."""
    delivered: int = 0
    """Content messages delivered."""
    duplicate: int = 0
    """Messages received again."""
    own: int = 0
    """Messages of ours that came back."""
    foreign: int = 0
    """Messages of another channel."""
    invalid: int = 0
    """Messages without an id or a sender."""
    stale: int = 0
    """Messages older than the log reaches."""
    refused: int = 0
    """Messages that did not fit into the incoming buffer."""
    retransmissions: int = 0
    """Content messages sent again."""
    syncs: int = 0
    """Sync messages made."""
    answers: int = 0
    """Messages of the log sent again because somebody asked."""
    lost: int = 0
    """Messages given up as lost."""
    filters_ignored: int = 0
    """Bloom filters of another length."""
