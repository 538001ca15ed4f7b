"""LP-6440's questions to an archive: by value, over HTTP, with proofs, and what is none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from luxrelay.archive import store_query as module
from luxrelay.archive.proofs import InclusionProof
from luxrelay.archive.store_query import StoreQueryServer, StoreQueryService
from luxrelay.bus import MsgHeader, NamespaceId
from luxrelay.errors import ArchiveArgumentError, ArchiveError
from luxrelay.sync import WireMessage

A, B = NamespaceId(b"a" * 20), NamespaceId(b"b" * 20)
T0 = 1_704_067_200_000


@pytest.fixture
def messages(forge: Callable[..., WireMessage]) -> list[WireMessage]:
    """Two namespaces of five messages."""
    return [forge(name, seq, blob=b"%s %d" % (name, seq)) for name in (A, B) for seq in range(1, 6)]


@pytest.fixture
def service(
    archive_of: Callable[..., Path], messages: list[WireMessage], tmp_path: Path
) -> StoreQueryService:
    """A service over their archive."""
    return StoreQueryService(archive_of(tmp_path / "archive", messages))


def _seqs(service: StoreQueryService, **question: object) -> list[tuple[str, int]]:
    answer = service.answer({name: str(value) for name, value in question.items()})
    return [(each["namespaceId"][2:3], each["seq"]) for each in answer["messages"]]


def test_by_namespace_time_sender_and_blob(
    service: StoreQueryService, messages: list[WireMessage]
) -> None:
    """Each of the four questions, with its bounds included on both sides (P20)."""
    header = MsgHeader.decode(messages[0].header)
    sender = header.sender_address.hex()

    assert _seqs(service, namespace=A.hex(), fromSeq=2, toSeq=4) == [("6", n) for n in (2, 3, 4)]
    assert len(_seqs(service, sender=f"0x{sender}")) == 10
    assert len(_seqs(service, sender=sender, fromMs=T0 + 5)) == 2
    assert _seqs(service, blob=header.blob_commitment.hex()) == [("6", 1)]
    assert len(_seqs(service, fromMs=T0 + 2, toMs=T0 + 3)) == 4
    assert _seqs(service, namespace=B.hex(), fromMs=T0 + 2, toMs=T0 + 2) == [("6", 2)]
    assert _seqs(service, namespace="00" * 20) == []


def test_pages_follow_one_another_and_end_by_bytes(
    service: StoreQueryService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A cursor leads on (P21); PAGE_BYTES_MAX ends a page of any question."""
    first = service.answer({"fromMs": "0", "limit": "7"})
    rest = service.answer({"fromMs": "0", "limit": "7", "cursor": first["nextCursor"]})
    assert (len(first["messages"]), len(rest["messages"]), rest["nextCursor"]) == (7, 3, "")

    monkeypatch.setattr(module, "PAGE_BYTES_MAX", 50)  # two payloads of 22
    short = StoreQueryService(tmp_path / "archive").answer({"fromMs": "0"})
    assert len(short["messages"]) == 2
    assert short["nextCursor"]


def test_answers_carry_what_a_stranger_checks(service: StoreQueryService) -> None:
    """The signed bytes, the payload, and a proof that leads to the root of the day."""
    answer = service.answer({"namespace": A.hex(), "proof": "true"})

    roots = set()
    for each in answer["messages"]:
        header = MsgHeader.decode(bytes.fromhex(each["header"][2:]))
        blob = bytes.fromhex(each["blob"][2:])
        assert hashlib.sha3_256(blob).digest() == header.blob_commitment
        given = each["proof"]
        proof = InclusionProof(
            namespace=A,
            day=given["day"],
            count=given["count"],
            index=given["index"],
            path=tuple(bytes.fromhex(node[2:]) for node in given["path"]),
        )
        root = bytes.fromhex(given["root"][2:])
        assert proof.holds(each["seq"], header.content_id, root)
        assert not proof.holds(each["seq"] + 1, header.content_id, root)
        roots.add(root)
    assert len(answer["messages"]) == 5
    assert len(roots) == 1


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"proof": "true"},
        {"namespace": "a" * 39},
        {"namespace": "zz" * 20},
        {"namespace": A.hex(), "sender": A.hex()},
        {"namespace": A.hex(), "fromSeq": "-1"},
        {"namespace": A.hex(), "fromSeq": "9223372036854775808"},
        {"namespace": A.hex(), "toSeq": "\u0661"},
        {"namespace": A.hex(), "fromSeq": "1", "fromMs": "1"},
        {"blob": "00" * 32, "fromMs": "1"},
        {"sender": A.hex(), "toSeq": "1"},
        {"fromMs": "2", "toMs": "1"},
        {"namespace": A.hex(), "limit": "0"},
        {"namespace": A.hex(), "limit": "10001"},
        {"namespace": A.hex(), "cursor": "00"},
        {"namespace": A.hex(), "proof": "yes"},
        {"namespace": A.hex(), "sql": "SELECT 1"},
    ],
)
def test_refuse_what_is_no_question(service: StoreQueryService, question: dict[str, str]) -> None:
    """One question at a time, each value within its range."""
    with pytest.raises(ArchiveArgumentError):
        service.answer(question)


def _get(port: int, target: str) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_the_same_over_http(service: StoreQueryService, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked is answered; what is no question has a status, and ends nothing."""
    question = {"namespace": A.hex(), "proof": "true", "limit": "2"}
    with StoreQueryServer(service, 0) as server:
        status, answer = _get(server.port, f"/v1/messages?{urlencode(question)}")
        assert (status, answer) == (200, service.answer(question))
        for target, wanted in (
            ("/", 404),
            ("/v1/messages", 400),
            ("/v1/messages?namespace=zz", 400),
            ("/v1/messages?a&b", 400),
            (f"/v1/messages?namespace={A.hex()}&namespace={B.hex()}", 400),
            (f"/v1/messages?cursor={'0' * module.QUERY_CHARS_MAX}", 414),
            ("/v1/messages?limit=%FF%00", 400),
        ):
            status, answer = _get(server.port, target)
            assert (status, bool(answer["detail"])) == (wanted, True), target
        with pytest.raises(ArchiveError, match="cannot be had"):
            StoreQueryServer(service, server.port)
    monkeypatch.setattr(module, "CALLS_MAX", 0)
    with StoreQueryServer(service, 0) as full:
        assert _get(full.port, f"/v1/messages?{urlencode(question)}")[0] == 503
