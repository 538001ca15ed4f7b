"""Blobs that stored headers lack: remembered, asked for in turn, forgotten within bounds."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luxrelay.bus import MsgHeader, NamespaceId, TFHESidecarRef, sha3_commitment
from luxrelay.bus.constants import FLAG_TFHE_SIDECAR
from luxrelay.node.missing_blobs import HOLDERS_MAX, WantedBlobs

NOW = 1_704_067_200_000
PARENT = NamespaceId(bytes(19) + b"\x01")


def header(seq: int, timestamp: int = NOW, sender: int = 0) -> MsgHeader:
    """Return a header that commits to a blob of its own."""
    blob = f"blob {seq} of {sender}".encode()
    return MsgHeader(
        namespace_id=PARENT,
        seq=seq,
        timestamp=timestamp,
        blob_commitment=sha3_commitment(blob),
        blob_len=len(blob),
        policy_hash=bytes(32),
        sender_pub_key=b"\x01" + bytes(31) + bytes([sender]),
        signature=bytes(64),
    )


def test_take_gives_each_its_turn() -> None:
    """What was asked for comes last the next time."""
    wanted = WantedBlobs(ttl_ms=2000)
    headers = [header(seq) for seq in (1, 2, 3)]
    for each in headers:
        wanted.add(each, PARENT)

    first = [each.message_id for each in wanted.take(2, NOW)]
    second = [each.message_id for each in wanted.take(2, NOW + 1000)]

    assert first == [headers[0].message_id, headers[1].message_id]
    assert second == [headers[2].message_id, headers[0].message_id]


def test_what_arrived_or_expired_is_not_asked_for() -> None:
    """A blob that is stored goes at once, one whose message has expired at its turn."""
    wanted = WantedBlobs(ttl_ms=1000)
    arrived, expired, missing = header(1), header(2, NOW - 1000), header(3)
    for each in (arrived, expired, missing):
        wanted.add(each, PARENT)

    wanted.arrived(arrived.blob_commitment)
    wanted.arrived(bytes(32))
    assert len(wanted) == 2
    assert [each.message_id for each in wanted.take(9, NOW)] == [missing.message_id]
    assert len(wanted) == 1
    assert wanted.due(missing.blob_commitment, NOW + 1000) is None
    assert len(wanted) == 0


def test_arrived_drops_every_header_of_a_blob() -> None:
    """Two headers may name one blob; when it is stored neither lacks it."""
    wanted = WantedBlobs(ttl_ms=1000)
    blob = header(1)
    wanted.add(blob, PARENT)
    wanted.add(replace(header(2), blob_commitment=blob.blob_commitment), PARENT)

    wanted.arrived(blob.blob_commitment)

    assert len(wanted) == 0
    assert wanted.find(blob.blob_commitment) is None


def test_find_by_commitment() -> None:
    """What is wanted is found by what its header commits to."""
    wanted = WantedBlobs(ttl_ms=1000)
    each = header(1)
    wanted.add(each, PARENT)

    found = wanted.find(each.blob_commitment)

    assert found is not None
    assert (found.header, found.parent) == (each, PARENT)
    assert wanted.find(bytes(32)) is None


def test_forget_the_oldest_when_full() -> None:
    """The list never grows above its bound, loses the oldest of equals, and says how many."""
    wanted = WantedBlobs(ttl_ms=1000, wanted_max=2)
    for seq in (1, 2, 2, 3):
        wanted.add(header(seq), PARENT)

    assert len(wanted) == 2
    assert wanted.forgotten == 1
    assert [each.message_id for each in wanted.take(9, NOW)] == [
        header(2).message_id,
        header(3).message_id,
    ]


def test_a_blob_that_would_not_be_kept_is_not_asked_for() -> None:
    """At the largest it is, above it is not."""
    size = header(1).blob_len
    for largest, expected in ((size, 1), (size - 1, 0)):
        wanted = WantedBlobs(ttl_ms=1000, largest=largest)
        wanted.add(header(1), PARENT)
        assert len(wanted) == expected


@pytest.mark.trial
def test_a_clock_set_back_delays_nothing() -> None:
    """What was to be asked for in a while is due when that while has become a year."""
    wanted = WantedBlobs(ttl_ms=600_000)
    wanted.add(header(1), PARENT)
    assert len(wanted.take(9, NOW)) == 1
    assert wanted.take(9, NOW) == []

    assert len(wanted.take(9, NOW - 365 * 86_400_000)) == 1
    assert wanted.take(9, NOW - 365 * 86_400_000) == []


def test_pauses_double_up_to_half_a_minute() -> None:
    """What nobody has is asked for ever less often, and news makes it due at once (P28)."""
    told: list[int] = []
    wanted = WantedBlobs(ttl_ms=10_000_000, news=lambda: told.append(1))
    each = header(1)
    wanted.add(each, PARENT)
    now, pauses = NOW, []

    for _ in range(9):
        assert len(wanted.take(9, now)) == 1
        assert wanted.take(9, now) == []
        at = wanted.next_ms()
        assert at is not None
        pauses.append(at - now)
        now = at

    assert pauses == [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]
    assert wanted.take(9, now)
    assert wanted.hear(each.blob_commitment)
    assert len(wanted.take(9, now)) == 1
    assert not wanted.hear(bytes(32))
    assert len(told) == 2


def test_due_puts_off_like_a_turn() -> None:
    """One caller may ask at once, the next one only after the pause."""
    wanted = WantedBlobs(ttl_ms=1000)
    commitment = header(1).blob_commitment
    assert wanted.due(commitment, NOW) is None
    wanted.add(header(1), PARENT)

    assert wanted.due(commitment, NOW) is not None
    assert wanted.due(commitment, NOW) is None
    assert wanted.due(commitment, NOW + 250) is not None


def test_holders_are_gathered_within_a_bound() -> None:
    """Who announced or brought the header is remembered, the newest first, each once."""
    wanted = WantedBlobs(ttl_ms=1000)
    each = header(1)
    wanted.add(each, PARENT, (b"a", b"b"))
    wanted.add(each, PARENT, (b"c", b"a"))

    found = wanted.find(each.blob_commitment)
    assert found is not None
    assert found.holders == (b"c", b"a", b"b")

    wanted.add(each, PARENT, [bytes([n]) for n in range(HOLDERS_MAX + 5)])
    found = wanted.find(each.blob_commitment)
    assert found is not None
    assert len(found.holders) == HOLDERS_MAX


def test_commitments_of_dropped_headers_are_forgotten() -> None:
    """Two headers may name one blob; the last of them takes the commitment along."""
    wanted = WantedBlobs(ttl_ms=1000, wanted_max=2)
    blob = header(1)
    twin = replace(header(2), blob_commitment=blob.blob_commitment)
    wanted.add(blob, PARENT)
    wanted.add(twin, PARENT)

    wanted.add(header(3), PARENT)
    assert wanted.find(blob.blob_commitment) is not None
    wanted.add(header(4), PARENT)
    assert wanted.find(blob.blob_commitment) is None
    assert not wanted.hear(blob.blob_commitment)


def test_a_sender_of_headers_alone_does_not_fill_the_list() -> None:
    """Above its share a sender pushes out its own; others keep theirs (P28)."""
    wanted = WantedBlobs(ttl_ms=1000, wanted_max=10, sender_max=4)
    honest = [header(seq, sender=1) for seq in range(3)]
    for each in (*honest, *(header(seq, sender=2) for seq in range(100))):
        wanted.add(each, PARENT)

    assert len(wanted) == 7
    assert wanted.forgotten == 96
    assert all(wanted.find(each.blob_commitment) for each in honest)


def test_a_full_list_takes_from_the_sender_with_the_most() -> None:
    """A flood within its share loses an entry for each newcomer, until all have as many."""
    wanted = WantedBlobs(ttl_ms=1000, wanted_max=10)
    modest = [header(seq, sender=1) for seq in range(2)]
    for each in (*modest, *(header(seq, sender=2) for seq in range(50))):
        wanted.add(each, PARENT)
    late = [header(seq, sender=sender) for sender in (3, 4) for seq in range(2)]
    for each in late:
        wanted.add(each, PARENT)

    assert len(wanted) == 10
    assert all(wanted.find(each.blob_commitment) for each in (*modest, *late))
    flood = [seq for seq in range(50) if wanted.find(header(seq, sender=2).blob_commitment)]
    assert flood == [46, 47, 48, 49]


def test_of_equals_the_newcomer_pays() -> None:
    """Who has as many as anybody else gets no more at the cost of others."""
    wanted = WantedBlobs(ttl_ms=1000, wanted_max=4)
    others = [header(seq, sender=1) for seq in range(2)]
    for each in (*others, *(header(seq, sender=2) for seq in range(9))):
        wanted.add(each, PARENT)

    assert all(wanted.find(each.blob_commitment) for each in others)
    assert wanted.find(header(8, sender=2).blob_commitment) is not None
    wanted.add(header(1, sender=3), PARENT)
    wanted.add(header(2, sender=3), PARENT)
    assert len(wanted) == 4
    assert wanted.find(others[0].blob_commitment) is None
    assert wanted.find(others[1].blob_commitment) is not None


def test_a_sender_loses_what_was_asked_for_in_vain() -> None:
    """What nobody had so far makes room for what nobody was asked for yet."""
    wanted = WantedBlobs(ttl_ms=1000, sender_max=2)
    wanted.add(header(1), PARENT)
    wanted.add(header(2), PARENT)
    assert wanted.due(header(2).blob_commitment, NOW) is not None

    wanted.add(header(3), PARENT)

    assert wanted.find(header(2).blob_commitment) is None
    assert wanted.find(header(1).blob_commitment) is not None


@given(st.lists(st.tuples(st.sampled_from("adtr"), st.integers(0, 5), st.integers(0, 3))))
def test_shares_agree_with_the_list(steps: list[tuple[str, int, int]]) -> None:
    """Whatever happens, both bounds hold, and shares count exactly what is listed."""
    wanted, now = WantedBlobs(ttl_ms=1000, wanted_max=5, sender_max=3), NOW
    for step, seq, sender in steps:
        each = header(seq, sender=sender)
        if step == "a":
            wanted.add(each, PARENT)
        elif step == "d":
            wanted.due(each.blob_commitment, now)
        elif step == "t":
            wanted.take(seq, now)
            now += 100 * sender
        else:
            wanted.arrived(each.blob_commitment)

        held = Counter(entry.header.sender_pub_key for entry in wanted._wanted.values())
        assert held.total() <= 5
        assert {key: len(entries) for key, entries in wanted._shares._entries.items()} == held
        assert not held or held[wanted._shares.largest(b"")] == max(held.values()) <= 3
        assert len(wanted.named) == len(wanted)


def test_many_keys_of_one_peer_do_not_fill_the_list() -> None:
    """A flood of fresh keys pays with what its own peer brought; what others bring stays."""
    wanted = WantedBlobs(ttl_ms=1000, wanted_max=50)
    honest = [header(seq, sender=1) for seq in range(20)]
    for each in honest:
        wanted.add(each, PARENT, (b"honest",), source=b"honest")
    for key in range(2, 250):
        wanted.add(header(1, sender=key), PARENT, (bytes([key]), b"flood"), source=b"flood")
    late = header(21, sender=1)
    wanted.add(late, PARENT, (b"honest",), source=b"honest")

    assert len(wanted) == 50
    assert wanted.forgotten == 20 + 248 + 1 - 50
    assert all(wanted.find(each.blob_commitment) for each in (*honest, late))


def test_of_what_a_peer_brought_the_sender_with_the_most_pays() -> None:
    """An honest key behind the same peer as a flooding one keeps its own."""
    wanted = WantedBlobs(ttl_ms=1000, wanted_max=10)
    modest = [header(seq, sender=1) for seq in range(2)]
    for each in (*modest, *(header(seq, sender=2) for seq in range(50))):
        wanted.add(each, PARENT, source=b"peer")

    assert all(wanted.find(each.blob_commitment) for each in modest)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4), st.sampled_from([b"", b"a", b"b"])))
)
def test_accounts_follow_the_list(added: list[tuple[int, int, bytes]]) -> None:
    """After any adding and going every account is the list's, and an empty list has none."""
    wanted = WantedBlobs(ttl_ms=1000, wanted_max=6, sender_max=3)
    for seq, sender, source in added:
        wanted.add(header(seq, sender=sender), PARENT, source=source)
    held = Counter(each.source for each in wanted._wanted.values())
    assert {who: len(list(wanted._sources.of(who))) for who in held} == held
    assert set(wanted._brought) == set(held)

    for each in list(wanted._wanted.values()):
        wanted.arrived(each.commitment)
    assert not wanted._brought
    assert not wanted._shares._entries
    assert not wanted._sources._entries


