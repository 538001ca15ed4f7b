"""Fees at the doors: charged once, given back, kept over a restart, forgotten on time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from luxrelay.bus import (
    Code,
    FeeProof,
    Identity,
    IdentityType,
    MsgHeader,
    NamespaceId,
    SigningKey,
    VerdictKind,
    lane,
    sha3_commitment,
    topic_namespace,
)
from luxrelay.bus.authorization import key_address
from luxrelay.bus.fee import Prepaid
from luxrelay.bus.policy import default_policy
from luxrelay.errors import NodeError
from luxrelay.node.fees import FeeDesk
from luxrelay.node.ingress import Doors
from luxrelay.node.missing_blobs import WantedBlobs
from luxrelay.node.stages.verify import Judge, JudgeConfig, StoreKnowledge
from luxrelay.store import RelayStore, RelayStoreConfig
from luxrelay.sync import PublishItem, WireMessage

NOW = 1_704_067_200_000
NETWORK = "devnet"
PARENT = topic_namespace("/chat/1/room")
ISSUER, PAYER, SENDER = (SigningKey.generate() for _ in range(3))
BLOB = b"x" * 100


def quota(messages: int, *, issuer: SigningKey = ISSUER) -> Prepaid:
    """Return an issued quota that ends in an hour."""
    return Prepaid(
        owner=Identity(IdentityType.WALLET, key_address(PAYER.public_field) or b""),
        namespace_id=NamespaceId(bytes(20)),
        messages=messages,
        bytes_total=10_000,
        expires_at=NOW + 3_600_000,
        nonce=b"\x01" * 16,
        issuer=issuer.public_field,
    ).issued_by(issuer, NETWORK)


def paid(seq: int, body: Prepaid) -> MsgHeader:
    """Return a message of the sender that carries a quota."""
    header = MsgHeader(
        namespace_id=lane(PARENT, SENDER.public_field),
        seq=seq,
        timestamp=NOW,
        blob_commitment=sha3_commitment(BLOB),
        blob_len=len(BLOB),
        policy_hash=default_policy(PARENT).policy_hash,
        sender_pub_key=SENDER.public_field,
    )
    proof = FeeProof.signed(body, header, PAYER, NETWORK).encode()
    return SENDER.sign_header(replace(header, fee_proof=proof))


class Desk:
    """A node's doors with fees, on a store that can be opened again."""

    def __init__(self, folder: Path, *, free_tier: bool = True) -> None:
        self.now = NOW
        self.steady = 0
        self._folder = folder
        self._free_tier = free_tier
        self.open()

    def open(self) -> None:
        """Open the store and everything on it."""
        self.store = RelayStore.open(self._folder, RelayStoreConfig.small(), now_ms=self.now)
        self.fees = FeeDesk(
            NETWORK,
            self.store.documents,
            issuers=[ISSUER.public_field],
            free_tier=self._free_tier,
            steady_ms=lambda: self.steady,
        )
        policies = {PARENT: frozenset({default_policy(PARENT).policy_hash})}
        config = JudgeConfig(ttl_ms=600_000)
        self.judge = Judge(
            StoreKnowledge(self.store), policies, config, lambda: self.now, fees=self.fees
        )
        self.doors = Doors(
            store=self.store,
            judge=self.judge,
            identity=SigningKey.generate(),
            network=NETWORK,
            inline_blob_max=1024,
            clock_ms=lambda: self.now,
            spread=lambda items: [0] * len(items),
            wanted=WantedBlobs(ttl_ms=600_000),
            fees=self.fees,
        )

    def close(self) -> None:
        """Close it."""
        self.judge.close()
        self.store.close()

    def publish(self, *headers: MsgHeader) -> list[tuple[VerdictKind, Code]]:
        """Return what an application is told about messages it hands in together."""
        items = [PublishItem(header=h.encode(), blob=BLOB, parent_id=PARENT) for h in headers]
        return [(r.verdict, r.code) for r in self.doors.publish(items)]


