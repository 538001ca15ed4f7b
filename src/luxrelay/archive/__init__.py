"""How messages stay: a Spark pipeline from relays to Delta tables, its audit and its report.

Names load on first use, so that importing this room needs neither Spark nor Java.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from luxrelay.archive.completeness import audit
    from luxrelay.archive.pipeline import ingest
    from luxrelay.archive.recovery import restore
    from luxrelay.archive.reporting import report
    from luxrelay.archive.session import ArchiveSession, register_source
    from luxrelay.archive.upkeep import compact, retain

__all__ = [
    "ArchiveSession",
    "audit",
    "compact",
    "ingest",
    "register_source",
    "report",
    "restore",
    "retain",
]

_HOMES = {
    "ArchiveSession": "session",
    "audit": "completeness",
    "compact": "upkeep",
    "ingest": "pipeline",
    "register_source": "session",
    "report": "reporting",
    "restore": "recovery",
    "retain": "upkeep",
}


def __getattr__(name: str) -> object:
    """Load the module of a public name when the name is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
