"""The archive beside relays: real stores behind real sync ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luxrelay.archive import comparison
from luxrelay.archive import expected_contents as holdings
from luxrelay.archive.comparison import Archived, RelayComparison, compare
from luxrelay.archive.offsets import Span
from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.rules import ArchiveRules
from luxrelay.archive.serving import ArchiveStore
from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig
from luxrelay.sync import RelaySyncClient, RelaySyncServer, SyncServerConfig, WireMessage
from luxrelay.sync.rpc.backing import SyncStore

A, B = NamespaceId(b"a" * 20), NamespaceId(b"b" * 20)
NOW = 1_704_067_260_000
OTHER = SigningKey.from_seed(SignatureScheme.ED25519, b"\x08" * 32)
Forge = Callable[..., WireMessage]
Serve = Callable[..., str]
Held = Callable[..., str]
Compare = Callable[..., RelayComparison]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve a store on a port of its own and return the address."""
    with ExitStack() as stack:

        def begin(store: SyncStore, **config: int) -> str:
            bounds = SyncServerConfig(port=0, **config)
            server = RelaySyncServer(store, bounds, clock_ms=lambda: NOW)
            address = f"127.0.0.1:{server.start()}"
            stack.callback(server.stop, 0)
            return address

        yield begin


@pytest.fixture
def relay(serve: Serve, tmp_path: Path) -> Iterator[Held]:
    """Start a relay that holds some messages and return its address."""
    with ExitStack() as stack:

        def begin(
            messages: Sequence[WireMessage],
            wrap: Callable[[RelayStore], SyncStore] = lambda store: store,
            **config: int,
        ) -> str:
            folder = tmp_path / f"store-{len(list(tmp_path.iterdir()))}"
            small = RelayStoreConfig.small()
            store = stack.enter_context(RelayStore.open(folder, small, now_ms=NOW))
            store.put_many(
                [
                    IncomingMessage(
                        header=MsgHeader.decode(each.header),
                        blob=each.blob,
                        parent=NamespaceId(each.namespace_id),
                        received_at=NOW,
                    )
                    for each in messages
                ],
                NOW,
            )
            return serve(wrap(store), **config)

        yield begin


@pytest.fixture
def beside(archive_of: Callable[..., Path], tmp_path: Path) -> Compare:
    """Compare an archive of some messages with the relay at an address."""

    def run(
        messages: Sequence[WireMessage],
        address: str,
        *,
        retired: dict[bytes, int] | None = None,
        rules: ArchiveRules | None = None,
        now_ms: int = NOW,
    ) -> RelayComparison:
        if messages:  # else the archive is the one before
            archive_of(tmp_path / "archive", messages)
        reader = ArchiveReader(tmp_path / "archive")
        reaches = {reach.namespace_id: reach for reach in reader.reaches()}
        archived = Archived(
            reader=reader,
            reaches=reaches,
            retired=retired or {},
            rules=rules or ArchiveRules(),
            now_ms=now_ms,
        )
        with RelaySyncClient(address) as client:
            return compare(archived, client, list(reaches))

    return run


def _content(message: WireMessage) -> bytes:
    return MsgHeader.decode(message.header).content_id


def _rival(message: WireMessage) -> WireMessage:
    """Return the same message signed by another key: both stay in their slot (J11)."""
    header = OTHER.sign_header(MsgHeader.decode(message.header))
    return WireMessage(
        header=header.encode(),
        blob=message.blob,
        received_at=message.received_at,
        expires_at=message.expires_at,
    )


def _named(found: RelayComparison, missing: str) -> set[tuple[bytes, int, bytes]]:
    return {
        (each.namespace_id, each.seq, each.content_id)
        for each in found.differences
        if each.missing == missing
    }


def _places(messages: Sequence[WireMessage]) -> set[tuple[bytes, int, bytes]]:
    return {(bytes(each.namespace_id), each.seq, _content(each)) for each in messages}


def test_equal_roots_end_the_comparison(forge: Forge, relay: Held, beside: Compare) -> None:
    """A relay that begins later, with holes and rivals, has the root of its intervals (J4, J11)."""
    older = [forge(A, seq) for seq in range(1, 300)]
    held = [forge(A, seq) for seq in range(300, 700) if seq not in {310, 311, 600}]
    held += [forge(A, 400, blob=b"%d" % number) for number in range(2)]  # one sender: one is kept
    held += [_rival(forge(A, 401)), *(forge(B, seq) for seq in range(1, 4))]
    more = [forge(A, seq) for seq in (310, 311)]  # which the relay does not say that it holds

    found = beside([*older, *held, *more], relay(held))

    assert (found.root, found.ids, found.namespaces) == ("equal", len(held) - 2, 2)
    assert (found.wrong, found.blocks, found.blocks_read) == (0, 0, 0)


