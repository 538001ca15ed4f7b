"""Finality of messages: states, the oracle's interface, signed statements.

Without an oracle every message is PENDING and every answer says so (J9). One oracle is here: it
reads statements that a trusted key signed, which a validator or an operator writes to a file.

    FinalityV1 := "lux.finality.v1" ‖ networkLen u8 ‖ network ‖ number u64 ‖ issuedAt u64 (ms)
                  ‖ count u32 ‖ row… ‖ keyLen u16 ‖ key field ‖ signatureLen u16 ‖ signature
    row        := namespaceId 20 ‖ seq u64 ‖ headerHash 32 ‖ state u8

Rows stand in ascending byte order, once each. The signature covers SHA3-256 of everything before
signatureLen. A statement is applied whole or not at all; numbers rise, so an old one cannot be
played again; a row changes a state only along `TRANSITIONS`; a slot has at most one FINALIZED
header.

Source: LP-6413; decisions J9, P40, S19.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, Protocol

from luxrelay.bus.constants import HASH_BYTES, MAX_U64, NAMESPACE_BYTES
from luxrelay.bus.fee import network_bytes, verify_digest
from luxrelay.bus.header import NamespaceId
from luxrelay.bus.keys import SigningKey
from luxrelay.bus.signed_policy import NETWORK_PATTERN
from luxrelay.errors import BusArgumentError, FinalityError
from luxrelay.wire import ByteReader

TAG_FINALITY: Final = b"lux.finality.v1"
"""Domain tag of statements."""
ROWS_MAX: Final = 4096
"""Most rows of one statement: what one block holds (LP-6412)."""
STATEMENT_BYTES_MAX: Final = 512 * 1024
"""Longest statement."""

_ROW: Final = Struct(">20sQ32sB")
_HEAD: Final = Struct(">QQI")
_U16: Final = Struct(">H")


class FinalityState(IntEnum):
    """Where a message stands; LP-6413's numbers, with its UNKNOWN and PENDING as one state, 0."""

    PENDING = 0
    PRECONFIRMED = 2
    FINALIZED = 3
    REJECTED = 4
    REORGED = 5


TRANSITIONS: Final[dict[FinalityState, frozenset[FinalityState]]] = {
    FinalityState.PENDING: frozenset(
        {FinalityState.PRECONFIRMED, FinalityState.FINALIZED, FinalityState.REJECTED}
    ),
    FinalityState.PRECONFIRMED: frozenset(
        {FinalityState.FINALIZED, FinalityState.REJECTED, FinalityState.REORGED}
    ),
    FinalityState.FINALIZED: frozenset({FinalityState.REORGED}),
    FinalityState.REJECTED: frozenset(),
    FinalityState.REORGED: frozenset(
        {FinalityState.PRECONFIRMED, FinalityState.FINALIZED, FinalityState.REJECTED}
    ),
}
"""From each state to those it may become; saying the same again is always allowed."""


class FinalityOracle(Protocol):
    """Says where messages stand."""

    def state(self, namespace_id: NamespaceId, seq: int, header_hash: bytes) -> FinalityState:
        """Return a message's state, PENDING for one it has not heard of."""

    def finalized_seq(self, namespace_id: NamespaceId) -> int:
        """Return the highest finalized sequence of a namespace, 0 for none."""


