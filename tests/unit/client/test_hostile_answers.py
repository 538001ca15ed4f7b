"""Whatever a node answers, a client raises its own errors and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, TextMessage

from luxrelay.bus import MessageId, NamespaceId, SigningKey
from luxrelay.client import LaneSigner, calls
from luxrelay.client.calls import Answer, Call, Query
from luxrelay.client.exchange import Endpoint, Exchanges
from luxrelay.client.session import StreamSession
from luxrelay.client.values import Checks, Head, Receipt, decode_records
from luxrelay.errors import (
    ClientArgumentError,
    ClientRefusedError,
    ClientRemoteError,
    ClientUnreachableError,
)

PARENT: Final = NamespaceId(b"\x21" * 20)
OWN: Final = (ClientRemoteError, ClientRefusedError, ClientUnreachableError)
SIGNED = LaneSigner(SigningKey.generate(), PARENT).sign(b"hello", 1_700_000_000_000)
CALLS: Final[dict[str, Call[Any]]] = {
    "publish": calls.publish([SIGNED]),
    "receipt": calls.receipt(bytes(32)),
    "query": calls.query(Query(namespace_id=PARENT), Checks()),
    "head": calls.head(PARENT),
    "heads": calls.heads(PARENT, ""),
    "gaps": calls.gaps(PARENT),
    "blob": calls.blob(bytes(32), 0, None),
    "described": calls.described("/v1/peers"),
}
NAMES = sorted(
    {"receipts", "heads", "gaps", "first", "last", "nextCursor", "complete", "hasMore", "code"}
    | {"earliestSeq", "type", "status", "problem", "positions", "namespaceId", "lanes", "late"}
    | {"reason", "parentId", "messages", "sizeBytes", "detail", "hint", "where"}
    | set(Head.__dataclass_fields__)
    | set(Receipt.__dataclass_fields__)
)
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([1e400, -1e400, 2**70]))
LEAVES = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.text(max_size=50), st.sampled_from(["0x" + "21" * 20])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=12)
    ),
    max_leaves=20,
)
KINDS = st.sampled_from(["gap", "live", "subscribed", "dropped", "receipts", "error", "else"])
SAID = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8).flatmap(
    lambda value: KINDS.map(lambda kind: {**value, "type": kind})
)


def bodies() -> st.SearchStrategy[bytes]:
    """Return a strategy for bodies: JSON of roughly the right words, or any bytes."""
    return st.one_of(VALUES.map(lambda value: json.dumps(value).encode()), st.binary(max_size=300))


@pytest.mark.parametrize("name", sorted(CALLS))
@given(body=bodies(), page=bodies(), status=st.sampled_from([200, 206, 400, 409, 503]))
def test_any_answer(name: str, body: bytes, page: bytes, status: int) -> None:
    """An answer of any form is a result or an error of the client."""
    answer = Answer(status, {"luxrelay-page": page.decode("latin-1")}, body)
    with suppress(*OWN):
        CALLS[name].result(answer)


HEAD: Final = dict.fromkeys(("earliestSeq", "contiguousSeq", "latestSeq", "finalizedSeq"), 1) | {
    "namespaceId": "0x" + "21" * 20,
    "parentId": "0x" + "21" * 20,
    "latestTimestamp": 1,
    "messages": 1,
    "sizeBytes": 1,
}
WORDS: Final[list[dict[str, Any]]] = [
    {"type": "gap", "namespaceId": "0x" + "21" * 20, "first": 1, "last": 2, "reason": "missing"},
    {"type": "live", "positions": {"0x" + "21" * 20: 1}},
    {"type": "dropped", "lanes": 1, "late": 2},
    {"type": "error", "problem": {"status": 400, "code": "c", "detail": "d"}},
]
STRANGE: Final = [float("inf"), float("nan"), None, "", "x" * 5000, "9" * 5000, [], {}, True, 2**90]


def changed(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the value with each member in turn replaced by each strange thing, then left out."""
    for name, member in value.items():
        for other in STRANGE:
            yield {**value, name: other}
        if isinstance(member, dict):
            for inner in changed(member):
                yield {**value, name: inner}
        yield {key: each for key, each in value.items() if key != name}