def with_sidecar(seq: int) -> MsgHeader:
    """Return a header that commits to a blob and refers to a sidecar."""
    reference = TFHESidecarRef(commitment=sha3_commitment(b"sidecar %d" % seq), epoch=1)
    return replace(header(seq), flags=FLAG_TFHE_SIDECAR, tfhe_sidecar=reference)


def test_blob_and_sidecar_of_a_header_are_wanted_apart() -> None:
    """Each under its own commitment, and one that came leaves the other (11-35)."""
    wanted = WantedBlobs(ttl_ms=2000)
    one = with_sidecar(1)
    assert one.tfhe_sidecar is not None
    for sidecar in (False, True, True):
        wanted.add(one, PARENT, sidecar=sidecar)

    assert (len(wanted), wanted.sidecars) == (2, 1)
    found = wanted.find(one.tfhe_sidecar.commitment)
    assert found is not None
    assert (found.sidecar, found.commitment) == (True, one.tfhe_sidecar.commitment)
    wanted.arrived(one.tfhe_sidecar.commitment)  # a blob of the same bytes is no sidecar
    assert wanted.sidecars == 1
    wanted.arrived(one.tfhe_sidecar.commitment, sidecar=True)
    assert (len(wanted), wanted.sidecars) == (1, 0)
    assert wanted.find(one.blob_commitment) is not None


