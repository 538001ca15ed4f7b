"""Publish to a node's gateway and follow the topic: replay first, then live."""

import os
import sys
import time

from luxrelay.bus import SigningKey, topic_namespace
from luxrelay.client import LaneSigner, Message, RelayClient, Subscribe, subscribe

namespace = topic_namespace(sys.argv[1])
with RelayClient(os.environ["GATEWAY"], token=os.environ["TOKEN"]) as client:
    signer = LaneSigner(SigningKey.generate(), namespace)
    signer.next_seq = client.head(signer.namespace_id).latest_seq + 1
    (receipt,) = client.publish([signer.sign(b"hello from Python", time.time_ns() // 1_000_000)])
    print("stored" if receipt.stored else receipt.reason)
    for event in subscribe(client, Subscribe(namespaces=[namespace])):
        if isinstance(event, Message) and event.blob is not None:
            print(event.header.seq, event.blob.decode())
            if event.header.namespace_id == signer.namespace_id:
                break
