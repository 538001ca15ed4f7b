"""A forge for messages and relays in memory, shared by the archive tests."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from luxrelay.archive.decode import check_batch
from luxrelay.archive.folder import MARKER, ArchiveFolder, Marker
from luxrelay.archive.proofs import day_root
from luxrelay.archive.rules import ArchiveRules
from luxrelay.archive.schema import MESSAGES, NAMESPACES, PASSED, RAW, REJECTS, ROOTS
from luxrelay.archive.tables import prepare_tables
from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey, sha3_commitment
from luxrelay.bus import constants as c
from luxrelay.errors import SyncUnreachableError
from luxrelay.sync import PeerHead, SyncPage, SyncStatus, WireMessage
from luxrelay.sync.messages import LanePage, LaneRange

T0 = 1_704_067_200_000
KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"\x07" * 32)


def _forge(
    namespace: bytes = b"n" * 20, seq: int = 1, blob: bytes = b"hello", **fields: Any
) -> WireMessage:
    header = MsgHeader(
        namespace_id=NamespaceId(namespace),
        seq=seq,
        **{
            "timestamp": T0 + seq,
            "blob_commitment": sha3_commitment(blob),
            "blob_len": len(blob),
            "policy_hash": b"p" * 32,
        }
        | fields,
    )
    signed = KEY.sign_header(header)
    return WireMessage(
        header=signed.encode(), blob=blob, received_at=T0 + seq + 40, expires_at=T0 + 600_000
    )


@pytest.fixture
def forge() -> Callable[..., WireMessage]:
    """Make a valid signed message as a relay serves it."""
    return _forge


class MemoryRelays:
    """Relays in memory; stands where `RelaySyncClient` stands."""

    def __init__(self) -> None:
        self.held: dict[str, dict[bytes, list[WireMessage]]] = {}
        self.blobs: dict[str, dict[bytes, bytes] | None] = {}
        self.down: set[str] = set()
        self.fails_after: dict[str, int] = {}
        self.pages: dict[str, int] = {}
        self.page_messages = 1_000
        self.open_clients = 0
        self.looks = 0
        self.parents: dict[bytes, bytes] = {}

    def put(self, relay: str, *messages: WireMessage) -> None:
        """Let a relay hold messages."""
        for message in messages:
            rows = self.held.setdefault(relay, {}).setdefault(message.namespace_id, [])
            rows.append(message)
            rows.sort(key=lambda row: row.seq)

    def forget(self, relay: str, namespace: bytes, up_to: int) -> None:
        """Let a relay forget the sequences up to one."""
        rows = self.held[relay][namespace]
        self.held[relay][namespace] = [row for row in rows if row.seq > up_to]

    def client(self, relay: str) -> MemoryClient:
        """Open a client."""
        self.open_clients += 1
        return MemoryClient(self, relay)


class MemoryClient:
    """What the archive uses of a client."""

    def __init__(self, relays: MemoryRelays, relay: str) -> None:
        self._relays = relays
        self._relay = relay
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close once, however often it is called."""
        self._relays.open_clients -= not self._closed
        self._closed = True

    def get_blob(self, commitment: bytes) -> bytes | None:
        """Return a blob or sidecar; a relay that has None for them goes away instead."""
        held = self._relays.blobs[self._relay]
        if held is None:
            self._relays.down.add(self._relay)
            self._check()
            return None
        return held.get(commitment)

    def _check(self) -> None:
        if self._relay in self._relays.down:
            raise SyncUnreachableError("the relay does not answer", where=self._relay)

    def get_head(self, namespace: bytes) -> PeerHead:
        """Return one head."""
        self._check()
        rows = self._relays.held.get(self._relay, {}).get(namespace, [])
        seqs = [row.seq for row in rows]
        contiguous = min(seqs, default=0)
        while contiguous + 1 in seqs:
            contiguous += 1
        return PeerHead(
            namespace_id=NamespaceId(namespace),
            parent_id=NamespaceId(self._relays.parents.get(namespace, namespace)),
            earliest_seq=min(seqs, default=0),
            contiguous_seq=contiguous,
            latest_seq=max(seqs, default=0),
            messages=len(seqs),
        )

    def list_heads(self, parent: bytes | None = None) -> Iterator[PeerHead]:
        """Yield every head."""
        self._check()
        for namespace in sorted(self._relays.held.get(self._relay, {})):
            if parent is None or parent == namespace:
                yield self.get_head(namespace)

    def iter_lanes(
        self, lanes: Sequence[LaneRange], *, max_bytes: int, held: bool
    ) -> Iterator[LanePage]:
        """Yield pages of several ranges."""
        for lane in lanes:
            for page in self.iter_pages(
                lane.namespace_id, lane.from_seq, lane.to_seq, max_bytes=max_bytes, held=held
            ):
                yield LanePage(
                    namespace_id=lane.namespace_id, messages=page.messages, status=page.status
                )

    def sync_page(
        self, namespace: bytes, from_seq: int, to_seq: int, count: int, *, held: bool = False
    ) -> SyncPage:
        """Return the first messages of a range."""
        del held  # nothing here is past its time
        self._check()
        self._relays.looks += 1
        rows = self._relays.held.get(self._relay, {}).get(namespace, [])
        wanted = [row for row in rows if from_seq < row.seq <= to_seq]
        return SyncPage(messages=wanted[:count], status=SyncStatus(complete=True))

    def iter_pages(
        self, namespace: bytes, from_seq: int, to_seq: int, *, max_bytes: int, held: bool
    ) -> Iterator[SyncPage]:
        """Yield pages of a range."""
        assert max_bytes > 0
        assert held
        rows = self._relays.held.get(self._relay, {}).get(namespace, [])
        wanted = [row for row in rows if from_seq < row.seq <= to_seq]
        size = self._relays.page_messages
        for start in range(0, max(1, len(wanted)), size):
            self._check()
            count = self._relays.pages.get(self._relay, 0)
            if count >= self._relays.fails_after.get(self._relay, 10**9):
                raise SyncUnreachableError("the relay went away", where=self._relay)
            self._relays.pages[self._relay] = count + 1
            part = wanted[start : start + size]
            more = start + size < len(wanted)
            yield SyncPage(
                messages=part,
                status=SyncStatus(
                    complete=not more,
                    last_seq=part[-1].seq if part else 0,
                    has_more=more,
                    earliest_seq=rows[0].seq if rows else 0,
                ),
            )


