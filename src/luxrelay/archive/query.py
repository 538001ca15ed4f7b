"""Questions to the archive without a JVM: by namespace, time, sender and blob, with proofs; SQL.

Theory of operation
-------------------
*Decides* which files a question must look at, and how pages follow one another.
*Does not know* Spark; delta-rs reads the tables.
A page is made in two steps: first the places of its messages (timestamp, namespace, sequence,
content id), day by day, from narrow columns of the files that bounds do not rule out; then the
rows themselves, by these places. A cursor is the place of the last message, so it stays right
while the archive grows.
*Bounds*: ``limit`` messages a page, ``LIMIT_MAX`` at most; a day's places that fit the question
are held at once, about 100 bytes each.
*Promises*: a reader sees the tables as they were at its last `refresh`; each message is proven by
the root of its day (`proofs`), and one whose root is not written yet has no proof.

Places in the order of a store's index of senders: namespace, sequence, content id. Pure.

One SELECT over the tables of an archive, answered by delta-rs without a JVM.

Source: LP-6440 (queries by namespace, time and sender); LP-6440; decisions P20, P21, S16, P38.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from luxrelay.archive.answers import AnswerPlace, ArchivedMessage, ArchivePage, NamespaceReach
from luxrelay.archive.folder import open_folder
from luxrelay.archive.proofs import InclusionProof, prove
from luxrelay.archive.schema import (
    MAX_I64,
    MAX_TIMESTAMP_MS,
    MS_PER_DAY,
    ROOTS,
    prune_key,
)
from luxrelay.archive.snapshot import Snapshot, table_rows
from luxrelay.archive.tables import retired
from luxrelay.bus.header import ContentId
from luxrelay.errors import ArchiveArgumentError, ArchiveError
from luxrelay.store.namespaces import SlotCandidate, settle

if TYPE_CHECKING:
    from pyarrow.dataset import Expression


import re

from luxrelay.archive.folder import ArchiveFolder
from luxrelay.archive.schema import TABLES
from luxrelay.archive.tables import open_table

SQL_ROWS_MAX: Final = 1_000_000
"""Rows of one answer to SQL at most."""
_SELECT: Final = re.compile(r"(\s|\(|--[^\n]*\n)*(select|with)\b", re.IGNORECASE)


def answer(folder: ArchiveFolder, statement: str) -> pa.Table:
    """Return what a SELECT over the tables yields; tables are named as in the folder.

    Raises:
        ArchiveError: ``archive.failed``: the statement is wrong, or its answer too long;
            ``archive.setup``: `deltalake` is not installed.

    """
    if not _SELECT.match(statement):
        raise _wrong("only SELECT is answered")  # COPY would write files
    opened = [(table.name, open_table(folder, table)) for table in TABLES]
    from deltalake import QueryBuilder  # noqa: PLC0415  # with the extra only, as was seen above

    builder = QueryBuilder()
    for name, table in opened:
        builder = builder.register(name, table)
    batches, rows = [], 0
    try:
        for batch in builder.execute(statement):
            batches.append(pa.record_batch(batch))
            rows += batches[-1].num_rows
            if rows > SQL_ROWS_MAX:
                break
    except Exception as error:  # noqa: BLE001  # delta-rs raises bare Exception for SQL
        raise _wrong(str(error)[:400]) from None
    if rows > SQL_ROWS_MAX:
        raise _wrong(f"more than {SQL_ROWS_MAX:,} rows; add a LIMIT")
    return pa.Table.from_batches(batches) if batches else pa.table({})


def _wrong(reason: str) -> ArchiveError:
    names = ", ".join(table.name for table in TABLES)
    return ArchiveError(
        f"the query cannot be answered: {reason}",
        where="SQL",
        hint=f"tables: {names}; their columns are in docs/reference/tables.md",
        code="archive.failed",
    )


_ORDER: Final = ("namespace_id", "seq", "content_id")


def first_in_lanes(
    rows: pa.Table, best: pa.Table | None, wanted: int, after: AnswerPlace | None
) -> pa.Table:
    """Return the first ``wanted`` rows of two tables behind a place, in order.

    Args:
        rows: Places, in whatever order.
        best: What an earlier call returned; None at first.
        wanted: Rows at most.
        after: Rows up to here are left out; its timestamp does not matter.

    """
    if after is not None:
        rows = rows.filter(_behind(after))
    if best is not None:
        rows = pa.concat_tables([best, rows])
    return rows.sort_by([(name, "ascending") for name in _ORDER]).slice(0, wanted)


def _behind(after: AnswerPlace) -> pc.Expression:
    namespace, seq, content = (pc.field(name) for name in _ORDER)
    if after.seq > MAX_I64:  # the wire has such sequences, no table does
        return namespace > pa.scalar(after.namespace_id)
    same_slot = (seq == pa.scalar(after.seq)) & (content > pa.scalar(after.content_id))
    same_lane = (namespace == pa.scalar(after.namespace_id)) & (
        (seq > pa.scalar(after.seq)) | same_slot
    )
    return (namespace > pa.scalar(after.namespace_id)) | same_lane


LIMIT_MAX: Final = 10_000
"""Messages of one page at most."""
WINDOW: Final = 4
"""Sequences of a namespace looked at first, for each message wanted."""
WINDOW_GROWTH: Final = 64
"""How much longer the next window is, where there are gaps."""
_EPOCH: Final = date(1970, 1, 1)
_PLACE_COLUMNS: Final = ("timestamp", "namespace_id", "seq", "content_id")
_ROW_COLUMNS: Final = (
    *_PLACE_COLUMNS, "date", "header", "blob", "received_at", "expires_at", "finality", "copies",
    "sender_address", "parent_id", "sidecar",
)  # fmt: skip


_Leaves = list[tuple[int, bytes]]
"""Sequence and content id of each message of a day."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a question narrows the table to."""

    condition: Expression
    first_day: date
    last_day: date
    seqs: tuple[int, int] | None = None
    """In order of sequence, within these bounds, as a namespace is read."""


