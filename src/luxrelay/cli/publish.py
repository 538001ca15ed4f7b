"""publish: sign messages in the sender's own lane and hand them to a relay."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from luxrelay.bus import (
    MsgHeader,
    NamespaceId,
    SigningKey,
    TFHECiphertext,
    VerdictKind,
    attach_sidecar,
    lane,
    sha3_commitment,
)
from luxrelay.bus.bound import sign_header_bound
from luxrelay.bus.constants import MAX_BLOB_BYTES
from luxrelay.bus.hlc import HybridClock, pack_stamp
from luxrelay.bus.policy import default_policy
from luxrelay.bus.prepaid import PrepaidPayer
from luxrelay.bus.verdict import Code
from luxrelay.cli.arguments import (
    SubParsers,
    add_command,
    add_namespace,
    add_relay,
    add_sidecar,
    chosen_ciphertext,
    chosen_namespace,
    hex_bytes,
    open_relay,
    whole_number,
)
from luxrelay.cli.gateway import add_token_in_clear, chosen_token
from luxrelay.cli.output import print_json, printable, table
from luxrelay.cli.passphrase import add_passphrase_file, open_key
from luxrelay.cli.quotas import add_quota, chosen_payer
from luxrelay.errors import InputError, QuotaError, SyncRemoteError
from luxrelay.sync import PeerHead, PublishItem, PublishReceipt, RelaySyncClient

_BATCH: Final = 256
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of payload handed over at once."""
_WAIT_MAX_S: Final = 60
"""Seconds without progress after which a relay whose rate refuses is waited for no more."""
_SAID_EVERY_S: Final = 10.0
"""Seconds between two lines about waiting; the first comes after half of them."""
_PAUSE_MIN_S: Final = 0.1
"""Shortest pause before a refused message is sent again."""
_SIGNATURE_AGE_MS: Final = 10_000
"""A message that waited for longer is signed again: relays take 30 s of clock difference only."""
_ATTEMPTS: Final = 3
"""Times a message is signed again when another process took its sequence."""

