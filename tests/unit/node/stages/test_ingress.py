"""The three doors: what gets in, what does not, and why."""

import io
import logging
from dataclasses import replace
from typing import Any

import pytest

from luxrelay.bus import Code, SigningKey, VerdictKind
from luxrelay.bus.constants import FLAG_KZG_COMMITMENT
from luxrelay.errors import StoreError
from luxrelay.gossip import MessageType, RelayMessage
from luxrelay.node.logs import start_logging
from luxrelay.store import PutOutcome
from luxrelay.sync import PublishItem, WireMessage

ACCEPT, IGNORE, REJECT = VerdictKind.ACCEPT, VerdictKind.IGNORE, VerdictKind.REJECT


def code_of(bench: Any, door: str = "gossip") -> Code:
    """Return the code of the only verdict a door has given."""
    ((_, _, code),) = [key for key in bench.doors.counts.snapshot() if key[0] == door]
    return code


def test_gossip_stores_before_it_accepts(bench: Any) -> None:
    """An accepted message is in the store when the verdict is given (21-15)."""
    header = bench.header(1)

    kinds = bench.doors.gossip([bench.validate(bench.envelope(header.encode()))])

    assert kinds == [ACCEPT]
    assert bench.store.has(header.content_id)
    assert bench.store.head(bench.namespace_id).contiguous_seq == 1
    buckets, _ = bench.doors.latency.snapshot()
    assert buckets[-1] == ("+Inf", 1)


def test_gossip_takes_a_header_without_its_blob(bench: Any) -> None:
    """Type 1 announces a header alone; it is stored, its blob may come later."""
    header = bench.header(1)

    assert bench.doors.gossip([bench.validate(bench.envelope(header.encode(), None))]) == [ACCEPT]
    found, _ = bench.store.get_messages([header.message_id], bench.now)
    assert found[0].blob is None


def test_gossip_judges_a_group_in_order(bench: Any) -> None:
    """A bad message in a group costs the others nothing (and large groups use threads)."""
    envelopes = []
    for seq in range(1, 101):
        header = bench.header(seq)
        if seq % 10 == 0:
            header = replace(header, signature=bytes(64))
        envelopes.append(bench.validate(bench.envelope(header.encode()), token=seq))

    kinds = bench.doors.gossip(envelopes)

    assert [seq for seq, kind in enumerate(kinds, start=1) if kind is REJECT] == list(
        range(10, 101, 10)
    )
    assert bench.store.stats().messages == 90


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({"flags": 0x80}, REJECT, Code.RESERVED_FLAGS),
        ({"seq": 0}, REJECT, Code.ZERO_SEQUENCE),
        ({"namespace_id": b"\x44" * 20}, REJECT, Code.WRONG_TOPIC),
        ({"policy_hash": bytes(32)}, IGNORE, Code.POLICY_VIOLATION),
        ({"flags": FLAG_KZG_COMMITMENT}, IGNORE, Code.UNSUPPORTED_COMMITMENT),
        ({"seq": 2000}, IGNORE, Code.SEQUENCE_GAP),
        ({"blob_len": 4}, REJECT, Code.BLOB_MISMATCH),
        ({"fee_proof": b"\x01x"}, IGNORE, Code.FEE_TOO_LOW),
    ],
)
def test_gossip_verdict_on_a_broken_header(
    bench: Any, change: dict[str, object], kind: VerdictKind, code: Code
) -> None:
    """Each broken rule has its verdict and code, and nothing is stored (20-57)."""
    fields = {"seq": 1, **change}
    header = bench.header(**fields)

    kinds = bench.doors.gossip([bench.validate(bench.envelope(header.encode()))])

    assert (kinds, code_of(bench)) == ([kind], code)
    assert bench.store.stats().messages == 0


@pytest.mark.parametrize("offset", [-30_001, 30_001])
def test_gossip_ignores_another_time(bench: Any, offset: int) -> None:
    """A timestamp outside ±30 s is nobody's fault (11-17)."""
    header = bench.header(1, timestamp=bench.now + offset)
    kinds = bench.doors.gossip([bench.validate(bench.envelope(header.encode()))])
    assert (kinds, code_of(bench)) == ([IGNORE], Code.TIMESTAMP_INVALID)


def test_gossip_rejects_another_blob(bench: Any) -> None:
    """The inline blob must be the one the header commits to (11-20)."""
    header = bench.header(1)
    kinds = bench.doors.gossip([bench.validate(bench.envelope(header.encode(), b"HELLO"))])
    assert (kinds, code_of(bench)) == ([REJECT], Code.BLOB_MISMATCH)