@dataclass(slots=True)
class _Found:
    places: list[tuple[AnswerPlace, int]] = field(default_factory=list)
    """With the length of the payload, bytes."""
    files: int = 0


class ArchiveReader:
    """Answers questions about the archive at ``path``; one thread at a time.

    Args:
        path: The folder.
        page_bytes_max: Payload bytes of a page, but one message at least; 0 for no bound.

    Raises:
        ArchiveError: ``archive.foreign``: there is no archive; ``archive.setup``: `deltalake` is
            not installed.

    """

    def __init__(self, path: Path, *, page_bytes_max: int = 0) -> None:
        self._folder = open_folder(path)
        self._bytes_max = page_bytes_max
        self._table = Snapshot(self._folder)
        self._day: tuple[tuple[int, date, bytes], _Leaves, tuple[bytes, int] | None] | None = None

    def refresh(self) -> bool:
        """Look at the tables as they are now; return whether messages have changed."""
        self._day = None
        return self._table.refresh()

    def by_namespace(
        self,
        namespace_id: bytes,
        *,
        from_seq: int = 1,
        to_seq: int = MAX_I64,
        limit: int = 100,
        cursor: bytes = b"",
        max_bytes: int = 0,
    ) -> ArchivePage:
        """Return messages of a namespace, both bounds included, ascending by sequence.

        Args:
            namespace_id: 20 bytes.
            from_seq: Lowest sequence.
            to_seq: Highest sequence.
            limit: Messages of the page.
            cursor: ``next_cursor`` of the page before.
            max_bytes: Payload bytes of the page, but one message at least; 0 for no bound.

        Raises:
            ArchiveArgumentError: a value is out of range.

        """
        _check(len(namespace_id) == 20, "a namespace has 20 bytes", "namespace_id")
        _check(0 <= from_seq <= MAX_I64 and to_seq >= 0, "sequences are 0 to 2^63-1", "from_seq")
        condition = _of(namespace_id)
        seqs = (from_seq, min(to_seq, MAX_I64))
        return self._page(self._all_days(condition, seqs=seqs), limit, cursor, max_bytes)

    def by_time(
        self,
        from_ms: int,
        to_ms: int,
        *,
        namespace_id: bytes | None = None,
        limit: int = 100,
        cursor: bytes = b"",
        max_bytes: int = 0,
    ) -> ArchivePage:
        """Return messages whose header timestamp lies in a range, both bounds included.

        Raises:
            ArchiveArgumentError: a value is out of range.

        """
        scope = _in_time(from_ms, to_ms)
        if namespace_id is not None:
            _check(len(namespace_id) == 20, "a namespace has 20 bytes", "namespace_id")
            scope = _narrowed(scope, "namespace", namespace_id)
        return self._page(scope, limit, cursor, max_bytes)

    def by_sender(
        self,
        address: bytes,
        *,
        from_ms: int = 0,
        to_ms: int = MAX_TIMESTAMP_MS,
        limit: int = 100,
        cursor: bytes = b"",
    ) -> ArchivePage:
        """Return messages of a sender's address in order of time.

        Raises:
            ArchiveArgumentError: a value is out of range.

        """
        _check(len(address) == 20, "an address has 20 bytes", "address")
        return self._page(_narrowed(_in_time(from_ms, to_ms), "sender", address), limit, cursor)

    def by_sender_in_lanes(
        self, address: bytes, from_ms: int, to_ms: int, *, limit: int, cursor: bytes, max_bytes: int
    ) -> ArchivePage:
        """Return messages of a sender by namespace and sequence, as a store's index has them.

        Arguments and errors are those of `by_sender`.
        """
        _check(len(address) == 20, "an address has 20 bytes", "address")
        scope = _narrowed(_in_time(from_ms, to_ms), "sender", address)
        after = AnswerPlace.decode(cursor) if cursor else None
        found, best = _Found(), None
        for part in self._parts(scope, limit + 1, None):
            found.files += self._table.files_of(part)
            rows = self._table.rows((*_PLACE_COLUMNS, "blob_len"), part)
            best = first_in_lanes(rows, best, limit + 1, after)
        for row in [] if best is None else best.to_pylist():
            found.places.append((_place_of(row), row["blob_len"]))
        return self._cut(found, limit, max_bytes)

    def by_blob(self, commitment: bytes, *, limit: int = 100, cursor: bytes = b"") -> ArchivePage:
        """Return messages that commit to a blob or sidecar; looks at two columns of every file.

        Raises:
            ArchiveArgumentError: a value is out of range.

        """
        _check(len(commitment) == 32, "a commitment has 32 bytes", "commitment")
        named = _is("blob_commitment", commitment) | _is("sidecar_commitment", commitment)
        return self._page(self._all_days(named), limit, cursor)

    def prove(self, message: ArchivedMessage) -> tuple[InclusionProof, bytes] | None:
        """Return the proof of a message and the root it leads to; None without a root yet.

        Raises:
            ArchiveError: ``archive.failed``: the table ``roots`` holds another root than the
                messages have now.

        """
        place = message.place
        leaves, root = self._leaves(message.date, place.namespace_id)
        wanted = (place.seq, place.content_id)
        day = (message.date - _EPOCH).days
        proof = prove(place.namespace_id, day, leaves, wanted)
        if root is None or root[1] != proof.count:
            return None
        if not proof.holds(*wanted, root[0]):
            raise ArchiveError(
                "the root of the day is not the one of its messages",
                where=f"namespace {place.namespace_id.hex()}, {message.date}",
                hint="run `luxrelay archive audit`",
                code="archive.failed",
            )
        return proof, root[0]

    def _leaves(self, day: date, namespace_id: bytes) -> tuple[_Leaves, tuple[bytes, int] | None]:
        """Return what a day's root is over, and the root and the count that are written.

        The last day asked for is kept: a page asks for the same one again and again.
        """
        asked = (self._table.version, day, namespace_id)
        if self._day is None or self._day[0] != asked:
            condition = _is("date", day) & _of(namespace_id)
            rows = self._table.rows(["seq", "content_id"], condition)
            leaves = list(zip(*(rows.column(at).to_pylist() for at in (0, 1)), strict=True))
            named = _is("date", day) & _is("namespace_id", namespace_id)
            found = table_rows(self._folder, ROOTS, ["root", "messages"], named).to_pylist()
            root = (found[0]["root"], found[0]["messages"]) if found else None
            self._day = (asked, sorted(leaves), root)
        return self._day[1:]

    def namespaces(self) -> list[bytes]:
        """Return every namespace that is archived, ascending; looks at one column of every file."""
        rows = self._table.rows(["namespace_id"])
        return sorted(rows.column(0).unique().to_pylist())

    def reaches(self) -> list[NamespaceReach]:
        """Return how far each namespace reaches; looks at five columns of every file."""
        columns = ["namespace_id", "seq", "timestamp", "header_hash", "parent_id"]
        rows = self._table.rows(columns).combine_chunks()
        last = rows.sort_by([("namespace_id", "ascending"), ("seq", "ascending")])
        grouped = last.group_by("namespace_id", use_threads=False).aggregate(
            [("seq", "min"), ("seq", "count"), ("seq", "count_distinct")]
            + [(name, "last") for name in columns[1:]]
        )
        found = []
        for row in grouped.to_pylist():
            first, end = row["seq_min"], row["seq_last"]
            whole = end - first + 1 == row["seq_count_distinct"]
            holes = [] if whole else self.holes(row["namespace_id"], 1)
            found.append(
                NamespaceReach(
                    namespace_id=row["namespace_id"],
                    parent_id=row["parent_id_last"],
                    first_seq=first,
                    contiguous_seq=holes[0][0] - 1 if holes else end,
                    last_seq=end,
                    last_timestamp=row["timestamp_last"],
                    last_header_hash=row["header_hash_last"],
                    messages=row["seq_count"],
                )
            )
        return found

    def holes(self, namespace_id: bytes, limit: int) -> list[tuple[int, int]]:
        """Return the lowest missing ranges of a namespace between its first and last sequence."""
        rows = self._table.rows(["seq"], _of(namespace_id))
        seqs = sorted(rows.column(0).unique().to_pylist())
        return [(a + 1, b - 1) for a, b in pairwise(seqs) if b > a + 1][:limit]

    def by_ids(
        self, column: Literal["message_id", "content_id"], ids: Sequence[bytes]
    ) -> list[tuple[bytes, ArchivedMessage]]:
        """Return the messages with one of some ids, and the id of each; looks at every file.

        Raises:
            ArchiveArgumentError: more than ``LIMIT_MAX`` ids.

        """
        _check(len(ids) <= LIMIT_MAX, f"{LIMIT_MAX} ids at most", "ids")
        wanted = pc.field(column).isin(pa.array([bytes(each) for each in ids], pa.binary()))
        columns = [*_ROW_COLUMNS, *({column} - set(_ROW_COLUMNS))]
        rows = self._table.rows(columns, wanted)
        return [(row[column], _message(_place_of(row), row)) for row in rows.to_pylist()]

    def content_ids(self, namespace_id: bytes) -> list[bytes]:
        """Return the content ids of a namespace, 32 bytes each, in no order."""
        rows = self._table.rows(["content_id"], _of(namespace_id))
        ids: list[bytes] = rows.column(0).to_pylist()
        return ids

    def contended_losers(self, namespace_id: bytes) -> set[bytes]:
        """Return the content ids of contested slots that a relay does not keep (J11).

        Source: the rule itself, over the messages as they are; the table ``contention`` may be
        older.
        """
        rows = self._table.rows(["seq"], _of(namespace_id))
        counts = rows.group_by("seq").aggregate([("seq", "count")])
        several = counts.filter(pc.field("seq_count") > 1).column("seq")
        if not len(several):
            return set()
        condition = _of(namespace_id) & pc.field("seq").isin(several.combine_chunks())
        columns = ["seq", "sender_pub_key", "content_id"]
        slots: dict[int, list[SlotCandidate]] = {}
        for row in self._table.rows(columns, condition).to_pylist():
            rival = SlotCandidate(ContentId(row["content_id"]), row["sender_pub_key"])
            slots.setdefault(row["seq"], []).append(rival)
        dropped = (set(rivals) - set(settle(rivals)) for rivals in slots.values())
        return {rival.content_id for rivals in dropped for rival in rivals}

    def rows(self, columns: Sequence[str], condition: Expression | None = None) -> pa.Table:
        """Return columns of the messages that fit, as the reader sees them now.

        Raises:
            ArchiveError: ``archive.failed``: a file of the newest version is gone or broken.

        """
        return self._table.rows(columns, condition)

    def retired(self) -> dict[bytes, int]:
        """Return up to which sequence each namespace was deleted on purpose."""
        return retired(self._folder)

    def sql(self, statement: str) -> pa.Table:
        """Return what a SELECT over the tables yields; tables are named as in the folder.

        Raises:
            ArchiveError: ``archive.failed``: the statement is wrong, or its answer too long.

        """
        return answer(self._folder, statement)

    def _all_days(self, condition: Expression, *, seqs: tuple[int, int] | None = None) -> _Scope:
        days = self._table.days or [_EPOCH]
        return _Scope(condition, days[0], days[-1], seqs)

    def _page(self, scope: _Scope, limit: int, cursor: bytes, max_bytes: int = 0) -> ArchivePage:
        _check(1 <= limit <= LIMIT_MAX, f"a page has 1 to {LIMIT_MAX} messages", "limit")
        after = AnswerPlace.decode(cursor) if cursor else None
        return self._cut(self._places(scope, limit + 1, after), limit, max_bytes)

    def _cut(self, found: _Found, limit: int, max_bytes: int) -> ArchivePage:
        if max_bytes := max_bytes or self._bytes_max:
            sizes = accumulate(size for _, size in found.places)
            limit = min(limit, max(1, sum(total <= max_bytes for total in sizes)))
        places = [place for place, _ in found.places[:limit]]
        more = len(found.places) > limit
        return ArchivePage(
            messages=tuple(self._rows(places)),
            next_cursor=places[-1].encode() if more else b"",
            files=found.files,
            files_in_all=self._table.files,
        )

    def _places(self, scope: _Scope, wanted: int, after: AnswerPlace | None) -> _Found:
        """Return the first ``wanted`` places after a cursor."""
        found = _Found()
        order = _time_order if scope.seqs is None else _seq_order
        for part in self._parts(scope, wanted, after):
            found.files += self._table.files_of(part)
            rows = self._table.rows((*_PLACE_COLUMNS, "blob_len"), part)
            lists = (rows.column(name).to_pylist() for name in rows.column_names)
            places = [(AnswerPlace(*each), size) for *each, size in zip(*lists, strict=True)]
            if after is not None:
                places = [each for each in places if order(each[0]) > order(after)]
            places.sort(key=lambda each: order(each[0]))
            found.places += places[: wanted - len(found.places)]
            if len(found.places) >= wanted:
                break
        return found

    def _parts(self, scope: _Scope, wanted: int, after: AnswerPlace | None) -> Iterator[Expression]:
        """Yield conditions that cover the scope in order.

        Time goes day by day. Sequences are dense, so a namespace goes by windows of them, across
        the days; where there are gaps the windows grow, so that few of them reach any end.
        """
        if scope.seqs is None:
            begin = _day(after.timestamp) if after is not None else scope.first_day
            for day in self._table.days:
                if max(scope.first_day, begin) <= day <= scope.last_day:
                    yield _is("date", day) & scope.condition
            return
        first, last = max(scope.seqs[0], after.seq if after else 0), scope.seqs[1]
        last, size = min(last, self._table.last_seq), wanted * WINDOW
        seq = pc.field("seq")
        while first <= last:
            end = min(last, first + size - 1)
            yield scope.condition & (seq >= pa.scalar(first)) & (seq <= pa.scalar(end))
            first, size = end + 1, size * WINDOW_GROWTH

    def _rows(self, places: Sequence[AnswerPlace]) -> Iterator[ArchivedMessage]:
        if not places:
            return
        days = {_day(place.timestamp) for place in places}
        keys = {prune_key(place.namespace_id) for place in places}
        seqs = [place.seq for place in places]
        condition = (
            pc.field("date").isin(pa.array(sorted(days), pa.date32()))
            & pc.field("namespace_key").isin(pa.array(list(keys), pa.int64()))
            & (pc.field("seq") >= pa.scalar(min(seqs)))
            & (pc.field("seq") <= pa.scalar(max(seqs)))
            & pc.field("content_id").isin(pa.array([p.content_id for p in places], pa.binary()))
        )
        rows = self._table.rows(_ROW_COLUMNS, condition)
        by_place = {_place_of(row): row for row in rows.to_pylist()}
        # What was deleted since its place was read is left out.
        yield from (_message(place, by_place[place]) for place in places if place in by_place)


