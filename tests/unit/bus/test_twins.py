"""The vector twins of the rules of structure."""

import numpy as np

from luxrelay.bus.structure import FIXED_RULES, SPAN_RULES
from luxrelay.bus.structure_batch import TWINS, first_broken_rules, read_block, window
from luxrelay.testing import breakages, message_line


def test_twins_stand_in_the_order_of_the_tables() -> None:
    """The first and the last codes are those of the two tables; the walk lies between."""
    codes = [code for code, _ in TWINS]

    assert codes[: len(FIXED_RULES)] == [rule.code for rule in FIXED_RULES]
    assert codes[-len(SPAN_RULES) :] == [rule.code for rule in SPAN_RULES]


def test_every_twin_answers_for_some_breakage() -> None:
    """Each code of the tables is reached by a broken header, alone in its buffer."""
    reached = set()
    for breakage in breakages():
        data = np.frombuffer(breakage.data + bytes(112), np.uint8)
        block = read_block(data, np.array([0]), np.array([len(breakage.data)]))
        reached |= set(first_broken_rules(block).tolist())

    assert reached == {int(code) for code, _ in TWINS}


def test_good_headers_break_nothing() -> None:
    """A line of valid messages has only zeros."""
    rows = [message.header.encode() for message in message_line(5)]
    sizes = np.array([len(row) for row in rows])

    block = read_block(np.frombuffer(b"".join(rows), np.uint8), np.cumsum(sizes) - sizes, sizes)

    assert not first_broken_rules(block).any()


def test_window_copies_nothing() -> None:
    """Items of a window are the pieces that begin at their place."""
    data = np.arange(6, dtype=np.uint8)

    view = window(data, 4)

    assert len(view) == 3
    assert view[2].tobytes() == bytes([2, 3, 4, 5])
    assert np.shares_memory(view, data)
