"""A peer whose every answer may be changed: what it says costs an error of ours, never more.

The answers are a real relay's, over the stream that gossip peers are asked through, with members
changed, doubled, left out and reordered, frames of wrong kinds, and ends without an answer.
``LUXRELAY_HOSTILE_RUNS`` (default 150) and ``LUXRELAY_HOSTILE_SEED`` make it longer or another one.
"""

from __future__ import annotations

import faulthandler
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.descriptor import FieldDescriptor as Field

from luxrelay.bus import MsgHeader, SigningKey, lane, sha3_commitment, topic_namespace
from luxrelay.bus.policy import default_policy
from luxrelay.errors import LuxRelayError, SyncUnreachableError
from luxrelay.node.config import load_config
from luxrelay.node.offline import OfflineNode, offline_node
from luxrelay.store import IncomingMessage, RelayStore, RelayStoreConfig
from luxrelay.sync import SyncClientConfig, SyncServerConfig, run_catchup
from luxrelay.sync.rpc import relay_sync_pb2 as pb
from luxrelay.sync.rpc.service import RelaySyncServer
from luxrelay.sync.rpc.stream_answers import AnsweringStream
from luxrelay.sync.rpc.stream_calls import CarrierError, StreamClient
from luxrelay.sync.rpc.stream_kinds import END, PART, StreamKind

