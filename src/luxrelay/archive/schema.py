"""Every table of the archive: columns, types, meaning; DDL and Arrow from this one place.

``RAW`` is what the data source yields, ``CHECKED`` what `decode` makes of it on executors,
``TABLES`` are the Delta tables: ``SERVED`` (the table ``raw``), ``MESSAGES``, ``REJECTS`` and
``PASSED`` are written batch by batch, ``DERIVED`` are made from them. All times are Unix
milliseconds in UTC.

Columns may be added to a table and none may change its meaning or go: an archive of an older
version gets new columns, null in its old rows, when it is next written to.

Source: LP-6421 §1.2, LP-6411 §1.1; decisions H17, J2, J8, J9, J11, P42.
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


def prune_key(value: bytes | None) -> int | None:
    """Return the first 8 bytes as a signed integer: files keep bounds of integers, not of bytes."""
    return None if value is None else int.from_bytes(value[:8], "big", signed=True)


class ColumnKind(Enum):
    """A column type, as its Spark DDL name and its Arrow type."""

    STRING = ("STRING", pa.string())
    BINARY = ("BINARY", pa.binary())
    INT = ("INT", pa.int32())
    LONG = ("BIGINT", pa.int64())
    U64 = ("DECIMAL(20,0)", pa.decimal128(20, 0))
    DATE = ("DATE", pa.date32())
    FLAG = ("BOOLEAN", pa.bool_())
    REAL = ("DOUBLE", pa.float64())
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
    kind: ColumnKind
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
    key: tuple[str, ...] = ()
    """Columns that name a row: one that comes again is known by them."""
    cluster_by: tuple[str, ...] = ()
    """Columns along which `compact` lays the rows of a partition, so that files can be skipped."""
    bounds: tuple[str, ...] = ()
    """Columns whose bounds stand in the log, so that files can be skipped; all when empty. Bounds
    of every column are a third of what writing a wide row costs."""

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
        Column("relay", ColumnKind.STRING, "address of the relay, host:port"),
        Column("namespace", ColumnKind.BINARY, "namespace that was asked for, 20 bytes"),
        Column("seq", ColumnKind.LONG, "sequence number by the header, or where reading stopped"),
        Column(
            "header", ColumnKind.BINARY, "header bytes as served; null when the relay was unread"
        ),
        Column("blob", ColumnKind.BINARY, "payload as served; null when the relay has none"),
        Column("received_at", ColumnKind.LONG, "when the relay received it, ms"),
        Column("expires_at", ColumnKind.LONG, "when the relay will forget it, ms"),
        Column(
            "finality",
            ColumnKind.INT,
            "finality state that the relay claims, unsigned; 0 is pending",
        ),
        Column("parent", ColumnKind.BINARY, "namespace that it is a lane of, or its own, 20 bytes"),
        Column(
            "sidecar", ColumnKind.BINARY, "TFHE sidecar as served; null when the relay has none"
        ),
    ),
)

_HEADER_COLUMNS: Final = (
    Column("date", ColumnKind.DATE, "UTC day of the header timestamp", required=True),
    Column("namespace_id", ColumnKind.BINARY, "namespace, 20 bytes", required=True),
    Column("seq", ColumnKind.LONG, "sequence number in the namespace, from 1", required=True),
    Column("timestamp", ColumnKind.LONG, "sender clock when it was signed, ms", required=True),
    Column("version", ColumnKind.INT, "header version", required=True),
    Column("flags", ColumnKind.INT, "flag bits of LP-6411 section 1.4", required=True),
    Column(
        "blob_commitment", ColumnKind.BINARY, "SHA3-256 of the payload, 32 bytes", required=True
    ),
    Column("blob_len", ColumnKind.LONG, "payload length, bytes", required=True),
    Column(
        "policy_hash", ColumnKind.BINARY, "hash of the policy in force, 32 bytes", required=True
    ),
    Column("sender_pub_key", ColumnKind.BINARY, "scheme byte and public key", required=True),
    Column("signature", ColumnKind.BINARY, "signature over header_hash", required=True),
    Column("fee_proof", ColumnKind.BINARY, "fee kind byte and its data", required=True),
    Column("sidecar_commitment", ColumnKind.BINARY, "SHA3-256 of the TFHE sidecar, or null"),
    Column("sidecar_epoch", ColumnKind.U64, "epoch of the TFHE keys, or null"),
    Column("sender_address", ColumnKind.BINARY, "address derived from the key, 20 bytes, or null"),
    Column("header", ColumnKind.BINARY, "header bytes as they arrived", required=True),
    Column("header_hash", ColumnKind.BINARY, "SHA3-256 of the signed 106 bytes", required=True),
    Column("digest", ColumnKind.BINARY, "SHA3-256 of all header bytes", required=True),
    Column(
        "message_id", ColumnKind.BINARY, "SHA3-256 of namespace and seq: the slot", required=True
    ),
    Column("content_id", ColumnKind.BINARY, "SHA3-256 of header_hash and key", required=True),
    Column(
        "blob", ColumnKind.BINARY, "payload; null when no relay had it, empty when there is none"
    ),
    Column("received_at", ColumnKind.LONG, "when the first relay received it, ms", required=True),
    Column("expires_at", ColumnKind.LONG, "when the last relay forgets it, ms", required=True),
    Column(
        "finality",
        ColumnKind.INT,
        "0 pending, 2 preconfirmed, 3 finalized, 4 rejected, 5 reorged; by statements alone",
    ),
    Column(
        "parent_id", ColumnKind.BINARY, "namespace it is a lane of, its own, or null when unsaid"
    ),
    Column("namespace_key", ColumnKind.LONG, "first 8 bytes of namespace_id as a signed integer"),
    Column("sender_key", ColumnKind.LONG, "first 8 bytes of sender_address as a signed integer"),
    Column(
        "verdict", ColumnKind.INT, "0 accepted under its policy, 1214 when the policy is unknown"
    ),
    Column("policy_version", ColumnKind.INT, "version of the policy it binds to, or null"),
    Column("retention", ColumnKind.INT, "1 standard, 2 archive, 3 permanent, null when unknown"),
    Column(
        "sidecar", ColumnKind.BINARY, "TFHE sidecar; null when there is none or no relay had it"
    ),
)

CHECKED: Final = Table(
    "checked",
    "One raw row with its verdict and, when it is good, its fields.",
    (
        Column("relay", ColumnKind.STRING, "address of the relay, host:port"),
        Column("code", ColumnKind.INT, "0, or why the row is no message"),
        Column("reason", ColumnKind.STRING, "the verdict in words, empty when good"),
        Column("served_seq", ColumnKind.LONG, "sequence number by the bytes of the header"),
        *_HEADER_COLUMNS,
    ),
)

SERVED: Final = Table(
    "raw",
    "One message as one relay served it, good or bad; the payload stands in messages or rejects.",
    (
        Column("date", ColumnKind.DATE, "UTC day on which it was read", required=True),
        Column("relay", ColumnKind.STRING, "address of the relay, host:port", required=True),
        Column("namespace", ColumnKind.BINARY, "namespace that was asked for, 20 bytes"),
        Column("seq", ColumnKind.LONG, "sequence number by the header"),
        Column("code", ColumnKind.INT, "0, or the code of the verdict", required=True),
        Column("digest", ColumnKind.BINARY, "SHA3-256 of the header bytes", required=True),
        Column("header", ColumnKind.BINARY, "header bytes as served", required=True),
        Column("blob_bytes", ColumnKind.LONG, "bytes of the payload as served, null for none"),
        Column("received_at", ColumnKind.LONG, "when the relay received it, ms"),
        Column("expires_at", ColumnKind.LONG, "when the relay will forget it, ms"),
        Column("finality", ColumnKind.INT, "finality state that the relay claimed, unsigned"),
        Column("ingested_at", ColumnKind.LONG, "when its batch was written, ms", required=True),
    ),
    partition_by=("date",),
    key=("relay", "namespace", "seq", "digest", "code"),
    bounds=("seq", "code", "received_at", "ingested_at"),
)

MESSAGES: Final = Table(
    "messages",
    "One message: a slot and a content id, verified, whichever relays served it.",
    (
        *_HEADER_COLUMNS,
        Column("latency_ms", ColumnKind.LONG, "received_at minus timestamp, ms", required=True),
        Column("copies", ColumnKind.INT, "number of relays that served it", required=True),
        Column("relays", ColumnKind.NAMES, "the relays that served it, sorted", required=True),
        Column("ingested_at", ColumnKind.LONG, "when its batch was written, ms", required=True),
    ),
    partition_by=("date",),
    key=("content_id",),
    cluster_by=("namespace_key", "seq"),
    bounds=(
        "seq",
        "timestamp",
        "received_at",
        "finality",
        "namespace_key",
        "sender_key",
        "retention",
        "ingested_at",
    ),
)

REJECTS: Final = Table(
    "rejects",
    "One row that a relay served and that is no message, as it arrived.",
    (
        Column("relay", ColumnKind.STRING, "address of the relay, host:port", required=True),
        Column("namespace", ColumnKind.BINARY, "namespace that was asked for, 20 bytes"),
        Column("code", ColumnKind.INT, "code of the verdict", required=True),
        Column("reason", ColumnKind.STRING, "the verdict in words", required=True),
        Column("digest", ColumnKind.BINARY, "SHA3-256 of the header bytes", required=True),
        Column("header", ColumnKind.BINARY, "header bytes as served", required=True),
        Column("blob", ColumnKind.BINARY, "payload as served, or null"),
        Column("received_at", ColumnKind.LONG, "when the relay received it, ms"),
        Column("ingested_at", ColumnKind.LONG, "when its batch was written, ms", required=True),
    ),
    key=("relay", "namespace", "digest", "code"),
)

PASSED: Final = Table(
    "passed",
    "A range of sequences that were read and are not archived, because their class is Ephemeral.",
    (
        Column("namespace_id", ColumnKind.BINARY, "namespace, 20 bytes", required=True),
        Column("first", ColumnKind.LONG, "lowest sequence", required=True),
        Column("last", ColumnKind.LONG, "highest sequence", required=True),
        Column("ingested_at", ColumnKind.LONG, "when its batch was written, ms", required=True),
    ),
    key=("namespace_id", "first", "last"),
)

CONTENTION: Final = Table(
    "contention",
    "One of several messages of a slot (H17).",
    (
        Column("namespace_id", ColumnKind.BINARY, "namespace, 20 bytes", required=True),
        Column("seq", ColumnKind.LONG, "the contested sequence number", required=True),
        Column("content_id", ColumnKind.BINARY, "which message, as in messages", required=True),
        Column("header_hash", ColumnKind.BINARY, "SHA3-256 of the signed 106 bytes", required=True),
        Column("sender_pub_key", ColumnKind.BINARY, "scheme byte and public key", required=True),
        Column("timestamp", ColumnKind.LONG, "sender clock when it was signed, ms", required=True),
        Column("contents", ColumnKind.INT, "how many messages contest the slot", required=True),
        Column("equivocates", ColumnKind.FLAG, "its sender signed another one for the slot"),
        Column("kept", ColumnKind.FLAG, "a relay that saw all of them keeps this one (J11, P40)"),
    ),
    key=("namespace_id", "seq", "content_id"),
)

GAPS: Final = Table(
    "gaps",
    "A range of sequences that were read or passed and that messages does not hold, or did not.",
    (
        Column("namespace_id", ColumnKind.BINARY, "namespace, 20 bytes", required=True),
        Column("first", ColumnKind.LONG, "lowest missing sequence", required=True),
        Column("last", ColumnKind.LONG, "highest missing sequence", required=True),
        Column("seen_at", ColumnKind.LONG, "when it was first found, ms", required=True),
        Column("filled_at", ColumnKind.LONG, "when it was found filled, ms; null while it is open"),
    ),
    key=("namespace_id", "first", "last", "seen_at"),
)

NAMESPACES: Final = Table(
    "namespaces",
    "One namespace on one day.",
    (
        Column("date", ColumnKind.DATE, "UTC day of the header timestamps", required=True),
        Column("namespace_id", ColumnKind.BINARY, "namespace, 20 bytes", required=True),
        Column("messages", ColumnKind.LONG, "messages", required=True),
        Column("slots", ColumnKind.LONG, "distinct sequence numbers", required=True),
        Column("senders", ColumnKind.LONG, "distinct keys", required=True),
        Column("first_seq", ColumnKind.LONG, "lowest sequence number", required=True),
        Column("last_seq", ColumnKind.LONG, "highest sequence number", required=True),
        Column(
            "blob_bytes", ColumnKind.LONG, "bytes of the payloads, by the headers", required=True
        ),
        Column("copies", ColumnKind.LONG, "copies that relays served", required=True),
    ),
    partition_by=("date",),
    key=("date", "namespace_id"),
)

SENDERS: Final = Table(
    "senders",
    "One key on one day.",
    (
        Column("date", ColumnKind.DATE, "UTC day of the header timestamps", required=True),
        Column("sender_pub_key", ColumnKind.BINARY, "scheme byte and public key", required=True),
        Column("sender_address", ColumnKind.BINARY, "address derived from the key, or null"),
        Column("messages", ColumnKind.LONG, "messages", required=True),
        Column("namespaces", ColumnKind.LONG, "distinct namespaces", required=True),
        Column(
            "blob_bytes", ColumnKind.LONG, "bytes of the payloads, by the headers", required=True
        ),
        Column("first_at", ColumnKind.LONG, "lowest header timestamp, ms", required=True),
        Column("last_at", ColumnKind.LONG, "highest header timestamp, ms", required=True),
    ),
    partition_by=("date",),
    key=("date", "sender_pub_key"),
)

MINUTES: Final = Table(
    "minutes",
    "One minute in which relays received something.",
    (
        Column("date", ColumnKind.DATE, "UTC day of the minute", required=True),
        Column("minute", ColumnKind.LONG, "begin of the minute by the clock of relays, ms"),
        Column("messages", ColumnKind.LONG, "messages first received in it", required=True),
        Column("copies", ColumnKind.LONG, "copies of them that relays served", required=True),
        Column("rejected", ColumnKind.LONG, "rejected rows received in it", required=True),
        Column(
            "blob_bytes", ColumnKind.LONG, "bytes of the payloads, by the headers", required=True
        ),
        Column("latency_p50_ms", ColumnKind.LONG, "median of latency_ms, null without messages"),
        Column("latency_p95_ms", ColumnKind.LONG, "95th percentile of latency_ms"),
        Column("latency_p99_ms", ColumnKind.LONG, "99th percentile of latency_ms"),
        Column("latency_max_ms", ColumnKind.LONG, "greatest latency_ms"),
        Column("duplicate_ratio", ColumnKind.REAL, "copies beyond the first, of all good copies"),
        Column("invalid_ratio", ColumnKind.REAL, "rejected rows, of all rows"),
    ),
    partition_by=("date",),
    key=("date", "minute"),
)

ROOTS: Final = Table(
    "roots",
    "The Merkle root over one namespace on one day, by which rows are proven.",
    (
        Column("date", ColumnKind.DATE, "UTC day of the header timestamps", required=True),
        Column("namespace_id", ColumnKind.BINARY, "namespace, 20 bytes", required=True),
        Column(
            "messages", ColumnKind.LONG, "leaves: content ids by seq and content id", required=True
        ),
        Column("root", ColumnKind.BINARY, "32 bytes, see luxrelay.archive.proofs", required=True),
    ),
    partition_by=("date",),
    key=("date", "namespace_id"),
)

ERASED: Final = "erased"
"""``retired.cause`` of a namespace that was deleted by law and is never archived again."""

RETIRED: Final = Table(
    "retired",
    "How far a namespace has been deleted on purpose; what is missing below is no gap.",
    (
        Column("namespace_id", ColumnKind.BINARY, "namespace, 20 bytes", required=True),
        Column("up_to", ColumnKind.LONG, "highest sequence that was deleted", required=True),
        Column("retired_at", ColumnKind.LONG, "when, ms", required=True),
        Column(
            "cause", ColumnKind.STRING, "retention, or erased for a legal deletion", required=True
        ),
    ),
    key=("namespace_id",),
)

WRITTEN: Final = (SERVED, MESSAGES, REJECTS, PASSED)
"""Tables that micro-batches are written to."""
DERIVED: Final = (CONTENTION, GAPS, NAMESPACES, SENDERS, MINUTES, ROOTS)
"""Tables that are made from those."""
TABLES: Final = (*WRITTEN, *DERIVED, RETIRED)
"""The Delta tables of an archive folder."""