@pytest.fixture
def memory_relays(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryRelays]:
    """Relays in memory in place of the gRPC client; every client must be closed in the end."""
    relays = MemoryRelays()
    monkeypatch.setattr("luxrelay.archive.relays.RelaySyncClient", relays.client)
    yield relays
    assert relays.open_clients == 0


def _archive_of(
    path: Path,
    messages: Sequence[WireMessage],
    *,
    roots: bool = True,
    parents: Mapping[bytes, bytes] | None = None,
    rules: ArchiveRules | None = None,
) -> Path:
    """Write an archive of these messages without Spark: each as one relay served it."""
    folder = ArchiveFolder(path, Marker(checkpoint="made", checkpoints=1))
    path.mkdir(parents=True, exist_ok=True)
    (path / MARKER).write_text(json.dumps(asdict(folder.marker)))
    prepare_tables(folder)
    rows = [
        {
            "relay": "a:1",
            "namespace": message.namespace_id,
            "seq": message.seq,
            "header": message.header,
            "blob": message.blob,
            "received_at": message.received_at,
            "expires_at": message.expires_at,
            "finality": message.finality,
            "parent": (parents or {}).get(message.namespace_id),
        }
        for message in messages
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=RAW.arrow())
    checked = check_batch(batch, rules).to_pylist()
    assert {row["code"] for row in checked} == {0}
    own = {"copies": 1, "relays": ["a:1"], "ingested_at": T0}
    kept = [
        {name: row.get(name) for name in MESSAGES.names}
        | own
        | {"latency_ms": row["received_at"] - row["timestamp"]}
        for row in checked
    ]
    write_deltalake(
        str(folder.table(MESSAGES)),
        pa.Table.from_pylist(kept, schema=MESSAGES.arrow()),
        mode="append",
    )
    if roots:
        days: dict[Any, list[tuple[int, bytes]]] = defaultdict(list)
        for row in kept:
            days[row["date"], row["namespace_id"]].append((row["seq"], row["content_id"]))
        made = [
            {
                "date": day,
                "namespace_id": name,
                "messages": len(leaves),
                "root": day_root(name, (day - date(1970, 1, 1)).days, leaves),
            }
            for (day, name), leaves in days.items()
        ]
        write_deltalake(
            str(folder.table(ROOTS)),
            pa.Table.from_pylist(made, schema=ROOTS.arrow()),
            mode="append",
        )
    return path


@pytest.fixture
def archive_of() -> Callable[..., Path]:
    """Write an archive of messages without Spark."""
    return _archive_of


Absent = Callable[..., ArchiveFolder]


@pytest.fixture
def absent_of(tmp_path: Path) -> Absent:
    """Write an archive of rows that were rejected, ranges passed over, and last sequences."""

    def make(
        *,
        rejected: Sequence[tuple[bytes, int | None, int]] = (),
        passed: Sequence[tuple[bytes, int, int]] = (),
        lasts: Sequence[tuple[bytes, int]] = (),
    ) -> ArchiveFolder:
        folder = ArchiveFolder(tmp_path / "absent", Marker(checkpoint="made", checkpoints=1))
        prepare_tables(folder)
        day = date(2024, 1, 1)
        rows = [
            {
                "relay": "a:1",
                "namespace": name,
                "code": code,
                "reason": "",
                "digest": b"d" * 32,
                "header": b"h" * c.OFFSET_SEQ + (b"" if seq is None else seq.to_bytes(8, "big")),
                "ingested_at": T0,
            }
            for name, seq, code in rejected
        ]
        spans = [
            {"namespace_id": name, "first": first, "last": last, "ingested_at": T0 + first}
            for name, first, last in passed
        ]
        counts = ("messages", "slots", "senders", "first_seq", "blob_bytes", "copies")
        days = [
            {"date": day, "namespace_id": name, "last_seq": last} | dict.fromkeys(counts, 1)
            for name, last in lasts
        ]
        for table, values in ((REJECTS, rows), (PASSED, spans), (NAMESPACES, days)):
            if values:
                frame = pa.Table.from_pylist(values, schema=table.arrow())
                write_deltalake(str(folder.table(table)), frame, mode="append")
        return folder

    return make