OK = (VerdictKind.ACCEPT, Code.OK)
UNPAID = (VerdictKind.IGNORE, Code.FEE_TOO_LOW)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A node that honours one issuer."""
    made = Desk(tmp_path / "store")
    yield made
    made.close()


def account(body: Prepaid) -> bytes:
    """Return the account of a quota."""
    return body.quota_hash(NETWORK)


def test_a_quota_pays_for_what_it_holds_and_no_more(desk: Desk) -> None:
    """Three messages in one batch of five; the rest is ignored, nobody is blamed (S7)."""
    body = quota(3)
    told = desk.publish(*(paid(seq, body) for seq in range(1, 6)))
    assert told.count(OK) == 3
    assert {kind for kind, _ in told if kind is not VerdictKind.ACCEPT} == {VerdictKind.IGNORE}
    assert desk.fees.remaining(account(body)) == (0, 10_000 - 300)


def test_a_message_is_paid_for_once(desk: Desk) -> None:
    """Publishing again costs nothing, and neither does the same message from a relay."""
    body, header = quota(3), paid(1, quota(3))
    assert desk.publish(header) == [OK]
    desk.publish(header)
    desk.doors.history(PARENT, [WireMessage(header=header.encode(), blob=BLOB)])
    assert desk.fees.remaining(account(body)) == (2, 9_900)


def test_what_comes_late_of_a_paid_message_costs_nothing(desk: Desk) -> None:
    """A blob that its header preceded is kept although the quota is used up by then (S7)."""
    body = quota(2)
    headers = [paid(1, body), paid(2, body)]
    desk.doors.history(PARENT, [WireMessage(header=h.encode(), blob=b"") for h in headers])
    assert desk.fees.remaining(account(body)) == (0, 9_800)
    assert not desk.store.has_blob(headers[0].blob_commitment, desk.now)

    desk.doors.history(PARENT, [WireMessage(header=headers[0].encode(), blob=BLOB)])

    assert desk.store.has_blob(headers[0].blob_commitment, desk.now)
    assert desk.fees.remaining(account(body)) == (0, 9_800)
    (told,) = desk.publish(paid(3, body))
    assert told[0] is VerdictKind.IGNORE


def test_what_is_not_stored_is_given_back(desk: Desk) -> None:
    """A message that loses its slot in the same batch has not been paid for."""
    body = quota(10)
    lane_of = paid(1, body)
    rivals = [SENDER.sign_header(replace(lane_of, timestamp=NOW + n)) for n in range(6)]
    again = [
        SENDER.sign_header(replace(h, fee_proof=FeeProof.signed(body, h, PAYER, NETWORK).encode()))
        for h in rivals
    ]
    told = desk.publish(*again)
    stored = told.count(OK)
    assert stored < len(again)
    assert desk.fees.remaining(account(body)) == (10 - stored, 10_000 - 100 * stored)


def test_a_used_quota_stays_used_after_a_restart(desk: Desk) -> None:
    """The account comes back with the store."""
    body = quota(2)
    assert desk.publish(paid(1, body), paid(2, body)) == [OK, OK]
    desk.close()
    desk.open()
    assert desk.fees.remaining(account(body)) == (0, 9_800)
    (told,) = desk.publish(paid(3, body))
    assert told[0] is VerdictKind.IGNORE


def test_an_unknown_issuer_is_no_fault_of_the_peer(desk: Desk) -> None:
    """IGNORE, since another node may honour it."""
    assert desk.publish(paid(1, quota(3, issuer=PAYER))) == [UNPAID]


def test_no_free_tier_ignores_free_messages(tmp_path: Path) -> None:
    """``fees.free_tier = false`` takes paid messages only."""
    made = Desk(tmp_path / "store", free_tier=False)
    free = SENDER.sign_header(replace(paid(1, quota(1)), fee_proof=b"\x00"))
    assert made.publish(free) == [UNPAID]
    assert made.publish(paid(1, quota(1))) == [OK]
    made.close()


def test_ended_accounts_leave_the_store(desk: Desk) -> None:
    """An account is forgotten after its end and grace, and its document with it."""
    body = quota(2)
    desk.publish(paid(1, body))
    assert desk.fees.forget(desk.now) == 0
    assert len(desk.store.documents) == 1
    desk.now = NOW + 3_600_000 + 660_000
    desk.publish(paid(2, replace(quota(2), nonce=b"\x02" * 16, expires_at=desk.now + 1)))
    later = Prepaid(
        owner=body.owner,
        namespace_id=body.namespace_id,
        messages=1,
        bytes_total=1_000,
        expires_at=desk.now + 3_600_000,
        nonce=b"\x03" * 16,
        issuer=ISSUER.public_field,
    ).issued_by(ISSUER, NETWORK)
    header = replace(paid(3, later), timestamp=desk.now)
    proof = FeeProof.signed(later, header, PAYER, NETWORK).encode()
    assert desk.publish(SENDER.sign_header(replace(header, fee_proof=proof))) == [OK]
    assert desk.fees.forget(desk.now) == 0  # the wall clock may be wrong
    desk.steady = 660_000
    assert desk.fees.forget(desk.now) == 1
    assert desk.fees.remaining(account(body)) is None
    desk.close()
    desk.now = NOW
    desk.open()
    # Spent, forgotten, and not to be spent again; below what came later, which its time is before.
    assert desk.publish(paid(2, body)) == [UNPAID]


@pytest.mark.trial
def test_a_clock_a_year_ahead_for_a_while_gives_no_quota_back(desk: Desk) -> None:
    """A node that runs, and starts, with a wrong clock remembers what was used up before."""
    body = quota(1)
    assert desk.publish(paid(1, body)) == [OK]
    for jump in (1, -1):
        desk.now = NOW + jump * 365 * 86_400_000
        desk.publish(paid(2, quota(2)))
        desk.fees.forget(desk.now)
        desk.close()
        desk.open()
        desk.publish(paid(3, quota(2)))
        desk.fees.forget(desk.now)
    desk.now = NOW

    assert desk.publish(paid(4, body)) == [UNPAID]
    assert desk.fees.remaining(account(body)) == (0, 10_000 - len(BLOB))


def test_a_broken_account_is_named(desk: Desk) -> None:
    """A node does not start on an account that it cannot read."""
    desk.store.documents[b"fee/" + bytes(32)] = b"short"
    with pytest.raises(NodeError, match="cannot be read"):
        FeeDesk(NETWORK, desk.store.documents)
