"""Calls of a gateway as values: the request, and the reading of its answer.

Both clients, the blocking one and the asynchronous one, run the same calls.

Source: docs/reference/http.md; P18, P22, P23.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

from luxrelay.bus import MessageId, NamespaceId
from luxrelay.bus import constants as c
from luxrelay.client.values import (
    Checks,
    CountedQuota,
    FollowedNamespace,
    Head,
    Outgoing,
    Page,
    Receipt,
    decode_records,
)
from luxrelay.errors import (
    ClientArgumentError,
    ClientRefusedError,
    ClientRemoteError,
    ClientUnreachableError,
    LuxRelayError,
)

JSON_TYPE: Final = "application/json"
MESSAGES_TYPE: Final = "application/vnd.luxrelay.messages"
RESUMES_MAX: Final = 8
"""Times that one reading of a blob is gone on with."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """Lower-case names."""
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Result]):
    """One call."""

    method: str = "GET"
    target: str
    read: Callable[[Answer], Result]
    """Makes the result; any wrong form raises and becomes `ClientRemoteError`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    taken: frozenset[int] = frozenset({200})
    """Statuses that `read` takes; others raise `ClientRefusedError`."""

    def result(self, answer: Answer) -> Result:
        """Return the result of an answer.

        Raises:
            ClientRefusedError: the node refused.
            ClientRemoteError: the answer cannot be used.

        """
        if answer.status not in self.taken:
            raise refused(answer)
        try:
            return self.read(answer)
        except LuxRelayError:
            raise
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise ClientRemoteError(
                f"an answer of another form: {error!r}"[:200], where=self.target[:100]
            ) from error


def refused(answer: Answer) -> ClientRefusedError:
    """Return the error that an answer stands for."""
    try:
        said = json.loads(answer.body)
        problem = said if isinstance(said, dict) else {}
    except (ValueError, RecursionError):
        problem = {}
    if isinstance(problem.get("code"), str):
        code = problem["code"]
        error = ClientRefusedError(
            f"{code}: {problem.get('detail', 'no reason given')}"[:300],
            where=str(problem.get("where", ""))[:200],
            hint=str(problem["hint"])[:300] if problem.get("hint") else None,
        )
    else:
        error = ClientRefusedError(
            f"status {answer.status} without a reason, which every gateway gives",
            hint="Check the address and the port: this is another service, or a proxy in front; "
            "a relay's gateway is on gateway.listen",
        )
    error.status, error.problem = answer.status, problem
    error.retry_after = _retry_after_s(answer, problem)
    return error


def _retry_after_s(answer: Answer, problem: Mapping[str, object]) -> float | None:
    """Return when to try again, seconds: what the problem says in milliseconds, or the header."""
    said = problem.get("retryAfterMs")
    if isinstance(said, int) and not isinstance(said, bool) and said >= 0:
        return said / 1000
    header = next((v for n, v in answer.headers.items() if n.lower() == "retry-after"), "")
    digits = header.strip()
    return float(digits) if re.fullmatch(r"[0-9]{1,9}", digits, re.ASCII) else None


def publish(messages: Sequence[Outgoing]) -> Call[list[Receipt]]:
    """Return the call that publishes messages; a refused one is in its receipt, not an error."""
    if not messages:
        raise ClientArgumentError("nothing to publish", where="publish")

    def read(answer: Answer) -> list[Receipt]:
        said = json.loads(answer.body)
        if "receipts" not in said:
            raise refused(answer)
        receipts = [Receipt.of(each) for each in said["receipts"]]
        if len(receipts) != len(messages):
            raise ClientRemoteError("receipts that do not match the messages", where="publish")
        return receipts

    return Call(
        method="POST",
        target="/v1/messages",
        read=read,
        headers={"Content-Type": MESSAGES_TYPE},
        body=b"".join(each.encode() for each in messages),
        taken=frozenset({200, 409, 422, 429, 503, 507}),
    )


