"""Bodies and answers of the gateway as bytes and as JSON, a sidecar beside the blob."""

from __future__ import annotations

from base64 import b64encode

import pytest

from luxrelay.bus import CiphertextType, MsgHeader, SigningKey, TFHECiphertext, topic_namespace
from luxrelay.client import Checks, LaneSigner, Outgoing
from luxrelay.client.values import decode_records
from luxrelay.errors import ClientArgumentError, GatewayError
from luxrelay.node.gateway.calls import items_of_bytes, items_of_json, message_json, records
from luxrelay.store import StoredMessage
from luxrelay.sync import PublishItem

PARENT = topic_namespace("/chat/1/room")
NOW = 1_704_067_200_000
SECRET = TFHECiphertext(type=CiphertextType.BOOL, data=b"opaque")


def signed() -> list[Outgoing]:
    """Two messages, the first with a sidecar."""
    signer = LaneSigner(SigningKey.generate(), PARENT, bound_network="closed")
    return [signer.sign(b"one", NOW, ciphertext=SECRET), signer.sign(b"two", NOW)]


def items(messages: list[Outgoing]) -> list[PublishItem]:
    """What the gateway makes of them."""
    return [
        PublishItem(header=m.header, blob=m.blob, parent_id=m.parent, sidecar=m.sidecar)
        for m in messages
    ]


def test_a_body_in_bytes_comes_back() -> None:
    """With and without sidecars in one body; who knows no sidecars finds a blob too long."""
    messages = signed()
    body = b"".join(each.encode() for each in messages)

    assert items_of_bytes(body, 2) == items(messages)
    assert messages[0].sidecar
    assert int.from_bytes(body[22:26], "big") == len(b"one") + 2**31
    first = len(messages[0].encode())
    for size in [*range(26, first), *range(first + 1, len(body))]:
        with pytest.raises(GatewayError):
            items_of_bytes(body[:size], 2)


def test_a_body_in_json_comes_back() -> None:
    """The sidecar is base64, as the blob is."""
    message = signed()[0]
    entry = {
        "header": message.header.hex(),
        "blob": b64encode(message.blob).decode(),
        "parentId": message.parent.hex(),
        "sidecar": b64encode(message.sidecar).decode(),
    }

    assert items_of_json({"messages": [entry]}, 1) == items([message])
    with pytest.raises(GatewayError, match="base64"):
        items_of_json({"messages": [entry | {"sidecar": "?"}]}, 1)


def test_an_answer_says_whether_the_sidecar_is_held() -> None:
    """In JSON of messages that refer to one; in bytes by a flag."""
    with_sidecar, plain = (
        StoredMessage(header_bytes=m.header, blob=m.blob, received_at=NOW, expires_at=NOW + 1)
        for m in signed()
    )
    assert message_json(with_sidecar, PARENT)["sidecarHeld"] is False
    assert "sidecarHeld" not in message_json(plain, PARENT)
    with_sidecar.sidecar_len = 9

    assert message_json(with_sidecar, PARENT)["sidecarHeld"] is True
    data = records([(with_sidecar, PARENT), (plain, PARENT)])
    read = decode_records(data, Checks(bound_network="closed"))
    assert [each.sidecar_held for each in read] == [True, False]


def test_a_sidecar_that_no_node_can_take_is_refused_at_once() -> None:
    """Above 2 MiB it is not sent."""
    header = MsgHeader.decode(signed()[0].header)
    with pytest.raises(ClientArgumentError, match="sidecar"):
        Outgoing(header=header.encode(), sidecar=bytes(2 * 1024 * 1024 + 1))