class FinalityRow(NamedTuple):
    """One message and its new state."""

    namespace_id: NamespaceId
    seq: int
    header_hash: bytes
    state: FinalityState

    def encode(self) -> bytes:
        """Return the row's 61 bytes."""
        return _ROW.pack(*self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalityStatement:
    """What a signer says about up to 4,096 messages.

    Raises:
        BusArgumentError: a value is out of range or the rows are not ascending and unique.

    """

    network: str
    """The network it speaks of."""
    number: int
    """Rises from one statement of the signer to the next, u64 from 1."""
    issued_ms: int
    """When it was made, Unix milliseconds, u64."""
    rows: tuple[FinalityRow, ...]
    """Ascending by namespace, sequence and hash; a message stands once."""
    signer: bytes = b""
    """The signer's key field."""
    signature: bytes = b""
    """Over `digest`; empty until signed."""

    def __post_init__(self) -> None:
        """Refuse what has no encoding."""
        if not NETWORK_PATTERN.fullmatch(self.network):
            raise BusArgumentError("a network has 1 to 32 of a-z 0-9 -", where="FinalityStatement")
        stamps = 1 <= self.number <= MAX_U64 and 0 <= self.issued_ms <= MAX_U64
        if not stamps or len(self.rows) > ROWS_MAX:
            raise BusArgumentError(
                f"number and time are u64, the rows at most {ROWS_MAX}", where="FinalityStatement"
            )
        for row in self.rows:
            sizes = len(row.namespace_id), len(row.header_hash)
            if sizes != (NAMESPACE_BYTES, HASH_BYTES) or not 1 <= row.seq <= MAX_U64:
                raise BusArgumentError("a row names one message", where="FinalityStatement.rows")
        keys = [row.encode()[:-1] for row in self.rows]
        if keys != sorted(set(keys)):
            raise BusArgumentError(
                "rows are not ascending, or a message stands twice", where="FinalityStatement.rows"
            )

    @property
    def digest(self) -> bytes:
        """SHA3-256 of everything before the signature."""
        return hashlib.sha3_256(self._signed_bytes()).digest()

    def encode(self) -> bytes:
        """Return the one encoding."""
        return self._signed_bytes() + _U16.pack(len(self.signature)) + self.signature

    def _signed_bytes(self) -> bytes:
        return b"".join(
            (
                TAG_FINALITY,
                network_bytes(self.network),
                _HEAD.pack(self.number, self.issued_ms, len(self.rows)),
                *(row.encode() for row in self.rows),
                _U16.pack(len(self.signer)),
                self.signer,
            )
        )

    def signed_by(self, key: SigningKey) -> FinalityStatement:
        """Return the statement with ``key`` as its signer."""
        unsigned = replace(self, signer=key.public_field, signature=b"")
        return replace(unsigned, signature=key.sign(unsigned.digest))

    @classmethod
    def decode(cls, data: bytes) -> FinalityStatement:
        """Return the statement that ``data`` encodes; the signature is not checked.

        Raises:
            FinalityError: the bytes are cut, too long, or not the one encoding of a statement.

        """
        if len(data) > STATEMENT_BYTES_MAX:
            raise FinalityError(
                f"a statement has at most {STATEMENT_BYTES_MAX} bytes", where="finality"
            )
        reader = ByteReader(bytes(data), FinalityError, "finality statement")
        if reader.take(len(TAG_FINALITY)) != TAG_FINALITY:
            raise reader.fail("the tag is not lux.finality.v1")
        network = reader.take(reader.u8())
        number, issued_ms, count = _HEAD.unpack(reader.take(_HEAD.size))
        if count > ROWS_MAX:
            raise reader.fail(f"a statement has at most {ROWS_MAX} rows")
        try:
            rows = tuple(_read_row(reader) for _ in range(count))
            signer, signature = reader.take(reader.u16()), reader.take(reader.u16())
            reader.end()
            return cls(
                network=network.decode("ascii"),
                number=number,
                issued_ms=issued_ms,
                rows=rows,
                signer=signer,
                signature=signature,
            )
        except BusArgumentError as error:
            raise reader.fail(error.what) from error
        except ValueError as error:
            raise reader.fail(str(error)) from error


class StatementOracle:
    """An oracle fed with signed statements; one caller at a time."""

    def __init__(
        self,
        network: str,
        signers: Iterable[bytes],
        *,
        rows_max: int = 262_144,
        namespaces_max: int = 65_536,
    ) -> None:
        """Trust these key fields on this network.

        Args:
            network: Statements of another network are refused.
            signers: Key fields whose statements count.
            rows_max: Most messages remembered; the ones heard of longest ago are forgotten and
                read as PENDING, while the finalized head of their namespace stays.
            namespaces_max: Most namespaces with a head; a statement with one more is refused.

        """
        self._network = network
        self._numbers = dict.fromkeys(signers, 0)
        self._rows_max = rows_max
        self._namespaces_max = namespaces_max
        self._states: dict[tuple[NamespaceId, int, bytes], FinalityState] = {}
        self._final: dict[tuple[NamespaceId, int], bytes] = {}
        self._heads: dict[NamespaceId, int] = {}

    def state(self, namespace_id: NamespaceId, seq: int, header_hash: bytes) -> FinalityState:
        """Return a message's state, PENDING for one it has not heard of."""
        return self._states.get((namespace_id, seq, header_hash), FinalityState.PENDING)

    def finalized_seq(self, namespace_id: NamespaceId) -> int:
        """Return the highest finalized sequence of a namespace, 0 for none."""
        return self._heads.get(namespace_id, 0)

    def apply(self, statement: FinalityStatement) -> int:
        """Take a statement over whole and return how many states changed.

        Raises:
            FinalityError: the signer, network, number, signature or a transition is wrong;
                nothing has changed then.

        """
        self._check_origin(statement)
        final = dict(self._final_changes(statement))
        new = {row.namespace_id for row in statement.rows} - set(self._heads)
        if len(self._heads) + len(new) > self._namespaces_max:
            raise FinalityError(
                f"more than {self._namespaces_max} namespaces", where="finality statement"
            )
        changed = 0
        for row in statement.rows:
            key = (row.namespace_id, row.seq, row.header_hash)
            changed += self._states.pop(key, FinalityState.PENDING) is not row.state
            self._states[key] = row.state
        self._move_heads(statement)
        for slot, header_hash in final.items():
            if header_hash is None:
                self._final.pop(slot, None)
            else:
                self._final[slot] = header_hash
        while len(self._states) > self._rows_max:
            namespace, seq, _ = oldest = next(iter(self._states))
            if self._states.pop(oldest) is FinalityState.FINALIZED:
                self._final.pop((namespace, seq), None)
        self._numbers[statement.signer] = statement.number
        return changed

    def _check_origin(self, statement: FinalityStatement) -> None:
        last = self._numbers.get(statement.signer)
        if last is None:
            raise FinalityError("the signer is not trusted here", where="finality statement")
        if statement.network != self._network:
            raise FinalityError("a statement of another network", where="finality statement")
        if statement.number <= last:
            raise FinalityError(
                f"number {statement.number} does not rise above {last}", where="finality statement"
            )
        if not verify_digest(statement.signer, statement.digest, statement.signature):
            raise FinalityError("the signature does not verify", where="finality statement")

    def _final_changes(
        self, statement: FinalityStatement
    ) -> dict[tuple[NamespaceId, int], bytes | None]:
        """Return the new FINALIZED header of each slot that changes, after checking every row."""
        changes: dict[tuple[NamespaceId, int], bytes | None] = {}
        rows = sorted(statement.rows, key=lambda row: row.state is FinalityState.FINALIZED)
        for row in rows:  # what stops being final makes place before what becomes it
            slot = (row.namespace_id, row.seq)
            before = self.state(*slot, row.header_hash)
            if row.state is not before and row.state not in TRANSITIONS[before]:
                raise FinalityError(
                    f"{before.name} cannot become {row.state.name}",
                    where=f"{row.namespace_id.hex()} seq {row.seq}",
                )
            holder = changes.get(slot, self._final.get(slot))
            if row.state is FinalityState.FINALIZED:
                if holder not in {None, row.header_hash}:
                    raise FinalityError(
                        "two headers cannot both be FINALIZED",
                        where=f"{row.namespace_id.hex()} seq {row.seq}",
                    )
                changes[slot] = row.header_hash
            elif holder == row.header_hash:
                changes[slot] = None
        return changes

    def _move_heads(self, statement: FinalityStatement) -> None:
        # What is taken back first: a head stands before the lowest sequence that was reorganised.
        for row in statement.rows:
            head = self._heads.setdefault(row.namespace_id, 0)
            was_final = self._final.get((row.namespace_id, row.seq)) == row.header_hash
            if row.state is FinalityState.REORGED and was_final and row.seq <= head:
                self._heads[row.namespace_id] = row.seq - 1
        for row in statement.rows:
            if row.state is FinalityState.FINALIZED:
                head = self._heads[row.namespace_id]
                self._heads[row.namespace_id] = max(head, row.seq)


def _read_row(reader: ByteReader) -> FinalityRow:
    namespace, seq, header_hash, state = _ROW.unpack(reader.take(_ROW.size))
    return FinalityRow(NamespaceId(namespace), seq, header_hash, FinalityState(state))
