"""Text and JSON from outside: taken strictly, shown harmlessly.

*Taken*: UTF-8 without lone surrogates, because such text can be neither stored nor sent on; JSON
with one meaning for every reader (RFC 8259 §8, RFC 7493): no NaN, no member twice, numbers that a
256-bit integer or a double holds, nesting to a bound.
*Shown*: whatever would steer a terminal, hide text or begin a second line (C0, C1, DEL,
bidirectional marks, line separators, surrogates) is a dot, and the length is bounded.

A core: no I/O, no clock.

Source: docs/explanation/threat-model.md.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

DEPTH_MAX: Final = 64
"""Arrays and objects inside one another."""
DIGITS_MAX: Final = 78
"""Digits of a whole number: 2^256 has as many."""
SHOWN_MAX: Final = 2_000
"""Characters of one text that a log line or a terminal shows."""
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_DOT: Final = "·"


def is_text(value: str) -> bool:
    """Return whether ``value`` has a form in UTF-8: no lone surrogates."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def decode(data: bytes) -> str:
    """Return the text of UTF-8 bytes.

    Raises:
        ValueError: They are not UTF-8; the text names the byte.

    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error


def parse_json(data: bytes | str, *, depth_max: int = DEPTH_MAX) -> Any:
    """Return the value of a JSON text, which has one meaning for every reader.

    Args:
        data: UTF-8, or text that was decoded already.
        depth_max: Arrays and objects inside one another.

    Raises:
        ValueError: It is no such text: not UTF-8, not JSON, a lone surrogate in a name or a
            value, a member twice, NaN or a number that nobody holds, or nested too deeply.

    """
    text = decode(bytes(data)) if isinstance(data, (bytes, bytearray, memoryview)) else data
    try:
        value = json.loads(
            text,
            parse_constant=_no_constant,
            parse_int=_whole,
            parse_float=_finite,
            object_pairs_hook=_object,
        )
    except RecursionError as error:
        raise ValueError(f"nested more than {depth_max} deep") from error
    # Both are rare, so that the value is walked only where the text gives a reason to.
    if text.count("[") + text.count("{") > depth_max or _SURROGATE.search(text):
        _walk(value, depth_max)
    return value


def clean(value: object, length_max: int = SHOWN_MAX, *, kept: str = "") -> str:
    """Return one bounded line that cannot steer a terminal; others chose parts of it.

    Args:
        value: What is shown.
        length_max: Characters of it.
        kept: Characters that stay although they are not printable.

    """
    text = str(value)
    if len(text) > length_max:
        text = f"{text[:length_max]}… ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else _DOT for c in text)


def cleaned(value: object, length_max: int = SHOWN_MAX) -> Any:
    """Return a value for a JSON line: every text in it is clean, other types become text.

    Ends of lines and tabs stay: JSON writes them as escapes.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {clean(name, 200): cleaned(each, length_max) for name, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [cleaned(each, length_max) for each in value]
    return clean(value, length_max, kept="\n\t")


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return JSON for people: what a terminal would act on is escaped, nothing is lost."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if ord(character) > 0x7E else f"\\u{ord(character):04x}"


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _whole(digits: str) -> int:
    if len(digits) > DIGITS_MAX + 1:
        raise ValueError(f"a number of more than {DIGITS_MAX} digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number beyond what a double holds")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        counted = Counter(name for name, _ in pairs)
        ((twice, _),) = counted.most_common(1)
        raise ValueError(f"the member {clean(twice, 40)!r} stands twice")
    return members


def _walk(value: Any, depth_max: int) -> None:
    """Refuse lone surrogates and nesting beyond the bound, without recursion."""
    level, depth = [value], 0
    while level:
        inner: list[Any] = []
        for each in level:
            if isinstance(each, str):
                if not is_text(each):
                    raise ValueError("text with a lone surrogate")
            elif isinstance(each, (dict, list)):
                if depth == depth_max:
                    raise ValueError(f"nested more than {depth_max} deep")
                inner += each
                if isinstance(each, dict):
                    inner += each.values()
        level, depth = inner, depth + 1