Sent = tuple[MsgHeader, PublishReceipt]
"""A message that was sent, and what became of it."""


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
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file that holds a token with the scopes read and publish, when --relay is the gRPC "
        "port of a gateway (gateway.grpc_listen)",
    )
    add_token_in_clear(parser)
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
    add_sidecar(parser)
    add_quota(parser)
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument(
        "--wait-max-s",
        type=whole_number(0, 86_400),
        default=_WAIT_MAX_S,
        metavar="N",
        help="a message that a rate refuses is sent again when the relay says; end after N seconds "
        "in which the relay took none (default %(default)s)",
    )
    waiting.add_argument(
        "--no-wait",
        dest="wait_max_s",
        action="store_const",
        const=0,
        help="send each message once, whatever a rate refuses",
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
    ciphertext = chosen_ciphertext(arguments)
    if ciphertext is not None and len(arguments.text) != 1:
        raise InputError("a sidecar goes with one message", where="--sidecar", hint="give one TEXT")
    fee = chosen_payer(arguments, key)
    bound = arguments.bound or ""
    publisher = LanePublisher(key, parent, policy, bound, ciphertext, fee=fee)
    # The bytes of the command line as they were typed, whether they are UTF-8 or not.
    blobs = map(os.fsencode, arguments.text) if arguments.text else _lines()
    shown: dict[int, Sent] = {}
    pace = PublishPace(arguments.wait_max_s)
    read = 0
    # The variable of the environment is for gateways: a sync port elsewhere asks for no token.
    token = chosen_token(arguments) if arguments.token_file else ""
    try:
        with open_relay(arguments, token) as relay:
            publisher.follow(relay.get_head(publisher.namespace_id))
            if fee is not None:
                _follow_quotas(relay, fee)
            # Lines typed by hand go out one by one, a pipe's in groups.
            typed = not arguments.text and sys.stdin.isatty()
            for batch in _batches(blobs, 1 if typed else _BATCH):
                for place, sent in publisher.publish(relay, batch, pace):
                    shown[read + place + 1] = sent
                read += len(batch)
                if pace.over:
                    break
    except BaseException:
        if shown:  # what is stored stays stored, so it is told although the rest failed
            _show(shown, arguments)
            first = next(n for n in itertools.count(1) if n not in shown or not _stored(shown[n]))
            print(f"luxrelay: the first line that is not known as stored: {first}", file=sys.stderr)
        raise
    if not read:
        print("luxrelay: no message was given: standard input is empty", file=sys.stderr)
    _show(shown, arguments)
    return _tell_missing(shown, ended=pace.over)


def _follow_quotas(relay: RelaySyncClient, fee: PrepaidPayer) -> None:
    """Count what the relay has counted of the quotas; one of an older version does not tell."""
    try:
        found = relay.get_quotas([each.account for each in fee.quotas])
    except SyncRemoteError:
        return
    for use in found:
        fee.follow(use.account, use.messages_used, use.bytes_used)


def _stored(sent: Sent) -> bool:
    return sent[1].stored


def _tell_missing(shown: Mapping[int, Sent], *, ended: bool) -> int:
    """Say what is not stored, why, and from which line to go on; return the exit code."""
    missing = sorted(line for line, sent in shown.items() if not _stored(sent))
    if not missing:
        return 0
    first = shown[missing[0]][1]
    why = f"{printable(first.reason)} (code {first.code})"
    rest = "; what follows was not read" if ended else ""
    print(
        f"luxrelay: {len(missing)} of {len(shown)} not stored: {why}; "
        f"send again from line {missing[0]}{rest}",
        file=sys.stderr,
    )
    return 1


def _show(shown: Mapping[int, Sent], arguments: argparse.Namespace) -> None:
    ordered = [shown[line] for line in sorted(shown)]
    if arguments.json:
        print_json([_as_json(header, receipt) for header, receipt in ordered])
        return
    rows = [
        (h.seq, VerdictKind(r.verdict).name.lower(), r.stored, r.peers_sent, r.reason)
        for h, r in ordered
    ]
    print(table(("seq", "verdict", "stored", "peers", "reason"), rows))


class PublishPace:
    """Waits for the rates of a relay, as long as it takes a message now and then."""

    def __init__(
        self,
        wait_max_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        """Give up after ``wait_max_s`` seconds in which nothing was taken; 0 waits never."""
        self._wait_max_s = wait_max_s
        self._clock = clock
        self._sleep = sleep
        self._progress_at = clock()
        self._say = say
        self._say_at = self._progress_at + _SAID_EVERY_S / 2
        self._taken = 0
        self.over = False
        """Whether it has waited for as long as it may."""

    def wait(self, retry_after_ms: int, *, taken: int, why: str = "") -> bool:
        """Sleep until the relay takes more; False when that is later than we wait.

        Args:
            retry_after_ms: When the relay takes more, as it says, milliseconds.
            taken: Messages it has taken since the last call.
            why: Its words, told now and then with how many it has taken.

        """
        now = self._clock()
        self._taken += taken
        if taken:
            self._progress_at = now
        pause_s = max(_PAUSE_MIN_S, retry_after_ms / 1000)
        if now + pause_s > self._progress_at + self._wait_max_s:
            self.over = self._wait_max_s > 0
            return False
        if now >= self._say_at:
            self._say_at = now + _SAID_EVERY_S
            self._say(f"luxrelay: {self._taken:,} lines settled so far, waiting: {printable(why)}")
        self._sleep(pause_s)
        return True


class LanePublisher:
    """Signs messages of one sender in its lane, in sequence."""

    def __init__(
        self,
        key: SigningKey,
        parent: NamespaceId,
        policy_hash: bytes,
        bound_network: str = "",
        ciphertext: TFHECiphertext | None = None,
        *,
        fee: PrepaidPayer | None = None,
    ) -> None:
        """Begin at sequence 1; `follow` the relay's head to go on.

        With a ciphertext each message has it in its TFHE sidecar; ``fee`` pays each message.
        """
        self._bound_network = bound_network
        self._ciphertext = ciphertext
        self._fee = fee
        self._key = key
        self._parent = parent
        self._policy_hash = policy_hash
        self.namespace_id = lane(parent, key.public_field)
        self.next_seq = 1
        self._clock = HybridClock()

    def follow(self, head: PeerHead) -> None:
        """Go on behind what the relay has: in sequence, and never back in time (J1)."""
        self.next_seq = max(self.next_seq, head.latest_seq + 1)
        self._clock.follow(pack_stamp(head.latest_timestamp, 0))

    def sign(self, blob: bytes, now_ms: int, seq: int = 0) -> MsgHeader:
        """Return the signed header of the next message, or of sequence ``seq``.

        Its timestamp is ``now_ms``, the wall clock, or that of the one signed before when that is
        later.
        """
        header = MsgHeader(
            namespace_id=self.namespace_id,
            seq=seq or self.next_seq,
            timestamp=self._clock.for_message(now_ms),
            blob_commitment=sha3_commitment(blob),
            blob_len=len(blob),
            policy_hash=self._policy_hash,
        )
        if self._ciphertext is not None:
            header, _ = attach_sidecar(header, self._ciphertext)
        if self._fee is not None:
            header = self._fee.pay(header, self._key.public_field)
        self.next_seq += not seq
        if self._bound_network:
            signed = sign_header_bound(self._key, header, self._bound_network)
        else:
            signed = self._key.sign_header(header)
        if self._fee is not None:
            self._fee.sent(signed)
        return signed

    def publish(
        self, relay: RelaySyncClient, blobs: Iterable[bytes], pace: PublishPace
    ) -> Iterator[tuple[int, Sent]]:
        """Yield the place of each message with its header and receipt, in the order of settling.

        A taken sequence is signed again, and so is what grew old while the relay held us; what a
        rate refuses is sent again when the relay says, as long as ``pace`` allows.

        Raises:
            QuotaError: no prepaid quota pays the next message; those before it have been told.

        Source: user-07, user-09; H17.
        """
        waiting, unpaid = self._signed(blobs)
        group = len(waiting)
        while waiting:
            places = list(waiting)[:group]
            self._refresh(waiting, places)
            receipts = relay.publish([self._item(*waiting[place]) for place in places])
            refused: list[PublishReceipt] = []
            for place, answer in zip(places, receipts, strict=True):
                header, receipt = self._settle(relay, *waiting[place], answer)
                if receipt.stored or not (receipt.retry_after_ms or _grew_old(header, receipt)):
                    del waiting[place]
                    self._paid(header, stored=receipt.stored)
                    yield place, (header, receipt)
                else:
                    refused.append(receipt)
            # As many as were taken: a group that is refused costs both sides its signatures.
            taken = len(places) - len(refused)
            group = max(1, taken) if refused else 2 * group
            why = refused[0].reason if refused else ""
            if refused and not pace.wait(refused[0].retry_after_ms, taken=taken, why=why):
                for place, (header, _) in waiting.items():
                    yield place, (header, replace(refused[0], digest=header.digest))
                return
        if unpaid is not None:
            raise unpaid

    def _signed(
        self, blobs: Iterable[bytes]
    ) -> tuple[dict[int, tuple[MsgHeader, bytes]], QuotaError | None]:
        """Return the messages by place, and what ended them when no quota pays the next one."""
        signed: dict[int, tuple[MsgHeader, bytes]] = {}
        for place, blob in enumerate(blobs):
            try:
                signed[place] = self.sign(blob, _now_ms()), blob
            except QuotaError as error:
                return signed, error
        return signed, None

    def _paid(self, header: MsgHeader, *, stored: bool) -> None:
        """Say what became of a message that a quota may have paid."""
        if self._fee is not None:
            self._fee.settle(header.digest, stored=stored)

    def _refresh(self, waiting: dict[int, tuple[MsgHeader, bytes]], places: list[int]) -> None:
        """Sign anew for now what has waited for long, and all behind it: time may not go back."""
        old = False
        for place in places:
            header, blob = waiting[place]
            old = old or _now_ms() - header.timestamp > _SIGNATURE_AGE_MS
            if old:
                self._paid(header, stored=False)
                waiting[place] = (self.sign(blob, _now_ms(), header.seq), blob)

    def _settle(
        self, relay: RelaySyncClient, header: MsgHeader, blob: bytes, receipt: PublishReceipt
    ) -> tuple[MsgHeader, PublishReceipt]:
        for _ in range(_ATTEMPTS):
            if receipt.stored or not receipt.expected_seq:
                break
            # Somebody else signs with the key: what is there may be later than our clock, too.
            self.follow(relay.get_head(self.namespace_id))
            self.next_seq = max(self.next_seq, receipt.expected_seq)
            self._paid(header, stored=False)
            header = self.sign(blob, _now_ms())
            (receipt,) = relay.publish([self._item(header, blob)])
        return header, receipt

    def _item(self, header: MsgHeader, blob: bytes) -> PublishItem:
        sidecar = b""
        if self._ciphertext is not None:  # the same bytes as before it was signed
            _, sidecar = attach_sidecar(header, self._ciphertext)
        return PublishItem(
            header=header.encode(), blob=blob, parent_id=self._parent, sidecar=sidecar
        )


def _grew_old(header: MsgHeader, receipt: PublishReceipt) -> bool:
    """Whether the relay refused the time of a header that was right when it was signed."""
    old = _now_ms() - header.timestamp > _SIGNATURE_AGE_MS
    return old and receipt.code == Code.TIMESTAMP_INVALID


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


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
        "retryAfterMs": receipt.retry_after_ms,
    }