def test_a_store_without_blobs_wants_no_sidecars() -> None:
    """What would not be kept is not asked for."""
    wanted = WantedBlobs(ttl_ms=2000, largest=0)
    wanted.add(with_sidecar(1), PARENT, sidecar=True)

    assert len(wanted) == wanted.sidecars == 0


def test_sidecars_count_in_the_senders_share() -> None:
    """Beyond it the sender loses one, blob or sidecar (P28)."""
    wanted = WantedBlobs(ttl_ms=2000, sender_max=3)
    for seq in range(1, 4):
        for sidecar in (False, True):
            wanted.add(with_sidecar(seq), PARENT, sidecar=sidecar)

    assert (len(wanted), wanted.forgotten) == (3, 3)
    assert wanted.sidecars == sum(each.sidecar for each in wanted.take(9, NOW))


def test_what_is_on_its_way_is_asked_for_when_something_is_heard_only() -> None:
    """21-38, P46: a fetch that is under way is not begun again; its end begins the pause."""
    told: list[bytes] = []
    wanted = WantedBlobs(ttl_ms=3_600_000)
    wanted.came.append(told.append)
    one = header(1)
    key = one.blob_commitment
    wanted.add(one, PARENT)
    assert len(wanted.take(9, NOW)) == 1
    wanted.begun(key)
    assert wanted.coming(key)
    assert wanted.next_ms() is None
    assert wanted.take(9, NOW + 3_000_000) == []
    assert wanted.due(key, NOW + 3_000_000) is None

    assert wanted.hear(key, b"peer")
    (again,) = wanted.take(9, NOW)
    assert again.holders == (b"peer",)
    assert wanted.take(9, NOW + 60_000) == []

    wanted.ended(key, NOW)
    assert not wanted.coming(key)
    assert wanted.next_ms() == NOW + 250
    wanted.begun(key)
    wanted.hear(key)
    wanted.ended(key, NOW)
    assert wanted.next_ms() == 0
    wanted.arrived(key)
    wanted.arrived(key)
    assert told == [key]
