"""Groups of the publish command."""

from luxrelay.cli.publish import _BATCH_BYTES, _batches


def test_groups_are_bounded_in_number_and_bytes() -> None:
    """A group ends at its size or before its bytes are too many; nothing is lost or reordered."""
    small = [bytes([i]) for i in range(7)]
    large = [bytes(_BATCH_BYTES - 1), b"ab", b"c"]

    assert [len(group) for group in _batches(small, 3)] == [3, 3, 1]
    assert [blob for group in _batches(small, 3) for blob in group] == small
    assert [len(group) for group in _batches(large, 3)] == [1, 2]
    assert list(_batches([], 3)) == []


def test_typed_lines_go_out_one_by_one() -> None:
    """With a size of one a line does not wait for the next."""
    lines = iter([b"first", b"second"])
    groups = _batches(lines, 1)

    assert next(groups) == [b"first"]
    assert next(lines) == b"second"
