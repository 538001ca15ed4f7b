"""`StoreQueryService`: LP-6440's questions to an archive, over HTTP and with proofs; no JVM.

Theory of operation
-------------------
*Decides* which question a set of parameters is, and how its answer is written.
*Does not know* tables; `query` reads them.
A question names a namespace, a sender, a blob or a span of time, and is answered by a page of
messages with a cursor. Each message comes as the bytes that were signed, so that whoever asks can
verify it, and on request with the proof that it stands in the root of its namespace's day.
*Bounds*: ``LIMIT_MAX`` messages and ``PAGE_BYTES_MAX`` payload bytes a page; ``CALLS_MAX``
questions at once, answered one after the other; a client that says nothing is cut off.

Source: LP-6440 (queries by namespace, time, sender and blob, proofs of inclusion); decisions P20,
P21, S16.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from luxrelay.archive.answers import ArchivedMessage, ArchivePage
from luxrelay.archive.loopback import LoopbackServer
from luxrelay.archive.query import ArchiveReader
from luxrelay.archive.schema import MAX_I64, MAX_TIMESTAMP_MS
from luxrelay.errors import ArchiveArgumentError, LuxRelayError
from luxrelay.pages import Answer
from luxrelay.wire import from_hex

PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Payload bytes of one answer, unless one message alone has more."""
CALLS_MAX: Final = 16
"""Questions at once; further ones are told to come again."""
QUERY_CHARS_MAX: Final = 2_048
"""Characters of the parameters of one question."""
TIMEOUT_S: Final = 10
"""Longest that a client may say nothing, seconds."""
_PATH: Final = "/v1/messages"
_IDS: Final = {"namespace": 20, "sender": 20, "blob": 32}
_NUMBERS: Final = {"fromSeq": 1, "toSeq": MAX_I64, "fromMs": 0, "toMs": MAX_TIMESTAMP_MS}
_KNOWN: Final = (*_IDS, *_NUMBERS, "limit", "cursor", "proof")


