"""Clocks of peers: what each says, who counts, and what a minority of liars cannot do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from luxrelay.net.peer_clocks import ANNOUNCED_MS, ClockOffset, PeerClocks, median_near_zero

WALL, STEADY = 1_700_000_000_000, 5_000
Values = list[int]
offsets = st.integers(-10_000_000, 10_000_000)


def clocks_of(
    told: dict[bytes, int], *, dialled: frozenset[bytes] = frozenset(), peers_min: int = 2
) -> PeerClocks:
    """Return the clocks of peers ours is so far ahead of, each told without delay."""
    clocks = PeerClocks(peers_min=peers_min)
    for peer, ahead in told.items():
        clocks.connected(peer, dialled=peer in dialled)
        clocks.hello(peer, WALL - ahead, STEADY, STEADY)
    return clocks


def named(values: Values, prefix: str = "p") -> dict[bytes, int]:
    """Return values by names of peers."""
    return {f"{prefix}{index}".encode(): value for index, value in enumerate(values)}


def test_nothing_is_known_of_few_peers() -> None:
    """Below two values the offset is shown and not believed; without one there is none (G36)."""
    assert clocks_of({}).view(WALL, STEADY) == ClockOffset()
    one = clocks_of({b"a": 300_000}).view(WALL, STEADY)
    assert (one.known, one.peers, one.offset_ms) == (False, 1, 300_000)
    assert clocks_of({b"a": 300_000, b"b": 300_000}).view(WALL, STEADY).known
    assert not clocks_of(named([300_000] * 4), peers_min=5).view(WALL, STEADY).known


def test_an_offset_and_its_spread_are_told_with_numbers() -> None:
    """Our clock is ahead or behind, of how many, and how much they differ."""
    ahead = clocks_of(named([300_000, 299_000, 305_000])).view(WALL, STEADY)
    assert (ahead.offset_ms, ahead.spread_ms) == (300_000, 1_000)
    assert ahead.text == "300.0 s ahead of the median clock of 3 peers"
    behind = clocks_of(named([-1_500])).view(WALL, STEADY)
    assert behind.text == "1.5 s behind the median clock of 1 peer"
    assert ClockOffset().text == "no peer has told its clock"


def test_a_jump_of_our_own_clock_shows_without_a_further_hello() -> None:
    """What was told is kept against the steady clock; time that passes changes nothing."""
    clocks = clocks_of(named([0, 0, 0]))
    assert clocks.view(WALL + 60_000, STEADY + 60_000).offset_ms == 0
    assert clocks.view(WALL + 360_000, STEADY + 60_000).offset_ms == 300_000
    assert clocks.offsets(WALL - 300_000, STEADY) == dict.fromkeys(named([0] * 3), -300_000)


def test_a_slow_answer_is_no_wrong_clock() -> None:
    """The time is that of the middle, and half of the way is taken off the offset."""
    clocks = PeerClocks()
    for peer in (b"a", b"b"):
        clocks.connected(peer, dialled=True)
        clocks.hello(peer, WALL - 2_000, STEADY, STEADY + 4_000)
    assert clocks.view(WALL + 4_000, STEADY + 4_000).offset_ms == 2_000
    clocks.hello(b"a", WALL, STEADY, STEADY + 4_000)  # at the very beginning of its way
    clocks.hello(b"b", WALL + 4_000, STEADY, STEADY + 4_000)  # at its very end
    assert clocks.view(WALL + 4_000, STEADY + 4_000).offset_ms == 0


def test_announcements_count_for_peers_whose_hello_tells_no_time() -> None:
    """The latest stamp against the steady clock stands: a delay only makes it look earlier."""
    clocks = PeerClocks()
    clocks.announced(b"stranger", WALL, STEADY)
    for peer in (b"a", b"b"):
        clocks.connected(peer, dialled=False)
        clocks.announced(peer, WALL - 9_000, STEADY)
        clocks.announced(peer, WALL, STEADY + 100)
        clocks.announced(peer, WALL - 20_000, STEADY + 200)
    assert clocks.view(WALL, STEADY + 100).offset_ms == 0
    assert clocks.view(WALL, STEADY + 100).peers == 2
    assert not clocks.tellers()
    clocks.announced(b"a", WALL - 20_000, STEADY + 100 + ANNOUNCED_MS)  # its clock was put back
    assert clocks.offsets(WALL, STEADY + 100)[b"a"] == 20_000 + ANNOUNCED_MS
    clocks.hello(b"a", WALL, STEADY, STEADY)
    clocks.announced(b"a", WALL + 50_000, STEADY)
    assert clocks.offsets(WALL, STEADY)[b"a"] == 0
    assert clocks.tellers() == [b"a"]


def test_only_connected_peers_count() -> None:
    """Identities that come and go leave nothing behind, so that they add up to no majority."""
    clocks = clocks_of(named([0, 0, 0]))
    for index in range(100):
        liar = f"liar{index}".encode()
        clocks.connected(liar, dialled=False)
        clocks.hello(liar, WALL + 900_000, STEADY, STEADY)
        clocks.gone(liar)
    assert clocks.view(WALL, STEADY) == ClockOffset(peers=3, known=True)


@given(st.lists(offsets, min_size=3, max_size=12), st.lists(offsets, max_size=40))
def test_who_dials_us_does_not_count_beside_those_we_dialled(ours: Values, others: Values) -> None:
    """Any number of peers that chose to come moves nothing once three that we chose told theirs."""
    chosen = named(ours)
    clocks = clocks_of(chosen | named(others, "q"), dialled=frozenset(chosen))
    assert clocks.view(WALL, STEADY) == clocks_of(chosen).view(WALL, STEADY)


@given(st.lists(offsets, min_size=1, max_size=12), st.data())
def test_a_minority_of_liars_moves_nothing_beyond_honest_values(
    honest: Values, data: st.DataObject
) -> None:
    """The median stays between honest values, and the spread within twice what they span."""
    lies = data.draw(st.lists(offsets, max_size=len(honest) - 1))
    seen = clocks_of(named(honest) | named(lies, "liar")).view(WALL, STEADY)
    assert min(honest) <= seen.offset_ms <= max(honest)
    assert seen.spread_ms <= max(honest) - min(honest)


@given(st.lists(st.integers(-100, 100), min_size=1, max_size=12), st.data())
def test_half_of_the_peers_cannot_make_a_right_clock_wrong(
    honest: Values, data: st.DataObject
) -> None:
    """Of an even number the middle one nearer to our own clock counts."""
    lies = data.draw(st.lists(offsets, min_size=len(honest), max_size=len(honest)))
    assert abs(median_near_zero(honest + lies)) <= max(abs(each) for each in honest)
