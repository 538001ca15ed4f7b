"""Chat messages: read from JSON lines, or made from a seed.

A line is ``{"channel": text, "sender": text, "sent_ms": integer, "text": text}``. A generated
workload has the shape of a busy channel: few people say much, most say little, lines are short
with a long tail.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from luxrelay.errors import InputError, UsageError

LINE_BYTES_MAX: Final = 64 * 1024
"""Longest line that is read, bytes."""
NAME_MAX: Final = 256
"""Longest channel or sender, characters."""
_GZIP_MAGIC: Final = b"\x1f\x8b"
_FIELDS: Final = {"channel": str, "sender": str, "sent_ms": int, "text": str}
_FIRST_MS: Final = 1_704_067_200_000
_WORDS: Final = (
    "relay", "header", "blob", "lane", "head", "hole", "page", "frame", "window", "peer",
    "mesh", "store", "queue", "batch", "commit", "retry", "clock", "stamp", "digest", "proof",
    "key", "seed", "hash", "disk", "cache", "log", "index", "range", "query", "bound", "the",
    "a", "of", "and", "is", "it", "in", "to", "that", "was", "for", "on", "with", "as", "this",
    "but", "not", "have", "what", "when", "which", "how", "sync", "gossip", "archive",
    "message", "signature", "namespace", "sequence",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One line of chat."""

    channel: str
    """Where it was said; becomes a content topic."""
    sender: str
    """Who said it; becomes a key and a lane."""
    sent_ms: int
    """When it was said, Unix milliseconds; stays in the payload."""
    text: str
    """What was said."""

    def payload(self) -> bytes:
        """Return the message as its one JSON line, UTF-8, without a line end."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def read_chat(path: Path) -> Iterator[ChatMessage]:
    """Yield the messages of a file of JSON lines, plain or gzip; empty lines are passed over.

    Raises:
        InputError: the file cannot be read, or a line is not a message; says file and line.

    """
    try:
        with path.open("rb") as raw:  # once: what is read from a pipe is gone
            packed = raw.peek(2)[:2] == _GZIP_MAGIC
            yield from _lines(gzip.GzipFile(fileobj=raw) if packed else raw, str(path))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read the messages: {reason}", where=str(path)) from error


def _lines(file: IO[bytes] | gzip.GzipFile, name: str) -> Iterator[ChatMessage]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise InputError(f"line longer than {LINE_BYTES_MAX:,} bytes", where=f"{name}:{number}")
        if line.strip():
            yield parse_line(line, f"{name}:{number}")


def parse_line(line: bytes, where: str) -> ChatMessage:
    """Return the message of one JSON line.

    Raises:
        InputError: the line is not JSON, or a field is missing or of another type.

    """
    try:
        loaded = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not a JSON line: {error}", where=where) from error
    if not isinstance(loaded, dict):
        raise InputError("expected a JSON object", where=where)
    for field, kind in _FIELDS.items():
        value = loaded.get(field)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(
                f"{field} must be {'text' if kind is str else 'an integer'}", where=where
            )
    message = ChatMessage(loaded["channel"], loaded["sender"], loaded["sent_ms"], loaded["text"])
    for field in ("channel", "sender"):
        value = getattr(message, field)
        if not 0 < len(value) <= NAME_MAX:
            raise InputError(f"{field} must have 1 to {NAME_MAX} characters", where=where)
    if "\0" in message.channel:
        raise InputError("a channel with a NUL cannot be a content topic", where=where)
    try:
        message.payload()
    except UnicodeEncodeError as error:
        raise InputError("text that is not Unicode (a lone surrogate)", where=where) from error
    return message


def generate_chat(
    count: int, rng: random.Random, *, senders: int = 120, channels: int = 2
) -> Iterator[ChatMessage]:
    """Yield ``count`` messages; the same seed gives the same messages.

    Args:
        count: How many, 0 or more.
        rng: The only source of chance.
        senders: How many people speak, from 1.
        channels: How many channels they speak in, from 1.

    Raises:
        UsageError: a number is out of range.

    """
    if count < 0 or senders < 1 or channels < 1:
        raise UsageError("count, senders and channels must be positive", where="generate_chat")
    names = [f"user-{i + 1:05d}" for i in range(senders)]
    weights = [1 / (i + 1) for i in range(senders)]
    sent_ms = _FIRST_MS
    for _ in range(count):
        sent_ms += 1 + int(rng.expovariate(1 / 2000))
        length = 1 + int(rng.lognormvariate(1.9, 0.7))
        yield ChatMessage(
            f"#channel-{rng.randrange(channels) + 1}",
            rng.choices(names, weights)[0],
            sent_ms,
            " ".join(rng.choices(_WORDS, k=min(length, 400))),
        )
