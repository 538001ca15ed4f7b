"""Asking relays: heads and messages."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import pytest

from luxrelay.archive import relays as module
from luxrelay.archive.offsets import LEAP_MAX, Span
from luxrelay.archive.options import SourceOptions
from luxrelay.archive.relays import CHUNK_ALONE, CONTENTS_MAX, list_heads, read_spans
from luxrelay.archive.schema import RAW
from luxrelay.bus import (
    CiphertextType,
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    TFHECiphertext,
    attach_sidecar,
    check_sidecar,
    sha3_commitment,
)
from luxrelay.bus.finality import FinalityState
from luxrelay.errors import ArchiveError, SyncUnreachableError
from luxrelay.sync import PeerHead, SyncPage, SyncStatus, WireMessage

NS, OTHER = b"n" * 20, b"o" * 20
KEY = SigningKey.from_seed(SignatureScheme.ED25519, b"\x07" * 32)
Forge = Callable[..., WireMessage]


def _options(relays: str = "a:1,b:1", **options: str) -> SourceOptions:
    return SourceOptions.parse({"relays": relays} | options)


def _read(
    options: SourceOptions, *spans: Span, down: tuple[str, ...] = ()
) -> list[tuple[Any, ...]]:
    rows = [row for batch in read_spans(options, spans, down) for row in batch.to_pylist()]
    return [(row["relay"], row["seq"]) for row in rows]


def test_heads_of_all_and_who_is_down(memory_relays: Any, forge: Forge) -> None:
    """A relay that does not answer is named; the others' heads count."""
    memory_relays.put("a:1", forge(seq=1), forge(OTHER, 1))
    memory_relays.down.add("b:1")

    heads, down = list_heads(_options())

    assert [[head.namespace_id for head in relay] for relay in heads] == [[NS, OTHER]]
    assert down == ("b:1",)


def test_heads_of_named_namespaces(memory_relays: Any, forge: Forge) -> None:
    """Only what was asked for."""
    memory_relays.put("a:1", forge(seq=1), forge(OTHER, 1))

    heads, _ = list_heads(_options("a:1", namespaces=OTHER.hex()))
    lanes, _ = list_heads(_options("a:1", namespaces=f"parent:{NS.hex()}"))

    assert [head.namespace_id for head in heads[0]] == [OTHER]
    assert [head.namespace_id for head in lanes[0]] == [NS]


def test_no_relay_at_all_is_an_error(memory_relays: Any) -> None:
    """Nobody answers: there is nothing to plan with."""
    memory_relays.down |= {"a:1", "b:1"}

    with pytest.raises(SyncUnreachableError, match="no relay answers"):
        list_heads(_options())


def test_read_mode_all_reads_each_relay(memory_relays: Any, forge: Forge) -> None:
    """Copies stand side by side."""
    for relay in ("a:1", "b:1"):
        memory_relays.put(relay, forge(seq=1), forge(seq=2), forge(seq=3))

    rows = _read(_options(), Span(NS, 1, 2))

    assert rows == [("a:1", 1), ("a:1", 2), ("b:1", 1), ("b:1", 2)]


def test_read_mode_any_reads_one_relay_and_fills_its_holes(
    memory_relays: Any, forge: Forge
) -> None:
    """The second relay is asked only for what the first one lacks."""
    first, second = "a:1", "b:1"
    start = NS[0] % 2
    order = [first, second][start:] + [first, second][:start]
    memory_relays.put(order[0], forge(seq=1), forge(seq=3))
    memory_relays.put(order[1], forge(seq=1), forge(seq=2), forge(seq=3))

    rows = _read(_options(readMode="any"), Span(NS, 1, 3))

    assert rows == [(order[0], 1), (order[0], 3), (order[1], 2)]


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_relay_that_fails_midway_is_replaced(memory_relays: Any, forge: Forge, mode: str) -> None:
    """What it had served stays, the rest comes from the other; it is asked no more."""
    memory_relays.page_messages = 2
    messages = [forge(seq=seq) for seq in range(1, 7)]
    for relay in ("a:1", "b:1"):
        memory_relays.put(relay, *messages)
    memory_relays.fails_after["a:1"] = 1

    rows = _read(_options(readMode=mode, faultRows="true"), Span(NS, 1, 6))

    assert {seq for _, seq in rows} == set(range(1, 7))
    assert ("a:1", 1) in rows or mode == "any"
    assert memory_relays.pages.get("a:1", 0) <= 1


