"""TFHE sidecars at the three doors: what is taken, in which order whatever comes, and why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.stages.conftest import NOW, PARENT, Bench

from luxrelay.bus import (
    CiphertextType,
    Code,
    MsgHeader,
    SigningKey,
    TFHECiphertext,
    VerdictKind,
    attach_sidecar,
    check_sidecar,
    lane,
)
from luxrelay.bus.bound import sign_header_bound
from luxrelay.bus.policy import default_policy
from luxrelay.node.stages.verify import Judge, JudgeConfig, StoreKnowledge
from luxrelay.store import RelayStore, RelayStoreConfig
from luxrelay.sync import PublishItem, WireMessage

CIPHERTEXT = TFHECiphertext(type=CiphertextType.U8, data=b"opaque")
OTHER = replace(CIPHERTEXT, data=b"another")
NETWORK = "test"


@pytest.fixture
def bench_with(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """A maker of nodes with other bounds of judging."""
    made: list[tuple[Judge, RelayStore]] = []

    def make(**bounds: Any) -> Bench:
        folder = tmp_path / str(len(made))
        store = RelayStore.open(folder, RelayStoreConfig.small(), now_ms=NOW)
        policies = {PARENT: frozenset({default_policy(PARENT).policy_hash})}
        config = JudgeConfig(ttl_ms=600_000, **bounds)
        judge = Judge(StoreKnowledge(store), policies, config, lambda: NOW)
        made.append((judge, store))
        return Bench(store, judge)

    yield make
    for judge, store in made:
        judge.close()
        store.close()


class Sender:
    """One message with a sidecar, and what a hop makes of it."""

    def __init__(self, bench: Bench, *, bound: bool = True) -> None:
        self.key = SigningKey.generate()
        unsigned = bench.header(1, namespace_id=lane(PARENT, self.key.public_field))
        unsigned = replace(unsigned, sender_pub_key=b"", signature=b"")
        header, self.sidecar = attach_sidecar(unsigned, CIPHERTEXT)
        self.header = self.signed(header, bound=bound)
        self.swapped, self.other_sidecar = attach_sidecar(self.header, OTHER)
        assert check_sidecar(self.swapped, self.other_sidecar).accepted
        assert self.swapped.content_id == self.header.content_id

    def signed(self, header: MsgHeader, *, bound: bool) -> MsgHeader:
        """The header with this sender's signature."""
        if bound:
            return sign_header_bound(self.key, header, NETWORK)
        return self.key.sign_header(header)


def item(header: MsgHeader, sidecar: bytes = b"") -> PublishItem:
    """A message for the publish door."""
    return PublishItem(header=header.encode(), blob=b"hello", parent_id=PARENT, sidecar=sidecar)


def publish(bench: Bench, header: MsgHeader, sidecar: bytes = b"") -> tuple[int, bool]:
    """Code and whether it is stored."""
    (receipt,) = bench.doors.publish([item(header, sidecar)])
    return receipt.code, receipt.stored


def gossip(bench: Bench, header: MsgHeader) -> VerdictKind:
    """The verdict on a header with its blob; sidecars do not travel so."""
    (kind,) = bench.doors.gossip([bench.validate(bench.envelope(header.encode()))])
    return kind


def history(bench: Bench, header: MsgHeader, sidecar: bytes = b"") -> Code:
    """The code of a message that a relay served."""
    wire = WireMessage(header=header.encode(), blob=b"hello", sidecar=sidecar)
    (verdict,) = bench.doors.history(PARENT, [wire])
    return verdict.code


def held(bench: Bench, sender: Sender) -> tuple[bytes | None, bool, bool]:
    """The header that stands, and whose sidecars are there."""
    references = (sender.header.tfhe_sidecar, sender.swapped.tfhe_sidecar)
    own, other = (bench.store.has_sidecar(each.commitment) for each in references if each)
    return bench.store.encoded_header(sender.header.content_id), own, other


def test_whatever_comes_first_the_senders_own_sidecar_stands(
    bench_with: Callable[..., Bench],
) -> None:
    """All 720 orders of six arrivals, three of them a hop's, end alike (H3, J11, 11-32)."""
    bench = bench_with(bound_network=NETWORK)
    arrivals: list[Callable[[Sender], object]] = [
        lambda s: publish(bench, s.header, s.sidecar),
        lambda s: gossip(bench, s.header),
        lambda s: history(bench, s.header),
        lambda s: publish(bench, s.swapped, s.other_sidecar),
        lambda s: gossip(bench, s.swapped),
        lambda s: history(bench, s.swapped, s.other_sidecar),
    ]
    for order in permutations(arrivals):
        sender = Sender(bench)
        for arrive in order:
            arrive(sender)

        assert held(bench, sender) == (sender.header.encode(), True, False)
    assert bench.wanted.sidecars == len(bench.wanted) == 0
    assert bench.store.verify() == []


