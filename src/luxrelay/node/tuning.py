"""Numbers of the router that a file may change, and where its peers are.

Every number has a default that fits; who changes some gets the whole set checked before anything
starts.

Source: LP-6420 §4.1, §5, §6.1; decisions G13, G18, G21; 20-13, 20-31.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from luxrelay.errors import ConfigError, GossipArgumentError
from luxrelay.files import read_bounded
from luxrelay.gossip import GossipParams, PeerLocation, PlaceTable, ScoreParams

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PLACES_MAX: Final = 1_000_000
"""Networks in a file of places."""
PLACES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest file of places that is read."""
_ELSEWHERE: Final = frozenset(
    {
        "heartbeat_interval_s",
        "peers_max",
        "pending_max",
        "peer_exchange",
        "exempt_loopback",
        "light",
    }
)
"""Numbers of the router that have keys of their own."""
_P = TypeVar("_P", bound="DataclassInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a file changes of the router; nothing by default."""

    mesh: tuple[str, ...] = ()
    """Of `GossipParams`, each ``name=value``."""
    scores: tuple[str, ...] = ()
    """Of `ScoreParams`, each ``name=value`` or ``topic.name=value``."""
    places: Path | None = None
    """File of networks, for autonomous systems and regions."""
    system_peers_max: int = 8
    """Peers of one autonomous system."""
    regions_min: int = 0
    """Regions that peers should be of."""
    outbound_distinct_min: int = 4
    """Networks that outbound peers should be of."""


def tuned_mesh(base: GossipParams, changes: Sequence[str]) -> GossipParams:
    """Return the router's numbers with the changes of a file (20-13).

    Raises:
        GossipArgumentError: a change names nothing that may be changed, or the set does not fit.

    """
    return _tuned(base, changes, "mesh", without=_ELSEWHERE)


def tuned_scores(changes: Sequence[str]) -> ScoreParams:
    """Return the scores' numbers with the changes of a file (G18).

    Raises:
        GossipArgumentError: a change names nothing that may be changed, or the set does not fit.

    """
    return _tuned(ScoreParams(), changes, "scores", without=frozenset())


def _tuned(base: _P, changes: Sequence[str], where: str, *, without: frozenset[str]) -> _P:
    """Return ``base`` with every change at once, because single ones may not fit."""
    values: dict[str, Any] = {}
    inner: dict[str, list[str]] = {}
    for change in changes:
        name, _, text = change.partition("=")
        group, dot, rest = name.partition(".")
        now = getattr(base, group, None) if _is_field(base, group) else None
        if dot and is_dataclass(now):
            inner.setdefault(group, []).append(f"{rest}={text}")
        elif not dot and name not in without and isinstance(now, int | float):
            values[name] = _value(now, change, text, where)
        else:
            raise GossipArgumentError(f"{name!r} is no number that can be changed", where=where)
    for group, parts in inner.items():
        values[group] = _tuned(getattr(base, group), parts, where, without=frozenset())
    return replace(base, **values)


def _is_field(base: DataclassInstance, name: str) -> bool:
    return any(field.name == name for field in fields(base))


def _value(now: object, change: str, text: str, where: str) -> float | bool:
    """Return a value of the kind that is there now."""
    found: float | bool | None
    if isinstance(now, bool):
        found = {"true": True, "false": False}.get(text)
    else:
        try:
            found = int(text) if isinstance(now, int) else float(text)
        except ValueError:
            found = None
    if found is None:
        kind = type(now).__name__
        raise GossipArgumentError(f"{change!r} does not end in a value of kind {kind}", where=where)
    return found


def read_places(path: Path) -> PlaceTable:
    """Return the places of a file: a network, the number of its autonomous system, its region.

    One network a line, the three separated by commas; ``0`` and nothing stand for what is not
    known, and ``#`` begins a remark. As many databases of networks can be written out (20-31).

    Raises:
        ConfigError: the file cannot be read, or a line of it; says which.

    """
    try:
        text = read_bounded(path, PLACES_BYTES_MAX).decode()
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ConfigError(
                f"a file of more than {PLACES_BYTES_MAX:,} bytes", where=str(path)
            ) from error
        raise ConfigError(f"places cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"places cannot be read: {error}", where=str(path)) from error
    lines = ((n, line.partition("#")[0].strip()) for n, line in enumerate(text.splitlines(), 1))
    return _table(((number, line) for number, line in lines if line), path)


def _table(lines: Iterable[tuple[int, str]], path: Path) -> PlaceTable:
    entries: list[tuple[str, PeerLocation]] = []
    for number, line in lines:
        network, asn, region = (part.strip() for part in (line + ",,").split(",")[:3])
        digits = asn.upper().removeprefix("AS") or "0"
        if not digits.isdecimal() or len(entries) >= PLACES_MAX:
            raise ConfigError(
                f"{line[:80]!r} is no place",
                where=f"{path}:{number}",
                hint="write 192.0.2.0/24,64500,EU",
            )
        entries.append((network, PeerLocation(asn=int(digits), region=region)))
    try:
        return PlaceTable(entries)
    except GossipArgumentError as error:
        raise ConfigError(error.what, where=str(path), hint="write 192.0.2.0/24,64500,EU") from None
