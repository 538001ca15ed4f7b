"""What became of a broken message, by what a relay counts."""

from typing import Any

from luxrelay.cli.demo.attack import Fates, attribute, counts_of, kind_outcome
from luxrelay.cli.demo.rogue import CODES, Corrupt

PEER: dict[str, Any] = {
    "received": 0,
    "duplicates": 0,
    "accepted": 0,
    "ignored": 0,
    "rejected": 0,
    "malformed": 0,
    "unheard": 0,
    "refused": {},
}


def batch(*kinds: str) -> list[Corrupt]:
    """Return messages of these kinds."""
    return [Corrupt(kind, b"", "topic", ()) for kind in kinds]


def test_a_code_belongs_to_the_kind_that_breaks_its_rule() -> None:
    """What has no code of its own was unheard."""
    fates = Fates()

    left = attribute(
        batch("truncated", "replayed", "oversize"), {"duplicate": 1, "unheard": 2}, fates
    )

    assert left == []
    assert dict(fates.refused) == {("replayed", "duplicate"): 1}
    assert dict(fates.unheard) == {"truncated": 1, "oversize": 1}


def test_what_no_counter_tells_is_left_over() -> None:
    """It is sent again; nothing is made up."""
    fates = Fates()

    left = attribute(batch("truncated", "truncated"), {"malformed": 1}, fates)

    assert [each.kind for each in left] == ["truncated"]
    assert fates.accounted() == 1


def test_another_code_than_the_kinds_is_told() -> None:
    """A message that is refused for something else, or accepted, is a fault of the run."""
    fates = Fates()
    fates.sent.update(["truncated", "truncated"])

    attribute(batch("truncated", "truncated"), {"duplicate": 1, "accepted": 1}, fates)

    assert kind_outcome("truncated", fates).otherwise == {"accepted": 1, "duplicate": 1}
    assert kind_outcome("truncated", fates).refused == 0


def test_a_peer_is_looked_up_among_those_that_left() -> None:
    """The counters that a relay keeps of a peer that it disconnected tell of its last message."""
    seen = {**PEER, "malformed": 2, "rejected": 1, "refused": {"invalid_signature": 1}}
    here = {"peers": {"p": seen}, "departed": {}}
    left = {"peers": {}, "departed": {"p": seen}}

    assert counts_of(here, "p") == ({"malformed": 2, "invalid_signature": 1}, False)
    assert counts_of(left, "p") == ({"malformed": 2, "invalid_signature": 1}, True)
    assert counts_of(left, "q") == ({}, False)
    assert counts_of(None, "p") == ({}, False)


def test_what_the_router_refuses_alone_has_no_code() -> None:
    """Nor is it lost: bytes that were refused before, for instance."""
    status = {"peers": {"p": {**PEER, "rejected": 2, "refused": {"wrong_topic": 1}}}}

    assert counts_of(status, "p")[0] == {"wrong_topic": 1, "no code": 1}
    assert "no code" not in CODES.values()
