"""A client waits for a busy relay that says when to ask again, and for no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from luxrelay.errors import SyncUnreachableError
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.config import SyncClientConfig
from luxrelay.sync.rpc.scope import CallScope
from luxrelay.sync.rpc.stream_calls import StreamClient
from luxrelay.sync.rpc.stream_kinds import END, PART, REFUSED

NAMESPACE = bytes(20)
HEAD = PART + pb.NamespaceHeadResponse(namespace_id=NAMESPACE).SerializeToString()
BUSY = bytes([grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]])


def refusal(text: str) -> list[bytes]:
    """Return the one frame of a relay that is busy."""
    return [REFUSED + BUSY + text.encode()]


class Busy:
    """A carrier whose relay gives these answers, the last one again and again."""

    def __init__(self, *answers: list[bytes]) -> None:
        self.answers = answers
        self.asked: list[bytes] = []

    def ask(self, question: bytes, timeout_s: float) -> Iterator[bytes]:
        """Answer with what is next."""
        del timeout_s
        self.asked.append(question)
        yield from self.answers[min(len(self.asked), len(self.answers)) - 1]

    def drop(self) -> None:
        """Nothing to forget."""


def test_a_relay_that_says_when_is_asked_again_then() -> None:
    """The same question goes out until it is answered, and not before its time."""
    carrier = Busy(refusal("busy; ask again in 0.1 s"), refusal("ask again in 0.2 s"), [HEAD, END])
    began = time.monotonic()

    head = StreamClient("peer", carrier).get_head(NAMESPACE)

    assert head.namespace_id == NAMESPACE
    assert len(carrier.asked) == 3
    assert len(set(carrier.asked)) == 1
    assert time.monotonic() - began >= 0.3


def test_patience_ends_with_the_relays_own_words() -> None:
    """`busy_wait_s` bounds all waits of a call together; the last refusal is raised."""
    carrier = Busy(refusal("full; ask again in 0.1 s"))
    client = StreamClient("peer", carrier, SyncClientConfig(busy_wait_s=0.35))

    with pytest.raises(SyncUnreachableError, match="full; ask again") as raised:
        client.get_head(NAMESPACE)

    assert raised.value.retry_after_ms == 100
    assert len(carrier.asked) == 4


@pytest.mark.parametrize(
    ("text", "after_ms"),
    [
        ("full; ask again in 7.5 s", 7_500),
        ("too many requests a second: 5 are allowed, burst 5; again in 61,250 ms", 61_250),
        ("full", 0),
        ("again in 5 seconds", 0),
        ("again in ,5 ms", 0),
        ("ask again in 9999999 s", 0),
        ("ask again in -1 s", 0),
        ("ask again in 1e9 s", 0),
    ],
)
def test_nobody_waits_longer_than_his_patience_or_for_no_time(text: str, after_ms: int) -> None:
    """A refusal that names more than there is, nothing or nonsense, is raised at once."""
    carrier = Busy(refusal(text))

    with pytest.raises(SyncUnreachableError) as raised:
        StreamClient("peer", carrier).get_head(NAMESPACE)

    assert raised.value.retry_after_ms == after_ms
    assert len(carrier.asked) == 1


def test_a_stream_that_has_begun_is_not_begun_anew() -> None:
    """What came would come twice."""
    carrier = Busy([HEAD, *refusal("ask again in 0.1 s")])
    heads = StreamClient("peer", carrier).list_heads()

    assert next(heads).namespace_id == NAMESPACE
    with pytest.raises(SyncUnreachableError, match="ask again"):
        next(heads)
    assert len(carrier.asked) == 1


@pytest.mark.parametrize("ended_by", ["scope", "close"])
def test_waiting_ends_when_the_call_or_the_client_does(ended_by: str) -> None:
    """Whoever cancels does not wait for the relay's time."""
    carrier = Busy(refusal("ask again in 60 s"))
    client = StreamClient("peer", carrier, SyncClientConfig(busy_wait_s=600))
    scope = CallScope()
    raised: list[BaseException] = []

    def call() -> None:
        try:
            if ended_by == "scope":
                next(client.list_heads(scope=scope))
            else:
                client.get_head(NAMESPACE)
        except SyncUnreachableError as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    while not carrier.asked:
        time.sleep(0.001)
    (scope.cancel if ended_by == "scope" else client.close)()
    thread.join(30)

    assert not thread.is_alive()
    assert len(raised) == 1
