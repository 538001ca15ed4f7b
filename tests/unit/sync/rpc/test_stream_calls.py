"""Calls over a carrier in memory: the same answers as over gRPC, and an error for whatever else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import (
    LuxRelayError,
    SyncProtocolError,
    SyncRemoteError,
    SyncUnreachableError,
)
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig
from luxrelay.sync import RelaySyncServer, SyncServerConfig
from luxrelay.sync.idset import SortedIds
from luxrelay.sync.negentropy import Initiator
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.reading import SyncServicer
from luxrelay.sync.rpc.reconciling import ids_of
from luxrelay.sync.rpc.stream_answers import AnsweringStream
from luxrelay.sync.rpc.stream_calls import CarrierError, StreamClient
from luxrelay.sync.rpc.stream_kinds import END, PART, REFUSED, StreamKind
from luxrelay.testing.messages import BEGIN_MS, NAMESPACE, message_line

NOW_MS = BEGIN_MS + 60_000
COUNT = 50


class Direct:
    """Carries questions to a session in the same thread."""

    def __init__(self, session: AnsweringStream) -> None:
        self._session = session
        self.drops = 0

    def ask(self, question: bytes, timeout_s: float) -> Iterator[bytes]:
        """Yield the answer."""
        assert timeout_s > 0
        return self._session.answer(question)

    def drop(self) -> None:
        """Count it."""
        self.drops += 1


class Scripted:
    """Answers every question with the same frames."""

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = frames

    def ask(self, question: bytes, timeout_s: float) -> Iterator[bytes]:
        """Yield the frames."""
        del question, timeout_s
        yield from self._frames

    def drop(self) -> None:
        """Nothing to drop."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayStore]:
    """A store with some messages of one namespace."""
    path: Path = tmp_path_factory.mktemp("stream") / "store"
    with RelayStore.open(path, RelayStoreConfig.small(), now_ms=NOW_MS) as opened:
        opened.put_many(
            [
                IncomingMessage(
                    header=each.header, blob=each.blob, parent=NAMESPACE, received_at=NOW_MS
                )
                for each in message_line(COUNT)
            ],
            NOW_MS,
        )
        yield opened


@pytest.fixture(scope="module")
def servicer(store: RelayStore) -> Iterator[SyncServicer]:
    """What answers from it."""
    server = RelaySyncServer(store, SyncServerConfig(port=0), clock_ms=lambda: NOW_MS)
    yield server.servicer
    server.stop()


def test_every_call_answers_as_over_grpc(store: RelayStore, servicer: SyncServicer) -> None:
    """J5, P37: listings, pages, contents, digests and a reconciliation, over one session."""
    carrier = Direct(AnsweringStream(servicer, "peer", 5.0))
    client = StreamClient("peer", carrier)

    (head,) = client.list_heads(NAMESPACE)
    assert (head.contiguous_seq, client.get_head(NAMESPACE).latest_seq) == (COUNT, COUNT)
    (lane,) = client.list_held(NAMESPACE)
    assert [(span.first, span.last) for span in lane.spans] == [(1, COUNT)]
    pages = list(client.iter_pages(NAMESPACE, page_messages=20))
    assert [m.seq for page in pages for m in page.messages] == list(range(1, COUNT + 1))
    ids = [each.header.content_id for each in message_line(3)]
    found, missing = client.get_contents([*ids, bytes(32)])
    assert (len(found), missing) == (3, [bytes(32)])
    assert len(client.get_digests(NAMESPACE, 0, 1)[0]) == 32
    empty = SortedIds(*store.stamps(frozenset(), 0, 0, 10))
    initiator = Initiator(empty)
    client.reconcile(initiator, parent=NAMESPACE)
    assert len(initiator.need) == COUNT
    equal = Initiator(ids_of(store, None, 0, 0, 1_000))
    client.reconcile(equal)
    assert not [*equal.need, *equal.have]
    assert carrier.drops == 0


def test_what_the_stream_does_not_carry(servicer: SyncServicer) -> None:
    """A call of another kind is refused here, a question that cannot be served there."""
    client = StreamClient("peer", Direct(AnsweringStream(servicer, "peer", 5.0)))

    with pytest.raises(SyncRemoteError, match="not over this stream"):
        client.get_blob(bytes(32))
    with pytest.raises(SyncRemoteError, match="INVALID_ARGUMENT"):
        client.sync_page(NAMESPACE, from_time=1_800_000_000)
    client.close()
    client.close()


