"""`CatchUpConfig`: the bounds of a catch-up, each with its unit.

Source: decisions P24, P25, P26, P34; 21-27.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from luxrelay.errors import SyncArgumentError
from luxrelay.sync.transfer import TransferConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpConfig:
    """How much a catch-up does at once and how much it puts up with; every number is positive."""

    pages_max: int = 8
    """Pages under way at once, all peers together; with `page_bytes` the memory it may take."""
    peer_pages_max: int = 4
    """Pages under way at once at one peer (P34)."""
    page_messages: int = 1_000
    """Messages asked for in one page (LP-6421 §2.3)."""
    page_bytes: int = 4 * 1024 * 1024
    """Bytes asked for in one page at most; on a slow link a quarter of its window."""
    call_lanes: int = 128
    """Namespaces asked for in one call at most."""
    transfer: TransferConfig = field(default_factory=TransferConfig)
    """How long a peer may be silent, and how much is asked of it at once (P46)."""
    peers_max: int = 32
    """Peers one catch-up may use."""
    lanes_max: int = 65_536
    """Namespaces with something missing that one run deals with; others wait for the next."""
    heads_max: int = 65_536
    """Heads taken from one peer; others are ignored."""
    holes_max: int = 1_024
    """Holes tracked in one namespace; the highest are left to the next run."""
    join_max: int = 64
    """Holes this many held messages apart, or fewer, are asked for in one page."""
    scan_max: int = 64
    """Lanes looked at in vain before a running request is waited for."""
    failures_max: int = 3
    """Failures in a row after which a peer is given up."""
    rejected_max: int = 16
    """Invalid messages a peer may send; one more and it is given up (21-27)."""
    backoff_s: float = 0.2
    """Pause after the first failure of a peer, seconds; doubled with each further one."""
    backoff_max_s: float = 5.0
    """Longest such pause, seconds."""
    rounds_max: int = 4
    """Times the heads are listed at most."""
    skip_peers_min: int = 1
    """Peers that must have forgotten a hole before it is given up."""
    holes_listed: int = 1_000
    """Holes and skips named in the report."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for each in fields(self):
            if each.name != "transfer" and not getattr(self, each.name) > 0:
                raise SyncArgumentError(f"{each.name} must be positive", where="CatchUpConfig")