def test_what_is_missing_on_either_side_is_named_to_the_content_id(
    forge: Forge, relay: Held, beside: Compare
) -> None:
    """The descent ends at messages: which, whose, who has them, and what can be read again."""
    both = [forge(A, seq) for seq in range(1, 600) if seq not in {20, 21, 500}]
    here = [forge(A, 20), forge(A, 21), forge(A, 500), _rival(forge(A, 7))]
    there = [_rival(forge(A, 299))]
    address = relay([*both, *here])

    found = beside([*both, *there], address)

    assert (found.root, found.wrong, found.blocks_read) == ("differs", 5, 2)
    assert _named(found, "here") == _places(here)
    assert _named(found, "there") == _places(there)
    assert found.missing_here() == [Span(A, 7, 7), Span(A, 20, 21), Span(A, 500, 500)]
    held_by = {each.missing: each.held_by for each in found.differences}
    assert held_by == {"here": (address,), "there": ("a:1",)}
    assert "the archive lacks" in str(found.differences[0])


def test_what_the_archive_has_not_come_to_is_no_difference(
    forge: Forge, relay: Held, beside: Compare
) -> None:
    """Later sequences and whole namespaces are newer; a hole before them is found all the same."""
    both = [forge(A, seq) for seq in range(1, 10)]
    later = [*(forge(A, seq) for seq in range(10, 30)), *(forge(B, seq) for seq in range(1, 4))]

    found = beside([*both[:4], *both[5:]], relay([*both, *later]))

    assert (found.root, found.newer, found.wrong) == ("differs", 23, 1)
    assert _named(found, "here") == _places([both[4]])


def test_what_was_deleted_on_purpose_is_no_difference(
    forge: Forge, relay: Held, beside: Compare
) -> None:
    """Retention and legal deletion are known by how far they went; what lies above is missing."""
    held = [forge(A, seq) for seq in range(1, 10)]

    found = beside(held[5:], relay(held), retired={bytes(A): 4})

    assert (found.kept_out, found.missing_here()) == (4, [Span(A, 5, 5)])


def test_what_the_rules_keep_out_is_no_difference(
    forge: Forge, relay: Held, beside: Compare
) -> None:
    """A relay that serves what the archive rejects does not have more than it (H3)."""
    held = [forge(A, seq) for seq in range(1, 10)]
    bound = ArchiveRules.of([], network="closed", bound=True)

    found = beside([held[0], held[8]], relay(held), rules=bound)

    assert (found.root, _named(found, "here"), found.kept_out) == ("differs", set(), 9)


def test_what_is_past_its_time_is_no_difference(forge: Forge, relay: Held, beside: Compare) -> None:
    """A relay may be rid of a message that every relay has forgotten by now."""
    held = [forge(A, seq) for seq in range(1, 10)]
    rival = _rival(held[4])
    address = relay(held)

    now = beside([*held, rival], address)
    later = beside([], address, now_ms=rival.expires_at)

    assert _named(now, "there") == _places([rival])
    assert (later.root, later.wrong) == ("differs", 0)


def test_what_a_relay_forgets_meanwhile_is_no_difference(
    forge: Forge, relay: Held, beside: Compare
) -> None:
    """Between its intervals and its messages a window may pass; the page says where it begins."""
    held = [forge(A, seq) for seq in range(1, 10)]
    rivals = [_rival(held[2]), _rival(held[6])]

    def wrap(store: RelayStore) -> Any:
        def query(asked: Any, now_ms: int) -> Any:
            page = store.query(asked, now_ms)
            later = [row for row in page.messages if row.seq >= 5]
            return _Liar(page, messages=later, earliest_seq=5)

        return _Liar(store, query=query)

    found = beside([*held, *rivals], relay(held, wrap))

    assert _named(found, "there") == _places(rivals[1:])


def test_a_relay_without_a_tree_is_compared_by_digests(
    forge: Forge, serve: Serve, beside: Compare, archive_of: Callable[..., Path], tmp_path: Path
) -> None:
    """A served archive takes no part in reconciliation; its last block counts too (P26)."""
    held = [forge(A, seq) for seq in range(1, 600)]
    served = archive_of(tmp_path / "served", [*held, _rival(held[598])])

    found = beside(held, serve(ArchiveStore(served)))

    assert (found.root, found.blocks, found.blocks_read) == ("unasked", 3, 1)
    assert "reconciliation" in found.note
    assert _named(found, "here") == _places([_rival(held[598])])


