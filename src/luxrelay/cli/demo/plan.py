"""The plan of the demonstration: relays, messages, faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from luxrelay.sim import ChatMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done."""

    messages: Sequence[ChatMessage]
    """What is said, in order."""
    relays: int
    """How many relays, from 2 when one is to be stopped."""
    corrupt: int
    """Broken messages the rogue sends."""
    rate: int
    """Messages a second; 0 for as fast as receipts come."""
    seed: int
    """Seed of keys and workload."""
    folder: Path
    """Where the relays live."""
