"""What a namespace's state says after messages come, go and are given up."""

from luxrelay.bus import NamespaceId
from luxrelay.store.namespaces import NamespaceState

NAMESPACE = NamespaceId(b"n" * 20)


def holding(*sequences: int) -> NamespaceState:
    """Return a state that holds ``sequences``."""
    state = NamespaceState(namespace_id=NAMESPACE, parent=NAMESPACE)
    for seq in sequences:
        state.hold(seq)
    return state


def test_the_head_stops_at_a_hole() -> None:
    """The contiguous head is the last sequence before the first hole (21-26)."""
    state = holding(1, 2, 4, 5)

    assert (state.contiguous, state.latest, state.earliest) == (2, 5, 1)
    assert state.gaps(1, 5, 10) == [(3, 3)]


def test_filling_a_hole_moves_the_head_over_what_was_held() -> None:
    """The head jumps to the end of the run the filler reaches (P25)."""
    state = holding(1, 3, 4, 6, 2)

    assert state.contiguous == 4
    assert state.gaps(1, 6, 10) == [(5, 5)]


def test_raising_the_floor_gives_up_what_lies_below() -> None:
    """A floor moves the head past holes below it and onto what is held above."""
    state = holding(3, 4, 7)
    state.raise_floor(2)

    assert (state.floor, state.contiguous) == (2, 4)
    assert state.gaps(1, 7, 10) == [(5, 6)]


def test_a_lower_floor_changes_nothing() -> None:
    """Neither floor nor head ever goes back."""
    state = holding(1, 2, 3)
    state.raise_floor(9)
    state.raise_floor(4)

    assert (state.floor, state.contiguous) == (9, 9)


def test_nothing_can_stand_where_nothing_was_held() -> None:
    """`holds` is False beyond the head and outside the runs, so no row need be read."""
    state = holding(1, 3)

    assert [state.holds(seq) for seq in (1, 2, 3, 4)] == [True, False, True, False]


def test_a_copy_is_independent() -> None:
    """A group changes copies; what readers see stays."""
    state = holding(1, 3)
    copied = state.copy()
    copied.hold(5)
    copied.messages = 3

    assert state.latest == 3
    assert state.messages == 0
    assert 5 not in state.runs


def test_the_head_repeats_the_state() -> None:
    """Every number of the head is the state's."""
    state = holding(2, 3)
    state.raise_floor(1)
    head = state.head()

    assert (head.earliest_seq, head.contiguous_seq, head.latest_seq, head.floor) == (2, 3, 3, 1)
    assert head.parent == head.namespace_id == NAMESPACE
