"""The rogue's messages: each breaks the rule it names, and would pass without the break."""

import pytest

from luxrelay.bus import MsgHeader, topic_namespace, verify_header
from luxrelay.cli.demo.rogue import CODES, OVERSIZE_BYTES, Corrupt, Rogue
from luxrelay.errors import EnvelopeError, HeaderError
from luxrelay.gossip import RelayMessage, decode_header_with_blob

PARENT = topic_namespace("/demo/1/#a")
NOW = 1_704_067_200_000


@pytest.fixture
def made() -> dict[str, Corrupt]:
    """One message of each kind."""
    rogue = Rogue(PARENT, seed=1)
    honest = rogue._valid(b"honest", NOW)
    found = rogue.make(6, [(honest.encode(), b"honest")], lambda: NOW)
    return {corrupt.kind: corrupt for corrupt in found}


def header_of(corrupt: Corrupt) -> MsgHeader:
    """Return the header inside an envelope."""
    payload = RelayMessage.decode(corrupt.envelope).payload
    return MsgHeader.decode(decode_header_with_blob(payload, OVERSIZE_BYTES)[0].header_bytes)


def test_six_kinds(made: dict[str, Corrupt]) -> None:
    """All kinds of the demonstration are made, in turn."""
    assert set(made) == {
        "bad signature", "wrong namespace", "reserved flag", "truncated", "oversize", "replayed",
    }  # fmt: skip


def test_each_breaks_its_rule(made: dict[str, Corrupt]) -> None:
    """The signature fails, the flag is refused, the envelope is cut, the blob is too large."""
    assert not verify_header(header_of(made["bad signature"]))
    assert verify_header(header_of(made["wrong namespace"]))
    with pytest.raises(HeaderError):
        header_of(made["reserved flag"])
    with pytest.raises(EnvelopeError):
        RelayMessage.decode(made["truncated"].envelope)
    assert header_of(made["oversize"]).blob_len == OVERSIZE_BYTES
    assert verify_header(header_of(made["replayed"]))
    assert made["replayed"].digests == ()


def test_no_replay_without_something_to_replay() -> None:
    """Before anything was accepted, the other kinds take its place."""
    kinds = [corrupt.kind for corrupt in Rogue(PARENT, seed=1).make(7, [], lambda: NOW)]
    assert "replayed" not in kinds
    assert len(kinds) == 7


def test_no_two_messages_are_the_same_bytes() -> None:
    """A relay knows bytes that it refused before, and would count them without their code."""
    rogue = Rogue(PARENT, seed=1)
    honest = rogue._valid(b"honest", NOW)

    made = [each.envelope for each in rogue.make(60, [(honest.encode(), b"honest")], lambda: NOW)]

    assert len(set(made)) == 60


def test_each_kind_has_a_code_of_its_own(made: dict[str, Corrupt]) -> None:
    """By its code it can be told which message a relay refused."""
    assert set(CODES) == set(made)
    assert len(set(CODES.values())) == len(CODES)


def test_it_comes_back_as_somebody_else() -> None:
    """Each identity is another, and the same in every run."""
    keys = [Rogue(PARENT, seed=1).identity_of(turn).seed for turn in (0, 1, 2, 0)]

    assert len(set(keys)) == 3
    assert keys[0] == keys[3]