def receipt(digest: bytes) -> Call[Receipt]:
    """Return the call for what has become of a message published there."""
    return Call(
        target=f"/v1/receipts/{_hex(digest, c.HASH_BYTES)}",
        read=lambda answer: Receipt.of(json.loads(answer.body)),
    )


def quota(account: bytes) -> Call[CountedQuota]:
    """Return the call for what a node has counted of a prepaid quota."""
    return Call(
        target=f"/v1/quotas/{_hex(account, c.HASH_BYTES)}",
        read=lambda answer: CountedQuota.of(json.loads(answer.body)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which messages of a namespace; conditions are joined with *and*."""

    namespace_id: NamespaceId
    """The namespace or lane, 20 bytes."""
    after_seq: int = 0
    """Only sequences above this one."""
    to_seq: int = 0
    """Up to it, inclusive; 0 for the latest."""
    from_ms: int = 0
    """Timestamps from here on, Unix milliseconds."""
    to_ms: int = 0
    """Timestamps up to here, inclusive; 0 for no bound."""
    limit: int = 1000
    """Messages in the page; the node may give fewer."""
    offset: int = 0
    """Matches to pass over before a first page, 10,000 at most; cursors are stable (P19)."""
    cursor: str = ""
    """``next_cursor`` of the page before."""


def query(wanted: Query, checks: Checks) -> Call[Page]:
    """Return the call for one page of a namespace."""
    fields = {
        "after_seq": wanted.after_seq,
        "to_seq": wanted.to_seq,
        "from_ms": wanted.from_ms,
        "to_ms": wanted.to_ms,
        "limit": wanted.limit,
        "cursor": wanted.cursor,
    }
    if wanted.offset:  # an older node knows no offset, and says so
        fields["offset"] = wanted.offset

    def read(answer: Answer) -> Page:
        about = json.loads(answer.headers["luxrelay-page"])
        return Page(
            messages=list(decode_records(answer.body, checks)),
            complete=about["complete"] is True,
            has_more=about["hasMore"] is True,
            next_cursor=str(about["nextCursor"]),
            earliest_seq=int(about["earliestSeq"]),
            gaps=[(int(gap["first"]), int(gap["last"])) for gap in about["gaps"]],
        )

    namespace = _hex(wanted.namespace_id, c.NAMESPACE_BYTES)
    return Call(
        target=f"/v1/namespaces/{namespace}/messages?{urlencode(fields)}",
        read=read,
        headers={"Accept": MESSAGES_TYPE},
    )


def head(namespace_id: NamespaceId) -> Call[Head]:
    """Return the call for the head of a namespace."""
    return Call(
        target=f"/v1/namespaces/{_hex(namespace_id, c.NAMESPACE_BYTES)}",
        read=lambda answer: Head.of(json.loads(answer.body)),
    )


def heads(parent: NamespaceId | None, cursor: str) -> Call[tuple[list[Head], str]]:
    """Return the call for a page of heads and the next cursor."""
    fields = {"limit": "1000", "cursor": cursor}
    if parent is not None:
        fields["parent"] = _hex(parent, c.NAMESPACE_BYTES)

    def read(answer: Answer) -> tuple[list[Head], str]:
        said = json.loads(answer.body)
        return [Head.of(each) for each in said["heads"]], str(said["nextCursor"])

    return Call(target=f"/v1/namespaces?{urlencode(fields)}", read=read)


def gaps(namespace_id: NamespaceId) -> Call[list[tuple[int, int]]]:
    """Return the call for what is missing below the latest sequence."""

    def read(answer: Answer) -> list[tuple[int, int]]:
        return [(int(g["first"]), int(g["last"])) for g in json.loads(answer.body)["gaps"]]

    return Call(target=f"/v1/namespaces/{_hex(namespace_id, c.NAMESPACE_BYTES)}/gaps", read=read)


def blob(commitment: bytes, first: int, last: int | None) -> Call[bytes]:
    """Return the call for a blob, or for its bytes from ``first`` to ``last`` inclusive."""
    if first < 0 or (last is not None and last < first):
        raise ClientArgumentError("a range goes from a lower to a higher byte", where="blob")
    headers = {}
    if first or last is not None:
        headers["Range"] = f"bytes={first}-{'' if last is None else last}"
    return Call(
        target=f"/v1/blobs/{_hex(commitment, c.HASH_BYTES)}",
        read=lambda answer: answer.body,
        headers=headers,
        taken=frozenset({206 if headers else 200}),
    )


class BlobReading:
    """A blob that is read, and gone on with at the byte reached when a connection is lost.

    Args:
        commitment: 32 bytes.
        first: The first byte wanted.
        last: The last one, inclusive; None for the end.

    """

    def __init__(self, commitment: bytes, first: int, last: int | None) -> None:
        self._commitment, self._first, self._last = commitment, first, last
        self._came = bytearray()
        self._left = RESUMES_MAX

    def call(self) -> Call[bytes]:
        """Return the call for what has not come."""
        return blob(self._commitment, self._first + len(self._came), self._last)

    def whole(self, rest: bytes) -> bytes:
        """Return all that was asked for, with what the last call brought."""
        return bytes(self._came) + rest

    def broke(self, error: ClientUnreachableError) -> None:
        """Keep what came; return when it is worth another call.

        Raises:
            ClientUnreachableError: the error; nothing came, or there were too many.

        """
        self._came += error.came
        self._left -= 1
        if not error.came or not self._left:
            raise error


def described(path: str) -> Call[dict[str, Any]]:
    """Return the call for a JSON object that is shown as it is: status, limits, peers."""

    def read(answer: Answer) -> dict[str, Any]:
        said = json.loads(answer.body)
        if not isinstance(said, dict):
            raise TypeError(said)
        return said

    return Call(target=path, read=read)


_FOLLOWED: Final = "/admin/v1/namespaces"


def followed() -> Call[list[FollowedNamespace]]:
    """Return the call for what a node follows; it goes to the admin listener, like the next two."""
    return Call(
        target=_FOLLOWED,
        read=lambda answer: [
            FollowedNamespace.of(each) for each in json.loads(answer.body)["namespaces"]
        ],
    )


def follow(
    namespace_id: NamespaceId | None, content_topic: str, documents: Sequence[bytes]
) -> Call[FollowedNamespace]:
    """Return the call that has a node follow a namespace."""
    if (namespace_id is None) == (not content_topic):
        raise ClientArgumentError("give either namespace_id or content_topic", where="follow")
    body: dict[str, object] = {"documents": [each.hex() for each in documents]}
    if namespace_id is None:
        body["contentTopic"] = content_topic
    else:
        body["namespaceId"] = _hex(namespace_id, c.NAMESPACE_BYTES)
    return Call(
        method="POST",
        target=_FOLLOWED,
        read=lambda answer: FollowedNamespace.of(json.loads(answer.body)),
        headers={"Content-Type": JSON_TYPE},
        body=json.dumps(body).encode(),
        taken=frozenset({200, 201}),
    )


def unfollow(namespace_id: NamespaceId) -> Call[None]:
    """Return the call that ends the following of a namespace."""
    return Call(
        method="DELETE",
        target=f"{_FOLLOWED}/{_hex(namespace_id, c.NAMESPACE_BYTES)}",
        read=lambda answer: None,  # noqa: ARG005  the status says it
        taken=frozenset({204}),
    )


def slot(message_id: MessageId) -> str:
    """Return the path of a slot."""
    return f"/v1/messages/{_hex(message_id, c.HASH_BYTES)}"


def _hex(value: bytes, length: int) -> str:
    if len(value) != length:
        raise ClientArgumentError(f"an id of {len(value)} bytes", where=f"expected {length}")
    return value.hex()
