"""Subscriptions that want some senders, a rate, or blobs that come later, at each door."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import pytest

from luxrelay.bus import MsgHeader, SigningKey, sender_address
from luxrelay.cli.main import main
from luxrelay.client import LaneSigner, Message, Outgoing, Subscribe, subscribe
from luxrelay.errors import ClientRefusedError, SyncArgumentError, SyncRemoteError
from luxrelay.sync import WireMessage
from luxrelay.sync.following import Followed, SubscribeWanted

from .conftest import PARENT, Stand, now_ms
from .test_subscribe_grpc import served

pytestmark = pytest.mark.slow
Shown = tuple[int, bytes | None, bool]
Door = Callable[..., Generator[Shown, None, None]]


def ws(stand: Stand, **wish: Any) -> Generator[Shown, None, None]:
    """Yield sequence, payload and whether it completes, over WebSocket."""
    with stand.client() as client:
        for event in subscribe(client, Subscribe(namespaces=[PARENT], **wish)):
            if isinstance(event, Message):
                yield event.header.seq, event.blob, event.completes


def grpc(stand: Stand, **wish: Any) -> Generator[Shown, None, None]:
    """Yield the same over gRPC, where a payload that is not there is empty."""
    wanted = SubscribeWanted(namespaces=[PARENT], **wish)
    with served(stand) as client, closing(client.subscribe(wanted)) as events:
        for event in events:
            if isinstance(event, Followed):
                yield event.message.seq, event.message.blob or None, event.completes


DOORS = pytest.mark.parametrize("door", [ws, grpc], ids=["WebSocket", "gRPC"])


def bring(stand: Stand, message: Outgoing, blob: bytes) -> None:
    """Bring a message as another relay would; an empty blob is one that it lacks."""
    stand.doors.history(PARENT, [WireMessage(message.header, blob)])


@pytest.mark.trial
@DOORS
def test_a_blob_that_comes_later_is_told(stand: Stand, door: Door) -> None:
    """Without asking again, and to who asked for it only (LP-6420 §8.1; 20-38)."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    one, two = signer.sign(b"one", now_ms()), signer.sign(b"two", now_ms())
    bring(stand, one, b"")
    with closing(door(stand, blobs="later")) as told, closing(door(stand)) as plain:
        assert next(told) == (1, None, False)
        assert next(plain) == (1, None, False)

        bring(stand, one, b"one")
        bring(stand, two, b"two")

        assert sorted([next(told), next(told)]) == [(1, b"one", True), (2, b"two", False)]
        assert next(plain) == (2, b"two", False)


@DOORS
def test_headers_alone(stand: Stand, door: Door) -> None:
    """For who decides by the header what to fetch."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    stand.publish([signer.sign(b"payload", now_ms())])

    with closing(door(stand, blobs="none")) as told:
        assert next(told) == (1, None, False)


@DOORS
@pytest.mark.parametrize("named", ["address", "key"])
def test_only_some_senders(stand: Stand, door: Door, named: str) -> None:
    """Named by address or by key; what others write is stored and forwarded as ever (20-39)."""
    keys = [SigningKey.generate() for _ in range(3)]
    for key in keys:
        stand.publish([LaneSigner(key, PARENT).sign(key.public_field, now_ms())])
    wanted = keys[1].public_field if named == "key" else sender_address(keys[1].public_field)

    with closing(door(stand, senders=[wanted])) as told:
        assert next(told) == (1, keys[1].public_field, False)
        stand.publish(
            [LaneSigner(k, PARENT, next_seq=2).sign(b"more", now_ms()) for k in reversed(keys)]
        )
        assert next(told) == (2, b"more", False)


@DOORS
def test_a_rate(stand: Stand, door: Door) -> None:
    """Everything comes, at most so many a second (20-40)."""
    signer = LaneSigner(SigningKey.generate(), PARENT)
    stand.publish([signer.sign(b"x", now_ms()) for _ in range(30)])

    began = time.monotonic()
    with closing(door(stand, max_rate=10)) as told:
        seqs = [next(told)[0] for _ in range(30)]

    assert seqs == list(range(1, 31))
    assert time.monotonic() - began >= 1.9  # ten at once, then ten a second


def test_what_cannot_be_wished_is_refused(stand: Stand) -> None:
    """With what is wrong, before anything is told."""
    for wish, where in (
        ({"senders": [b"\1" * 19]}, "senders"),
        ({"max_rate": 10**9}, "maxRate"),
        ({"blobs": "all"}, "blobs"),
    ):
        with pytest.raises(ClientRefusedError, match=where):
            next(ws(stand, **wish))
    with pytest.raises((SyncRemoteError, SyncArgumentError), match=r"senders|address"):
        next(grpc(stand, senders=[b"\1" * 19]))
    for wish in ({"max_rate": 10**9}, {"blobs": "all"}, {"senders": [b"\1" * 20] * 2000}):
        with pytest.raises(SyncArgumentError):
            next(grpc(stand, **wish))


def test_the_command(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    """`luxrelay subscribe --sender HEX --blobs none --max-rate N`."""
    keys = [SigningKey.generate() for _ in range(2)]
    for key in keys:
        stand.publish([LaneSigner(key, PARENT).sign(b"x", now_ms())])

    code = main(
        ["subscribe", "--gateway", f"http://{stand.address}", "--namespace", PARENT.hex(),
         "--sender", keys[0].public_field.hex(), "--blobs", "none", "--max-rate", "5", "--json",
         "--count", "1"]
    )  # fmt: skip

    assert code == 0
    (line,) = [json.loads(each) for each in capsys.readouterr().out.splitlines()]
    assert MsgHeader.from_json(line["header"]).sender_pub_key == keys[0].public_field
    assert line["blob"] is None
