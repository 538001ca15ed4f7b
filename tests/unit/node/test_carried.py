"""A header's namespace, told from the header alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    SigningKey,
    lane,
    sender_address,
    topic_namespace,
)
from luxrelay.bus.policy import Identity, IdentityType, NamespacePolicy, default_policy_hash
from luxrelay.bus.signed_policy import SignedPolicy
from luxrelay.errors import GatewayError, NodeError, PolicyError
from luxrelay.node.carried import CarriedNamespace, CarriedNamespaces

ROOM, HALL, DEN = (topic_namespace(f"/chat/1/{name}") for name in ("room", "hall", "den"))
KEY = b"\x01" + bytes(range(32))


def header(namespace: NamespaceId, key: bytes = KEY) -> MsgHeader:
    """Return a header of a namespace."""
    return MsgHeader(
        namespace_id=namespace,
        seq=1,
        timestamp=1,
        blob_commitment=bytes(32),
        blob_len=0,
        policy_hash=bytes(32),
        sender_pub_key=key,
        signature=bytes(64),
    )


def carrying(*namespaces: NamespaceId, **bounds: Any) -> CarriedNamespaces:
    """Return what a node carries whose configuration lists namespaces."""
    listed = (
        CarriedNamespace(namespace_id=each, content_topic="", policy_hash=b"")
        for each in namespaces
    )
    return CarriedNamespaces(listed, **bounds)


def test_namespaces_and_lanes_are_told_apart() -> None:
    """A carried namespace, a lane of one by the sender's key, and nothing else (J6, G28)."""
    carried = carrying(ROOM, HALL)

    assert carried.parent_of(header(ROOM)) == ROOM
    assert carried.parent_of(header(lane(HALL, KEY))) == HALL
    assert carried.parent_of(header(lane(topic_namespace("/other"), KEY))) is None
    assert carried.parent_of(header(NamespaceId(bytes(20)))) is None


def test_another_senders_lane_is_no_lane() -> None:
    """Whoever names a lane with another key than the header's has no namespace here."""
    carried = carrying(ROOM)
    own = header(lane(ROOM, KEY))

    assert carried.parent_of(replace(own, sender_pub_key=b"\x01" + bytes(32))) is None
    assert carried.parent_of(own) == ROOM


def test_answers_are_bounded_and_stay_right() -> None:
    """Beyond the bound the longest unneeded answer is forgotten and found again."""
    carried = carrying(ROOM, remembered_max=3)
    known = header(lane(ROOM, KEY))

    for n in range(10):
        assert carried.parent_of(known) == ROOM
        assert carried.parent_of(header(NamespaceId(bytes([n + 1]) * 20))) is None

    assert carried.remembered == 3


def test_what_headers_global_names_is_proven() -> None:
    """A lane's parent by its key, a namespace by its own id; a false parent is none (G34)."""
    listed, opened = carrying(ROOM), CarriedNamespaces(everything=True)
    own = header(lane(HALL, KEY))

    assert listed.parent_of(own, HALL) is None
    assert opened.parent_of(own, HALL) == HALL
    assert opened.parent_of(own, ROOM) is None
    assert opened.parent_of(header(HALL), HALL) == HALL
    assert opened.parent_of(header(lane(ROOM, KEY)), b"") is None


def test_somebody_s_lane_is_no_namespace_of_its_own() -> None:
    """Of a lane that the store holds under its parent nobody else makes a namespace (J6, G35)."""
    known = lane(ROOM, KEY)
    opened = CarriedNamespaces(everything=True, parent_held={known: ROOM}.get)

    assert opened.parent_of(header(known), known) is None
    assert opened.default_hashes(known) == frozenset()
    assert opened.default_hashes(ROOM) == {default_policy_hash(ROOM)}
    assert carrying(ROOM).default_hashes(ROOM) == frozenset()
    assert opened.asked(known)
    assert len(opened) == 0  # its parent's topic is not followed for a lane


