"""Catches up from the configured relays, again and again: at the start, after an outage, for holes.

Runs in a worker thread; what it takes passes through the sync door like every other message.

Source: LP-6421 §2.3; P24, P25, P26.
"""

from __future__ import annotations

from typing import Final

_HEADS_AT_ONCE: Final = 1000
