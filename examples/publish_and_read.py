"""An application beside a relay: publish in a lane, read it back, see what a receipt says.

Start a relay with `sync.allow_publish = true` and the content topic of your choice, then

    python examples/publish_and_read.py 127.0.0.1:9641 /chat/1/room
"""

from __future__ import annotations

import sys
import time

from luxrelay.bus import (
    MsgHeader,
    SigningKey,
    lane,
    sha3_commitment,
    topic_namespace,
    verify_header,
)
from luxrelay.bus.policy import default_policy
from luxrelay.sync import PublishItem, RelaySyncClient


def main(relay_address: str, content_topic: str) -> None:
    """Publish three messages and read the lane back, page by page."""
    key = SigningKey.generate()
    parent = topic_namespace(content_topic)
    own_lane = lane(parent, key.public_field)
    items = []
    for seq, text in enumerate(("hello", "is anybody here?", "good night"), start=1):
        blob = text.encode()
        header = MsgHeader(
            namespace_id=own_lane,
            seq=seq,
            timestamp=time.time_ns() // 1_000_000,
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=default_policy(parent).policy_hash,
        )
        signed = key.sign_header(header).encode()
        items.append(PublishItem(header=signed, blob=blob, parent_id=parent))

    with RelaySyncClient(relay_address) as relay:
        for receipt in relay.publish(items):
            print("stored" if receipt.stored else f"refused: {receipt.reason}")
        for page in relay.iter_pages(own_lane):
            for message in page.messages:
                header = MsgHeader.decode(message.header)
                assert verify_header(header)
                print(header.seq, message.blob.decode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
