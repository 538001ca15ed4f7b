"""Worker threads do what they are given, and may be left behind."""

import threading

import pytest

from luxrelay.sync.rpc.workers import Workers


def test_work_is_done_in_a_bounded_number_of_threads() -> None:
    """All of it, by ``count`` threads at the most, in order for each."""
    workers = Workers(3, "test-workers")
    names: set[str] = set()

    def work(number: int) -> int:
        names.add(threading.current_thread().name + str(threading.get_ident()))
        return number * number

    assert workers.map(work, list(range(100))) == [each * each for each in range(100)]
    assert len(names) <= 3
    assert workers.close() == 0


def test_what_work_raises_is_raised_by_map() -> None:
    """The rest is done all the same."""
    workers = Workers(2, "test-workers")
    done: list[int] = []

    def work(number: int) -> None:
        done.append(number)
        if number == 1:
            raise KeyError(number)

    with pytest.raises(KeyError):
        workers.map(work, [0, 1, 2, 3])
    assert sorted(done) == [0, 1, 2, 3]
    assert workers.close() == 0


def test_a_thread_that_hangs_is_left_behind() -> None:
    """Closing waits no longer than it is told, and says how many threads it left."""
    workers = Workers(2, "test-workers")
    release, begun = threading.Event(), threading.Event()

    def hangs() -> None:
        begun.set()
        release.wait()

    assert workers.submit(hangs)
    assert begun.wait(30)

    assert workers.close(0.01) == 1
    assert not workers.submit(hangs)
    release.set()
    assert workers.close(30) == 0


def test_work_that_nobody_began_is_dropped() -> None:
    """After the close only what was under way ends."""
    workers = Workers(1, "test-workers")
    release, begun = threading.Event(), threading.Event()
    done: list[int] = []

    def first() -> None:
        begun.set()
        release.wait()

    workers.submit(first)
    workers.submit(lambda: done.append(1))
    assert begun.wait(30)
    workers.close(0)
    release.set()

    assert workers.close(30) == 0
    assert done == []
