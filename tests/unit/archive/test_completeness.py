"""What an audit makes of its numbers; its queries are in tests/integration/archive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from luxrelay.archive.completeness import (
    ArchiveGap,
    AuditReport,
    Behind,
    NamespaceAudit,
    _absences,
    _behind,
    _explained,
    _located,
)
from luxrelay.archive.folder import ArchiveFolder
from luxrelay.archive.offsets import Span
from luxrelay.archive.rules import ArchiveRules
from luxrelay.archive.schema import MAX_I64
from luxrelay.bus import NamespaceId, SignatureScheme, SigningKey
from luxrelay.bus.policy import Identity, IdentityType, NamespacePolicy, RetentionClass
from luxrelay.bus.signed_policy import SignedPolicy
from luxrelay.sync import PeerHead

A, B = NamespaceId(b"a" * 20), NamespaceId(b"b" * 20)

WHOLE = AuditReport(
    namespaces=(
        NamespaceAudit(namespace=A, first=1, last=9, rows=10, slots=9, contested=1, duplicates=0),
    ),
    gaps=(),
    behind=(),
    rejected_by_code={1005: 2, 1201: 1},
    messages_by_copies={1: 2, 3: 8},
    messages_by_relay={"a:1": 10, "b:1": 8, "c:1": 8},
)


def _head(namespace: NamespaceId, earliest: int, contiguous: int, latest: int) -> PeerHead:
    return PeerHead(
        namespace_id=namespace,
        parent_id=namespace,
        earliest_seq=earliest,
        contiguous_seq=contiguous,
        latest_seq=latest,
    )


def test_sums() -> None:
    """Rows, copies and rejects are the sums of their parts."""
    assert (WHOLE.rows, WHOLE.contested, WHOLE.duplicates) == (10, 1, 0)
    assert WHOLE.copies == 2 + 3 * 8
    assert WHOLE.rejected == 3
    assert WHOLE.missing == 0


def test_complete_means_nothing_is_missing_doubled_or_unread() -> None:
    """Each of these alone makes an archive incomplete."""
    doubled = replace(WHOLE.namespaces[0], duplicates=1)

    assert WHOLE.complete
    assert not replace(WHOLE, gaps=(ArchiveGap(namespace=A, first=2, last=3),)).complete
    assert not replace(WHOLE, behind=(Behind(namespace=A, archived=9, head=10),)).complete
    assert not replace(WHOLE, namespaces=(doubled,)).complete
    assert not replace(WHOLE, unreachable=("a:1",)).complete
    assert not replace(WHOLE, cut=True).complete


def test_gaps_name_who_may_still_hold_them() -> None:
    """A relay that holds some of it counts; one that has forgotten it does not."""
    heads = {
        "a:1": [_head(A, 3, 9, 9)],
        "b:1": [_head(A, 6, 9, 9)],
        "c:1": [_head(A, 0, 9, 0), _head(B, 1, 9, 9)],
    }

    (gap,) = _located([ArchiveGap(namespace=A, first=2, last=4)], heads)

    assert gap.held_by == ("a:1",)


def test_behind_is_what_relays_hold_beyond_the_archive() -> None:
    """A namespace that was never archived counts from zero."""
    heads = {"a:1": [_head(A, 1, 12, 14), _head(B, 1, 2, 2)], "b:1": [_head(A, 1, 9, 9)]}

    assert _behind(WHOLE.namespaces, heads, {}, ArchiveRules()) == [
        Behind(namespace=A, archived=9, head=12),
        Behind(namespace=B, archived=0, head=2),
    ]


def test_what_was_deleted_on_purpose_is_not_behind() -> None:
    """A relay remembers the head of a namespace that the archive retired or erased since (J2)."""
    heads = {"a:1": [_head(A, 1, 12, 12), _head(B, 0, 7, 0)]}

    assert _behind((), heads, {A: MAX_I64, B: 7}, ArchiveRules()) == []
    assert _behind((), heads, {A: 11, B: 7}, ArchiveRules()) == [
        Behind(namespace=A, archived=11, head=12)
    ]


def test_what_is_never_archived_is_not_behind() -> None:
    """A namespace of the class Ephemeral, and its lanes, are not waited for (J2, P42)."""
    owner = SigningKey.from_seed(SignatureScheme.ED25519, b"\x07" * 32)
    policy = NamespacePolicy(
        owner=Identity(IdentityType.RAW_KEY, owner.public_field),
        retention_class=RetentionClass.EPHEMERAL,
    )
    document = SignedPolicy(network="devnet", namespace_id=A, policy=policy).signed_by(owner)
    heads = {"a:1": [_head(A, 1, 12, 12), replace(_head(B, 1, 7, 7), parent_id=A)]}

    assert _behind((), heads, {}, ArchiveRules.of([document])) == []
    assert len(_behind((), heads, {}, ArchiveRules())) == 2


def test_what_was_read_and_rejected_or_passed_over_is_not_behind() -> None:
    """A head of rejects is a gap, not something still to be read; what lies beyond it is."""
    heads = {"a:1": [_head(A, 1, 14, 14)], "b:1": [_head(B, 1, 5, 5)]}
    read = [Span(A, 10, 12), Span(A, 13, 14), Span(B, 1, 2)]

    behind = _behind(WHOLE.namespaces, heads, {}, ArchiveRules(), read)

    assert behind == [Behind(namespace=B, archived=0, head=5)]
    assert _behind(WHOLE.namespaces, heads, {}, ArchiveRules(), read[:1])[0].namespace == A


def test_gaps_say_what_was_rejected_there(absent_of: Callable[..., ArchiveFolder]) -> None:
    """Holes and heads with their codes; what was passed over is none (J2)."""
    folder = absent_of(rejected=[(A, 4, 1005), (A, 11, 1201), (A, 12, 1005)], passed=[(A, 6, 7)])

    found = _absences(folder, WHOLE.namespaces, [Span(A, 4, 7)])

    assert found.gaps == [
        ArchiveGap(namespace=A, first=4, last=5, rejected=(1005,)),
        ArchiveGap(namespace=A, first=10, last=12, rejected=(1005, 1201)),
    ]
    assert found.read == [Span(A, 10, 12), Span(A, 6, 7)]


def test_a_namespace_of_rejects_alone_is_behind_and_says_why(
    absent_of: Callable[..., ArchiveFolder],
) -> None:
    """Rules that fit no message are no complete archive."""
    folder = absent_of(rejected=[(B, 1, 1005), (B, 2, 1005)])
    behind = [Behind(namespace=B, archived=0, head=2), Behind(namespace=A, archived=9, head=12)]

    assert list(_explained(folder, behind)) == [
        Behind(namespace=B, archived=0, head=2, rejected=(1005,)),
        behind[1],
    ]
    assert _absences(folder, WHOLE.namespaces, []).gaps == []
