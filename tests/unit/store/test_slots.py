"""A slot keeps the same candidates whatever the order they came in."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import ContentId
from luxrelay.store.namespaces import CANDIDATES_MAX, SlotCandidate, settle


def candidate(number: int, sender: str) -> SlotCandidate:
    """Return a candidate whose content ids sort as ``number`` does."""
    return SlotCandidate(ContentId(bytes([number]) * 32), sender.encode())


def test_keep_four_senders_with_the_lowest_contents() -> None:
    """Of five senders the four with the lowest content ids stay (21-31)."""
    five = [candidate(number, f"sender {number}") for number in (5, 3, 1, 4, 2)]

    assert settle(five) == [candidate(number, f"sender {number}") for number in (1, 2, 3, 4)]
    assert CANDIDATES_MAX == 4


def test_keep_one_content_of_a_sender() -> None:
    """A sender's lowest content id stays, its others go (H17)."""
    assert settle([candidate(7, "a"), candidate(2, "a"), candidate(5, "a")]) == [candidate(2, "a")]


def test_keep_one_of_equal_candidates() -> None:
    """The same candidate twice is one."""
    assert settle([candidate(1, "a")] * 2) == [candidate(1, "a")]


def test_a_forgotten_candidate_is_never_missed() -> None:
    """Two contents of five senders: every order of arrival, one at a time, keeps the same four.

    The second contents are mixed so that a sender's later content may rank it above or below a
    fifth sender, the case in which two different orders of choice would not agree (J11).
    """
    contents = [
        candidate(10, "a"),
        candidate(60, "a"),
        candidate(20, "b"),
        candidate(30, "c"),
        candidate(40, "d"),
        candidate(50, "e"),
        candidate(5, "e"),
    ]
    expected = settle(contents)

    for order in permutations(contents):
        kept: list[SlotCandidate] = []
        for arrived in order:
            kept = settle([*kept, arrived])
        assert kept == expected


@given(
    st.lists(
        st.tuples(st.integers(0, 255), st.sampled_from("abcdefg")),
        max_size=20,
        unique_by=lambda pair: pair[0],
    ),
    st.data(),
)
def test_settling_in_parts_is_settling_at_once(
    pairs: list[tuple[int, str]], data: st.DataObject
) -> None:
    """settle(settle(a) + b) is settle(a + b) for any split of any candidates."""
    candidates = [candidate(number, sender) for number, sender in pairs]
    cut = data.draw(st.integers(0, len(candidates)))

    assert settle([*settle(candidates[:cut]), *candidates[cut:]]) == settle(candidates)
