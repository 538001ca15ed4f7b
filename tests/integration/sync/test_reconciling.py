"""Reconciliation with a real relay: intervals first, then ranges, and the tree."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from luxrelay.bus import NamespaceId
from luxrelay.errors import SyncRemoteError, SyncUnreachableError
from luxrelay.store import RelayStore
from luxrelay.sync import RelaySyncClient, SyncClientConfig, SyncServerConfig, run_catchup
from luxrelay.sync.negentropy import Initiator
from luxrelay.sync.reconcile import TreeInitiator
from luxrelay.sync.rpc.reconcile_driver import ReconcilePlan, ReconcileReport, reconcile_with
from luxrelay.sync.rpc.reconciling import StoreTree, ids_of
from luxrelay.sync.transfer import LinkWindow, TransferConfig

if TYPE_CHECKING:
    from tests.integration.sync.conftest import Harbour

PLAN = ReconcilePlan(settle_ms=0, skew_ms=0)


def run(
    harbour: Harbour,
    ours: RelayStore,
    client: RelaySyncClient,
    *,
    plan: ReconcilePlan = PLAN,
    everything: bool = False,
    now_ms: int = 0,
) -> ReconcileReport:
    """Reconcile our store with a relay."""
    return reconcile_with(
        client,
        ours,
        harbour.sink(ours),
        parent=None if everything else harbour.parent,
        now_ms=now_ms or harbour.base_ms + 60_000,
        plan=plan,
    )


def same(one: RelayStore, other: RelayStore) -> bool:
    """Return True when two stores hold the same contents."""
    return one.tree_root() == other.tree_root()


def test_intervals_settle_holes(harbour: Harbour) -> None:
    """P26: what a relay holds and we lack is fetched after one answer of intervals."""
    writer, quiet = harbour.author(1), harbour.author(2)
    theirs = harbour.store([*writer.messages(range(1, 101)), *quiet.messages([1, 2])])
    ours = harbour.store(writer.messages([*range(1, 20), *range(30, 60), *range(61, 80)]))
    client = harbour.client(harbour.serve(theirs))

    report = run(harbour, ours, client)

    assert same(ours, theirs)
    assert (report.lacking, report.stored, report.need, report.have) == (34, 34, 0, 0)
    assert report.methods == ["intervals", "ranges"]
    assert run(harbour, ours, client).equal


def test_many_lanes_that_lack_something_take_few_calls(harbour: Harbour) -> None:
    """P47: a hundred lanes with two holes each are asked for in a few calls, not two hundred."""
    authors = [harbour.author(number) for number in range(1, 101)]
    theirs = harbour.store([m for each in authors for m in each.messages(range(1, 6))])
    ours = harbour.store([m for each in authors for m in each.messages([1, 3, 5])])

    report = run(harbour, ours, harbour.client(harbour.serve(theirs)))

    assert same(ours, theirs)
    assert (report.lacking, report.stored) == (200, 200)
    assert harbour.servers[0].stats().requests["SyncNamespace", "OK"] <= 4


def test_contents_come_in_answers_that_a_slow_link_carries(harbour: Harbour) -> None:
    """P46: forks of 20 KB each over a link of 20 kB a second: small answers, no large blob."""
    writer, blob = harbour.author(1), bytes(20_000)
    whole = writer.messages(range(1, 41))
    forks = [writer.message(seq, blob=blob + bytes([seq])) for seq in range(1, 41)]
    large = writer.message(41, blob=bytes(300_000))
    theirs = harbour.store([*forks, large])
    ours = harbour.store([*whole, writer.message(41)])
    client = harbour.client(harbour.serve(theirs))
    window = LinkWindow(TransferConfig(window_first=65_536))
    window.rate = 20_000.0

    report = reconcile_with(
        client,
        ours,
        harbour.sink(ours),
        parent=harbour.parent,
        now_ms=harbour.base_ms + 60_000,
        plan=PLAN,
        window=window,
    )

    assert (report.need, report.fetched, report.rejected) == (41, 41, 0)
    assert harbour.servers[0].stats().requests["GetMessages", "OK"] >= 10
    assert not ours.has_blob(large.header.blob_commitment, harbour.base_ms)
    assert any(ours.has_blob(fork.header.blob_commitment, harbour.base_ms) for fork in forks)
    assert window.under_way == 0


@pytest.mark.parametrize("everything", [False, True])
def test_ranges_find_a_fork(harbour: Harbour, everything: bool) -> None:
    """21-31: a second content of a slot is found though no sequence is missing."""
    writer = harbour.author(1)
    whole = writer.messages(range(1, 301))
    theirs = harbour.store([*whole[:99], writer.message(100, blob=b"another"), *whole[100:]])
    ours = harbour.store(whole)

    report = run(harbour, ours, harbour.client(harbour.serve(theirs)), everything=everything)

    assert report.lacking == 0
    assert report.need == report.have == 1
    assert report.fetched == 1


def test_contents_say_more_than_digests(harbour: Harbour) -> None:
    """P26, 21-28: where two peers' digests differ, comparing contents finds the very message.

    A catch-up from the first of two that hold different contents of one slot ends complete: no
    sequence is missing. A digest would name the block of 256, and who of the two is right it would
    not say. Comparing contents with each names the one message, and brings it for fewer bytes than
    the block has; the store ends with what J11 keeps, whoever was asked first.
    """
    writer = harbour.author(1)
    whole = writer.messages(range(1, 513))
    other = writer.message(300, blob=b"another")
    forked = [*whole[:299], other, *whole[300:]]
    kept = min((whole[299], other), key=lambda m: m.header.content_id).header.content_id
    stores = [harbour.store(each) for each in (whole, forked)]
    clients = [harbour.client(harbour.serve(store)) for store in stores]
    digests = [client.get_digests(writer.lane, 0, 2) for client in clients]
    assert [a == b for a, b in zip(*digests, strict=True)] == [True, False]

    for asked in (clients, clients[::-1]):
        ours = harbour.store()
        assert run_catchup(asked[:1], harbour.sink(ours)).complete
        reports = [run(harbour, ours, client) for client in asked]

        assert sum(report.fetched for report in reports) <= 1
        assert all(r.bytes_sent + r.bytes_received < 20_000 for r in reports)
        assert ours.has(kept)
        assert ours.stats().messages == 512


def test_equal_stores_cost_a_few_bytes(harbour: Harbour) -> None:
    """Equal stores are known to be so by intervals and the root of the tree."""
    messages = harbour.author(1).messages(range(1, 200))
    ours, theirs = harbour.store(messages), harbour.store(messages)

    report = run(harbour, ours, harbour.client(harbour.serve(theirs)), everything=True)

    assert report.equal
    assert report.methods == ["intervals", "tree"]
    assert report.bytes_sent + report.bytes_received < 200


def test_tree_sync_over_the_wire(harbour: Harbour) -> None:
    """Retention document: the tree finds both differences over gRPC."""
    writer, other = harbour.author(1), harbour.author(2)
    common = writer.messages(range(1, 60))
    mine, foreign = other.messages([1, 2, 3]), writer.messages([70, 71])
    ours, theirs = harbour.store([*common, *mine]), harbour.store([*common, *foreign])
    client = harbour.client(harbour.serve(theirs))
    initiator = TreeInitiator(StoreTree(ours, lambda: harbour.base_ms))

    sent, received = client.reconcile(initiator)

    assert set(initiator.need) == {m.header.content_id for m in foreign}
    assert set(initiator.have) == {m.header.content_id for m in mine}
    assert initiator.rounds == 3
    assert 0 < sent < received


def test_clocks_apart_converge(harbour: Harbour) -> None:
    """What both windows have in common is made equal although the clocks are 10 s apart."""
    writer = harbour.author(1)
    messages = [writer.message(seq, at=seq * 1_000) for seq in range(1, 121)]
    theirs, ours = harbour.store(messages), harbour.store(messages[:50] + messages[51:100])
    for skew_ms in (-10_000, 10_000):
        client = harbour.client(harbour.serve(theirs, now_ms=harbour.base_ms + 130_000 + skew_ms))
        run(harbour, ours, client, now_ms=harbour.base_ms + 130_000)

    assert same(ours, theirs)


def test_fetches_are_bounded_and_go_on(harbour: Harbour) -> None:
    """fetch_max ends one reconciliation, and the next ones bring the rest."""
    theirs = harbour.store(harbour.author(1).messages(range(1, 101)))
    ours = harbour.store()
    client = harbour.client(harbour.serve(theirs))
    plan = replace(PLAN, fetch_max=40)

    reports = [run(harbour, ours, client, plan=plan) for _ in range(3)]

    assert [report.stored for report in reports] == [40, 40, 20]
    assert [report.cut for report in reports] == [True, True, False]
    assert same(ours, theirs)


def test_intervals_asked_for_are_bounded(harbour: Harbour) -> None:
    """spans_max questions and no more, whatever a relay claims; the next comparisons go on."""
    theirs = harbour.store(harbour.author(1).messages(range(1, 40, 2)))
    address = harbour.serve(theirs)
    ours, plan = harbour.store(), ReconcilePlan(settle_ms=0, skew_ms=0, spans_max=8, fetch_max=8)

    reports = [run(harbour, ours, harbour.client(address), plan=plan) for _ in range(3)]

    assert [report.fetched for report in reports] == [8, 8, 4]
    assert [report.cut for report in reports] == [True, True, False]
    pages = harbour.servers[0].stats().requests["SyncNamespace", "OK"]
    assert pages == 20
    assert same(ours, theirs)


def test_a_forged_message_is_counted_and_not_kept(harbour: Harbour) -> None:
    """21-27: what a relay forges is rejected, once though two ways lead to it; the rest is kept."""
    writer = harbour.author(1)
    messages = writer.messages(range(1, 21))
    theirs = harbour.store([*messages[:9], harbour.forged(messages[9]), *messages[10:]])
    ours = harbour.store()

    report = run(harbour, ours, harbour.client(harbour.serve(theirs)))

    assert (report.stored, report.rejected, report.fetched) == (19, 1, 20)
    assert ours.gaps(writer.lane) == [(10, 10)]


def test_only_so_many_reconciliations_at_once(harbour: Harbour) -> None:
    """reconciles_max bounds the sets in memory; another one is told to come again."""
    store = harbour.store()
    hasty = SyncClientConfig(busy_wait_s=0)
    client = harbour.client(harbour.serve(store, SyncServerConfig(reconciles_max=1)), hasty)
    refused: list[str] = []

    class Nested(Initiator):
        """Begins another reconciliation in the middle of one."""

        def receive(self, message: bytes) -> bytes | None:
            with pytest.raises(SyncUnreachableError) as caught:
                client.reconcile(Initiator(ids_of(store, None, 0, 0, 10)))
            refused.append(str(caught.value))
            return super().receive(message)

    client.reconcile(Nested(ids_of(store, None, 0, 0, 10)))

    assert "all 1 places for reconciliations are taken; ask again in 1.0 s" in refused[0]

    def free() -> bool:
        try:
            client.reconcile(Initiator(ids_of(store, None, 0, 0, 10)))
        except SyncUnreachableError:
            return False
        return True

    harbour.eventually(free)  # the relay notices the end a moment after the client


def test_refuse_what_is_no_question(harbour: Harbour) -> None:
    """A message that breaks the method's protocol, a tree of one parent, a time in seconds."""
    client = harbour.client(harbour.serve(harbour.store()))
    empty = ids_of(harbour.stores[0], None, 0, 0, 10)

    class Broken(Initiator):
        """Says something else."""

        def start(self) -> bytes:
            return b"\x61\x00\x00\x09"

    with pytest.raises(SyncRemoteError, match="mode 9"):
        client.reconcile(Broken(empty))
    tree = TreeInitiator(StoreTree(harbour.stores[0], lambda: 0))
    with pytest.raises(SyncRemoteError, match="TREE without a parent"):
        client.reconcile(tree, parent=NamespaceId(b"\x01" * 20))
    with pytest.raises(SyncRemoteError, match="seconds"):
        client.reconcile(Initiator(empty), from_ms=1_800_000_000)
