"""The calls of the gateway as HTTP clients meet them."""

import json
import logging
import queue
from base64 import b64encode
from logging.handlers import QueueHandler
from typing import Any

import pytest

from luxrelay.bus import MsgHeader, SigningKey, message_id, sha3_commitment, topic_namespace
from luxrelay.bus.policy import default_policy
from luxrelay.client import LaneSigner, Query
from luxrelay.errors import ClientRefusedError

from .conftest import PARENT, TOPIC, now_ms

pytestmark = pytest.mark.slow


def test_publish_json_and_binary_and_read_back(stand: Any) -> None:
    """A message published either way is stored, and every reading call finds it."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    first, second = signer.sign(b"one", now_ms()), signer.sign(b"two", now_ms())
    token = stand.token("publish")
    body = {
        "messages": [
            {
                "header": MsgHeader.decode(first.header).to_json(),
                "blob": b64encode(first.blob).decode(),
                "parentId": "0x" + PARENT.hex(),
            }
        ]
    }

    answer = stand.fetch(
        "/v1/messages",
        method="POST",
        body=json.dumps(body).encode(),
        Authorization=f"Bearer {token}",
        Content_Type="application/json; charset=utf-8",
    )
    with stand.client("publish", "read") as client:
        (receipt,) = client.publish([second])
        page = client.page(Query(namespace_id=signer.namespace_id))
        head = client.head(signer.namespace_id)
        heads = list(client.heads(PARENT))

    assert answer.status == 200
    assert answer.json["receipts"][0] | {"digest": ""} == {
        "verdict": "accept", "code": 0, "codeName": "ok", "reason": "", "stored": True,
        "peersSent": 2, "messageId": "0x" + message_id(signer.namespace_id, 1).hex(),
        "expectedSeq": 0, "digest": "", "seenBack": 0, "retryAfterMs": 0,
    }  # fmt: skip
    assert (receipt.stored, receipt.peers_sent) == (True, 2)
    assert [m.blob for m in page.messages] == [b"one", b"two"]
    assert [m.header.encode() for m in page.messages] == [first.header, second.header]
    assert {m.parent for m in page.messages} == {PARENT}
    assert page.complete
    assert (head.latest_seq, head.contiguous_seq, head.messages) == (2, 2, 2)
    assert [each.namespace_id for each in heads if each.messages] == [signer.namespace_id]


def test_publishing_again_is_safe_and_a_taken_slot_is_a_conflict(stand: Any) -> None:
    """A repeated message is answered as stored; a rival of its slot gets the next sequence."""
    key = SigningKey.generate()
    both = [LaneSigner(key, PARENT).sign(text, now_ms()) for text in (b"one", b"other")]
    kept, lost = sorted(both, key=lambda each: MsgHeader.decode(each.header).content_id)
    signer = LaneSigner(key, PARENT)
    with stand.client("publish") as client:
        assert client.publish([kept])[0].stored
        (again,) = client.publish([kept])
        (conflict,) = client.publish([lost])

        assert (again.verdict, again.stored) == ("ignore", True)
        assert (conflict.stored, conflict.expected_seq) == (False, 2)
        assert signer.lost(conflict)
        assert client.publish([signer.sign(b"other", now_ms())])[0].stored
    assert not signer.lost(again)


def test_a_sender_does_not_push_out_its_own_message(stand: Any) -> None:
    """Whichever of two has the lower id: the first stays, also when both come in one call."""
    for lower_first in (True, False):
        key = SigningKey.generate()
        both = [LaneSigner(key, PARENT).sign(text, now_ms()) for text in (b"one", b"other")]
        both.sort(key=lambda each: MsgHeader.decode(each.header).content_id)
        first, second = both if lower_first else reversed(both)
        with stand.client("publish") as client:
            assert client.publish([first])[0].stored
            (conflict,) = client.publish([second])
            assert (conflict.stored, conflict.expected_seq) == (False, 2)
            (kept,) = client.publish([first])
            assert kept.stored

            signer = LaneSigner(SigningKey.generate(), PARENT)
            one = signer.sign(b"one", now_ms())
            signer.next_seq = 1
            other = signer.sign(b"other", now_ms())
            stored, refused = client.publish([one, other] if lower_first else [other, one])
            assert (stored.stored, refused.stored, refused.expected_seq) == (True, False, 2)


def test_refusals_have_a_status_a_code_and_the_receipts(standing: Any) -> None:
    """What the node does not store is never answered with success (user-05)."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    good = signer.sign(b"fine", now_ms())
    bad = bytearray(signer.sign(b"bad", now_ms()).header)
    bad[150] ^= 1  # inside the signature
    elsewhere = LaneSigner(SigningKey.generate(), topic_namespace("/nowhere")).sign(b"x", now_ms())
    token = standing.token("publish")

    answer = standing.fetch(
        "/v1/messages",
        method="POST",
        body=good.encode() + good.__class__(header=bytes(bad), blob=b"bad", parent=PARENT).encode(),
        Authorization=f"Bearer {token}",
        Content_Type="application/vnd.luxrelay.messages",
    )
    with standing.client("publish") as client:
        (unknown,) = client.publish([elsewhere])

    assert answer.status == 422
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem = answer.json
    assert (problem["code"], problem["where"]) == ("gateway.refused", "messages[1]")
    assert [each["stored"] for each in problem["receipts"]] == [True, False]
    assert (unknown.stored, unknown.code) == (False, 1001)


