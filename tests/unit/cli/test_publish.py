"""Groups of the publish command."""

from luxrelay.cli.publish import _BATCH_BYTES, PublishPace, _batches


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


def test_a_pace_waits_as_it_is_told_until_nothing_is_taken_for_too_long() -> None:
    """Progress begins the patience anew; without any it ends, and 0 waits never."""
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = PublishPace(10, clock=lambda: now[0], sleep=sleep)
    assert all(pace.wait(4_000, progress=True) for _ in range(5))
    assert slept == [4.0] * 5
    assert pace.wait(4_000, progress=False)
    assert not pace.over
    assert not pace.wait(4_000, progress=False)
    assert pace.over

    once = PublishPace(0, clock=lambda: now[0], sleep=sleep)
    assert not once.wait(1, progress=True)
    assert not once.over, "what follows is sent, once"
    assert len(slept) == 6
