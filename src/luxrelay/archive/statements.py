"""Finality of archived messages, from signed statements.

A message is archived as pending, whatever its relay claims of it: a claim is not signed, and
stands in ``raw`` alone. The statements that a node reads (`bus.finality`) are read here as well,
whole and in order, checked the same way, and joined to the table ``messages`` by namespace,
sequence and header hash.
A message that comes later gets its state with the run that brings it.

A statement that does not check is counted and changes nothing; the others hold.

Source: LP-6413; decisions J9, P40.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from luxrelay.archive.derived import read_table, refresh
from luxrelay.archive.folder import ArchiveFolder, open_folder, write_whole, writing
from luxrelay.archive.jvm_errors import failure
from luxrelay.archive.schema import MAX_I64, MESSAGES
from luxrelay.archive.session import ArchiveSession
from luxrelay.archive.tables import prepare_tables, target_name, version_of
from luxrelay.bus.finality import FinalityState, FinalityStatement, StatementOracle
from luxrelay.errors import ArchiveArgumentError, FinalityError
from luxrelay.wire import from_hex

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest file of statements that is read, bytes; a node reads as much."""
_ROWS_MAX: Final = FILE_BYTES_MAX // 122 + 1
"""More messages than such a file can name."""
_STATE: Final = "finality.json"
_SCHEMA: Final = pa.schema(
    [
        ("namespace_id", pa.binary()),
        ("seq", pa.int64()),
        ("header_hash", pa.binary()),
        ("state", pa.int32()),
    ]
)

Said = dict[tuple[bytes, int, bytes], FinalityState]
"""(namespace, sequence, header hash) → the state said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """A file of signed statements, one in hex a line, and whose count."""

    path: Path
    """The file."""
    network: str
    """The network they speak of."""
    signers: tuple[bytes, ...]
    """Key fields of those whose statements count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalityReport:
    """What the statements changed."""

    applied: int = 0
    """Statements that hold."""
    refused: int = 0
    """Statements that do not check."""
    messages: int = 0
    """Messages whose state is another one than before."""


def apply_finality(
    session: ArchiveSession, *, out: Path, statements: Statements, now_ms: int | None = None
) -> FinalityReport:
    """Give the archived messages the states that signed statements say; return what changed.

    Args:
        session: A running Spark.
        out: The archive folder.
        statements: The file, its network and its signers.
        now_ms: The time, Unix milliseconds; the clock's when not given.

    Raises:
        ArchiveArgumentError: the file cannot be read, or is too large.
        ArchiveError: ``archive.foreign``, ``archive.busy``, or ``archive.failed``.

    """
    from pyspark.errors import PySparkException  # noqa: PLC0415  # heavy; a session is here

    open_folder(out)
    with writing(out) as folder:
        prepare_tables(folder)
        try:
            done = settle_finality(session.spark, folder, statements)
            refresh(session.spark, folder, int(time.time() * 1000) if now_ms is None else now_ms)
        except PySparkException as error:
            raise failure(error, "finality") from None
    return done


def settle_finality(
    spark: SparkSession, folder: ArchiveFolder, statements: Statements
) -> FinalityReport:
    """Join the statements to ``messages``; nothing when neither has changed since.

    Args:
        spark: A running Spark with Delta.
        folder: The archive, held for writing.
        statements: The file, its network and its signers.

    """
    digest, said, applied, refused = read_statements(statements)
    mark: dict[str, object] = {
        # Of what was read: the file may have grown since.
        "digest": digest,
        "network": statements.network,
        "signers": _signers(statements),
    }
    before = _state(folder)
    if before == mark | {"version": version_of(folder, MESSAGES)}:
        return FinalityReport(applied=applied, refused=refused)
    changed = _merge(spark, folder, said) if said else 0
    mark["version"] = version_of(folder, MESSAGES)
    write_whole(folder.path / _STATE, json.dumps(mark))  # last: a killed run joins again
    return FinalityReport(applied=applied, refused=refused, messages=changed)


def read_statements(statements: Statements) -> tuple[str, Said, int, int]:
    """Return a file's digest, what it says last of each message, how many statements hold or not.

    Raises:
        ArchiveArgumentError: it cannot be read, or is too large.

    """
    text = _read(statements.path)
    oracle = StatementOracle(
        statements.network, statements.signers, rows_max=_ROWS_MAX, namespaces_max=_ROWS_MAX
    )
    said: Said = {}
    applied = refused = 0
    for line in _lines(text):
        try:
            statement = FinalityStatement.decode(from_hex(line))
            oracle.apply(statement)
        except (FinalityError, ValueError):
            refused += 1
            continue
        applied += 1
        said.update((row[:3], row.state) for row in statement.rows if row.seq <= MAX_I64)
    return hashlib.sha3_256(text.encode("ascii")).hexdigest(), said, applied, refused


def _read(path: Path) -> str:
    """Return the lines of a file that have their end: somebody may be appending to it."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ArchiveArgumentError(
                f"more statements than fit, at most {FILE_BYTES_MAX} bytes are read",
                where=str(path),
                hint="leave out what is archived and final",
            )
        text = data.decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ArchiveArgumentError(
            f"the statements cannot be read: {error}", where=str(path)
        ) from None
    return text[: text.rfind("\n") + 1]


def _lines(text: str) -> Sequence[str]:
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _signers(statements: Statements) -> list[str]:
    return sorted(signer.hex() for signer in statements.signers)


def _state(folder: ArchiveFolder) -> object:
    try:
        return json.loads((folder.path / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _merge(spark: SparkSession, folder: ArchiveFolder, said: Said) -> int:
    namespaces, seqs, hashes = zip(*said, strict=True)
    states = [int(state) for state in said.values()]
    columns = dict(zip(_SCHEMA.names, (namespaces, seqs, hashes, states), strict=True))
    rows = pa.Table.from_pydict(columns, schema=_SCHEMA)
    keys = [int.from_bytes(name[:8], "big", signed=True) for name in namespaces]
    # Bounds of files rule most of them out before the join looks into any.
    bounds = f"seq BETWEEN {min(seqs)} AND {max(seqs)}"
    within = f"namespace_key BETWEEN {min(keys)} AND {max(keys)}"
    archived = read_table(spark, folder, MESSAGES).where(bounds)
    archived = archived.where(f"namespace_key IS NULL OR {within}")
    changed = _changes(archived, spark.createDataFrame(rows)).persist()
    try:
        count = changed.count()
        if count:
            target = target_name(folder, MESSAGES)
            spark.sql(
                f"MERGE INTO {target} AS t USING {{said}} AS s"
                f" ON t.{bounds} AND t.date = s.date AND t.content_id = s.content_id"
                " WHEN MATCHED THEN UPDATE SET finality = s.state",
                said=changed,
            )
    finally:
        changed.unpersist()
    return count


def _changes(archived: DataFrame, said: DataFrame) -> DataFrame:
    """Return content id and new state of each message whose state changes.

    Senders of equal headers share a header hash: the lowest content id counts, as in a store.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415  # heavy; a session is here

    key = ["namespace_id", "seq", "header_hash"]
    first = f.min(f.struct("content_id", "date", "finality")).alias("first")
    named = archived.join(said, key).groupBy(*key).agg(first, f.max("state").alias("state"))
    return named.where("coalesce(first.finality, 0) <> state").select(
        "first.content_id", "first.date", "state"
    )
