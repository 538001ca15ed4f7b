"""A call that gRPC does not end is ended by a clock of ours, and nobody waits in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from luxrelay.errors import SyncUnreachableError
from luxrelay.sync.rpc import patience
from luxrelay.sync.rpc.patience import (
    CallFault,
    Pace,
    PatientChannel,
    beating,
    stuck_threads,
)


class LostCall:
    """What gRPC returns for a call whose end its core has lost: neither deadline nor cancel."""

    def __init__(self, let_go: threading.Event, frames: int = 0) -> None:
        self.let_go, self.frames = let_go, frames
        self.cancelled = False

    def __iter__(self) -> Iterator[bytes]:
        yield from [b"frame"] * self.frames
        self.let_go.wait()

    def result(self, timeout: float | None) -> Any:
        """Wait as gRPC's future does: with the caller's own time."""
        if not self.let_go.wait(timeout):
            raise grpc.FutureTimeoutError
        return b""

    def cancel(self) -> bool:
        """Note it; the call goes on."""
        self.cancelled = True
        return True


class LostChannel:
    """A channel of such calls; closing it waits for them, as gRPC's does."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.calls: list[LostCall] = []
        self.frames = 0

    def _call(self, *_: object, **__: object) -> LostCall:
        self.calls.append(LostCall(self.let_go, self.frames))
        return self.calls[-1]

    def unary_stream(self, *_: object, **__: object) -> Any:
        """Return a call of a stream."""
        return self._call

    stream_stream = unary_stream

    def unary_unary(self, *_: object, **__: object) -> Any:
        """Return a call with a future."""
        call = self._call

        class Multi:
            future = staticmethod(call)

        return Multi()

    def close(self) -> None:
        """Wait for the calls."""
        self.let_go.wait()


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[LostChannel]:
    """A channel that has lost its events, let go afterwards."""
    monkeypatch.setattr(patience, "MARGIN_S", 0.05)
    monkeypatch.setattr(patience, "CLOSE_S", 0.05)
    channel = LostChannel()
    yield channel
    channel.let_go.set()
    while stuck_threads():
        time.sleep(0.001)


def channel_of(lost: LostChannel, broken: list[int]) -> PatientChannel:
    """Return the patient channel over it."""
    return PatientChannel(lost, lambda: broken.append(1))  # type: ignore[arg-type]


@pytest.mark.trial
def test_a_stream_that_grpc_never_ends_ends_at_its_deadline(lost: LostChannel) -> None:
    """What came is handed over; then the call is late, cancelled, and its channel not believed."""
    lost.frames, broken = 2, []
    answers = channel_of(lost, broken).unary_stream("/m")(b"", timeout=0.05)
    frames = iter(answers)
    assert [next(frames), next(frames)] == [b"frame"] * 2
    with pytest.raises(CallFault) as late:
        next(frames)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert broken == [1]
    assert lost.calls[0].cancelled
    assert stuck_threads() == 1


@pytest.mark.trial
def test_a_question_that_grpc_never_answers_ends_at_its_deadline(lost: LostChannel) -> None:
    """The same for a call of one response."""
    broken: list[int] = []
    with pytest.raises(CallFault) as late:
        channel_of(lost, broken).unary_unary("/m")(b"", timeout=0.05)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (broken, lost.calls[0].cancelled) == ([1], True)


@pytest.mark.trial
def test_closing_lets_everybody_go_although_grpc_does_not(lost: LostChannel) -> None:
    """Who waits in a call without a deadline is let go, and closing itself does not wait."""
    channel = channel_of(lost, [])
    answers = channel.unary_stream("/m")(b"")
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            list(answers)
        except CallFault as error:
            caught.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    channel.close()
    waiting.join(60)
    assert not waiting.is_alive()
    assert isinstance(caught[0], CallFault)
    assert caught[0].code() is grpc.StatusCode.CANCELLED


@pytest.mark.trial
def test_threads_that_hang_are_bounded(lost: LostChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many left behind, no call is begun, and the error says how many."""
    monkeypatch.setattr(patience, "STUCK_MAX", 2)
    channel = channel_of(lost, [])
    for _ in range(2):
        channel.unary_stream("/m")(b"", timeout=60).cancel()
    with pytest.raises(CallFault) as refused:
        channel.unary_stream("/m")(b"", timeout=60)
    assert "2 calls hang" in refused.value.details()
    assert len(lost.calls) == 2


def test_a_reader_that_lags_holds_few_frames(lost: LostChannel) -> None:
    """The thread of a call waits for its reader, and is let go with it."""
    lost.frames = 1_000
    answers = channel_of(lost, []).unary_stream("/m")(b"", timeout=60)
    assert next(iter(answers)) == b"frame"
    answers.cancel()
    with pytest.raises(CallFault):
        next(iter(answers))
    while stuck_threads():  # its thread ends without the call
        time.sleep(0.001)


def test_a_pace_allows_what_brings_enough() -> None:
    """Beside the grace each row pays for its time, and the caller's own time does not count."""
    now = [0.0]
    pace = Pace(10.0, 2.0, lambda: now[0])
    now[0] = 10.0
    pace.brought(10, "relay")
    now[0] = 1_000.0
    pace.waits()
    now[0] = 1_005.0
    pace.brought(0, "relay")
    pace.waits()
    now[0] = 1_005.1
    with pytest.raises(SyncUnreachableError, match="too slow: 10 rows in 15 s"):
        pace.brought(0, "relay")


def test_a_stream_without_a_frame_is_given_up(lost: LostChannel) -> None:
    """A subscription has no deadline; it has a longest silence, which each frame begins anew."""
    lost.frames = 2
    broken: list[int] = []
    call = beating(channel_of(lost, broken).unary_stream("/a/Subscribe")(b""), 0.05)
    frames: list[Any] = []
    faults: list[BaseException] = []

    def take() -> None:
        try:
            frames.extend(call)
        except CallFault as fault:
            faults.append(fault)

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    taker.join(60)

    assert not taker.is_alive()
    assert "Subscribe brought nothing for 0.05 s" in str(faults[0])
    assert lost.calls[0].cancelled
    assert not broken
