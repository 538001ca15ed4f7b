"""A corpus for the archive with everything that goes wrong, and what must become of it.

The rows are served by `ListStore` behind the real RelaySync server, because no honest store keeps
a broken header. What is expected is noted while the corpus is made, row by row, in plain Python:
nothing of the archive's code is used.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from deltalake import DeltaTable

from luxrelay.bus import (
    Code,
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    sha3_commitment,
)
from luxrelay.bus import constants as c
from luxrelay.store import NamespaceQuery
from luxrelay.testing import breakages

BEGIN_MS = 1_785_974_400_000  # 2026-08-06
STEP_MS = 230_000  # by 1,000 messages: a million take 2.7 days
UNSERVED = {Code.ZERO_NAMESPACE, Code.ZERO_SEQUENCE}
"""Such a header names nothing that could be asked for."""


@dataclass(frozen=True, slots=True)
class Row:
    """A message as a relay serves it; fits `StoreRow`."""

    seq: int
    header_bytes: bytes
    blob: bytes | None
    received_at: int
    expires_at: int
    namespace_id: NamespaceId
    finality: int = 0
    sidecar_len: int = 0

    @property
    def position(self) -> bytes:
        """Tells rows of a slot apart: what follows the sequence in a cursor."""
        return sha3_commitment(self.header_bytes + (self.blob or b""))

    @property
    def header(self) -> Any:
        """What the server needs of a header: an id for its cursor."""
        return SimpleNamespace(content_id=self.position)


class ListStore:
    """Serves rows from memory, whatever they are; fits `SyncStore`."""

    def __init__(self) -> None:
        self.rows: dict[NamespaceId, list[Row]] = defaultdict(list)
        self.positions: dict[NamespaceId, list[bytes]] = {}
        self.parents: dict[NamespaceId, NamespaceId] = {}
        self.watermarks: dict[NamespaceId, int] = {}
        self._heads: dict[NamespaceId, Any] = {}

    def add(self, row: Row) -> None:
        """Take in a row; `close` sorts them, and makes them seen."""
        self.rows[row.namespace_id].append(row)

    def close(self) -> None:
        """Sort by position."""
        for name, rows in self.rows.items():
            rows.sort(key=lambda row: (row.seq, row.position))
            self.positions[name] = [row.seq.to_bytes(8, "big") + row.position for row in rows]
            self._heads[name] = self._head(name)

    def query(self, query: NamespaceQuery, now_ms: int) -> Any:
        """Return one page."""
        del now_ms
        rows, places = self.rows[query.namespace_id], self.positions.get(query.namespace_id, [])
        after = max(query.cursor, query.from_seq.to_bytes(8, "big") + b"\xff" * 32)
        start = bisect_right(places, after)
        stop = len(rows)
        if query.to_seq:
            stop = bisect_right(places, query.to_seq.to_bytes(8, "big") + b"\xff" * 32)
        page = rows[start : min(stop, start + (query.limit or 500))]
        more = start + len(page) < stop and bool(page)
        return SimpleNamespace(
            messages=page,
            has_more=more,
            next_cursor=places[start + len(page) - 1] if more else b"",
            earliest_seq=rows[0].seq if rows else 0,
            last_seq=page[-1].seq if page else 0,
            gaps=[],
        )

    def get_messages(self, ids: Sequence[bytes], now_ms: int) -> tuple[list[Row], Sequence[bytes]]:
        """Serve nothing by id."""
        del now_ms
        return [], ids

    def watermark(self, namespace_id: NamespaceId) -> int | None:
        """Return how far an archive has read."""
        return self.watermarks.get(namespace_id)

    def set_watermark(self, namespace_id: NamespaceId, parent: NamespaceId, seq: int) -> None:
        """Note how far an archive has read."""
        assert parent == self.parents.get(namespace_id, namespace_id)
        self.watermarks[namespace_id] = max(seq, self.watermarks.get(namespace_id, 0))

    def drop_watermark(self, namespace_id: NamespaceId) -> None:
        """Note that none reads it."""
        del self.watermarks[namespace_id]

    def head(self, namespace_id: NamespaceId) -> Any:
        """Return one head."""
        return self._heads.get(namespace_id) or self._head(namespace_id)

    def _head(self, namespace_id: NamespaceId) -> Any:
        seqs = [row.seq for row in self.rows.get(namespace_id, [])]
        contiguous = 0
        for seq in sorted(set(seqs)):
            if seq == contiguous + 1:
                contiguous = seq
        return SimpleNamespace(
            namespace_id=namespace_id,
            parent=self.parents.get(namespace_id, namespace_id),
            earliest_seq=min(seqs, default=0),
            contiguous_seq=contiguous,
            latest_seq=max(seqs, default=0),
            finalized_seq=0,
            latest_header_hash=b"\x01" * 32,
            latest_timestamp=BEGIN_MS,
            messages=len(seqs),
            size_bytes=0,
            floor=0,
        )

    def heads(self, parent: NamespaceId | None, cursor: bytes, limit: int) -> tuple[Any, bytes]:
        """Return all heads after ``cursor``."""
        assert parent is None
        names = [name for name in sorted(self.rows) if name > cursor][: limit or None]
        rest = names[-1] if limit and len(names) == limit else b""
        return [self.head(name) for name in names], rest


@dataclass(slots=True)
class Expected:
    """What the tables must hold."""

    messages: dict[tuple[bytes, int, bytes], set[int]] = field(default_factory=dict)
    """(namespace, sequence, content id) → relays that served it."""
    rejects: Counter[tuple[int, int, bytes]] = field(default_factory=Counter)
    """(relay, code, header bytes) → rows."""
    holes: set[tuple[bytes, int]] = field(default_factory=set)
    """Sequences without a valid message."""
    rows: int = 0
    """Rows served."""

    def contested(self) -> set[tuple[bytes, int, bytes]]:
        """Return the messages of slots that have several."""
        slots = Counter((namespace, seq) for namespace, seq, _ in self.messages)
        return {key for key in self.messages if slots[key[:2]] > 1}

    def gaps(self) -> set[tuple[bytes, int, int]]:
        """Return the holes as ranges."""
        found: set[tuple[bytes, int, int]] = set()
        for namespace, seq in sorted(self.holes):
            before = next((gap for gap in found if gap[0] == namespace and gap[2] == seq - 1), None)
            found.discard(before) if before else None
            found.add((namespace, before[1] if before else seq, seq))
        return found


class Corpus:
    """Three relays and what is in them.

    Args:
        count: Slots.
        texts: Payloads, repeated when there are fewer.
        namespaces: How many; the first has 30 % of the slots.
        holes: Slots that nobody holds.
        contended: Slots with a second message, half of them by the same sender.

    """

    RELAYS = 3
    NOW_MS = BEGIN_MS

    def __init__(
        self,
        count: int,
        texts: Sequence[bytes],
        *,
        namespaces: int,
        holes: int = 20,
        contended: int = 50,
        seed: int = 8,
    ) -> None:
        self.stores = [ListStore() for _ in range(self.RELAYS)]
        self.expected = Expected()
        self._rng = random.Random(seed)
        self._texts = texts
        self._keys = [
            SigningKey.from_seed(SignatureScheme.ED25519, bytes([number]) * 32)
            for number in range(1, 65)
        ]
        self._ways = [
            way
            for way in breakages()
            if c.MIN_HEADER_BYTES <= len(way.data) <= c.MAX_HEADER_BYTES
            and way.code not in UNSERVED
        ]
        self._made = 0
        names = [NamespaceId(self._rng.randbytes(20)) for _ in range(namespaces)]
        hot = count * 3 // 10
        sizes = [hot, *self._shares(count - hot, namespaces - 1)]
        special = self._rng.sample(
            [
                (name, seq)
                for name, size in zip(names, sizes, strict=True)
                for seq in range(2, size)
            ],
            holes + contended,
        )
        missing, rivals = set(special[:holes]), set(special[holes:])
        for name, size in zip(names, sizes, strict=True):
            for seq in range(1, size + 1):
                self._slot(name, seq, missing, rivals)
        for store in self.stores:
            store.close()

    @staticmethod
    def _shares(count: int, parts: int) -> Iterator[int]:
        for part in range(parts):
            yield count * (part + 1) // parts - count * part // parts

    def _slot(
        self,
        name: NamespaceId,
        seq: int,
        missing: set[tuple[NamespaceId, int]],
        rivals: set[tuple[NamespaceId, int]],
    ) -> None:
        self._made += 1
        if (name, seq) in missing:
            self.expected.holes.add((name, seq))
            return
        key = self._keys[name[0] % len(self._keys)]
        row, header = self._valid(name, seq, key)
        relay = self._made % self.RELAYS
        self._serve(relay, row, header)
        if self._made % 50 == 0:  # 2 % stand on a second relay, half of these with other bytes
            again = replace(row, received_at=row.received_at + 5)
            if self._made % 100 == 0:
                other = replace(header, fee_proof=b"\x01" + bytes(7))  # no signature covers it
                again = replace(again, header_bytes=other.encode())
            self._serve((relay + 1) % self.RELAYS, again, header)
        if (name, seq) in rivals:
            rival = key if self._made % 2 else self._keys[(name[0] + 1) % len(self._keys)]
            self._serve(relay, *self._valid(name, seq, rival))
        if self._made % 100 == 7:
            self._broken(relay, row, header)

    def _valid(self, name: NamespaceId, seq: int, key: SigningKey) -> tuple[Row, MsgHeader]:
        blob = b"%d %b" % (self._rng.getrandbits(32), self._texts[self._made % len(self._texts)])
        stamp = BEGIN_MS + STEP_MS * self._made // 1_000
        header = key.sign_header(
            MsgHeader(
                namespace_id=name,
                seq=seq,
                timestamp=stamp,
                blob_commitment=sha3_commitment(blob),
                blob_len=len(blob),
                policy_hash=b"p" * 32,
            )
        )
        received = stamp + self._rng.randrange(5, 900)
        return Row(seq, header.encode(), blob, received, received + 600_000, name), header

    def _serve(self, relay: int, row: Row, header: MsgHeader) -> None:
        self.stores[relay].add(row)
        self.expected.rows += 1
        key = (bytes(row.namespace_id), row.seq, bytes(header.content_id))
        self.expected.messages.setdefault(key, set()).add(relay)

    def _broken(self, relay: int, row: Row, header: MsgHeader) -> None:
        """Serve beside a valid row one that is broken, each time in the next way."""
        ways = len(self._ways) + 5
        way = self._made // 100 % ways
        code, data, blob = int(Code.OK), row.header_bytes, row.blob or b""
        if way < len(self._ways):
            broken = self._ways[way]
            place = slice(c.OFFSET_NAMESPACE, c.OFFSET_SEQ + 8)
            code = int(broken.code)
            data = broken.data[: place.start] + data[place] + broken.data[place.stop :]
        elif way == len(self._ways):
            code = int(Code.INVALID_SIGNATURE)
            signature = bytes([header.signature[0] ^ 1]) + header.signature[1:]
            data = replace(header, signature=signature).encode()
        elif way == len(self._ways) + 1:
            code = int(Code.INVALID_SIGNATURE)
            data = replace(header, sender_pub_key=b"\x01" + b"\xff" * 32).encode()
        elif way == len(self._ways) + 2:
            code, blob = int(Code.BLOB_MISMATCH), blob + b"!"
        elif way == len(self._ways) + 3:
            code, blob = int(Code.BLOB_MISMATCH), bytes([blob[0] ^ 1]) + blob[1:]
        else:
            code = int(Code.TIMESTAMP_INVALID)
            data = self._keys[0].sign_header(replace(header, timestamp=2**62)).encode()
        self.stores[relay].add(replace(row, header_bytes=data, blob=blob))
        self.expected.rows += 1
        self.expected.rejects[relay, code, data] += 1


def differences(folder: Path, expected: Expected, relays: Sequence[str]) -> list[str]:
    """Return where the tables of an archive differ from what they must hold; read by delta-rs."""

    def rows(table: str, *columns: str) -> list[tuple[Any, ...]]:
        read = DeltaTable(str(folder / table)).to_pyarrow_table(columns=list(columns))
        return list(zip(*(read.column(name).to_pylist() for name in columns), strict=True))

    messages = rows("messages", "namespace_id", "seq", "content_id", "relays")
    served = {row[:3]: {relays.index(relay) for relay in row[3]} for row in messages}
    rejects = Counter(
        (relays.index(relay), code, header)
        for relay, code, header in rows("rejects", "relay", "code", "header")
    )
    contested = {row[:3] for row in rows("contention", "namespace_id", "seq", "content_id")}
    gaps = {
        row[:3] for row in rows("gaps", "namespace_id", "first", "last", "filled_at") if not row[3]
    }
    found = {
        "messages that stand twice": len(messages) - len(served),
        "messages that are missing": len(expected.messages.keys() - served.keys()),
        "messages too many": len(served.keys() - expected.messages.keys()),
        "messages with other copies": sum(
            expected.messages[key] != served[key] for key in served.keys() & expected.messages
        ),
        "rejects too many": (rejects - expected.rejects).total(),
        "rejects that are missing": (expected.rejects - rejects).total(),
        "raw rows that differ": abs(len(rows("raw", "seq")) - expected.rows),
        "contested that differ": len(contested ^ expected.contested()),
        "gaps that differ": len(gaps ^ expected.gaps()),
    }
    return [f"{count} {what}" for what, count in found.items() if count]