@given(st.binary(max_size=200) | st.builds(lambda k, b: bytes([k]) + b, st.integers(0, 8),
                                           st.binary(max_size=60)))  # fmt: skip
def test_any_question_has_an_answer(servicer: SyncServicer, question: bytes) -> None:
    """Whatever the bytes, the answer is parts and then the end or a refusal; nothing is raised."""
    session = AnsweringStream(servicer, "peer", 5.0)

    *parts, last = session.answer(question)

    assert all(part[:1] == PART for part in parts)
    assert last == END or last[:1] == REFUSED
    session.close()


FRAMES = (
    st.binary(max_size=40)
    | st.binary(max_size=40).map(PART.__add__)
    | st.binary(max_size=4).map(REFUSED.__add__)
    | st.just(END)
)


@given(st.lists(FRAMES, max_size=6))
def test_any_answer_is_a_value_or_our_error(frames: list[bytes]) -> None:
    """Whatever a relay's frames are, the caller gets what it asked for or an error of ours."""
    client = StreamClient("peer", Scripted(frames))

    for call in (
        lambda: client.get_head(NAMESPACE),
        lambda: list(client.list_held(NAMESPACE)),
        lambda: client.sync_page(NAMESPACE),
        lambda: client.get_contents([bytes(32)]),
    ):
        try:
            call()
        except LuxRelayError as error:
            assert isinstance(error, SyncRemoteError | SyncUnreachableError)  # noqa: PT017 - either


def test_a_lost_carrier_is_a_relay_out_of_reach() -> None:
    """Silence, a broken stream and bytes that are no frame each have their error."""

    class Lost(Scripted):
        """Breaks in a way of its own."""

        def __init__(self, error: CarrierError) -> None:
            super().__init__([])
            self._error = error

        def ask(self, question: bytes, timeout_s: float) -> Iterator[bytes]:
            """Raise."""
            del question, timeout_s
            yield PART
            raise self._error

    for error, kind, said in (
        (CarrierError("gone"), SyncUnreachableError, "cannot be reached"),
        (CarrierError("slow", late=True), SyncUnreachableError, "in time"),
        (CarrierError("rubbish", unusable=True), SyncRemoteError, "rubbish"),
    ):
        with pytest.raises(kind, match=said):
            StreamClient("peer", Lost(error)).get_head(NAMESPACE)


def test_a_session_that_ends_gives_its_place_back(store: RelayStore) -> None:
    """reconciles_max places: a stream that goes away in the middle of one frees it."""
    config = SyncServerConfig(port=0, reconciles_max=1)
    server = RelaySyncServer(store, config, clock_ms=lambda: NOW_MS)
    begun = Initiator(SortedIds(*store.stamps(frozenset(), 0, 0, 10))).start()
    request = pb.ReconcileRequest(method=pb.RECONCILE_METHOD_RANGES, payload=begun)
    question = bytes([StreamKind.RECONCILE]) + request.SerializeToString()
    sessions = [AnsweringStream(server.servicer, name, 5.0) for name in ("a", "b")]

    assert list(sessions[0].answer(question))[-1] == END
    assert list(sessions[1].answer(question))[-1][:1] == REFUSED
    sessions[0].cancel()
    sessions[0].close()
    assert list(sessions[1].answer(question))[-1] == END

    sessions[1].close()
    server.stop()


@pytest.mark.trial
@pytest.mark.parametrize("parts", [0, 2])
def test_an_answer_of_another_number_of_parts_is_blamed_at_once(parts: int) -> None:
    """END alone is no response: nobody waits for a question that only a response would bring."""
    frames = [PART + pb.ReconcileReply().SerializeToString()] * parts + [END]
    client = StreamClient("peer", Scripted(frames))

    with pytest.raises(SyncProtocolError, match="responses in place of one"):
        client.reconcile(Initiator(SortedIds(np.zeros(0, np.uint64), np.zeros((0, 32), np.uint8))))
