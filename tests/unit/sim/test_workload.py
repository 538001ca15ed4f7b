"""Workloads: real lines, broken lines, seeded ones."""

import gzip
import json
import os
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.errors import InputError, UsageError
from luxrelay.sim import ChatMessage, generate_chat, read_chat
from luxrelay.sim.workload import LINE_BYTES_MAX, NAME_MAX, parse_line

LINE = '{"channel": "#a", "sender": "user-1", "sent_ms": 1100521080000, "text": "héllo"}\n'


@pytest.mark.parametrize("packed", [False, True])
def test_reads_plain_and_gzip(tmp_path: Path, packed: bool) -> None:
    """The same lines come from a plain and from a packed file; empty lines are passed over."""
    path = tmp_path / "chat.jsonl"
    data = (LINE + "\n" + LINE).encode()
    path.write_bytes(gzip.compress(data) if packed else data)

    assert list(read_chat(path)) == [ChatMessage("#a", "user-1", 1100521080000, "héllo")] * 2


@pytest.mark.trial
@pytest.mark.parametrize("packed", [False, True])
def test_reads_a_pipe(tmp_path: Path, packed: bool) -> None:
    """A pipe can be read once, and its first bytes count."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    data = (LINE * 3).encode()
    writer = threading.Thread(
        target=path.write_bytes, args=[gzip.compress(data) if packed else data]
    )
    writer.start()

    found = list(read_chat(path))

    writer.join()
    assert len(found) == 3


def test_payload_is_the_line() -> None:
    """The payload is one JSON line with the same fields."""
    message = parse_line(LINE.encode(), "x")
    assert json.loads(message.payload()) == json.loads(LINE)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        "{}",
        LINE.replace("1100521080000", "true"),
        LINE.replace("1100521080000", "1.5"),
        LINE.replace('"#a"', '""'),
        LINE.replace("user-1", "u" * (NAME_MAX + 1)),
        LINE.replace("héllo", "\\ud800"),
        "[" * 100_000,
        LINE.replace("héllo", "x" * LINE_BYTES_MAX),
    ],
)
def test_reject_line_with_its_number(tmp_path: Path, line: str) -> None:
    """A line that is no message is named by file and number."""
    path = tmp_path / "chat.jsonl"
    path.write_text(LINE + line.strip() + "\n")

    with pytest.raises(InputError, match=r"chat\.jsonl:2"):
        list(read_chat(path))


def test_reject_missing_and_damaged_file(tmp_path: Path) -> None:
    """A missing file and a cut gzip are clear errors."""
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(LINE.encode() * 100)[:-20])

    for path in (tmp_path / "none", cut, tmp_path):
        with pytest.raises(InputError):
            list(read_chat(path))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_input_error(line: bytes) -> None:
    """Nothing but InputError comes from a line, whatever it holds."""
    try:
        assert isinstance(parse_line(line, "here"), ChatMessage)
    except InputError:
        return


def test_generated_workload_repeats() -> None:
    """The same seed gives the same messages, another seed others."""
    first = list(generate_chat(200, random.Random(7)))

    assert first == list(generate_chat(200, random.Random(7)))
    assert first != list(generate_chat(200, random.Random(8)))
    assert [m.sent_ms for m in first] == sorted(m.sent_ms for m in first)
    assert len({m.sender for m in first}) > 20


def test_reject_numbers_out_of_range() -> None:
    """Counts below their minimum are the caller's error."""
    for bad in ({"count": -1}, {"count": 1, "senders": 0}, {"count": 1, "channels": 0}):
        with pytest.raises(UsageError):
            list(generate_chat(rng=random.Random(1), **bad))
