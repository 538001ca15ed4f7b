"""The options of the data source ``luxrelay``: names, defaults, bounds. Pure.

Spark hands options over as text with lower-case keys; `SourceOptions.parse` makes one checked
value of them, so that every mistake is found before a relay is asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal

from luxrelay.archive.offsets import Offsets, parse_offsets
from luxrelay.bus import constants as c
from luxrelay.errors import ArchiveArgumentError
from luxrelay.text import parse_json
from luxrelay.wire import from_hex

RELAYS_MAX: Final = 64
NAMESPACES_MAX: Final = 10_000
"""Namespaces that may be named one by one; ``all`` has no such bound."""
PARTITIONS_MAX: Final = 1_024
PATH_CHARS_MAX: Final = 4_096
PATIENCE_MAX_MS: Final = 86_400_000
ROWS_MAX: Final = 10_000_000
"""Upper bound of maxRowsPerTrigger, rows."""

_ADDRESS: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:,/]+):[0-9]{1,5}")

ReadMode = Literal["all", "any"]
HeadMode = Literal["contiguous", "latest"]
Delivery = Literal["rows", "tasks"]
DELIVERIES: Final = ("rows", "tasks")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What to read, from whom, and how much at a time."""

    relays: tuple[str, ...]
    """``relays``: addresses host:port of RelaySync services, comma-separated, 64 at most."""
    namespaces: tuple[bytes, ...] = ()
    """``namespaces``: ids as 40 hex digits, comma-separated; empty (``all``) reads everything."""
    parent: bytes | None = None
    """``namespaces`` as ``parent:<hex>``: this namespace and its lanes (J6)."""
    starting: Literal["earliest", "latest"] | Offsets = "earliest"
    """``startingOffsets``: earliest, latest or JSON ``{namespace hex: last sequence read}``."""
    rows_max: int = 200_000
    """``maxRowsPerTrigger``: rows of one micro-batch, all relays together; 1 to 10,000,000."""
    read_mode: ReadMode = "all"
    """``readMode``: ``all`` reads each relay, so that copies are counted; ``any`` reads one relay
    a range and the next one when it fails."""
    heads: HeadMode = "contiguous"
    """``heads``: read up to the first hole (``contiguous``), or to the newest message
    (``latest``), which gives up on what arrives late."""
    hole_patience_ms: int = 60_000
    """``holePatienceMs``: with contiguous heads, go on past a hole when a message beyond it has
    been at a relay for this long, 1 ms to a day (H16)."""
    fail_on_data_loss: bool = True
    """``failOnDataLoss``: stop when every relay has forgotten what was not read yet."""
    partitions: int = 2
    """``numPartitions``: parallel tasks of one read, 1 to 1,024."""
    tls_ca: str = ""
    """``tlsCa``: a PEM file with the authority of the relays; TLS is spoken when any of the three
    is given. The files are read where tasks run."""
    tls_certificate: str = ""
    """``tlsCertificate``: a PEM file with our own certificate, for mutual TLS."""
    tls_key: str = ""
    """``tlsKey``: a PEM file with its key, without a passphrase."""
    fault_rows: bool = False
    """``faultRows``: also yield a row with a null header for each relay that was not read."""
    deliver: Delivery = "rows"
    """``deliver``: ``rows``, or ``tasks`` for `ingest`: a row a task, which says what to read
    (`task_source`)."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Return the checked options.

        Raises:
            ArchiveArgumentError: an option is unknown, missing or out of range.

        """
        given = {key.lower(): value for key, value in options.items()}
        unknown = sorted(set(given) - set(_PARSERS))
        if unknown:
            known = ", ".join(sorted(option for option, _ in _PARSERS.values()))
            raise ArchiveArgumentError(
                f"unknown option {unknown[0]!r}", where="source luxrelay", hint=f"known: {known}"
            )
        if "relays" not in given:
            raise ArchiveArgumentError("option relays is missing", where="source luxrelay")
        values: dict[str, object] = {}
        for key, value in given.items():
            option, parser = _PARSERS[key]
            values.update(parser(option, value))
        known_fields = {entry.name for entry in fields(cls)}
        assert set(values) <= known_fields
        return cls(**values)  # type: ignore[arg-type]  # each parser returns its own fields