def test_gossip_rejects_an_oversize_blob(bench: Any) -> None:
    """A blob above inline_blob_max does not travel inside an announcement (J7)."""
    blob = bytes(1025)
    envelope = bench.envelope(bench.header(1, blob).encode(), blob)
    assert bench.doors.gossip([bench.validate(envelope)]) == [REJECT]
    assert code_of(bench) is Code.MALFORMED_PAYLOAD


def test_gossip_rejects_a_forged_announcement(bench: Any) -> None:
    """The relay that signs an announcement is the one it names (G8)."""
    honest, bench.identity = bench.identity, SigningKey.generate()
    forged = bench.envelope(bench.header(1).encode())
    bench.identity = honest
    swapped = bytearray(forged.payload)
    mine = bench.envelope(bench.header(1).encode()).payload
    peer_at = forged.payload.index(b"\x00\x24\x08\x01\x12\x20")
    swapped[peer_at : peer_at + 38] = mine[peer_at : peer_at + 38]

    kinds = bench.doors.gossip([bench.validate(replace(forged, payload=bytes(swapped)))])

    assert (kinds, code_of(bench)) == ([REJECT], Code.SOURCE_SIGNATURE)


def test_gossip_ignores_an_old_announcement(bench: Any) -> None:
    """An announcement of more than a minute ago is a recording (G9)."""
    header = bench.header(1, timestamp=bench.now - 20_000)
    bench.now -= 61_000
    envelope = bench.envelope(header.encode())
    bench.now += 61_000
    assert bench.doors.gossip([bench.validate(envelope)]) == [IGNORE]
    assert code_of(bench) is Code.TIMESTAMP_INVALID


@pytest.mark.parametrize("payload", [b"", b"\x00" * 40, b"\xff" * 300])
def test_gossip_rejects_a_payload_that_is_none(bench: Any, payload: bytes) -> None:
    """Bytes that are no announcement are rejected."""
    message = RelayMessage(type=MessageType.HEADER, topic=bench.topic, payload=payload)
    assert bench.doors.gossip([bench.validate(message)]) == [REJECT]


def test_gossip_rejects_an_envelope_for_another_topic(bench: Any) -> None:
    """Envelope and transport name one topic (G6)."""
    message = bench.envelope(bench.header(1).encode(), topic=bench.topic[:-1] + "0")
    if message.topic == bench.topic:
        message = replace(message, topic=bench.topic[:-1] + "1")
    assert bench.doors.gossip([bench.validate(message)]) == [REJECT]
    assert code_of(bench) is Code.WRONG_TOPIC


def test_gossip_rejects_a_hint_on_a_namespace_topic(bench: Any) -> None:
    """A blob hint on a namespace topic is rejected (20-08)."""
    message = RelayMessage(type=MessageType.BLOB_HINT, topic=bench.topic, payload=b"")
    assert bench.doors.gossip([bench.validate(message)]) == [REJECT]


def test_gossip_ignores_what_is_stored(bench: Any) -> None:
    """A message that is stored already is a duplicate before its signature is looked at."""
    validate = bench.validate(bench.envelope(bench.header(1).encode()))
    assert bench.doors.gossip([validate]) == [ACCEPT]
    assert bench.doors.gossip([validate]) == [IGNORE]


