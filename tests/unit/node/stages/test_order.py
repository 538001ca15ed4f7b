"""Timestamps of a namespace never go back: refused live, marked in history (LP-6411 §2.3, H13)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luxrelay.bus import (
    Code,
    FinalityState,
    MsgHeader,
    NamespaceId,
    SignatureScheme,
    SigningKey,
    VerdictKind,
    sha3_commitment,
    topic_namespace,
)
from luxrelay.bus.policy import default_policy
from luxrelay.bus.semantics import LIVE_RULES, SYNC_RULES
from luxrelay.node.ingress import Doors
from luxrelay.node.missing_blobs import WantedBlobs
from luxrelay.node.stages.verify import Candidate, Judge, JudgeConfig, StoreKnowledge
from luxrelay.store import NamespaceQuery, RelayStore, RelayStoreConfig, StoredMessage
from luxrelay.sync import PublishItem, WireMessage

if TYPE_CHECKING:
    from conftest import Bench

NOW = 1_704_067_200_000
PARENT = topic_namespace("/chat/1/room")
POLICY = default_policy(PARENT).policy_hash
KEYS = [SigningKey.from_seed(SignatureScheme.ED25519, bytes([n]) * 32) for n in range(3)]


def header(seq: int, timestamp: int, writer: int = 0, nonce: int = 0) -> MsgHeader:
    """Return a header with a payload of one byte in the namespace itself, where all may write."""
    return KEYS[writer].sign_header(
        MsgHeader(
            namespace_id=PARENT,
            seq=seq,
            timestamp=timestamp,
            blob_commitment=sha3_commitment(bytes([nonce])),
            blob_len=1,
            policy_hash=POLICY,
        )
    )


class Relay:
    """The doors of a node on a store of its own."""

    def __init__(self, folder: Path, *, final: int = 0) -> None:
        self.store = RelayStore.open(folder, RelayStoreConfig.small(), now_ms=NOW)
        self.judge = Judge(
            StoreKnowledge(self.store),
            {PARENT: frozenset({POLICY})},
            JudgeConfig(ttl_ms=600_000),
            lambda: NOW,
            finality=_Final(final) if final else None,
        )
        self.doors = Doors(
            store=self.store,
            judge=self.judge,
            identity=KEYS[0],
            network="test",
            inline_blob_max=1024,
            clock_ms=lambda: NOW,
            spread=lambda items: [0] * len(items),
            wanted=WantedBlobs(ttl_ms=600_000),
        )

    def close(self) -> None:
        """End its threads and its store."""
        self.judge.close()
        self.store.close()

    def live(self, *headers: MsgHeader) -> list[tuple[Code, str]]:
        """Publish headers in one group; return code and reason of each receipt."""
        items = [
            PublishItem(header=each.encode(), blob=b"\0", parent_id=PARENT) for each in headers
        ]
        return [(each.code, each.reason) for each in self.doors.publish(items)]

    def gossip(self, headers: Sequence[MsgHeader]) -> None:
        """Take headers as gossip does, in one group."""
        candidates = [Candidate(header=each, blob=None, parent=PARENT) for each in headers]
        self.doors._pass("gossip", candidates, LIVE_RULES)

    def history(self, messages: Sequence[StoredMessage]) -> None:
        """Take what another relay serves."""
        served = [WireMessage(each.header_bytes, each.blob or b"") for each in messages]
        self.doors.history(PARENT, served)

    def held(self) -> list[StoredMessage]:
        """Return everything, marked."""
        query = NamespaceQuery(namespace_id=PARENT, limit=1_000)
        messages = self.store.query(query, NOW).messages
        self.store.mark_regressed(messages)
        return messages


class _Final:
    def __init__(self, seq: int) -> None:
        self._seq = seq

    def state(self, namespace_id: NamespaceId, seq: int, header_hash: bytes) -> FinalityState:
        """Return FINALIZED up to a sequence."""
        del namespace_id, header_hash
        return FinalityState.FINALIZED if seq <= self._seq else FinalityState.PENDING

    def finalized_seq(self, namespace_id: NamespaceId) -> int:
        """Return the sequence."""
        del namespace_id
        return self._seq


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    """One relay."""
    made = Relay(tmp_path / "store")
    yield made
    made.close()


def test_a_timestamp_that_goes_back_is_refused(relay: Relay) -> None:
    """With how far, and behind which sequence; an equal one is taken (11-16)."""
    assert relay.live(header(1, NOW))[0][0] is Code.OK
    ((code, reason),) = relay.live(header(2, NOW - 20_000))

    assert code is Code.TIMESTAMP_INVALID
    assert "20.000 s before that of sequence 1" in reason
    assert relay.live(header(2, NOW))[0][0] is Code.OK
    assert [each.seq for each in relay.held()] == [1, 2]


def test_within_one_group_too(relay: Relay) -> None:
    """Whatever the order in the group; a refused one is nobody's predecessor."""
    headers = [header(4, NOW), header(1, NOW), header(3, NOW - 1), header(2, NOW - 2)]

    codes = [code for code, _ in relay.live(*headers)]

    assert codes == [Code.OK, Code.OK, Code.TIMESTAMP_INVALID, Code.TIMESTAMP_INVALID]
    assert [each.seq for each in relay.held()] == [1, 4]