def test_the_last_block_waits_while_the_relay_goes_on(
    forge: Forge, relay: Held, beside: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By digests only blocks count that the archive has come past."""
    held = [forge(A, seq) for seq in range(1, 600)]
    monkeypatch.setattr(holdings, "IDS_MAX", 1)

    found = beside(held[:590], relay(held))

    assert (found.root, found.blocks, found.wrong) == ("unasked", 2, 0)
    assert "more than one tree" in found.note


def test_where_much_differs_bounds_hold_and_say_so(
    forge: Forge, relay: Held, beside: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids, blocks and differences are named up to their bounds; the others are counted."""
    held = [forge(A, seq) for seq in range(1, 1_300)]
    monkeypatch.setattr(comparison, "NAMED_MAX", 2)
    monkeypatch.setattr(comparison, "BLOCKS_ASKED", 4)
    monkeypatch.setattr(comparison, "BLOCKS_READ", 3)
    monkeypatch.setattr(comparison, "DIFFERENCES_MAX", 5)
    lacking = [message for message in held if message.seq % 256 not in {3, 4}]

    found = beside(lacking, relay(held))

    assert (found.root, found.note) == ("differs", "more differs than is named")
    assert (found.blocks, found.blocks_read, found.further_blocks) == (4, 3, 1)
    assert (len(found.differences), found.further, found.wrong) == (5, 1, 7)


def test_a_relay_that_names_fewer_intervals_than_it_holds_is_compared_by_digests(
    forge: Forge, relay: Held, beside: Compare
) -> None:
    """What it does not name is not held against it."""
    held = [forge(A, seq) for seq in range(1, 300) if seq not in {100, 200}]

    found = beside(held, relay(held, intervals_max=1))

    assert (found.root, found.wrong) == ("unasked", 0)
    assert "intervals" in found.note


def test_a_relay_is_not_waited_for_nor_read_without_end(
    forge: Forge, relay: Held, beside: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that serves more than a slot can have, or many intervals, or nothing, ends it."""
    held = [forge(A, seq) for seq in range(1, 10)]
    monkeypatch.setattr(comparison, "CONTENTS_MAX", 0)

    endless = beside([*held[:8], _rival(held[8])], relay(held))
    monkeypatch.setattr(comparison, "INTERVALS_MAX", 1)
    scattered = beside([], relay([held[0], held[2]]))
    down = beside([], "127.0.0.1:1")

    assert "more than 0 messages" in endless.failed
    assert "more than 1 intervals" in scattered.failed
    assert (down.root, down.wrong, bool(down.failed)) == ("unasked", 1, True)


class _Liar:
    """A store of which some calls answer otherwise."""

    def __init__(self, store: Any, **lies: Any) -> None:
        self._store = store
        self._lies = lies

    def __getattr__(self, name: str) -> Any:
        return self._lies.get(name) or getattr(self._store, name)


def test_ids_that_nobody_serves_accuse_nobody(forge: Forge, relay: Held, beside: Compare) -> None:
    """A tree over made-up ids costs a look at the blocks, and proves nothing."""
    held = [forge(A, seq) for seq in range(1, 300)]
    ids = [bytes([7, 7]) + bytes([number]) * 30 for number in range(3)]

    def wrap(store: RelayStore) -> Any:
        tree = holdings.HeldTree(_rows([*map(_content, held), *ids]))
        return _Liar(
            store,
            tree_nodes=tree.nodes,
            tree_buckets=tree.buckets,
            bucket_ids=lambda query, _: (tree.ids(query.bucket, query.limit), b""),
        )

    found = beside(held, relay(held, wrap))

    assert (found.root, found.wrong, found.newer) == ("differs", 0, 0)


def test_messages_of_other_namespaces_are_not_looked_for(
    forge: Forge, relay: Held, beside: Compare
) -> None:
    """A relay that answers with what nobody asked for leads nowhere."""
    held = [forge(A, seq) for seq in range(1, 10)]

    def wrap(store: RelayStore) -> Any:
        def contents(ids: Sequence[bytes], now_ms: int) -> tuple[list[Any], list[bytes]]:
            rows, missing = store.get_contents(ids, now_ms)
            return [_Liar(row, header_bytes=forge(B, 3).header) for row in rows], missing

        return _Liar(store, get_contents=contents)

    found = beside([*held[:3], *held[4:], forge(B, 5)], relay(held, wrap))

    assert (found.root, found.failed, found.blocks_read) == ("differs", "", 0)


def _rows(ids: Sequence[bytes]) -> Any:
    return np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 32)
