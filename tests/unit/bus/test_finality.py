"""Finality states, statements and the oracle that reads them."""

from dataclasses import replace

import pytest

from luxrelay.bus import FinalityState, NamespaceId, SignatureScheme, SigningKey
from luxrelay.bus.finality import (
    ROWS_MAX,
    STATEMENT_BYTES_MAX,
    TRANSITIONS,
    FinalityRow,
    FinalityStatement,
    StatementOracle,
)
from luxrelay.errors import BusArgumentError, FinalityError

SIGNER = SigningKey.from_seed(SignatureScheme.ED25519, b"\x0f" * 32)
NS = NamespaceId(b"\x22" * 20)
S = FinalityState
HASH, RIVAL = b"\x01" * 32, b"\x02" * 32


def row(seq: int, state: FinalityState, header_hash: bytes = HASH) -> FinalityRow:
    """Return a row of the one namespace."""
    return FinalityRow(NS, seq, header_hash, state)


def say(number: int, *rows: FinalityRow, **changes: object) -> FinalityStatement:
    """Return a signed statement."""
    fields: dict[str, object] = {"network": "devnet", "issued_ms": 5, **changes}
    statement = FinalityStatement(number=number, rows=rows, **fields)  # type: ignore[arg-type]
    return statement.signed_by(SIGNER)


@pytest.fixture
def oracle() -> StatementOracle:
    """An oracle that trusts one signer."""
    return StatementOracle("devnet", [SIGNER.public_field])


def test_without_a_statement_everything_is_pending(oracle: StatementOracle) -> None:
    """An oracle that has read nothing says PENDING and no finalized head (J9)."""
    assert oracle.state(NS, 1, HASH) is S.PENDING
    assert oracle.finalized_seq(NS) == 0


def test_statement_comes_back() -> None:
    """A statement's bytes are tag, network, number, time, rows, key and signature."""
    statement = say(3, row(1, S.FINALIZED), row(2, S.PRECONFIRMED))
    data = statement.encode()

    assert FinalityStatement.decode(data) == statement
    assert data.startswith(b"lux.finality.v1\x06devnet" + (3).to_bytes(8, "big"))
    for size in range(len(data)):
        with pytest.raises(FinalityError):
            FinalityStatement.decode(data[:size])


def test_reject_broken_statements() -> None:
    """Another tag, trailing bytes, unknown states, too many rows or unsorted ones are refused."""
    data = say(1, row(1, S.FINALIZED), row(2, S.FINALIZED)).encode()
    count = data.index(b"devnet") + 6 + 16
    rows = count + 4
    swapped = data[:rows] + data[rows + 61 : rows + 122] + data[rows : rows + 61]

    for broken in (
        b"L" + data[1:],
        data + b"\x00",
        data[: rows + 60] + b"\x01" + data[rows + 61 :],
        data[:count] + (ROWS_MAX + 1).to_bytes(4, "big") + data[rows:],
        swapped + data[rows + 122 :],
        data.replace(b"\x06devnet", b"\x06DEVNET"),
        data.replace(b"\x06devnet", b"\x06\xffevnet"),
        bytes(STATEMENT_BYTES_MAX + 1),
    ):
        with pytest.raises(FinalityError):
            FinalityStatement.decode(broken)


@pytest.mark.parametrize(
    "change",
    [
        {"number": 0},
        {"issued_ms": -1},
        {"network": ""},
        {"rows": (row(0, S.FINALIZED),)},
        {"rows": (row(2, S.FINALIZED), row(1, S.FINALIZED))},
        {"rows": (row(1, S.FINALIZED), row(1, S.REJECTED))},
        {"rows": (row(1, S.FINALIZED, b""),)},
        {"rows": tuple(row(n, S.FINALIZED) for n in range(1, ROWS_MAX + 2))},
    ],
)
def test_reject_argument(change: dict[str, object]) -> None:
    """A statement without an encoding is the caller's error."""
    with pytest.raises(BusArgumentError):
        replace(say(1, row(1, S.FINALIZED)), **change)  # type: ignore[arg-type]


def test_states_and_head_follow_statements(oracle: StatementOracle) -> None:
    """Messages move from PENDING to FINALIZED, and the head with them."""
    assert oracle.apply(say(1, row(1, S.PRECONFIRMED), row(2, S.PRECONFIRMED))) == 2
    assert oracle.finalized_seq(NS) == 0
    assert oracle.apply(say(2, row(1, S.FINALIZED), row(2, S.PRECONFIRMED))) == 1

    assert oracle.state(NS, 1, HASH) is S.FINALIZED
    assert oracle.state(NS, 2, HASH) is S.PRECONFIRMED
    assert oracle.state(NS, 3, HASH) is S.PENDING
    assert oracle.finalized_seq(NS) == 1


