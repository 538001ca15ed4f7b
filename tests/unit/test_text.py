"""Text and JSON from outside."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.text import DEPTH_MAX, DIGITS_MAX, clean, cleaned, is_text, json_text, parse_json


@pytest.mark.parametrize(
    "text",
    [
        b'"\\ud800"',
        b'{"\\udfff": 1}',
        b'["a", {"b": ["\\uD834"]}]',
        b'"\\udd1e\\ud834"',
        '"\udc80"',
        b"\xff",
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        b"",
        b"NaN",
        b"[Infinity]",
        b"1e999",
        b'{"a": 1, "a": 2}',
        b"9" * (DIGITS_MAX + 2),
        b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1),
        b'{"a":' * 200_000,
    ],
)
def test_json_that_readers_take_differently_is_refused(text: bytes | str) -> None:
    """Lone surrogates, no UTF-8, NaN, members twice, absurd numbers and nesting are no JSON."""
    with pytest.raises(ValueError):  # noqa: PT011  any reason
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'"\\ud834\\udd1e"', "\U0001d11e"),
        (b'"\\\\ud800"', "\\ud800"),
        (b"[1, 2.5, null, true]", [1, 2.5, None, True]),
        (str(2**256 - 1), 2**256 - 1),
        ("[" * DEPTH_MAX + "]" * DEPTH_MAX, json.loads("[" * DEPTH_MAX + "]" * DEPTH_MAX)),
        ("[" + ",".join(["{}"] * 1000) + "]", [{}] * 1000),
    ],
)
def test_other_json_is_taken_as_it_is(text: bytes | str, value: object) -> None:
    """A pair of surrogates is a character; bounds are met exactly."""
    assert parse_json(text) == value


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_every_value_with_a_form_in_utf8_comes_back(value: object) -> None:
    """What Python writes as JSON is read again, in either spelling, also as people see it."""
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json_text(value).encode()) == value


@given(st.text(st.characters(), max_size=50))
def test_what_is_shown_is_one_harmless_line(text: str) -> None:
    """No control character, no bidirectional mark, no end of a line, valid UTF-8."""
    assert clean(text).isprintable()
    assert is_text(clean(text))
    assert is_text(cleaned([text])[0])


def test_lone_surrogates_have_no_form_in_utf8() -> None:
    """A file name's undecodable byte is a lone surrogate as well."""
    assert is_text("grüße \U0001f600")
    assert not is_text("a\udcff")


def test_what_is_shown_is_bounded() -> None:
    """The rest is counted."""
    assert clean("x" * 5000, 10) == "x" * 10 + "… (5000 characters)"


def test_marks_that_turn_text_around_are_dots() -> None:
    """A name cannot end in what looks like another."""
    assert clean("a\u202egnp.exe\u2028\x7f\x9b\x1b[0m") == "a·gnp.exe····[0m"


def test_json_for_people_keeps_what_it_escapes() -> None:
    """A terminal sees no escape sequence and a program reads the same text."""
    said = {"a\u2028": "\x9b31m\u202e\x7f\U000e0001", "b": ["ü\n"]}
    shown = json_text(said, indent=1)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert json.loads(shown) == said