class StoreQueryService:
    """Answers questions to the archive at ``path``; any thread may ask.

    Raises:
        ArchiveError: ``archive.foreign`` or ``archive.setup``.

    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._reader = ArchiveReader(path, page_bytes_max=PAGE_BYTES_MAX)

    def refresh(self) -> None:
        """Look at the tables as they are now.

        Raises:
            ArchiveError: they cannot be read now; what was seen before stays.

        """
        with self._lock:
            self._reader.refresh()

    def answer(self, question: Mapping[str, str]) -> dict[str, Any]:
        """Return a page as a value of JSON: messages, and the cursor of the next page or "".

        Args:
            question: ``namespace`` (with ``fromSeq`` and ``toSeq``, both included), ``sender``,
                ``blob``, or ``fromMs`` and ``toMs``, which also narrow a namespace or a sender;
                ``limit``, ``cursor``, and ``proof`` = ``true``.

        Raises:
            ArchiveArgumentError: it is none, or a value is out of range.
            ArchiveError: a table cannot be read.

        """
        unknown = sorted(set(question) - set(_KNOWN))
        if unknown:
            raise _wrong(unknown[0], f"give {', '.join(_KNOWN)}")
        if question.get("proof", "false") not in {"true", "false"}:
            raise _wrong("proof", "give true or false")
        with self._lock:
            page = self._page(question)
            proof = question.get("proof") == "true"
            messages = [message_json(self._reader, each, proof=proof) for each in page.messages]
        return {"messages": messages, "nextCursor": page.next_cursor.hex()}

    def _page(self, question: Mapping[str, str]) -> ArchivePage:
        limit = _number(question, "limit", 100)
        cursor = _bytes(question, "cursor", None) or b""
        ids = {name: _bytes(question, name, size) for name, size in _IDS.items()}
        named = {name: value for name, value in ids.items() if value is not None}
        numbers = {name: _number(question, name, most) for name, most in _NUMBERS.items()}
        timed = bool({"fromMs", "toMs"} & set(question))
        sequenced = bool({"fromSeq", "toSeq"} & set(question))
        times, reader = (numbers["fromMs"], numbers["toMs"]), self._reader
        if set(named) == {"namespace"} and not timed:
            return reader.by_namespace(
                named["namespace"],
                from_seq=numbers["fromSeq"],
                to_seq=numbers["toSeq"],
                limit=limit,
                cursor=cursor,
            )
        if not sequenced and set(named) == {"sender"}:
            from_ms, to_ms = times
            return reader.by_sender(
                named["sender"], from_ms=from_ms, to_ms=to_ms, limit=limit, cursor=cursor
            )
        if not sequenced and set(named) == {"blob"} and not timed:
            return reader.by_blob(named["blob"], limit=limit, cursor=cursor)
        if not sequenced and timed and not set(named) - {"namespace"}:
            return reader.by_time(
                *times, namespace_id=named.get("namespace"), limit=limit, cursor=cursor
            )
        raise ArchiveArgumentError(
            "one question at a time",
            where="question",
            hint="give namespace with sequences or times, sender, blob, or times alone",
        )


def message_json(reader: ArchiveReader, message: ArchivedMessage, *, proof: bool) -> dict[str, Any]:
    """Return a message as a value of JSON, on request with its proof; null without a root yet."""
    value = {
        "namespaceId": "0x" + message.place.namespace_id.hex(),
        "seq": message.place.seq,
        "timestamp": message.place.timestamp,
        "contentId": "0x" + message.place.content_id.hex(),
        "header": "0x" + message.header.hex(),
        "blob": None if message.blob is None else "0x" + message.blob.hex(),
        "receivedAt": message.received_at,
        "expiresAt": message.expires_at,
        "finality": message.finality,
        "copies": message.copies,
    }
    if message.sidecar is not None:
        value["sidecar"] = "0x" + message.sidecar.hex()
    if proof:
        found = reader.prove(message)
        value["proof"] = found and {
            "day": found[0].day,
            "count": found[0].count,
            "index": found[0].index,
            "path": ["0x" + node.hex() for node in found[0].path],
            "root": "0x" + found[1].hex(),
        }
    return value


class StoreQueryServer(LoopbackServer):
    """Serves ``GET /v1/messages?…``; a context manager.

    Args:
        service: Who answers.
        port: TCP port on the loopback; 0 lets the system choose.

    Raises:
        ArchiveError: ``archive.argument``: the port cannot be had.

    """

    def __init__(self, service: StoreQueryService, port: int) -> None:
        def answer(target: str) -> Answer:
            return _json(*_answered(service, target))

        busy = _json(503, {"detail": "too many questions at once, ask again"})
        super().__init__(answer, port, busy=busy, calls_max=CALLS_MAX, timeout_s=TIMEOUT_S)


def _json(status: int, value: dict[str, Any]) -> Answer:
    return status, "application/json", json.dumps(value).encode() + b"\n"


def _answered(service: StoreQueryService, target: str) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of one request; never raises for what a client sent."""
    try:
        path, query = urlsplit(target)[2:4]
        if path != _PATH:
            return 404, {"detail": f"see {_PATH}"}
        if len(query) > QUERY_CHARS_MAX:
            return 414, {"detail": f"more than {QUERY_CHARS_MAX} characters of parameters"}
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        if len({name for name, _ in pairs}) != len(pairs):
            return 400, {"detail": "a parameter is given twice"}
        return 200, service.answer(dict(pairs))
    except ArchiveArgumentError as error:
        return 400, _problem(error)
    except LuxRelayError as error:
        return 500, _problem(error)
    except ValueError:
        return 400, {"detail": "the parameters cannot be read"}


def _problem(error: LuxRelayError) -> dict[str, Any]:
    return {"detail": error.what, "where": error.where, "hint": error.hint, "code": error.code}


def _bytes(question: Mapping[str, str], name: str, size: int | None) -> bytes | None:
    text = question.get(name)
    if text is None:
        return None
    try:
        return from_hex(text, size)
    except ValueError as error:
        raise _wrong(name, str(error)) from None


def _number(question: Mapping[str, str], name: str, default: int) -> int:
    text = question.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= MAX_I64):
        raise _wrong(name, "give a number from 0 to 2^63-1")
    return int(text)


def _wrong(name: str, hint: str) -> ArchiveArgumentError:
    return ArchiveArgumentError(f"{name[:40]!r} cannot be used", where="question", hint=hint)