RUNS: Final = int(os.environ.get("LUXRELAY_HOSTILE_RUNS", "150"))
SEED: Final = int(os.environ.get("LUXRELAY_HOSTILE_SEED", "20"))
RUN_S: Final = 60.0
"""Seconds after which one run counts as hanging."""
TOPIC = "/chat/1/room"
PARENT = topic_namespace(TOPIC)
POLICY = default_policy(PARENT).policy_hash
NUMBERS = (0, 1, 2, 255, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
ANSWERS: Final[dict[StreamKind, Any]] = {
    StreamKind.LIST_HELD: pb.HeldNamespace,
    StreamKind.RECONCILE: pb.ReconcileReply,
    StreamKind.GET_MESSAGES: pb.GetMessagesResponse,
    StreamKind.SYNC_NAMESPACE: pb.StoredMessage,
    StreamKind.GET_NAMESPACE_HEAD: pb.NamespaceHeadResponse,
    StreamKind.GET_DIGESTS: pb.DigestsResponse,
    StreamKind.LIST_HEADS: pb.NamespaceHeadResponse,
}


def now_ms() -> int:
    """Return the wall clock, which the node under test reads as well."""
    return time.time_ns() // 1_000_000


class Mutator:
    """Changes messages of protobuf by chance."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def change(self, message: Any, depth: int = 0) -> None:
        """Change one member of a message."""
        field = self.rng.choice(list(message.DESCRIPTOR.fields))
        try:
            if field.cpp_type == Field.CPPTYPE_MESSAGE:
                self._nested(message, field, depth)
            elif field.is_repeated:
                self._list(getattr(message, field.name), field)
            else:
                old = getattr(message, field.name)
                setattr(message, field.name, self._value(field, old))
        except (ValueError, TypeError):
            pass  # a number that the member cannot take

    def _nested(self, message: Any, field: Any, depth: int) -> None:
        if depth > 3:
            return
        if not field.is_repeated:
            self.change(getattr(message, field.name), depth + 1)
            return
        members = getattr(message, field.name)
        choice = self.rng.random()
        if members and choice < 0.5:
            self.change(self.rng.choice(list(members)), depth + 1)
        elif members and choice < 0.7:
            members.append(self.rng.choice(list(members)))
        elif members and choice < 0.8:
            del members[self.rng.randrange(len(members))]
        else:
            self.change(members.add(), depth + 1)

    def _list(self, members: Any, field: Any) -> None:
        if members and self.rng.random() < 0.6:
            place = self.rng.randrange(len(members))
            members[place] = self._value(field, members[place])
        else:
            members.append(self._value(field, members[-1] if members else None))

    def _value(self, field: Any, old: Any) -> Any:
        rng = self.rng
        if field.type == Field.TYPE_BYTES:
            old = old or b""
            some = [b"", rng.randbytes(20), rng.randbytes(32), rng.randbytes(33), bytes(20)]
            flipped = bytes(byte ^ (rng.random() < 0.02) for byte in old)
            wrong = b"\x61" + rng.randbytes(rng.randrange(60))
            return rng.choice([*some, bytes(PARENT), old[:-1], old + b"\0", flipped, wrong])
        if field.type == Field.TYPE_STRING:
            return rng.choice(["", "x"])
        if field.cpp_type == Field.CPPTYPE_BOOL:
            return not old
        return rng.choice([*NUMBERS, (old or 0) + 1, max(0, (old or 0) - 1)])


class Hostile:
    """A carrier that gives a relay's answers, changed with a certain chance."""

    def __init__(self, session: AnsweringStream, rng: random.Random, chance: float) -> None:
        self._session, self._rng, self._chance = session, rng, chance
        self._mutator = Mutator(rng)

    def drop(self) -> None:
        """Nothing is kept."""

    def ask(self, question: bytes, timeout_s: float) -> Iterator[bytes]:
        """Yield the frames of an answer, or of what stands in its place."""
        del timeout_s
        rng, frames = self._rng, []
        for frame in self._session.answer(question):
            frames.append(self._changed(StreamKind(question[0]), frame))
            if rng.random() < 0.03:
                frames.append(frame)
        if rng.random() < 0.05:
            rng.shuffle(frames)
        if rng.random() < 0.05:
            frames = [END]  # an end without an answer
        if rng.random() < 0.02:
            frames.insert(0, rng.choice([b"", b"\x07", b"\x02", b"\x02\xff", END + b"x"]))
        yield from frames
        if not frames:
            raise CarrierError("an answer without a frame", unusable=True)

    def _changed(self, kind: StreamKind, frame: bytes) -> bytes:
        rng = self._rng
        if frame[:1] != PART or rng.random() >= self._chance:
            return frame
        if rng.random() < 0.8:
            message = ANSWERS[kind].FromString(frame[1:])
            for _ in range(rng.randint(1, 3)):
                self._mutator.change(message)
            return PART + bytes(message.SerializeToString())
        octets = bytearray(frame)
        for _ in range(rng.randint(1, 4)):
            octets[rng.randrange(1, len(octets)) if len(octets) > 1 else 0] = rng.randrange(256)
        return bytes(octets)


def messages_of(rng: random.Random, now: int) -> list[IncomingMessage]:
    """Return 60 messages of four senders, with a hole in one lane."""
    found = []
    for sender in range(4):
        key = SigningKey.generate()
        for place in range(15):
            blob = rng.randbytes(20)
            header = MsgHeader(
                namespace_id=lane(PARENT, key.public_field),
                seq=1 + place + (2 if sender == 3 and place > 7 else 0),
                timestamp=now - 60_000 + place,
                blob_commitment=sha3_commitment(blob),
                blob_len=len(blob),
                policy_hash=POLICY,
            )
            signed = key.sign_header(header)
            found.append(
                IncomingMessage(header=signed, blob=blob, parent=PARENT, received_at=now - 5_000)
            )
    return found


def ask(node: OfflineNode, client: StreamClient, number: int) -> None:
    """Do what a node does with a peer."""
    if number % 3 == 0:
        run_catchup([client], node.sink, parent=PARENT)
    else:
        node.reconcile(client, PARENT)


@pytest.mark.trial
@pytest.mark.slow
def test_changed_answers_are_errors_of_ours_and_never_hang(tmp_path: Path) -> None:
    """Whatever a relay or a gossip peer answers, catching up and comparing end in order."""
    rng, now = random.Random(SEED), now_ms()
    print(f"LUXRELAY_HOSTILE_SEED={SEED} LUXRELAY_HOSTILE_RUNS={RUNS}")
    messages = messages_of(rng, now)
    config = tmp_path / "relay.toml"
    config.write_text(
        f'[node]\nname = "n"\ndata_dir = "data"\n[[namespace]]\ncontent_topic = "{TOPIC}"\n'
    )
    ends: Counter[str] = Counter()
    store = RelayStore.open(tmp_path / "relay", RelayStoreConfig.small(), now_ms=now)
    try:
        store.put_many(messages, now)
        server = RelaySyncServer(store, SyncServerConfig(port=0), clock_ms=now_ms)
        with offline_node(load_config(config, {}), []) as node:
            node.store.put_many(messages[::3], now)
            for number in range(RUNS):
                session = AnsweringStream(server.servicer, f"peer{number}", 10.0)
                carrier = Hostile(session, rng, rng.choice([0.02, 0.1, 0.5, 1.0]))
                faulthandler.dump_traceback_later(RUN_S, exit=True)  # a run that hangs
                try:
                    ask(node, StreamClient("p2p:peer", carrier), number)
                    ends["whole"] += 1
                except LuxRelayError as error:
                    ends[type(error).__name__] += 1
                finally:
                    faulthandler.cancel_dump_traceback_later()
                    session.close()
            assert node.store.stats().messages <= len(messages)  # nothing that was made up
    finally:
        store.close()
    print(dict(ends))
    assert ends["whole"]
    assert ends["SyncProtocolError"]


class Dripping:
    """A carrier of a relay that lists one namespace an answer, each in time, and never ends."""

    def __init__(self) -> None:
        self.questions = 0

    def drop(self) -> None:
        """Nothing is kept."""

    def ask(self, question: bytes, timeout_s: float) -> Iterator[bytes]:
        """Yield one namespace and a cursor that moves on."""
        del timeout_s
        self.questions += 1
        time.sleep(0.001)  # the relay's own slowness
        place = self.questions.to_bytes(20, "big")
        kind = ANSWERS[StreamKind(question[0])]
        answer = kind(namespace_id=place, parent_id=bytes(PARENT), next_cursor=place)
        yield PART + answer.SerializeToString()
        yield END


@pytest.mark.trial
@pytest.mark.parametrize("call", ["list_held", "list_heads"])
def test_a_listing_that_drips_is_ended_by_its_pace(call: str) -> None:
    """One row an answer, each in time, a cursor that moves on: too slow all the same."""
    config = SyncClientConfig(grace_s=0.01, rows_per_s=1_000_000)
    client = StreamClient("p2p:peer", Dripping(), config)
    with pytest.raises(SyncUnreachableError, match="too slow"):
        list(getattr(client, call)(bytes(PARENT)))
