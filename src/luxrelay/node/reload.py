"""What of a changed configuration a running node takes over, and what needs a restart.

Source: LP-6490.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from luxrelay.node.config import NamespaceEntry, NodeConfig

RELOADABLE: Final = frozenset({"log_level", "log_levels", "limits"})
"""Fields of a configuration that a running node takes over, besides the policies of namespaces."""


@dataclass(frozen=True, slots=True)
class Changes:
    """How a new configuration differs from the one in force."""

    taken: tuple[str, ...]
    """Fields that are taken over now."""
    refused: tuple[str, ...]
    """Fields that need a restart; the old values stay in force."""


def changes_between(old: NodeConfig, new: NodeConfig) -> Changes:
    """Return what differs; namespaces may change their policies, not come or go."""
    differing = [
        field.name
        for field in fields(NodeConfig)
        if field.name != "namespaces" and getattr(old, field.name) != getattr(new, field.name)
    ]
    taken = [name for name in differing if name in RELOADABLE]
    refused = [name for name in differing if name not in RELOADABLE]
    if _names(old.namespaces) != _names(new.namespaces):
        refused.append("namespaces")
    elif _quotas(old.namespaces) != _quotas(new.namespaces):
        refused.append("quota_bytes")
    elif _ratios(old.namespaces) != _ratios(new.namespaces):
        refused.append("thin_ratio")
    if _names(old.namespaces) == _names(new.namespaces) and old.namespaces != new.namespaces:
        taken.append("policies")
    return Changes(tuple(taken), tuple(refused))


def _names(entries: tuple[NamespaceEntry, ...]) -> set[bytes]:
    return {bytes(entry.namespace_id) for entry in entries}


def _ratios(entries: tuple[NamespaceEntry, ...]) -> dict[bytes, int]:
    return {bytes(entry.namespace_id): entry.thin_ratio for entry in entries}


def _quotas(entries: tuple[NamespaceEntry, ...]) -> dict[bytes, int]:
    return {bytes(entry.namespace_id): entry.quota_bytes for entry in entries}