def test_unread_relays_appear_when_asked_for(memory_relays: Any, forge: Forge) -> None:
    """One row without a header for each relay a task could not read."""
    memory_relays.put("a:1", forge(seq=1))
    options = _options(faultRows="true")

    batches = list(read_spans(options, [Span(NS, 1, 1)], ("b:1",)))

    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["relay"], row["header"] is None) for row in rows] == [
        ("a:1", False),
        ("b:1", True),
    ]
    assert len(_read(_options(), Span(NS, 1, 1), down=("b:1",))) == 1


def test_a_claimed_finality_that_is_none_says_nothing(memory_relays: Any, forge: Forge) -> None:
    """Neither a byte without a meaning nor a number whose low byte has one becomes a state."""
    claimed = {1: 2, 2: 3, 3: 255, 4: 256 + 3, 5: 1, 6: 2**32 - 1}
    memory_relays.put("a:1", *(replace(forge(seq=seq), finality=claimed[seq]) for seq in claimed))

    rows = [
        row for batch in read_spans(_options("a:1"), [Span(NS, 1, 6)]) for row in batch.to_pylist()
    ]

    assert [row["finality"] for row in rows] == [2, 3, 0, 0, 0, 0]


def test_a_range_that_only_a_failing_relay_holds_is_an_error(
    memory_relays: Any, forge: Forge
) -> None:
    """Nobody else serves it, so going on would lose it."""
    memory_relays.put("a:1", forge(seq=1))
    memory_relays.put("b:1", forge(seq=2))
    memory_relays.fails_after["b:1"] = 0

    with pytest.raises(SyncUnreachableError, match="went away"):
        _read(_options(), Span(NS, 1, 2))


@pytest.mark.usefixtures("memory_relays")
def test_no_relay_left_is_an_error() -> None:
    """A task whose relays are all down says so."""
    with pytest.raises(SyncUnreachableError, match="no relay is left"):
        _read(_options(), Span(NS, 1, 2), down=("a:1", "b:1"))


def test_forgotten_meanwhile_is_data_loss(memory_relays: Any, forge: Forge) -> None:
    """What every relay forgot between plan and read is said, or passed over on request."""
    for relay in ("a:1", "b:1"):
        memory_relays.put(relay, *(forge(seq=seq) for seq in range(1, 7)))
        memory_relays.forget(relay, NS, 4)

    with pytest.raises(ArchiveError, match="sequences 1 to 4") as caught:
        _read(_options(), Span(NS, 1, 6))

    assert caught.value.code == "archive.data_loss"
    rows = _read(_options(failOnDataLoss="false"), Span(NS, 1, 6))
    assert {seq for _, seq in rows} == {5, 6}


def test_a_hole_that_nobody_ever_had_is_no_loss(memory_relays: Any, forge: Forge) -> None:
    """Below it a relay still holds messages, so it was not forgotten; the audit shows it."""
    memory_relays.put("a:1", forge(seq=1), forge(seq=3))

    assert _read(_options("a:1"), Span(NS, 1, 3)) == [("a:1", 1), ("a:1", 3)]


