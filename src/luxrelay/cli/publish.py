"""publish: sign messages in the sender's own lane and hand them to a relay."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    SigningKey,
    VerdictKind,
    lane,
    sha3_commitment,
)
from luxrelay.bus.bound import sign_header_bound
from luxrelay.bus.constants import MAX_BLOB_BYTES
from luxrelay.bus.policy import default_policy
from luxrelay.cli.arguments import (
    SubParsers,
    add_command,
    add_namespace,
    add_relay,
    chosen_namespace,
    hex_bytes,
    open_relay,
)
from luxrelay.cli.output import print_json, table
from luxrelay.cli.passphrase import add_passphrase_file, open_key
from luxrelay.errors import InputError
from luxrelay.sync import PublishItem, PublishReceipt, RelaySyncClient

_BATCH: Final = 256
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of payload handed over at once."""
_ATTEMPTS: Final = 3
"""Times a message is signed again when another process took its sequence."""


def register(commands: SubParsers) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "publish",
        "sign messages and publish them in the sender's lane of a namespace",
        "echo hello | luxrelay publish --key alice.pem --topic /chat/1/room",
        _run,
    )
    add_relay(parser)
    add_namespace(parser)
    parser.add_argument("--key", type=Path, required=True, help="key file of the sender")
    add_passphrase_file(parser)
    parser.add_argument(
        "--policy-hash",
        metavar="HEX",
        help="hash of the policy in force (default: the namespace's open policy)",
    )
    parser.add_argument(
        "--bound",
        metavar="NETWORK",
        help='sign for a network with signing = "bound", by its name',
    )
    parser.add_argument("--json", action="store_true", help="print receipts as JSON")
    parser.add_argument(
        "text", nargs="*", metavar="TEXT", help="messages; without any, lines of standard input"
    )


def _run(arguments: argparse.Namespace) -> int:
    parent = chosen_namespace(arguments)
    policy = (
        hex_bytes(arguments.policy_hash, 32, "--policy-hash")
        if arguments.policy_hash
        else default_policy(parent).policy_hash
    )
    key = open_key(arguments.key, arguments.passphrase_file)
    publisher = LanePublisher(key, parent, policy, arguments.bound or "")
    # The bytes of the command line as they were typed, whether they are UTF-8 or not.
    blobs = map(os.fsencode, arguments.text) if arguments.text else _lines()
    shown: list[tuple[MsgHeader, PublishReceipt]] = []
    try:
        with open_relay(arguments) as relay:
            publisher.next_seq = relay.get_head(publisher.namespace_id).latest_seq + 1
            # Lines typed by hand go out one by one, a pipe's in groups.
            typed = not arguments.text and sys.stdin.isatty()
            for batch in _batches(blobs, 1 if typed else _BATCH):
                shown.extend(publisher.publish(relay, batch))
    except BaseException:
        if shown:  # what is stored stays stored, so it is told although the rest failed
            _show(shown, arguments)
        raise
    _show(shown, arguments)
    return 0 if all(receipt.stored for _, receipt in shown) else 1


def _show(shown: Iterable[tuple[MsgHeader, PublishReceipt]], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json([_as_json(header, receipt) for header, receipt in shown])
        return
    rows = [
        (h.seq, VerdictKind(r.verdict).name.lower(), r.stored, r.peers_sent, r.reason)
        for h, r in shown
    ]
    print(table(("seq", "verdict", "stored", "peers", "reason"), rows))


class LanePublisher:
    """Signs messages of one sender in its lane, in sequence."""

    def __init__(
        self, key: SigningKey, parent: NamespaceId, policy_hash: bytes, bound_network: str = ""
    ) -> None:
        """Begin at sequence 1; set ``next_seq`` from the relay's head to go on."""
        self._bound_network = bound_network
        self._key = key
        self._parent = parent
        self._policy_hash = policy_hash
        self.namespace_id = lane(parent, key.public_field)
        self.next_seq = 1

    def sign(self, blob: bytes, now_ms: int) -> MsgHeader:
        """Return the signed header of the next message."""
        header = MsgHeader(
            namespace_id=self.namespace_id,
            seq=self.next_seq,
            timestamp=now_ms,
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=self._policy_hash,
        )
        self.next_seq += 1
        if self._bound_network:
            return sign_header_bound(self._key, header, self._bound_network)
        return self._key.sign_header(header)

    def publish(
        self, relay: RelaySyncClient, blobs: Iterable[bytes]
    ) -> Iterator[tuple[MsgHeader, PublishReceipt]]:
        """Yield each message's header and receipt; a taken sequence is signed again.

        Source: user-07; H17.
        """
        signed = [(self.sign(blob, time.time_ns() // 1_000_000), blob) for blob in blobs]
        receipts = relay.publish(self._item(header, blob) for header, blob in signed)
        for (header, blob), receipt in zip(signed, receipts, strict=True):
            yield self._settle(relay, header, blob, receipt)

    def _settle(
        self, relay: RelaySyncClient, header: MsgHeader, blob: bytes, receipt: PublishReceipt
    ) -> tuple[MsgHeader, PublishReceipt]:
        for _ in range(_ATTEMPTS):
            if receipt.stored or not receipt.expected_seq:
                break
            self.next_seq = max(self.next_seq, receipt.expected_seq)
            header = self.sign(blob, time.time_ns() // 1_000_000)
            (receipt,) = relay.publish([self._item(header, blob)])
        return header, receipt

    def _item(self, header: MsgHeader, blob: bytes) -> PublishItem:
        return PublishItem(header=header.encode(), blob=blob, parent_id=self._parent)


def _lines() -> Iterator[bytes]:
    """Yield the lines of standard input without their ends."""
    while line := sys.stdin.buffer.readline(MAX_BLOB_BYTES + 2):
        text = line.removesuffix(b"\n")
        if len(text) > MAX_BLOB_BYTES:
            raise InputError(
                f"a line has more than {MAX_BLOB_BYTES:,} bytes", where="standard input"
            )
        yield text


def _batches(blobs: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    """Yield the blobs in groups of ``size`` and of `_BATCH_BYTES` at most, one at least."""
    batch: list[bytes] = []
    held = 0
    for blob in blobs:
        if batch and (len(batch) == size or held + len(blob) > _BATCH_BYTES):
            yield batch
            batch, held = [], 0
        batch.append(blob)
        held += len(blob)
        if len(batch) == size:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _as_json(header: MsgHeader, receipt: PublishReceipt) -> dict[str, object]:
    return {
        "namespaceId": "0x" + header.namespace_id.hex(),
        "seq": header.seq,
        "digest": "0x" + header.digest.hex(),
        "verdict": VerdictKind(receipt.verdict).name.lower(),
        "code": receipt.code,
        "reason": receipt.reason,
        "stored": receipt.stored,
        "peersSent": receipt.peers_sent,
    }