def test_blob_ranges(standing: Any) -> None:
    """A blob comes whole or in part, with a tag that makes asking again cheap."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    blob = bytes(range(256)) * 1000
    standing.publish([signer.sign(blob, now_ms())])
    path = f"/v1/blobs/{sha3_commitment(blob).hex()}"
    size = len(blob)

    def part(text: str, **headers: str) -> tuple[int, bytes, str]:
        answer = standing.fetch(path, Range=text, **headers)
        return answer.status, answer.body, answer.headers.get("Content-Range", "")

    whole = standing.fetch(path)
    tag = whole.headers["ETag"]

    assert (whole.status, whole.body) == (200, blob)
    assert part("bytes=0-9") == (206, blob[:10], f"bytes 0-9/{size}")
    assert part("bytes=10-") == (206, blob[10:], f"bytes 10-{size - 1}/{size}")
    assert part("bytes=-10") == (206, blob[-10:], f"bytes {size - 10}-{size - 1}/{size}")
    assert part(f"bytes=5-{size * 2}") == (206, blob[5:], f"bytes 5-{size - 1}/{size}")
    assert part("bytes=9-3")[:2] == (200, blob)
    assert part("bytes=0-1,4-5")[:2] == (200, blob)
    assert part("lines=1-2")[:2] == (200, blob)
    assert part("bytes=0-9", If_Range='"another"')[:2] == (200, blob)
    assert part("bytes=0-9", If_Range=tag)[0] == 206
    refused = standing.fetch(path, Range=f"bytes={size}-")
    assert (refused.status, refused.headers["Content-Range"]) == (416, f"bytes */{size}")
    assert standing.fetch(path, If_None_Match=tag).status == 304
    head = standing.fetch(path, method="HEAD")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(size))
    with standing.client() as client:
        assert client.blob(sha3_commitment(blob), 100, 199) == blob[100:200]
        with pytest.raises(ClientRefusedError, match=r"gateway\.absent"):
            client.blob(bytes(32))


def test_pages_join_and_say_what_is_missing(stand: Any) -> None:
    """Pages join without loss, a gap makes an answer incomplete, an offset passes over (P19)."""
    key = SigningKey.generate()
    signer = stand.store_line(10, key=key)
    stand.store_line(5, key=key, first=13)

    with stand.client() as client:
        page = client.page(Query(namespace_id=signer.namespace_id, limit=4))
        every = list(client.messages(Query(namespace_id=signer.namespace_id, limit=4)))
        some = client.page(Query(namespace_id=signer.namespace_id, after_seq=2, to_seq=5))
        gaps = client.gaps(signer.namespace_id)
        rest = client.page(Query(namespace_id=signer.namespace_id, after_seq=10))
        passed = client.page(Query(namespace_id=signer.namespace_id, offset=8, limit=3))

    assert (page.has_more, page.complete, len(page.messages)) == (True, False, 4)
    assert [m.header.seq for m in every] == [*range(1, 11), *range(13, 18)]
    assert [m.header.seq for m in some.messages] == [3, 4, 5]
    assert some.complete
    assert [m.header.seq for m in passed.messages] == [9, 10, 13]
    assert gaps == [(11, 12)]
    assert (rest.complete, rest.gaps) == (False, [(11, 12)])


def test_search_by_sender_time_and_slot(stand: Any) -> None:
    """Messages are found by who sent them, by when, and by their slot."""
    key = SigningKey.generate()
    signer = stand.store_line(3, key=key)
    stand.store_line(2)
    with stand.client() as client:
        found = client.page(Query(namespace_id=signer.namespace_id)).messages
    sender = found[0].header.sender_address.hex()
    slot = message_id(signer.namespace_id, 2).hex()

    by_sender = stand.fetch(f"/v1/messages?sender={sender}&limit=2").json
    following = stand.fetch(f"/v1/messages?sender={sender}&cursor={by_sender['nextCursor']}").json
    by_time = stand.fetch(f"/v1/messages?from_ms={now_ms() - 60_000}").json
    by_slot = stand.fetch(f"/v1/messages/{slot}").json

    assert [m["header"]["seq"] for m in by_sender["messages"]] == [1, 2]
    assert (by_sender["hasMore"], by_sender["complete"]) == (True, False)
    assert [m["header"]["seq"] for m in following["messages"]] == [3]
    assert len(by_time["messages"]) == 5
    assert [m["header"]["seq"] for m in by_slot["messages"]] == [2]
    assert stand.fetch(f"/v1/messages/{'00' * 32}").status == 404
    seconds = stand.fetch("/v1/messages?from_ms=1700000000")
    assert (seconds.status, seconds.json["code"]) == (400, "store.argument")


def test_facts_about_the_node(standing: Any) -> None:
    """Policies, topics, limits, peers and status answer; an unknown namespace is absent."""
    policy = standing.fetch(f"/v1/namespaces/{PARENT.hex()}/policy").json

    assert policy["policyHashes"] == ["0x" + default_policy(PARENT).policy_hash.hex()]
    assert standing.fetch("/v1/policies").json["policies"] == [policy]
    assert standing.fetch("/v1/namespaces/" + "11" * 20 + "/policy").status == 404
    assert (
        standing.fetch(f"/v1/topics?content_topic={TOPIC}").json["namespaceId"]
        == "0x" + PARENT.hex()
    )
    assert standing.fetch("/v1/limits").json["pageMessagesMax"] == standing.config.page_messages_max
    assert standing.fetch("/v1/peers").json == {
        "peers": [],
        "mesh": {},
        "clock": {"known": False, "offsetMs": 0, "spreadMs": 0, "peers": 0},
    }
    assert standing.fetch("/v1/status").json == {"name": "stand"}


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/v1/namespaces/12/messages", "path namespace"),
        (f"/v1/namespaces/{PARENT.hex()}/messages?limit=-1", "query limit"),
        (
            f"/v1/namespaces/{PARENT.hex()}/messages?after_seq=18446744073709551616",
            "query after_seq",
        ),
        (f"/v1/namespaces/{PARENT.hex()}/messages?cursor=zz", "query cursor"),
        (f"/v1/namespaces/{PARENT.hex()}/messages?offset=10001", "query offset"),
        (f"/v1/namespaces/{PARENT.hex()}/messages?cursor=00", "query cursor"),
        ("/v1/namespaces?nonsense=1", "query 'nonsense'"),
        ("/v1/namespaces?limit=1&limit=2", "query"),
        ("/v1/topics", "query content_topic"),
        ("/v1/topics?content_topic=%ff", "request line"),
    ],
)
def test_bad_parameters_are_named(standing: Any, path: str, where: str) -> None:
    """What does not fit is answered with 400, the parameter and what was expected."""
    answer = standing.fetch(path)

    assert (answer.status, answer.json["code"]) == (400, "gateway.request")
    assert answer.json["where"] == where


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"messages":[]}',
        b'{"messages":[{"header":"zz"}]}',
        b'{"messages":[{"header":"00","blob":"#"}]}',
        b'{"messages":[{"header":"00","parentId":"00"}]}',
        b'{"messages":[{"header":{}}]}',
        b'{"messages":[NaN]}',
        b'{"messages":[{"header":"00","extra":1}]}',
        b'{"messages":[{"header":' + b"1" * 5000 + b"}]}",
    ],
)
def test_bad_bodies_are_named(standing: Any, body: bytes) -> None:
    """A body of another form is answered with 400 and where it is wrong."""
    answer = standing.fetch(
        "/v1/messages",
        method="POST",
        body=body,
        Authorization=f"Bearer {standing.token('publish')}",
        Content_Type="application/json",
    )

    assert (answer.status, answer.json["code"]) == (400, "gateway.request")
    assert answer.json["detail"]


def test_a_receipt_is_kept(standing: Any) -> None:
    """What has become of a message can be asked again by its digest."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    with standing.client("publish") as client:
        (receipt,) = client.publish([signer.sign(b"one", now_ms())])

        again = client.receipt(receipt.digest)

        with pytest.raises(ClientRefusedError, match=r"gateway\.absent"):
            client.receipt(bytes(32))
    assert (again.stored, again.seen_back) == (True, 0)


def test_requests_are_told_to_who_asks_for_debug_lines(stand: Any) -> None:
    """A line each with method, path and status; neither the query nor the token is in it."""
    logger = logging.getLogger("luxrelay.node.gateway.server")
    lines: queue.Queue[logging.LogRecord] = queue.Queue()
    handler = QueueHandler(lines)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        token = stand.token("read")
        answer = stand.fetch(f"/v1/namespaces?secret={token}", Authorization=f"Bearer {token}")
        assert answer.status in {200, 400}
        line = lines.get(timeout=20)  # written after the answer has left
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)

    assert line.getMessage() == "answered"
    fields = line.__dict__["fields"]
    assert (fields["method"], fields["path"]) == ("GET", "/v1/namespaces")
    assert fields["status"] == answer.status
    assert token not in str(line.__dict__)
