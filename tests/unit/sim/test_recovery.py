"""Stores of lanes and the catch-up between them."""

from luxrelay.sim.network import Network
from luxrelay.sim.recovery import LaneStore, SimRecovery
from luxrelay.sim.traffic import NAMESPACE, Author
from luxrelay.sync.actions import AskPage
from luxrelay.sync.heads import SeqRange


def ask(**changes: object) -> AskPage:
    """Return a request for a page of the first author's lane."""
    values: dict[str, object] = {
        "request": 1,
        "peer": "0",
        "namespace_id": Author(0).lane,
        "parent": NAMESPACE,
        "from_seq": 0,
        "to_seq": 100,
        "cursor": b"",
        "max_messages": 2,
        "max_bytes": 10_000,
    }
    return AskPage(**(values | changes))  # type: ignore[arg-type]


def filled(*seqs: int) -> LaneStore:
    """Return a store with these sequences of the first author."""
    author, store = Author(0), LaneStore()
    made = {seq: author.write(b"", b"p", 0.0) for seq in range(1, max(seqs) + 1)}
    for seq in seqs:
        assert store.put(author.lane, seq, made[seq])
    return store


def test_a_store_knows_its_head_and_its_gaps() -> None:
    """The head is contiguous; what is missing below the latest is named."""
    store = filled(1, 2, 5, 6, 9)
    (head,) = store.heads()

    assert (head.earliest_seq, head.contiguous_seq, head.latest_seq) == (1, 2, 9)
    assert store.gaps() == {Author(0).lane: [SeqRange(3, 4), SeqRange(7, 8)]}
    assert not store.put(Author(0).lane, 5, b"other")
    assert store.size == 5


def test_pages_go_on_by_cursor() -> None:
    """A page is bounded, says that there is more, and the next one begins after it."""
    store = filled(1, 2, 5)
    page, status = store.page(ask())
    assert [seq for seq, _ in page] == [1, 2]
    assert (status.has_more, status.complete, status.last_seq) == (True, False, 2)

    rest, end = store.page(ask(cursor=status.next_cursor))

    assert [seq for seq, _ in rest] == [5]
    assert (end.has_more, end.complete, end.gaps) == (False, False, (SeqRange(3, 4),))


def test_an_unknown_lane_is_empty_and_complete() -> None:
    """Asking for what a relay never saw brings nothing, and says so."""
    page, status = LaneStore().page(ask())

    assert (page, status.complete) == ([], True)


def catch_up(network: Network, store: LaneStore) -> None:
    """Let the first node catch up from the second one, which has a store."""
    first, second = network.nodes
    for node in network.nodes:
        network.start(node)
    second.store = store
    network.call_at(0.1, SimRecovery(network, first, [second]).start)


def test_a_node_fetches_what_it_missed(pair: Network) -> None:
    """Everything the relay has arrives; what nobody has stays a hole."""
    catch_up(pair, filled(*range(1, 31), 33))
    pair.run(5.0)

    assert pair.nodes[0].store.size == 31
    assert (pair.synced, pair.catch_ups) == (31, 1)
    assert not pair.nodes[0].syncing


def test_a_relay_that_is_not_there_is_given_up(pair: Network) -> None:
    """Calls across a partition time out, and the catch-up ends."""
    catch_up(pair, filled(1, 2))
    pair.nodes[1].side = 1
    pair.run(60.0)

    assert (pair.synced, pair.catch_ups) == (0, 1)


def test_a_crash_ends_a_catch_up(pair: Network) -> None:
    """Answers to a life that is over change nothing in the next one."""
    catch_up(pair, filled(1, 2, 3))
    pair.run(0.12)
    pair.crash(pair.nodes[0])
    pair.start(pair.nodes[0])
    pair.run(5.0)

    assert pair.synced == 0
    assert not pair.nodes[0].syncing


def test_a_lie_is_not_stored(pair: Network) -> None:
    """A page with a message that is not genuine is rejected by the sync rules."""
    store = filled(1)
    store.put(Author(0).lane, 2, b"rubbish")
    catch_up(pair, store)
    pair.run(5.0)

    assert pair.nodes[0].store.size == 1