def test_a_hop_is_refused_by_the_signature(bench_with: Callable[..., Bench]) -> None:
    """At each door; over gossip it costs its bringer, before the sender's own and after (H3)."""
    bench = bench_with(bound_network=NETWORK)
    sender = Sender(bench)
    for _ in range(2):
        assert gossip(bench, sender.swapped) is VerdictKind.REJECT
        assert history(bench, sender.swapped) is Code.INVALID_SIGNATURE
        answer = publish(bench, sender.swapped, sender.other_sidecar)
        assert answer == (Code.INVALID_SIGNATURE, False)
        assert publish(bench, sender.header, sender.sidecar)[1] is True


def test_a_literal_network_takes_no_sidecar_and_says_why(bench_with: Callable[..., Bench]) -> None:
    """Its signatures leave the reference out; who carries such a message is not to blame (H3)."""
    bench = bench_with()
    sender = Sender(bench, bound=False)

    assert gossip(bench, sender.header) is VerdictKind.IGNORE
    assert history(bench, sender.header, sender.sidecar) is Code.SIDECAR_INVALID
    (receipt,) = bench.doors.publish([item(sender.header, sender.sidecar)])
    assert (receipt.verdict, receipt.code) == (VerdictKind.IGNORE, Code.SIDECAR_INVALID)
    assert 'node.signing = "bound"' in receipt.reason
    assert "node.unsigned_sidecars" in receipt.reason
    assert not receipt.stored


def test_where_the_operator_allows_it_the_first_reference_stays(
    bench_with: Callable[..., Bench],
) -> None:
    """A second one is not called a duplicate, is told apart, and is never stored (H3)."""
    bench = bench_with(unsigned_sidecars=True)
    sender = Sender(bench, bound=False)
    assert publish(bench, sender.header, sender.sidecar) == (Code.OK, True)

    answer = publish(bench, sender.swapped, sender.other_sidecar)
    assert answer == (Code.SIDECAR_INVALID, False)
    assert gossip(bench, sender.swapped) is VerdictKind.IGNORE
    assert held(bench, sender) == (sender.header.encode(), True, False)
    key = "publish", VerdictKind.IGNORE, Code.SIDECAR_INVALID
    assert bench.doors.counts.snapshot()[key] == 1


def test_a_sender_that_signs_two_references_keeps_one(bench_with: Callable[..., Bench]) -> None:
    """Both are the sender's; the second is refused, so that no relay gives both (H3)."""
    bench = bench_with(bound_network=NETWORK)
    sender = Sender(bench)
    second = sender.signed(replace(sender.swapped, signature=b""), bound=True)
    assert publish(bench, sender.header, sender.sidecar) == (Code.OK, True)

    assert publish(bench, second, sender.other_sidecar) == (Code.SIDECAR_INVALID, False)
    assert held(bench, sender) == (sender.header.encode(), True, False)


def test_a_publisher_brings_the_sidecar(bench_with: Callable[..., Bench]) -> None:
    """Without it the message is refused, unless it is here; so is a wrong one (11-35, 11-36)."""
    bench = bench_with(bound_network=NETWORK)
    sender = Sender(bench)

    assert publish(bench, sender.header) == (Code.SIDECAR_INVALID, False)
    assert publish(bench, sender.header, b"none") == (Code.SIDECAR_INVALID, False)
    assert publish(bench, sender.header, sender.other_sidecar) == (Code.SIDECAR_INVALID, False)
    assert publish(bench, sender.header, sender.sidecar) == (Code.OK, True)
    assert publish(bench, sender.header) == (Code.DUPLICATE, True)
    plain = bench.sender.sign_header(bench.header(1))
    plain = sign_header_bound(bench.sender, plain, NETWORK)
    assert publish(bench, plain, sender.sidecar) == (Code.SIDECAR_INVALID, False)


def test_a_header_without_its_sidecar_asks_for_it(bench_with: Callable[..., Bench]) -> None:
    """From gossip it is stored at once and its sidecar wanted, until it comes (11-35)."""
    bench = bench_with(bound_network=NETWORK)
    sender = Sender(bench)
    assert gossip(bench, sender.header) is VerdictKind.ACCEPT
    assert sender.header.tfhe_sidecar is not None
    wanted = bench.wanted.find(sender.header.tfhe_sidecar.commitment)
    assert wanted is not None
    assert (wanted.sidecar, wanted.header) == (True, sender.header)
    assert bench.wanted.sidecars == 1

    assert history(bench, sender.header, sender.other_sidecar) is Code.SIDECAR_INVALID
    assert bench.wanted.sidecars == 1
    assert history(bench, sender.header, sender.sidecar) is Code.DUPLICATE
    assert bench.wanted.sidecars == len(bench.wanted) == 0
    assert held(bench, sender) == (sender.header.encode(), True, False)