def test_reorganisation_takes_the_head_back(oracle: StatementOracle) -> None:
    """A REORGED message leaves its slot to another, and the head stands before it meanwhile."""
    oracle.apply(say(1, *(row(n, S.FINALIZED) for n in (1, 2, 3))))

    oracle.apply(say(2, row(2, S.REORGED), row(3, S.REORGED)))
    assert oracle.finalized_seq(NS) == 1
    oracle.apply(say(3, row(2, S.FINALIZED, RIVAL)))
    assert oracle.finalized_seq(NS) == 2
    assert oracle.state(NS, 2, HASH) is S.REORGED
    assert oracle.state(NS, 2, RIVAL) is S.FINALIZED


def test_reorganisation_within_one_statement(oracle: StatementOracle) -> None:
    """One statement may replace the final header of a slot, in whatever order its rows stand."""
    oracle.apply(say(1, row(1, S.FINALIZED, RIVAL)))
    oracle.apply(say(2, row(1, S.FINALIZED, HASH), row(1, S.REORGED, RIVAL)))

    assert oracle.finalized_seq(NS) == 1
    assert oracle.state(NS, 1, HASH) is S.FINALIZED


def test_losing_rival_does_not_move_the_head(oracle: StatementOracle) -> None:
    """A preconfirmed rival that is reorganised away leaves the finalized head alone."""
    oracle.apply(say(1, row(1, S.FINALIZED), row(1, S.PRECONFIRMED, RIVAL)))
    oracle.apply(say(2, row(1, S.REORGED, RIVAL)))

    assert oracle.finalized_seq(NS) == 1


@pytest.mark.parametrize("before", list(S))
@pytest.mark.parametrize("after", list(S))
def test_transitions(oracle: StatementOracle, before: FinalityState, after: FinalityState) -> None:
    """A state changes along the table only, and saying it again is allowed."""
    paths = {
        S.PENDING: [],
        S.PRECONFIRMED: [S.PRECONFIRMED],
        S.FINALIZED: [S.FINALIZED],
        S.REJECTED: [S.REJECTED],
        S.REORGED: [S.PRECONFIRMED, S.REORGED],
    }
    for number, state in enumerate(paths[before], start=1):
        oracle.apply(say(number, row(1, state)))

    if after is before or after in TRANSITIONS[before]:
        oracle.apply(say(9, row(1, after)))
        assert oracle.state(NS, 1, HASH) is after
    else:
        with pytest.raises(FinalityError):
            oracle.apply(say(9, row(1, after)))
        assert oracle.state(NS, 1, HASH) is before


def test_slot_has_one_final_header(oracle: StatementOracle) -> None:
    """A second FINALIZED header in a slot is refused, and nothing of its statement is taken."""
    oracle.apply(say(1, row(1, S.FINALIZED)))

    with pytest.raises(FinalityError, match="two headers"):
        oracle.apply(say(2, row(1, S.FINALIZED, RIVAL), row(2, S.FINALIZED)))
    assert oracle.finalized_seq(NS) == 1
    assert oracle.state(NS, 2, HASH) is S.PENDING


def test_reject_origin(oracle: StatementOracle) -> None:
    """A stranger, another network, an old number and a forged signature are refused (P40)."""
    good = say(5, row(1, S.FINALIZED))
    oracle.apply(good)
    stranger = SigningKey.generate()

    for wrong in (
        good,
        say(4, row(2, S.FINALIZED)),
        say(6, row(2, S.FINALIZED), network="mainnet"),
        say(6, row(2, S.FINALIZED)).signed_by(stranger),
        replace(say(6, row(2, S.FINALIZED)), signature=bytes(64)),
    ):
        with pytest.raises(FinalityError):
            oracle.apply(wrong)
    assert oracle.finalized_seq(NS) == 1


def test_memory_is_bounded() -> None:
    """Of too many messages the ones heard of first are forgotten; the head stays."""
    oracle = StatementOracle("devnet", [SIGNER.public_field], rows_max=2, namespaces_max=1)
    oracle.apply(say(1, *(row(n, S.FINALIZED) for n in (1, 2, 3))))

    assert oracle.state(NS, 1, HASH) is S.PENDING
    assert oracle.state(NS, 3, HASH) is S.FINALIZED
    assert oracle.finalized_seq(NS) == 3
    other = FinalityRow(NamespaceId(b"\x33" * 20), 1, HASH, S.FINALIZED)
    with pytest.raises(FinalityError, match="namespaces"):
        oracle.apply(say(2, other))