def test_own_fault_is_never_the_peers(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that cannot write means IGNORE, and the node says that it is ill."""

    def fail(*_: object) -> None:
        raise StoreError("the disk is full", where="store")

    monkeypatch.setattr(bench.store, "put_many", fail)
    validate = bench.validate(bench.envelope(bench.header(1).encode()))
    assert bench.doors.gossip([validate]) == [IGNORE]
    assert "disk is full" in bench.doors.fault()

    monkeypatch.undo()
    assert bench.doors.gossip([validate]) == [ACCEPT]
    assert bench.doors.fault() == ""


def item(bench: Any, seq: int, **changes: object) -> PublishItem:
    """Return a message as an application hands it in."""
    header = bench.header(seq, **changes).encode()
    return PublishItem(header=header, blob=b"hello", parent_id=bench.parent)


def test_a_message_shown_while_it_is_spread_is_counted(bench: Any) -> None:
    """A peer may show a message before its receipt has left."""
    header = bench.header(1)

    def shown_at_once(items: Any) -> list[int]:
        bench.doors.book.shown(b"quick", [header.message_id])
        return [3] * len(items)

    bench.doors._spread = shown_at_once
    (receipt,) = bench.doors.publish(
        [PublishItem(header=header.encode(), blob=b"hello", parent_id=bench.parent)]
    )

    assert (receipt.seen_back, receipt.peers_sent, receipt.stored) == (1, 3, True)


def test_publish_stores_spreads_and_receipts(bench: Any) -> None:
    """A published message is durable, on its way, and answered with a receipt."""
    (receipt,) = bench.doors.publish([item(bench, 1)])

    assert (receipt.verdict, receipt.stored, receipt.peers_sent) == (ACCEPT, True, 2)
    assert receipt.message_id == bench.header(1).message_id
    (topic, envelope) = bench.spread[0]
    assert topic == bench.topic
    assert bench.doors.gossip([bench.validate(RelayMessage.decode(envelope))]) == [IGNORE]
    assert code_of(bench) is Code.DUPLICATE


def test_publishing_again_is_safe(bench: Any) -> None:
    """A second publication is answered as stored and is not spread again."""
    first, second = item(bench, 1), item(bench, 1)
    bench.doors.publish([first])

    (receipt,) = bench.doors.publish([second])

    assert (receipt.verdict, receipt.code, receipt.stored) == (IGNORE, Code.DUPLICATE, True)
    assert [topic for topic, _ in bench.spread].count(bench.topic) == 1


def test_publish_says_which_sequence_it_expects(bench: Any) -> None:
    """A sequence far ahead is refused with the next one that would be taken."""
    bench.doors.publish([item(bench, 1)])

    (receipt,) = bench.doors.publish([item(bench, 5000)])

    assert (receipt.stored, receipt.code, receipt.expected_seq) == (False, Code.SEQUENCE_GAP, 2)


def test_publish_refuses_bytes_and_forgeries(bench: Any) -> None:
    """Broken items get receipts of their own and do not stop the good one between them."""
    forged = replace(bench.header(2), signature=bytes(64)).encode()
    receipts = bench.doors.publish(
        [
            PublishItem(header=b"\x01", blob=b"", parent_id=b""),
            PublishItem(header=forged, blob=b"hello", parent_id=bench.parent),
            item(bench, 1),
            PublishItem(header=bench.header(3).encode(), blob=b"hello", parent_id=b"short"),
        ]
    )

    assert [r.stored for r in receipts] == [False, False, True, False]
    assert [r.code for r in receipts] == [
        Code.HEADER_TOO_SHORT,
        Code.INVALID_SIGNATURE,
        Code.OK,
        Code.INVALID_NAMESPACE,
    ]
    assert [topic for topic, _ in bench.spread].count(bench.topic) == 1


def test_large_blob_is_announced_without_it(bench: Any) -> None:
    """A blob above inline_blob_max is stored and announced by its header alone (J7)."""
    blob = bytes(2000)
    header = bench.header(1, blob).encode()
    (receipt,) = bench.doors.publish(
        [PublishItem(header=header, blob=blob, parent_id=bench.parent)]
    )

    assert receipt.stored
    assert RelayMessage.decode(bench.spread[0][1]).type is MessageType.HEADER


def test_history_is_not_held_to_the_live_clock(bench: Any) -> None:
    """Nine-minute-old history is taken, eleven-minute-old is not wanted (11-18, H14)."""
    old = bench.header(1, timestamp=bench.now - 540_000)
    gone = bench.header(2, timestamp=bench.now - 660_000)

    verdicts = bench.doors.history(
        bench.parent,
        [WireMessage(header=h.encode(), blob=b"hello") for h in (old, gone)],
    )

    assert [v.kind for v in verdicts] == [ACCEPT, IGNORE]
    assert verdicts[1].code is Code.EXPIRED


def test_history_drops_forgeries_and_keeps_the_rest(bench: Any) -> None:
    """A forged message in a page costs the others nothing (21-27)."""
    good, forged = bench.header(1), replace(bench.header(2), signature=bytes(64))

    verdicts = bench.doors.history(
        bench.parent,
        [
            WireMessage(header=forged.encode(), blob=b"hello"),
            WireMessage(header=b"garbage", blob=b""),
            WireMessage(header=good.encode(), blob=b"hello"),
        ],
    )

    assert [v.kind for v in verdicts] == [REJECT, REJECT, ACCEPT]
    assert bench.store.stats().messages == 1


def test_history_takes_a_header_whose_blob_is_gone(bench: Any) -> None:
    """A relay may have only the header; an empty answer is no claim about the blob."""
    verdicts = bench.doors.history(
        bench.parent, [WireMessage(header=bench.header(1).encode(), blob=b"")]
    )
    assert [v.kind for v in verdicts] == [ACCEPT]


def test_a_missing_blob_is_added_later(bench: Any) -> None:
    """A header that came alone gets its blob when another copy brings it."""
    header = bench.header(1)
    alone = bench.validate(bench.envelope(header.encode(), None))
    whole = bench.validate(bench.envelope(header.encode()))

    assert bench.doors.gossip([alone]) == [ACCEPT]
    assert bench.doors.gossip([alone]) == [IGNORE]
    assert bench.doors.gossip([whole]) == [IGNORE]

    found, _ = bench.store.get_messages([header.message_id], bench.now)
    assert found[0].blob == b"hello"


def test_header_without_blob_is_asked_for_until_the_blob_is_there(bench: Any) -> None:
    """A header stored without its blob is noted as wanted; with its blob, or without any, never."""
    alone, whole, empty = bench.header(1, b"large"), bench.header(2), bench.header(3, b"")
    messages = [(alone, None), (whole, b"hello"), (empty, None)]

    bench.doors.gossip([bench.validate(bench.envelope(h.encode(), b)) for h, b in messages])

    (wanted,) = bench.wanted.take(9, bench.now)
    assert (wanted.message_id, wanted.parent) == (alone.message_id, bench.parent)
    bench.doors.history(bench.parent, [WireMessage(header=alone.encode(), blob=b"large")])
    assert bench.store.get_blob(wanted.commitment) == b"large"
    assert len(bench.wanted) == 0


def test_a_blob_that_comes_with_another_header_is_asked_for_no_more(bench: Any) -> None:
    """Whichever message brings the bytes, they are here."""
    alone, whole = bench.header(1, b"shared"), bench.header(2, b"shared")
    bench.doors.gossip([bench.validate(bench.envelope(alone.encode(), None))])
    assert len(bench.wanted) == 1

    bench.doors.gossip([bench.validate(bench.envelope(whole.encode(), b"shared"))])

    assert len(bench.wanted) == 0


def test_a_blob_that_found_no_room_is_wanted_still(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store calls a message known whether or not it could keep the blob that was lacking."""
    alone = bench.header(1, b"large")
    bench.doors.gossip([bench.validate(bench.envelope(alone.encode(), None))])
    monkeypatch.setattr(bench.store, "put_many", lambda *_: [PutOutcome.DUPLICATE])

    bench.doors.history(bench.parent, [WireMessage(header=alone.encode(), blob=b"large")])

    assert len(bench.wanted) == 1


def test_disk_that_refuses_writes_is_told_once_a_minute(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator reads of it in the log, and the log does not grow with every message."""
    stream = io.StringIO()
    monkeypatch.setattr(logging.getLogger("luxrelay"), "handlers", [])  # undone afterwards
    start_logging("relay", "info", stream)

    def fail(*_: object) -> None:
        raise StoreError("no space left")

    monkeypatch.setattr(bench.store, "put_many", fail)
    for after_ms in (0, 1, 59_999, 1):
        bench.now += after_ms
        header = bench.header(1)
        bench.doors.gossip([bench.validate(bench.envelope(header.encode()))])

    told = [line for line in stream.getvalue().splitlines() if "refuses writes" in line]
    assert len(told) == 2
    assert "no space left" in told[0]


def test_a_full_store_is_no_fault(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender can fill a store; the message is ignored and the node stays healthy (P2)."""
    monkeypatch.setattr(
        bench.store, "put_many", lambda messages, _: [PutOutcome.FULL] * len(messages)
    )

    assert bench.doors.gossip([bench.validate(bench.envelope(bench.header(1).encode()))]) == [
        IGNORE
    ]

    assert code_of(bench) is Code.STORE_FULL
    assert bench.doors.fault() == ""


def test_publishing_again_after_a_long_time_is_answered_as_stored(bench: Any) -> None:
    """A stored message whose timestamp is old by now is not taken for one that is missing."""
    first, other = item(bench, 1), item(bench, 2)
    bench.doors.publish([first])
    bench.now += 60_000

    again, missing = bench.doors.publish([first, other])

    assert (again.verdict, again.stored) == (IGNORE, True)
    assert (missing.verdict, missing.stored) == (IGNORE, False)
