"""How long a store lasts at a rate: the formula, and the warning when it does not last. Pure.

A message of ``b`` bytes (header and blob) costs ``b + INDEX_BYTES`` logical bytes and stays for the
shorter of TTL and retention window, so a rate of ``r`` messages a second needs
``r × (b + INDEX_BYTES) × seconds``. A gibibyte of ten minutes takes about 2,200 messages a second
with Ed25519 headers and 200 bytes of payload.

Source: decisions P31.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from luxrelay.bus import NamespaceId
from luxrelay.store import layout
from luxrelay.store.config import RelayStoreConfig
from luxrelay.store.quota import QuotaBook


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRate:
    """What a namespace's policy allows to come in."""

    namespace_id: NamespaceId
    """The namespace; its lanes share the rate as they share the quota."""
    messages_per_s: int
    """Messages a second."""
    bytes_per_s: int
    """Header and blob bytes a second."""

    def needed_bytes(self, config: RelayStoreConfig) -> int:
        """Return the logical bytes that stand when the rate is used fully."""
        incoming = self.bytes_per_s + self.messages_per_s * layout.INDEX_BYTES
        return incoming * window_ms(config) // 1000


def window_ms(config: RelayStoreConfig) -> int:
    """Return how long a message stays when nothing presses, milliseconds (J2)."""
    return min(config.cold_store_ttl_ms, config.retention_window_ms)


def sustained_rate(config: RelayStoreConfig, message_bytes: int) -> float:
    """Return the messages a second that fit for the whole window.

    Args:
        config: The store's configuration.
        message_bytes: Header and blob bytes of one message.

    """
    stored = message_bytes + layout.INDEX_BYTES
    return config.max_storage_bytes / stored * 1000 / window_ms(config)


def capacity_warnings(config: RelayStoreConfig, rates: Iterable[DeclaredRate]) -> list[str]:
    """Return one line for each bound that the declared rates exceed; empty when all fit."""
    found: list[str] = []
    book = QuotaBook(config)
    total = 0
    for rate in rates:
        needed = rate.needed_bytes(config)
        total += needed
        quota = book.quota(rate.namespace_id)
        if needed > quota:
            found.append(
                f"namespace {rate.namespace_id.hex()} may bring {needed} bytes in "
                f"{window_ms(config)} ms, its quota is {quota}; its oldest messages go early"
            )
    if total > config.max_storage_bytes:
        found.append(
            f"all namespaces may bring {total} bytes in {window_ms(config)} ms, "
            f"max_storage_bytes is {config.max_storage_bytes}; the oldest messages go early"
        )
    return found