def test_across_a_hole_the_nearest_one_counts(relay: Relay) -> None:
    """A later message is compared with what is there; one that fills the hole with its own."""
    relay.live(header(1, NOW - 10), header(5, NOW))

    assert relay.live(header(7, NOW - 5))[0][0] is Code.TIMESTAMP_INVALID
    assert relay.live(header(3, NOW - 11))[0][0] is Code.TIMESTAMP_INVALID
    assert relay.live(header(3, NOW - 10))[0][0] is Code.OK


def test_behind_a_finalized_one_it_is_rejected(tmp_path: Path) -> None:
    """No honest relay has it either (verdict table)."""
    relay = Relay(tmp_path / "store", final=1)
    try:
        relay.history(_as_stored(header(1, NOW)))
        receipt = relay.doors.publish(
            [PublishItem(header=header(2, NOW - 1).encode(), blob=b"\0", parent_id=PARENT)]
        )[0]
        assert receipt.verdict is VerdictKind.REJECT
        assert receipt.code is Code.TIMESTAMP_INVALID
        assert "finalized" in receipt.reason
    finally:
        relay.close()


def test_a_successor_that_came_first_is_marked_when_its_predecessor_comes(relay: Relay) -> None:
    """Who has read it once is not asked again; who reads it now is told."""
    relay.live(header(2, NOW - 5))
    assert [each.regressed for each in relay.held()] == [False]

    assert relay.live(header(1, NOW))[0][0] is Code.OK

    assert [(each.seq, each.regressed) for each in relay.held()] == [(1, False), (2, True)]


def test_history_that_goes_back_is_taken_and_marked(relay: Relay) -> None:
    """Or two relays that saw two messages in another order would never agree."""
    relay.live(header(1, NOW))
    relay.history(_as_stored(header(2, NOW - 5)))

    assert [(each.seq, each.regressed) for each in relay.held()] == [(1, False), (2, True)]


def test_the_mark_is_the_same_from_the_middle_of_a_page(relay: Relay) -> None:
    """The first message of a page is compared with the one before the page."""
    relay.history(_as_stored(*(header(seq, NOW - seq % 3) for seq in range(1, 20))))
    whole = {each.seq: each.regressed for each in relay.held()}
    assert any(whole.values())

    for begin in range(19):
        query = NamespaceQuery(namespace_id=PARENT, from_seq=begin, limit=2)
        messages = relay.store.query(query, NOW).messages
        relay.store.mark_regressed(messages)
        assert {each.seq: each.regressed for each in messages}.items() <= whole.items()
        relay.store.mark_regressed(messages[1:])
        assert {each.seq: each.regressed for each in messages}.items() <= whole.items()


def _as_stored(*headers: MsgHeader) -> list[StoredMessage]:
    return [StoredMessage(each.encode(), b"", NOW, NOW + 600_000) for each in headers]


MESSAGES = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 4), st.integers(0, 2), st.integers(0, 1)),
    unique_by=lambda each: (each[0], each[2], each[3]),
    max_size=14,
)
"""Sequence, milliseconds, writer, nonce."""


@pytest.mark.trial
@settings(max_examples=40, deadline=None)
@given(drawn=MESSAGES, seed=st.integers(0, 2**32))
def test_three_relays_end_alike_whatever_came_first(
    drawn: list[tuple[int, int, int, int]], seed: int
) -> None:
    """The same set with the same marks (J11, H13)."""
    rng = random.Random(seed)
    headers = [header(seq, NOW - 4 + ms, writer, nonce) for seq, ms, writer, nonce in drawn]
    with TemporaryDirectory() as folder, ExitStack() as stack:
        relays = [Relay(Path(folder) / str(n)) for n in range(3)]
        for each in relays:
            stack.callback(each.close)
            order = rng.sample(headers, rng.randint(0, len(headers)))
            while order:
                size = rng.randint(1, 4)
                each.gossip(order[:size])
                del order[:size]
        for _ in range(3):
            for taker in relays:
                for giver in rng.sample(relays, 3):
                    messages = giver.held()
                    rng.shuffle(messages)
                    taker.history(messages)
        ends = [{m.header.content_id: m.regressed for m in each.held()} for each in relays]
        marks = _marks_of(relays[0].held())

    assert ends[0] == ends[1] == ends[2] == marks


def _marks_of(messages: Sequence[StoredMessage]) -> dict[bytes, bool]:
    """Return what the rule says, read slot by slot."""
    first: dict[int, StoredMessage] = {}
    for each in sorted(messages, key=lambda m: (m.seq, m.header.content_id)):
        first.setdefault(each.seq, each)
    marks = {}
    for each in messages:
        before = [seq for seq in first if seq < each.seq]
        marks[bytes(each.header.content_id)] = bool(
            before and each.timestamp < first[max(before)].timestamp
        )
    return marks


def test_the_rules_of_history_do_not_ask_for_order() -> None:
    """What the table says is what is done."""
    assert any("§2.3, H13" in rule.section for rule in LIVE_RULES)
    assert not any("§2.3, H13" in rule.section for rule in SYNC_RULES)


def test_over_gossip_it_is_ignored(bench: Bench) -> None:
    """It may be right elsewhere, so whoever brings it is not to blame."""
    first, back = bench.header(1), bench.header(2, timestamp=bench.now - 1)

    kinds = bench.doors.gossip(
        [bench.validate(bench.envelope(each.encode())) for each in (first, back)]
    )

    assert kinds == [VerdictKind.ACCEPT, VerdictKind.IGNORE]
    (refused,) = [code for _, _, code in bench.doors.counts.snapshot() if code is not Code.OK]
    assert refused is Code.TIMESTAMP_INVALID
