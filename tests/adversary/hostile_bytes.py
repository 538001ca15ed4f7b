"""Sequences of hostile bytes: valid messages with wrong types, orders, lengths, cuts and endings.

Each sequence follows from the run's seed, its door and its number alone. A sequence is a list of
steps at one connection: bytes for one TCP segment, the end of our side, a reset, or a pause.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

EOF, RST, STALL = "eof", "rst", "stall"
"""Steps that are no bytes: end our side, reset the connection, say nothing for a while."""
NUMBERS = (0, 1, -1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**400)
WORDS = (
    "",
    "\x00",
    "\ud800",
    "\udc00\ud800",
    "0x",
    "0x0",
    "é" * 40,
    "\u202e\x1b[31m",
    "latest",
    "a" * 5000,
    "٣",
    "-0",
    "1e999",
)
WHOLE_NUMBERS = tuple(number for number in NUMBERS if 0 <= number < 2**64)
SIZE_MAX, HUGE_MAX = 48 * 1024, 12 * 1024 * 1024
"""Bytes of most sequences, and of one in `HUGE_EVERY`: the largest body is smaller."""
HUGE_EVERY = 2000
TOKEN = "lrt_" + "5" * 64
"""Stands in the corpus for a token of the run, whose length is the same."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """What one attacker does at one door."""

    door: str
    where: str
    """Which of the door's places: a listener, a path, a protocol."""
    number: int
    steps: tuple[bytes | str, ...]

    def line(self, seed: int, token: str) -> str:
        """One line of the corpus; the token is not in it."""
        old, new = token.encode(), TOKEN.encode()
        steps = [
            each if isinstance(each, str) else "0x" + each.replace(old, new).hex()
            for each in self.steps
        ]
        shown = {"door": self.door, "where": self.where, "seed": seed, "number": self.number}
        return json.dumps(shown | {"steps": steps})

    @classmethod
    def of(cls, line: str, token: str) -> Sequence:
        """The sequence of a line of the corpus, with a token of this run."""
        value = json.loads(line)
        old, new = TOKEN.encode(), token.encode()
        steps = tuple(
            bytes.fromhex(each[2:]).replace(old, new) if each.startswith("0x") else each
            for each in value["steps"]
        )
        return cls(value["door"], value["where"], value["number"], steps)


def dice(seed: int, door: str, number: int) -> random.Random:
    """The chance of one sequence."""
    return random.Random(f"{seed}/{door}/{number}")


def spoiled(rng: random.Random, data: bytes) -> bytes:
    """The bytes with a few changed, cut, doubled, or something between them."""
    raw = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        place = rng.randrange(len(raw) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            raw[place:place] = rng.randbytes(rng.choice((1, 2, 9, 70)))
        elif kind == 1:
            del raw[place : place + rng.choice((1, 2, 8, 1000))]
        elif kind == 2:
            part = raw[place : place + rng.choice((1, 4, 40))]
            raw[place:place] = part * rng.choice((1, 3))
        elif place < len(raw):
            raw[place] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256), raw[place] ^ 1))
    return bytes(raw)


def segments(rng: random.Random, data: bytes) -> list[bytes]:
    """The bytes whole, split at any place, or in the smallest pieces at a begin or an end."""
    kind = rng.random()
    if kind < 0.5 or len(data) < 2:
        return [data]
    if kind < 0.9:
        cuts = sorted(rng.randrange(1, len(data)) for _ in range(rng.choice((1, 2, 5))))
    else:
        few = min(len(data) - 1, rng.choice((3, 12)))
        cuts = list(range(1, few + 1))
    places = [0, *cuts, len(data)]
    return [part for a, b in itertools.pairwise(places) if (part := data[a:b])]


def bounded(rng: random.Random, frames: Iterable[bytes]) -> list[bytes]:
    """Those of the frames that `SIZE_MAX` lets in, now and then `HUGE_MAX`; one at least, cut."""
    left = HUGE_MAX if rng.randrange(HUGE_EVERY) == 0 else SIZE_MAX
    several: list[bytes] = []
    for each in frames:
        if len(each) <= left or not several:
            several.append(each[:left])
            left -= len(several[-1])
    return several