@dataclass(frozen=True, slots=True)
class _Choice:
    name: str
    allowed: tuple[str, ...]

    def __call__(self, option: str, value: str) -> dict[str, object]:
        if value not in self.allowed:
            raise _wrong(option, value, " or ".join(self.allowed))
        return {self.name: value}


@dataclass(frozen=True, slots=True)
class _Number:
    name: str
    maximum: int

    def __call__(self, option: str, value: str) -> dict[str, object]:
        number = int(value) if re.fullmatch(r"[0-9]{1,12}", value) else 0
        if not 1 <= number <= self.maximum:
            raise _wrong(option, value, f"a number from 1 to {self.maximum}")
        return {self.name: number}


@dataclass(frozen=True, slots=True)
class _Flag:
    name: str
    words: Mapping[str, bool] = field(default_factory=lambda: {"true": True, "false": False})

    def __call__(self, option: str, value: str) -> dict[str, object]:
        if value.lower() not in self.words:
            raise _wrong(option, value, "true or false")
        return {self.name: self.words[value.lower()]}


@dataclass(frozen=True, slots=True)
class _PathText:
    name: str

    def __call__(self, option: str, value: str) -> dict[str, object]:
        if not value or "\0" in value or len(value) > PATH_CHARS_MAX:
            raise _wrong(option, value, "the path of a file")
        return {self.name: value}


def _relays(option: str, value: str) -> dict[str, object]:
    relays = tuple(part.strip() for part in value.split(",") if part.strip())
    if not 1 <= len(relays) <= RELAYS_MAX:
        raise _wrong(option, value, f"1 to {RELAYS_MAX} addresses")
    if len(set(relays)) != len(relays):
        raise _wrong(option, value, "each address once")
    for relay in relays:
        if not _ADDRESS.fullmatch(relay) or not 1 <= int(relay.rpartition(":")[2]) <= 65_535:
            raise _wrong(option, relay, "host:port")
    return {"relays": relays}


def _namespace(option: str, text: str) -> bytes:
    try:
        return from_hex(text.strip(), c.NAMESPACE_BYTES)
    except ValueError:
        raise _wrong(option, text, "40 hex digits") from None


def _namespaces(option: str, value: str) -> dict[str, object]:
    if value.strip() == "all":
        return {}
    if value.startswith("parent:"):
        return {"parent": _namespace(option, value.removeprefix("parent:"))}
    names = tuple(dict.fromkeys(_namespace(option, part) for part in value.split(",")))
    if len(names) > NAMESPACES_MAX:
        raise _wrong(option, f"{len(names)} ids", f"{NAMESPACES_MAX} ids at most, or all")
    return {"namespaces": names}


def _starting(option: str, value: str) -> dict[str, object]:
    if value in {"earliest", "latest"}:
        return {"starting": value}
    try:
        parsed = parse_json(value)
    except ValueError:
        raise _wrong(option, value, "earliest, latest or a JSON object") from None
    return {"starting": parse_offsets(parsed)}


def _wrong(option: str, value: str, expected: str) -> ArchiveArgumentError:
    return ArchiveArgumentError(
        f"{option}={value[:80]!r} cannot be used", where="source luxrelay", hint=f"give {expected}"
    )


_TABLE: Final = (
    ("relays", _relays),
    ("namespaces", _namespaces),
    ("startingOffsets", _starting),
    ("maxRowsPerTrigger", _Number("rows_max", ROWS_MAX)),
    ("readMode", _Choice("read_mode", ("all", "any"))),
    ("heads", _Choice("heads", ("contiguous", "latest"))),
    ("holePatienceMs", _Number("hole_patience_ms", PATIENCE_MAX_MS)),
    ("failOnDataLoss", _Flag("fail_on_data_loss")),
    ("numPartitions", _Number("partitions", PARTITIONS_MAX)),
    ("tlsCa", _PathText("tls_ca")),
    ("tlsCertificate", _PathText("tls_certificate")),
    ("tlsKey", _PathText("tls_key")),
    ("faultRows", _Flag("fault_rows")),
    ("deliver", _Choice("deliver", DELIVERIES)),
)
_PARSERS: Final = {option.lower(): (option, parser) for option, parser in _TABLE}
