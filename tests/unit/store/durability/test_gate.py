"""A gate lets in while it is open, and shutting it waits for those inside."""

import threading

import pytest

from luxrelay.errors import StoreError
from luxrelay.store.durability.sync import CallGate


def test_nobody_enters_a_shut_gate() -> None:
    """After shutting, each passage is refused; shutting again says that it was shut."""
    gate = CallGate()
    with gate.passage():
        pass
    assert gate.shut()
    assert not gate.shut()

    with pytest.raises(StoreError) as caught, gate.passage():
        pass
    assert caught.value.code == "store.closed"


def test_shutting_waits_for_all_inside() -> None:
    """The gate is shut when the last one has left, also when it left by an error."""
    gate, order = CallGate(), []
    inside, go_on = threading.Event(), threading.Event()

    def stumble() -> None:
        inside.set()
        go_on.wait(30)
        order.append("left")
        raise ValueError("inside")

    def visit() -> None:
        with pytest.raises(ValueError, match="inside"), gate.passage():
            stumble()

    def shut() -> None:
        gate.shut()
        order.append("shut")

    threads = [threading.Thread(target=visit), threading.Thread(target=shut)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    while gate._open:
        threading.Event().wait(0.001)
    go_on.set()
    for thread in threads:
        thread.join()

    assert order == ["left", "shut"]