def test_batches_are_bounded(
    memory_relays: Any, forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Arrow batch ends at BATCH_ROWS or BATCH_BYTES, whichever comes first."""
    memory_relays.put("a:1", *(forge(seq=seq, blob=b"x" * 1_000) for seq in range(1, 11)))

    monkeypatch.setattr(module, "BATCH_ROWS", 4)
    by_rows = [b.num_rows for b in read_spans(_options("a:1"), [Span(NS, 1, 10)])]
    monkeypatch.setattr(module, "BATCH_BYTES", 2_000)
    by_bytes = [b.num_rows for b in read_spans(_options("a:1"), [Span(NS, 1, 10)])]

    assert by_rows == [4, 4, 2]
    assert by_bytes == [2, 2, 2, 2, 2]


def test_long_ranges_are_read_in_chunks(
    memory_relays: Any, forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relays take turns every CHUNK_SEQUENCES, so that copies stand close together."""
    monkeypatch.setattr(module, "CHUNK_SEQUENCES", 2)
    for relay in ("a:1", "b:1"):
        memory_relays.put(relay, *(forge(seq=seq) for seq in (1, 2, 3)))

    rows = _read(_options(), Span(NS, 1, 3))

    assert rows == [("a:1", 1), ("a:1", 2), ("b:1", 1), ("b:1", 2), ("a:1", 3), ("b:1", 3)]


def test_a_relay_alone_is_asked_for_whole_pages(memory_relays: Any, forge: Forge) -> None:
    """There are no copies to keep together, so it is asked half as often."""
    memory_relays.page_messages = 10_000
    memory_relays.put("a:1", *(forge(seq=seq) for seq in range(1, CHUNK_ALONE + 2)))

    rows = _read(_options("a:1"), Span(NS, 1, CHUNK_ALONE + 1))

    assert [seq for _, seq in rows] == list(range(1, CHUNK_ALONE + 2))
    assert memory_relays.pages == {"a:1": 2}


def _plain_batches(served: Sequence[tuple[str, bytes, bytes, WireMessage]]) -> list[list[Any]]:
    """Return rows message by message, cut as BATCH_ROWS and BATCH_BYTES say."""
    batches: list[list[Any]] = [[]]
    size = 0
    for relay, namespace, parent, message in served:
        if len(batches[-1]) >= module.BATCH_ROWS or size >= module.BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(
            {
                "relay": relay, "namespace": namespace, "seq": message.seq,
                "header": message.header, "blob": message.blob or None,
                "received_at": min(message.received_at, 2**63 - 1),
                "expires_at": min(message.expires_at, 2**63 - 1),
                "finality": message.finality if message.finality in set(FinalityState) else 0,
                "parent": parent,
                "sidecar": message.sidecar or None,
            }
        )  # fmt: skip
        size += len(message.header) + len(message.blob)
    return batches


@pytest.mark.parametrize("seed", range(12))
def test_batches_hold_what_was_served_row_by_row(
    memory_relays: Any, forge: Forge, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever the sizes of pages and batches, whatever a relay claims of times and states."""
    rng = random.Random(seed)
    monkeypatch.setattr(module, "BATCH_ROWS", rng.choice([1, 3, 7, 1_000]))
    monkeypatch.setattr(module, "BATCH_BYTES", rng.choice([1, 900, 4_000, 10**6]))
    memory_relays.page_messages = rng.choice([1, 2, 5, 1_000])
    held, parents = [], {OTHER: NS}
    for namespace in (NS, OTHER):
        messages = [
            replace(
                forge(namespace, seq, blob=b"x" * rng.choice([0, 1, 700])),
                received_at=rng.choice([0, 5, 2**63, 2**64 - 1]),
                expires_at=rng.choice([0, 2**63 - 1, 2**64 - 1]),
                finality=rng.choice([0, 2, 3, 255, 2**32 - 1]),
            )
            for seq in range(1, 10)
        ]
        memory_relays.put("a:1", *messages)
        held += [("a:1", namespace, NS, each) for each in messages if each.seq <= 8]

    batches = list(
        read_spans(_options("a:1"), [Span(NS, 1, 8), Span(OTHER, 1, 8)], parents=parents)
    )

    assert all(batch.schema.equals(RAW.arrow()) for batch in batches)
    for batch in batches:
        batch.validate(full=True)
    assert [batch.to_pylist() for batch in batches] == _plain_batches(held)


def test_sidecars_are_fetched_beside_their_messages(
    memory_relays: Any, forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the relay that says to have them, few at a time; another's is not waited for (11-35)."""
    monkeypatch.setattr(module, "BATCH_BYTES", 100)
    messages = [with_sidecar(forge(NS, seq), held=seq != 2) for seq in (1, 2, 3)]
    memory_relays.put("a:1", *messages)
    memory_relays.blobs["a:1"] = {sha3_commitment(each.sidecar): each.sidecar for each in messages}
    for each in messages:
        each.sidecar = b""

    rows = [row for batch in read_spans(_options("a:1"), [Span(NS, 1, 3)]) for row in
            batch.to_pylist()]  # fmt: skip

    assert [row["sidecar"] is not None for row in rows] == [True, False, True]
    for row in rows:
        if row["sidecar"]:
            assert check_sidecar(MsgHeader.decode(row["header"]), row["sidecar"]).accepted


def test_a_relay_that_ends_while_it_gives_sidecars_is_down(
    memory_relays: Any, forge: Forge
) -> None:
    """Its messages are taken without the sidecars that are left."""
    messages = [replace(with_sidecar(forge(NS, seq)), sidecar=b"") for seq in (1, 2)]
    memory_relays.put("a:1", *messages)
    memory_relays.blobs["a:1"] = None

    rows = [row for batch in read_spans(_options("a:1"), [Span(NS, 1, 2)]) for row in
            batch.to_pylist()]  # fmt: skip

    assert [row["seq"] for row in rows if row["header"]] == [1, 2]
    assert all(row["sidecar"] is None for row in rows)


def with_sidecar(message: WireMessage, *, held: bool = True) -> WireMessage:
    """Return a message that refers to a sidecar, signed anew."""
    secret = TFHECiphertext(type=CiphertextType.BYTES, data=b"opaque" * 30)
    header, sidecar = attach_sidecar(MsgHeader.decode(message.header), secret)
    signed = KEY.sign_header(header).encode()
    length = len(sidecar) if held else 0
    return replace(message, header=signed, sidecar=sidecar, sidecar_len=length)


class Boaster:
    """A relay that claims a range far larger than what it serves."""

    def __init__(self, forge: Forge, last: int, serves: int) -> None:
        self._head = PeerHead(
            namespace_id=NamespaceId(NS), parent_id=NamespaceId(NS), earliest_seq=1,
            contiguous_seq=last, latest_seq=last,
        )  # fmt: skip
        self._message = forge(seq=serves)

    def __call__(self, _relay: str) -> Self:
        """Stand where the client is made."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def list_heads(self, _parent: bytes | None) -> list[PeerHead]:
        """Boast."""
        return [self._head]

    def sync_page(self, _ns: bytes, low: int, high: int, _n: int, *, held: bool) -> SyncPage:
        """Serve the one message there is."""
        assert held
        messages = [self._message] if low < self._message.seq <= high else []
        return SyncPage(messages=messages, status=SyncStatus(complete=True))


@pytest.mark.parametrize("last", [2 + LEAP_MAX, 2**63 - 1, 2**64 - 1])
def test_a_long_range_is_proven_by_its_last_message(
    last: int, forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number alone keeps no run busy for ever: such a relay counts as one that is down."""
    monkeypatch.setattr(module, "RelaySyncClient", Boaster(forge, last, serves=1))

    with pytest.raises(SyncUnreachableError, match=f"serves no {last}"):
        list_heads(_options("a:1"))

    monkeypatch.setattr(module, "RelaySyncClient", Boaster(forge, 2 + LEAP_MAX, 2 + LEAP_MAX))
    heads, down = list_heads(_options("a:1"))
    assert (heads[0][0].contiguous_seq, down) == (2 + LEAP_MAX, ())


def test_an_answer_that_never_ends_is_cut_off(
    memory_relays: Any, forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a relay counts as one that is down (CONTENTS_MAX); the others are read all the same."""
    memory_relays.put("b:1", forge(seq=1), forge(seq=2))
    flood, honest = forge(seq=1), memory_relays.client

    class Endless:
        def iter_pages(self, *_: object, **__: object) -> Iterator[SyncPage]:
            status = SyncStatus(has_more=True, last_seq=1, earliest_seq=1, next_cursor=b"on")
            while True:
                yield SyncPage(messages=[flood] * 50, status=status)

        def close(self) -> None:
            pass

    monkeypatch.setattr(
        module, "RelaySyncClient", lambda relay: Endless() if relay == "a:1" else honest(relay)
    )

    rows = _read(_options(faultRows="true"), Span(NS, 1, 2))

    assert [row for row in rows if row[0] == "b:1"] == [("b:1", 1), ("b:1", 2)]
    flooded = [row for row in rows if row[0] == "a:1"]
    assert len(flooded) == 2 * CONTENTS_MAX // 50 * 50 + 1  # and the row that says: not read


def test_what_fills_few_holes_of_a_long_range_is_no_flood(memory_relays: Any, forge: Forge) -> None:
    """A range is asked for from its first hole to its last one, and comes whole."""
    order = ["a:1", "b:1"][NS[0] % 2 :] + ["a:1", "b:1"][: NS[0] % 2]
    memory_relays.put(order[0], *(forge(seq=seq) for seq in range(2, 300)))
    memory_relays.put(order[1], *(forge(seq=seq) for seq in range(1, 301)))

    rows = _read(_options(readMode="any"), Span(NS, 1, 300))

    assert sorted(seq for _, seq in rows) == list(range(1, 301))