def _of(namespace_id: bytes) -> Expression:
    return _is("namespace_key", prune_key(namespace_id)) & _is("namespace_id", namespace_id)


def _place_of(row: dict[str, Any]) -> AnswerPlace:
    return AnswerPlace(*(row[name] for name in _PLACE_COLUMNS))


def _message(place: AnswerPlace, row: dict[str, Any]) -> ArchivedMessage:
    return ArchivedMessage(
        place=place,
        date=row["date"],
        header=row["header"],
        blob=row["blob"],
        received_at=row["received_at"],
        expires_at=row["expires_at"],
        finality=row["finality"] or 0,
        copies=row["copies"],
        sender_address=row["sender_address"],
        parent_id=row["parent_id"],
        sidecar=row["sidecar"],
    )


def _seq_order(place: AnswerPlace) -> tuple[int, bytes]:
    return place.seq, place.content_id


def _time_order(place: AnswerPlace) -> AnswerPlace:
    return place


def _day(timestamp: int) -> date:
    return _EPOCH + timedelta(days=timestamp // MS_PER_DAY)


def _is(name: str, value: object) -> Expression:
    return pc.field(name) == pa.scalar(value)


def _in_time(from_ms: int, to_ms: int) -> _Scope:
    _check(0 <= from_ms <= to_ms, "times ascend from 0, in milliseconds", "from_ms")
    last = min(to_ms, MAX_TIMESTAMP_MS)
    _check(from_ms <= last, "times end with the year 9999", "from_ms")
    stamp = pc.field("timestamp")
    condition = (stamp >= pa.scalar(from_ms)) & (stamp <= pa.scalar(last))
    return _Scope(condition, _day(from_ms), _day(last))


def _narrowed(scope: _Scope, what: str, value: bytes) -> _Scope:
    column = "namespace_id" if what == "namespace" else "sender_address"
    condition = scope.condition & _is(f"{what}_key", prune_key(value)) & _is(column, value)
    return _Scope(condition, scope.first_day, scope.last_day)


def _check(holds: bool, rule: str, where: str) -> None:
    if not holds:
        raise ArchiveArgumentError(rule, where=where)
