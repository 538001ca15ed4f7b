"""Every table of the archive: columns, types, meaning; DDL and Arrow from this one place.

``RAW`` is what the data source yields, ``CHECKED`` what `decode` makes of it on executors,
``MESSAGES`` and ``REJECTS`` are the Delta tables. All times are Unix milliseconds in UTC.

Source: LP-6421 §1.2, LP-6411 §1.1; decisions J2, J8, J11, P42.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import pyarrow as pa

CODE_UNREAD: Final = -1
"""``CHECKED.code`` of a row that stands for a relay that could not be read, not for a message."""
MS_PER_DAY: Final = 86_400_000
MAX_I64: Final = 2**63 - 1
"""A BIGINT ends here; sequence numbers of the wire are u64."""
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, where the DATE type ends."""


class Kind(Enum):
    """A column type, as its Spark DDL name and its Arrow type."""

    STRING = ("STRING", pa.string())
    BINARY = ("BINARY", pa.binary())
    INT = ("INT", pa.int32())
    LONG = ("BIGINT", pa.int64())
    U64 = ("DECIMAL(20,0)", pa.decimal128(20, 0))
    DATE = ("DATE", pa.date32())
    NAMES = ("ARRAY<STRING>", pa.list_(pa.string()))

    @property
    def ddl(self) -> str:
        """The type's name in Spark SQL."""
        return str(self.value[0])

    @property
    def arrow(self) -> pa.DataType:
        """The type in Arrow."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    """Name in SQL."""
    kind: Kind
    """Type."""
    meaning: str
    """What it holds, with unit; becomes the column's comment."""
    required: bool = False
    """True when it is never null."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table or the shape of a stream."""

    name: str
    """Folder name below the archive folder, for tables."""
    meaning: str
    """What one row is."""
    columns: tuple[Column, ...]
    """In order."""
    partition_by: tuple[str, ...] = ()
    """Columns that become folders."""

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)

    def ddl(self) -> str:
        """Return the columns as Spark DDL, with comments."""
        return ", ".join(
            f"{column.name} {column.kind.ddl}{' NOT NULL' if column.required else ''}"
            f" COMMENT '{column.meaning}'"
            for column in self.columns
        )

    def plain_ddl(self) -> str:
        """Return the columns as Spark DDL without comments and all nullable, for frames."""
        return ", ".join(f"{column.name} {column.kind.ddl}" for column in self.columns)

    def arrow(self) -> pa.Schema:
        """Return the columns as an Arrow schema, all nullable."""
        return pa.schema([pa.field(column.name, column.kind.arrow) for column in self.columns])


RAW: Final = Table(
    "raw",
    "One message as one relay served it.",
    (
        Column("relay", Kind.STRING, "address of the relay, host:port"),
        Column("namespace", Kind.BINARY, "namespace that was asked for, 20 bytes"),
        Column("seq", Kind.LONG, "sequence number by the header, or where reading stopped"),
        Column("header", Kind.BINARY, "header bytes as served; null when the relay was unread"),
        Column("blob", Kind.BINARY, "payload as served; null when the relay has none"),
        Column("received_at", Kind.LONG, "when the relay received it, ms"),
        Column("expires_at", Kind.LONG, "when the relay will forget it, ms"),
    ),
)

_HEADER_COLUMNS: Final = (
    Column("date", Kind.DATE, "UTC day of the header timestamp", required=True),
    Column("namespace_id", Kind.BINARY, "namespace, 20 bytes", required=True),
    Column("seq", Kind.LONG, "sequence number in the namespace, from 1", required=True),
    Column("timestamp", Kind.LONG, "sender clock when it was signed, ms", required=True),
    Column("version", Kind.INT, "header version", required=True),
    Column("flags", Kind.INT, "flag bits of LP-6411 section 1.4", required=True),
    Column("blob_commitment", Kind.BINARY, "SHA3-256 of the payload, 32 bytes", required=True),
    Column("blob_len", Kind.LONG, "payload length, bytes", required=True),
    Column("policy_hash", Kind.BINARY, "hash of the policy in force, 32 bytes", required=True),
    Column("sender_pub_key", Kind.BINARY, "scheme byte and public key", required=True),
    Column("signature", Kind.BINARY, "signature over header_hash", required=True),
    Column("fee_proof", Kind.BINARY, "fee kind byte and its data", required=True),
    Column("sidecar_commitment", Kind.BINARY, "SHA3-256 of the TFHE sidecar, or null"),
    Column("sidecar_epoch", Kind.U64, "epoch of the TFHE keys, or null"),
    Column("sender_address", Kind.BINARY, "address derived from the key, 20 bytes, or null"),
    Column("header", Kind.BINARY, "header bytes as they arrived", required=True),
    Column("header_hash", Kind.BINARY, "SHA3-256 of the signed 106 bytes", required=True),
    Column("digest", Kind.BINARY, "SHA3-256 of all header bytes", required=True),
    Column("message_id", Kind.BINARY, "SHA3-256 of namespace and seq: the slot", required=True),
    Column("content_id", Kind.BINARY, "SHA3-256 of header_hash and key", required=True),
    Column("blob", Kind.BINARY, "payload; null when no relay had it, empty when there is none"),
    Column("received_at", Kind.LONG, "when the first relay received it, ms", required=True),
    Column("expires_at", Kind.LONG, "when the last relay forgets it, ms", required=True),
)

CHECKED: Final = Table(
    "checked",
    "One raw row with its verdict and, when it is good, its fields.",
    (
        Column("relay", Kind.STRING, "address of the relay, host:port"),
        Column("code", Kind.INT, "0, or why the row is no message"),
        Column("reason", Kind.STRING, "the verdict in words, empty when good"),
        *_HEADER_COLUMNS,
    ),
)

MESSAGES: Final = Table(
    "messages",
    "One message: a slot and a content id, verified, whichever relays served it.",
    (
        *_HEADER_COLUMNS,
        Column("latency_ms", Kind.LONG, "received_at minus timestamp, ms", required=True),
        Column("copies", Kind.INT, "number of relays that served it", required=True),
        Column("relays", Kind.NAMES, "the relays that served it, sorted", required=True),
        Column("ingested_at", Kind.LONG, "when its batch was written, ms", required=True),
    ),
    partition_by=("date",),
)

REJECTS: Final = Table(
    "rejects",
    "One row that a relay served and that is no message, as it arrived.",
    (
        Column("relay", Kind.STRING, "address of the relay, host:port", required=True),
        Column("namespace", Kind.BINARY, "namespace that was asked for, 20 bytes"),
        Column("code", Kind.INT, "code of the verdict", required=True),
        Column("reason", Kind.STRING, "the verdict in words", required=True),
        Column("digest", Kind.BINARY, "SHA3-256 of the header bytes", required=True),
        Column("header", Kind.BINARY, "header bytes as served", required=True),
        Column("blob", Kind.BINARY, "payload as served, or null"),
        Column("received_at", Kind.LONG, "when the relay received it, ms"),
        Column("ingested_at", Kind.LONG, "when its batch was written, ms", required=True),
    ),
)

TABLES: Final = (MESSAGES, REJECTS)
"""The Delta tables of an archive folder."""