def test_each_member_may_be_anything() -> None:
    """One member of a right answer is replaced: by infinity, a list, five thousand digits."""
    page = {"complete": True, "hasMore": False, "nextCursor": "", "earliestSeq": 1, "gaps": []}
    for value in changed(HEAD):
        with suppress(*OWN):
            CALLS["head"].result(Answer(200, {}, json.dumps(value).encode()))
    for value in changed({"first": 1, "last": 2}):
        with suppress(*OWN):
            CALLS["gaps"].result(Answer(200, {}, json.dumps({"gaps": [value]}).encode()))
    for value in changed(page):
        with suppress(*OWN):
            CALLS["query"].result(Answer(200, {"luxrelay-page": json.dumps(value)}, b""))
    for word in WORDS:
        for value in changed(word):
            with suppress(*OWN):
                StreamSession(b"", Checks()).receive(frames(json.dumps(value)))


def frames(message: bytes | str | None) -> bytes:
    """Return the frames of a server that says one thing, or closes."""
    server = Connection(ConnectionType.SERVER)
    if message is None:
        return server.send(CloseConnection(code=1001, reason="bye"))
    if isinstance(message, str):
        return server.send(TextMessage(data=message))
    return server.send(BytesMessage(data=message))


@given(said=SAID)
def test_any_message_of_a_stream(said: Any) -> None:
    """A message of any form over a WebSocket is an event or an error of the client."""
    session = StreamSession(b"", Checks())
    with suppress(*OWN):
        session.receive(frames(json.dumps(said)))


@given(data=st.binary(max_size=400))
def test_any_bytes_of_a_stream(data: bytes) -> None:
    """Frames that are none, and records that are none."""
    for sent in (data, frames(data)):
        with suppress(*OWN):
            StreamSession(b"", Checks()).receive(sent)


@given(data=st.binary(max_size=400), cut=st.integers(0, 400))
def test_any_bytes_of_http(data: bytes, cut: int) -> None:
    """Bytes that are no HTTP, a head and rubbish, an answer that is cut off."""
    heads = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", b"HTTP/1.1 101 x\r\n\r\n", b""
    for head in heads:
        for steps in _steps():
            next(steps)
            with suppress(*OWN, StopIteration):
                for part in (head + data[:cut], data[cut:], b""):
                    steps.send(part)


def _steps() -> Iterator[Any]:
    endpoint = Endpoint.of("127.0.0.1:1", "")
    yield Exchanges(endpoint).request(CALLS["head"])
    yield Exchanges(endpoint).upgrade("/v1/stream", bytes(16))


def test_a_record_that_is_changed_anywhere_is_noticed() -> None:
    """Of an answer in bytes no bit of what was signed can be changed unnoticed."""
    record = _record()
    (message,) = decode_records(record, Checks())
    assert message.blob == b"hello"
    unsigned = set(range(37)) | {len(record) - 6}  # the node's own words; the fee's kind
    for place in range(len(record)):
        changed = bytearray(record)
        changed[place] ^= 1
        if place in unsigned:
            continue
        with pytest.raises(ClientRemoteError):
            list(decode_records(bytes(changed), Checks()))


def _record() -> bytes:
    """Return a record as docs/reference/http.md lays it out, its blob held."""
    header = SIGNED.header
    stamps = (1_700_000_000_000).to_bytes(8, "big") * 2
    lengths = len(header).to_bytes(2, "big") + len(b"hello").to_bytes(4, "big")
    return b"\x01" + PARENT + stamps + lengths + header + b"hello"


def test_arguments_are_checked_before_anything_is_sent() -> None:
    """Ids of another length, ranges that go backwards, nothing to publish."""
    for wrong in (
        lambda: calls.publish([]),
        lambda: calls.receipt(b"short"),
        lambda: calls.head(NamespaceId(b"short")),
        lambda: calls.blob(bytes(32), 5, 4),
        lambda: calls.blob(bytes(32), -1, None),
        lambda: calls.slot(MessageId(b"short")),
    ):
        with pytest.raises(ClientArgumentError):
            wrong()