def steps_of(rng: random.Random, frames: Iterable[bytes]) -> tuple[bytes | str, ...]:
    """Frames in one segment or several, cut anywhere, with an ending or none."""
    several = bounded(rng, frames)
    if rng.random() < 0.12:
        rng.shuffle(several)
    if rng.random() < 0.12:
        again = rng.choice(several)
        several += [again] * min(rng.choice((1, 1, 20)), 1 + SIZE_MAX // (1 + len(again)))
    if rng.random() < 0.5:
        several = [b"".join(several)]
    steps: list[bytes | str] = []
    for each in several:
        steps += segments(rng, spoiled(rng, each) if rng.random() < 0.15 else each)
    if rng.random() < 0.05:
        steps = steps[: rng.randrange(len(steps) + 1)]
    chance = rng.random()
    if chance < 0.05:
        steps.append(EOF)
    elif chance < 0.1:
        steps.append(RST)
    elif chance < 0.102:
        steps.insert(rng.randrange(len(steps) + 1), STALL)
    return tuple(steps)


def any_value(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON value, most of them unwelcome."""
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind < 2:
        return rng.choice(NUMBERS)
    if kind < 4:
        return rng.choice(WORDS)
    if kind == 4:
        return rng.choice((None, True, False, 0.5, -1e308, 1e-320))
    if kind == 5:
        return rng.choice(([], {}, float("nan"), float("inf")))
    if kind == 6:
        value: Any = rng.choice(WORDS)
        for _ in range(rng.choice((3, 30, 900))):
            value = [value] if rng.random() < 0.5 else {"a": value}
        return value
    if kind == 7:
        several = rng.choice((1, 3, 3 if depth else 60))
        return [any_value(rng, depth + 1) for _ in range(several)]
    return {rng.choice(WORDS): any_value(rng, depth + 1) for _ in range(rng.choice((1, 4)))}


def _size(value: Any) -> int:
    """About how many bytes the value has as JSON, however deep it is."""
    size, several = 0, [value]
    while several:
        each = several.pop()
        if isinstance(each, dict):
            several += [*each, *each.values()]
        elif isinstance(each, list):
            several += each
        size += len(each) if isinstance(each, str) else 4
    return size


def odd_json(rng: random.Random, value: Any) -> Any:
    """The value with a member of a wrong type, missing, or one too many, at any depth."""
    if rng.random() < 0.1 or not value or not isinstance(value, dict | list):
        return any_value(rng)
    if isinstance(value, list):
        changed = list(value)
        place = rng.randrange(len(changed))
        if rng.random() < 0.2:
            size = _size(changed)
            return changed * min(rng.choice((0, 2, 300)), 2 + SIZE_MAX // (1 + size))
        changed[place] = odd_json(rng, changed[place])
        return changed
    members = dict(value)
    name = rng.choice(list(members))
    kind = rng.random()
    if kind < 0.1:
        del members[name]
    elif kind < 0.2:
        members[rng.choice(WORDS)] = any_value(rng)
    else:
        members[name] = odd_json(rng, members[name])
    return members


def json_text(rng: random.Random, value: Any) -> bytes:
    """The value as text, of an encoder that is not always right."""
    text = json.dumps(value, ensure_ascii=rng.random() < 0.7)
    data = text.encode("utf-8", "surrogatepass")
    chance = rng.random()
    if chance < 0.03 and data.startswith(b"{") and len(data) > 2:
        return data[:1] + data[1:-1] + b"," + data[1:]
    if chance < 0.06:
        return data.decode("utf-8", "replace").encode("utf-16")
    return spoiled(rng, data) if chance < 0.12 else data


def odd_proto(rng: random.Random, message: Any, depth: int = 0) -> None:  # noqa: C901, PLR0912
    """Change one field of a protobuf message, at any depth, to what its type just allows."""
    field = rng.choice(list(message.DESCRIPTOR.fields) or [None])
    if field is None:
        return
    repeated = field.is_repeated
    if field.message_type is not None:
        if field.message_type.GetOptions().map_entry:
            return
        if repeated:
            entries = getattr(message, field.name)
            if entries and rng.random() < 0.4:
                entries.add().CopyFrom(rng.choice(list(entries)))
            elif depth < 4:
                odd_proto(rng, rng.choice(list(entries)) if entries else entries.add(), depth + 1)
        elif depth < 4:
            odd_proto(rng, getattr(message, field.name), depth + 1)
        return
    make: Callable[[], Any]
    if field.type == field.TYPE_BYTES:
        old = b"" if repeated else getattr(message, field.name)
        make = lambda: rng.choice(  # noqa: E731
            (b"", rng.randbytes(20), rng.randbytes(32), bytes(20), spoiled(rng, old), bytes(9000))
        )
    elif field.type == field.TYPE_STRING:
        make = lambda: rng.choice(WORDS).encode("utf-8", "ignore").decode()  # noqa: E731
    elif field.type == field.TYPE_BOOL:
        make = lambda: rng.random() < 0.5  # noqa: E731
    elif field.type == field.TYPE_ENUM:
        make = lambda: rng.choice((0, 1, 2, 3, 2**31 - 1))  # noqa: E731
    elif field.type == field.TYPE_DOUBLE:
        make = lambda: rng.choice((0.0, float("nan"), float("inf")))  # noqa: E731
    else:
        bits = 2**32 if field.type == field.TYPE_UINT32 else 2**64
        make = lambda: rng.choice(WHOLE_NUMBERS) % bits  # noqa: E731
    if repeated:
        getattr(message, field.name).extend(make() for _ in range(rng.choice((1, 2, 500))))
    else:
        setattr(message, field.name, make())
