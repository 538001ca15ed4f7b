"""Values on the way between relays."""

from __future__ import annotations

from luxrelay.bus import MsgHeader, NamespaceId, SignatureScheme, SigningKey
from luxrelay.sync.messages import HEADER_PEEK_BYTES, PublishReceipt, SyncStatus, WireMessage


def test_peek_without_decoding() -> None:
    """Namespace and sequence are read from the header's fixed part."""
    key = SigningKey.from_seed(SignatureScheme.ED25519, bytes(32))
    header = key.sign_header(
        MsgHeader(
            namespace_id=NamespaceId(b"n" * 20),
            seq=2**63 + 5,
            timestamp=1,
            blob_commitment=bytes(32),
            blob_len=0,
            policy_hash=bytes(32),
        )
    )

    message = WireMessage(header=header.encode()[:HEADER_PEEK_BYTES], blob=b"")

    assert message.namespace_id == b"n" * 20
    assert message.seq == 2**63 + 5


def test_promise_nothing_by_default() -> None:
    """A status is not complete and a receipt is not stored unless it says so."""
    assert not SyncStatus().complete
    assert not PublishReceipt(verdict=0).stored