def test_what_is_followed_is_read_again(tmp_path: Path) -> None:
    """With its documents, its topic and who asked for it; the last state counts (G35)."""
    path = tmp_path / "followed.json"
    told: list[tuple[NamespaceId, bool]] = []
    first = CarriedNamespaces(everything=True, path=path)
    first.told = lambda entry, follows: told.append((entry.namespace_id, follows))
    document = signed()
    assert first.follow(document.namespace_id, documents=[document])
    assert not first.follow(document.namespace_id, documents=[document])
    assert first.follow(ROOM, content_topic="/chat/1/room")
    assert first.demanded(DEN)
    assert first.unfollow(ROOM)
    assert not first.unfollow(ROOM)

    again = CarriedNamespaces(everything=True, path=path)
    assert again.entries() == first.entries()
    assert [(each.origin, len(each.documents)) for each in again.entries()] == [
        ("call", 1), ("demand", 0),
    ]  # fmt: skip
    assert told == [
        (document.namespace_id, True), (ROOM, True), (DEN, True), (ROOM, False),
    ]  # fmt: skip


def test_an_unreadable_list_is_set_aside(tmp_path: Path) -> None:
    """The node begins with its configuration; the file stays under another name."""
    path = tmp_path / "followed.json"
    entry = {"namespaceId": "00", "contentTopic": "", "origin": "call", "documents": []}
    broken: list[object] = [[], {"version": 2}]
    broken += [{"version": 1, "namespaces": [each]} for each in ({}, entry)]
    for text in ("no JSON", *map(json.dumps, broken)):
        path.write_text(text)
        carried = CarriedNamespaces(path=path)
        assert carried.entries() == ()
        assert carried.set_aside is not None
        assert carried.set_aside.read_text() == text


def test_a_list_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A folder in its place, or a file without end, is the operator's to mend: no traceback."""
    path = tmp_path / "followed.json"
    path.mkdir()
    with pytest.raises(NodeError, match="it is a folder") as caught:
        CarriedNamespaces(path=path)
    assert caught.value.code == "store.io"
    assert str(path) in str(caught.value)
    path.rmdir()
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole: nothing of it is read
    with pytest.raises(NodeError):
        CarriedNamespaces(path=path)


def test_applications_push_out_each_other_and_no_operator(tmp_path: Path) -> None:
    """The one not asked for longest gives way; without one the answer is no, with the number."""
    carried = CarriedNamespaces(everything=True, followed_max=2, path=tmp_path / "list")
    first, second, third = (topic_namespace(f"/x/1/{n}") for n in range(3))
    carried.demanded(first)
    carried.demanded(second)
    carried.demanded(first)
    carried.demanded(third)
    assert [each.namespace_id for each in carried.entries()] == [first, third]
    assert carried.given_way == 1

    carried.follow(ROOM)
    carried.follow(HALL)
    assert [each.origin for each in carried.entries()] == ["call", "call"]
    with pytest.raises(GatewayError, match="follows 2 namespaces at run time, of 2"):
        carried.demanded(first)
    assert not carried.asked(first)


def test_applications_have_so_many_a_minute() -> None:
    """Beyond it they are told when again; an operator is not counted (G35)."""
    clock = [0]
    carried = CarriedNamespaces(everything=True, demands_per_minute=2, clock_ms=lambda: clock[0])
    names = [topic_namespace(f"/x/1/{n}") for n in range(5)]
    assert [carried.demanded(each) for each in names[:2]] == [True, True]
    with pytest.raises(GatewayError, match="2 namespaces in a minute") as caught:
        carried.demanded(names[2])
    assert caught.value.retry_after_ms == 30_000
    assert carried.demands_refused == 1
    assert carried.follow(names[3])
    clock[0] += 30_000
    assert carried.demanded(names[2])


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    """What the disk did not take is not followed, nor told."""
    carried = CarriedNamespaces(path=tmp_path / "none" / "list")
    carried.told = lambda *_: pytest.fail("told")
    with pytest.raises(OSError, match="No such file"):
        carried.follow(ROOM)
    assert carried.entries() == ()


def test_documents_are_of_their_namespace() -> None:
    """One of another namespace or network is refused, and changes nothing (H21)."""
    carried = CarriedNamespaces()
    document = signed()
    with pytest.raises(PolicyError, match="the document is for namespace"):
        carried.follow(ROOM, documents=[document])
    with pytest.raises(PolicyError, match="network"):
        CarriedNamespaces(network="other").follow(document.namespace_id, documents=[document])
    assert carried.entries() == ()


def signed() -> SignedPolicy:
    """Return a first policy of an owner's namespace."""
    key = SigningKey.generate()
    owner = Identity(IdentityType.WALLET, sender_address(key.public_field))
    policy = NamespacePolicy(owner=owner)
    return SignedPolicy(network="devnet", namespace_id=HALL, policy=policy).signed_by(key)
