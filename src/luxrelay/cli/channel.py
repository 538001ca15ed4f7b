"""channel chat, channel send: a reliable channel through a node's gateway.

A file travels in parts, each one message of the channel, so that a part is acknowledged or sent
again by itself. A part begins with ``_FILE_MARK`` and a line of JSON that says which it is.

State is kept for the user unless it is not wanted: what was not acknowledged when a command ended,
however it ended, is sent again by the next one. `channel send` has a sender id and state of its
own, so that it runs beside a chat with the same key and takes none of its lines.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import anyio

from luxrelay.channel import (
    ChannelEvent,
    MessageReceived,
    MessageSendError,
    MessageSent,
    RateLimitConfig,
    ReliableChannel,
    ReliableSendId,
    SdsConfig,
    SegmentationConfig,
    SharedKeyEncryption,
    SqlitePersistence,
    create_reliable_channel,
)
from luxrelay.channel.runtime.remote import RemoteMessaging
from luxrelay.cli.arguments import SubParsers, add_command, whole_number
from luxrelay.cli.gateway import add_first_contact, add_gateway, chosen_token
from luxrelay.cli.output import Progress, printable
from luxrelay.cli.passphrase import add_passphrase_file, open_key
from luxrelay.cli.quotas import add_quota, chosen_payer
from luxrelay.client import AsyncRelayClient, Checks, Retry
from luxrelay.client.transport import in_background
from luxrelay.errors import ChannelError, InputError, LuxRelayError, MessagingError
from luxrelay.files import move_whole
from luxrelay.node.keyfile import read_shared_key
from luxrelay.text import json_text, parse_json

PART_BYTES: Final = 256 * 1024
"""Bytes of a file in one message of the channel."""
FILE_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Largest file that is sent."""
SEGMENT_BYTES: Final = 16 * 1024
"""Segments that fit into a node's inlined blobs together with the channel's own fields."""
PARTS_IN_FLIGHT: Final = 8
"""Parts of a file that wait for their acknowledgement at once."""
PART_TIMEOUT_MS: Final = 15_000
"""Milliseconds until an unacknowledged part is sent again: a relay on the way may restart."""
PART_RETRANSMISSIONS: Final = 12
"""How often that is done before the file is given up."""
LINGER_S: Final = 15.0
"""Seconds that a chat whose input is over waits for acknowledgements."""
_DAY_MS: Final = 24 * 3_600_000
_READ_BYTES: Final = 1024 * 1024
_FILE_MARK: Final = b"\x00file\x00"
_LINE_BYTES_MAX: Final = 64 * 1024


def register(commands: SubParsers) -> None:
    """Add both commands."""
    parser = commands.add_parser("channel", help="talk and send files over a reliable channel")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    chat = add_command(
        actions,
        "chat",
        "read lines, send them, and print what others send",
        "luxrelay channel chat room --topic /chat/1/room --key alice.pem",
        _chat,
    )
    chat.add_argument("name", metavar="NAME", help="name of the channel, the same for everybody")
    chat.add_argument(
        "--count", type=whole_number(1, 2**31), default=0, metavar="N", help="end after N received"
    )
    chat.add_argument("--save", type=Path, metavar="DIR", help="folder for files that others send")
    send = add_command(
        actions,
        "send",
        "send a file and wait until somebody has all of it",
        "luxrelay channel send photo.jpg --channel room --topic /chat/1/room --key alice.pem",
        _send,
    )
    send.add_argument("file", type=Path, metavar="FILE", help="the file")
    send.add_argument("--channel", dest="name", required=True, metavar="NAME", help="its channel")
    send.add_argument(
        "--wait-s",
        type=whole_number(1, 86_400),
        default=600,
        metavar="N",
        help="seconds to wait for acknowledgements (default %(default)s)",
    )
    for command in (chat, send):
        add_gateway(command)
        add_first_contact(command)
        command.add_argument("--topic", required=True, metavar="TEXT", help="its content topic")
        command.add_argument("--key", type=Path, required=True, help="key file of the sender")
        add_passphrase_file(command)
        add_quota(command)
        _add_configuration(command)


def _add_configuration(command: argparse.ArgumentParser) -> None:
    """Add the channel's own numbers, its key, the place of its state, and --json."""
    command.add_argument(
        "--encryption-key",
        type=Path,
        metavar="FILE",
        help="shared key of the participants, from `luxrelay keys new-shared`; without it "
        "everybody on the way can read",
    )
    places = command.add_mutually_exclusive_group()
    places.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="where the channel's state is kept over restarts (default: "
        "$XDG_DATA_HOME/luxrelay/channels, for each topic apart)",
    )
    places.add_argument(
        "--no-state", action="store_true", help="keep no state: a restart begins anew"
    )
    for name, least, most, words in (
        (
            "acknowledgement-timeout-ms",
            1,
            _DAY_MS,
            "time until a segment is sent again",
        ),
        ("max-retransmissions", 0, 10_000, "how often that is done before it counts as failed"),
        ("causal-history-size", 1, 64, "newest messages of the log that each message names"),
        ("epoch-size-ms", 1, 366 * _DAY_MS, "length of an epoch of the rate limit; turns it on"),
        ("messages-per-epoch", 1, 2**31, "messages that leave in an epoch; turns the limit on"),
    ):
        command.add_argument(
            f"--{name}", type=whole_number(least, most), default=None, metavar="N", help=words
        )
    command.add_argument(
        "--segment-size-bytes",
        type=whole_number(192, 204_800),
        default=SEGMENT_BYTES,
        metavar="N",
        help="longest segment; what is above 48 KiB with its fields is fetched by each relay "
        "(default %(default)s)",
    )
    command.add_argument(
        "--bound",
        metavar="NETWORK",
        default="",
        help='sign as a network with signing = "bound" does, by name',
    )
    command.add_argument("--json", action="store_true", help="print one JSON object a line")


def _sds_config(arguments: argparse.Namespace, base: SdsConfig) -> SdsConfig:
    names = ("acknowledgement_timeout_ms", "max_retransmissions", "causal_history_size")
    given = {name: getattr(arguments, name) for name in names}
    state = None if arguments.state is None else SqlitePersistence(arguments.state)
    told = {name: value for name, value in given.items() if value is not None}
    return replace(base, persistence=state, **told)


def _rate_limit_config(arguments: argparse.Namespace) -> RateLimitConfig:
    names = ("epoch_size_ms", "messages_per_epoch")
    given = {name: getattr(arguments, name) for name in names}
    told = {name: value for name, value in given.items() if value is not None}
    return RateLimitConfig(enabled=bool(told), **told)


def _state_folder(arguments: argparse.Namespace) -> Path | None:
    """Return the user's folder of states; None where another place is said, or none."""
    if arguments.no_state or arguments.state is not None:
        return None
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "luxrelay" / "channels"


def _note(text: str) -> None:
    """Say something beside the results."""
    print(f"luxrelay: {text}", file=sys.stderr, flush=True)


@asynccontextmanager
async def _open(
    arguments: argparse.Namespace, sds_config: SdsConfig, sender: str = ""
) -> AsyncIterator[ReliableChannel]:
    key = open_key(arguments.key, arguments.passphrase_file)
    hook = None
    if arguments.encryption_key is not None:
        context = arguments.name.encode()
        hook = SharedKeyEncryption(read_shared_key(arguments.encryption_key), context)
    folder = _state_folder(arguments)
    async with (
        AsyncRelayClient(
            arguments.gateway,
            token=chosen_token(arguments),
            checks=Checks(bound_network=arguments.bound),
            timeout_s=arguments.timeout_s,
            token_in_clear=arguments.token_in_clear,
        ) as client,
        _state_told(arguments),
        create_reliable_channel(
            RemoteMessaging(
                client,
                key,
                retry=Retry(first_contact_s=arguments.connect_s),
                fee=chosen_payer(arguments, key),
            ),
            arguments.name,
            arguments.topic,
            key.public_field.hex()[:16] + sender,
            hook,
            sds_config=_sds_config(arguments, sds_config),
            segmentation_config=SegmentationConfig(segment_size_bytes=arguments.segment_size_bytes),
            rate_limit_config=_rate_limit_config(arguments),
            folder=folder,
        ) as channel,
    ):
        if hook is None:
            _note("not encrypted: whoever reads the topic reads this; --encryption-key FILE")
        place = arguments.state or folder
        _note("state is not kept" if place is None else f"state is kept in {place}")
        if channel.open_requests:
            count = len(channel.open_requests)
            _note(f"{count} unacknowledged messages of before are sent again")
        yield channel


@asynccontextmanager
async def _state_told(arguments: argparse.Namespace) -> AsyncIterator[None]:
    """Say, of a state that cannot be had, which options choose another one."""
    try:
        yield
    except ChannelError as error:
        if error.code not in {"channel.locked", "channel.state"}:
            raise
        hint = "--state DIR for another place, --no-state to keep none"
        if error.code == "channel.locked":
            hint = f"a command with this key has {printable(arguments.name)} open; {hint}"
        raise ChannelError(error.what, where=error.where, hint=hint, code=error.code) from error


class _Outcomes:
    """How the requests of this run end; those of an earlier run end beside them."""

    def __init__(self) -> None:
        self._open: set[ReliableSendId] = set()
        self._early: dict[ReliableSendId, str] = {}
        self._changed = anyio.Event()
        self.begun = 0
        self.error = ""
        """What the first one that failed said."""

    @property
    def done(self) -> int:
        """How many have ended."""
        return self.begun - len(self._open)

    def begin(self, request_id: ReliableSendId) -> None:
        """Note one of ours; its end may have come before."""
        self.begun += 1
        self._open.add(request_id)
        if request_id in self._early:
            self._end(request_id, self._early.pop(request_id))

    def hear(self, event: ChannelEvent) -> None:
        """Note an event, if it ends a request."""
        if isinstance(event, MessageSent | MessageSendError):
            error = event.error if isinstance(event, MessageSendError) else ""
            self._end(event.request_id, error)

    def _end(self, request_id: ReliableSendId, error: str) -> None:
        if request_id not in self._open:
            self._early[request_id] = error
            return
        self._open.discard(request_id)
        self.error = self.error or error
        self._changed.set()
        self._changed = anyio.Event()

    async def below(self, count: int, *, or_failed: bool = False) -> None:
        """Wait until fewer than so many are open; or until one has failed, if that is enough."""
        while len(self._open) >= count and not (or_failed and self.error):
            await self._changed.wait()


def _run(call: Callable[..., Awaitable[None]], *values: Any) -> None:
    """Run a coroutine; of several errors at once the first of ours counts."""
    try:
        anyio.run(call, *values)
    except BaseExceptionGroup as group:
        found: BaseException = group.subgroup((LuxRelayError, TimeoutError)) or group
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        raise found from group


def _chat(arguments: argparse.Namespace) -> int:
    _run(_converse, arguments)
    return 0


async def _converse(arguments: argparse.Namespace) -> None:
    files = _Files(arguments.save)
    outcomes = _Outcomes()
    async with _open(arguments, SdsConfig()) as channel, anyio.create_task_group() as tasks:
        _note(f"in {printable(arguments.name)}; Ctrl-D ends")

        for request_id in channel.open_requests:
            outcomes.begin(request_id)

        async def listen() -> None:
            received = 0
            async for event in channel.events():
                received += _hear(event, files, channel if arguments.json else None)
                outcomes.hear(event)
                # The last one too: what is kept must not be told again by the next command.
                channel.message_events.take(event)
                if arguments.count and received == arguments.count:
                    tasks.cancel_scope.cancel()

        tasks.start_soon(listen)
        await _send_lines(channel, outcomes, as_json=arguments.json)
        if arguments.count:
            return  # the input is over, others may still speak
        with anyio.move_on_after(LINGER_S):
            await outcomes.below(1)
        if left := len(channel.open_requests):
            words = "lost" if arguments.no_state else "sent again when the channel is opened next"
            _note(f"{left} messages are not acknowledged; they are {words}")
        tasks.cancel_scope.cancel()


async def _send_lines(channel: ReliableChannel, outcomes: _Outcomes, *, as_json: bool) -> None:
    """Send what is typed, until the input ends."""
    while line := await in_background(sys.stdin.buffer.readline, _LINE_BYTES_MAX):
        if not (text := line.strip()):
            continue
        request_id = await channel.send(text)
        outcomes.begin(request_id)
        if as_json:
            _print(_sending(channel, request_id) | _content(text))


def _print(value: dict[str, Any]) -> None:
    print(json_text(value), flush=True)


def _content(message: bytes) -> dict[str, str]:
    """Return a payload as JSON has it: text where it is UTF-8, else hex."""
    try:
        return {"message": message.decode()}
    except UnicodeDecodeError:
        return {"messageHex": "0x" + message.hex()}


def _sending(channel: ReliableChannel, request_id: ReliableSendId) -> dict[str, Any]:
    """Return a request with its segments, each by its own request id."""
    segments = [
        {
            "requestId": each.request_id,
            "dispatched": each.dispatched,
            "acknowledged": each.acknowledged,
        }
        for each in channel.requests_of(request_id)
    ]
    return {"event": "sending", "requestId": request_id, "segments": segments}


def _hear(event: ChannelEvent, files: _Files, channel: ReliableChannel | None) -> int:
    """Show an event, as JSON with a channel; return how many messages or files it completes."""
    if not isinstance(event, MessageReceived):
        if channel is not None:
            _print(_as_json(event, channel))
        elif isinstance(event, MessageSendError):
            _note(f"not acknowledged: {printable(event.error)}")
        return 0
    head = {"event": event.name, "position": event.position, "senderId": event.sender_id}
    if event.message.startswith(_FILE_MARK):
        done = files.take(event.sender_id, event.message)
        if done and channel is not None:
            _print(head | {"file": done})
        elif done:
            print(f"{printable(event.sender_id)}: {done}", flush=True)
        return bool(done)
    if channel is not None:
        _print(head | _content(event.message))
    else:
        text = printable(event.message.decode(errors="replace"))
        print(f"{printable(event.sender_id)}: {text}", flush=True)
    return 1


def _as_json(event: ChannelEvent, channel: ReliableChannel) -> dict[str, Any]:
    """Return what became of a message, with its segments where it was ours."""
    shown: dict[str, Any] = {"event": event.name, "position": event.position}
    if request_id := getattr(event, "request_id", None):
        shown = _sending(channel, request_id) | shown
    for name, camel in (("error", "error"), ("sender_id", "senderId"), ("reason", "reason")):
        if hasattr(event, name):
            shown[camel] = getattr(event, name)
    return shown


@dataclass(slots=True)
class _Part:
    """One part of a file."""

    name: str
    id: str
    part: int
    parts: int
    data: bytes

    def encode(self) -> bytes:
        """Return it as a message."""
        head = {"name": self.name, "id": self.id, "part": self.part, "parts": self.parts}
        return _FILE_MARK + json.dumps(head).encode() + b"\n" + self.data

    @classmethod
    def decode(cls, message: bytes) -> _Part:
        """Return the part that a message is; raises ValueError or KeyError for another form."""
        head, _, data = message.removeprefix(_FILE_MARK).partition(b"\n")
        said: dict[str, Any] = parse_json(head)
        part = cls(str(said["name"]), str(said["id"]), int(said["part"]), int(said["parts"]), data)
        if not 0 <= part.part < part.parts <= FILE_BYTES_MAX // PART_BYTES or len(part.id) > 64:
            raise ValueError(said)
        return part


class _Files:
    """Files that come in parts; written where the person said, under a name that is only a name."""

    def __init__(self, folder: Path | None, *, open_max: int = 16) -> None:
        self._folder = folder
        self._open_max = open_max
        self._open: dict[tuple[str, str], set[int]] = {}

    def take(self, sender: str, message: bytes) -> str:
        """Keep a part; return what to tell once a file is whole, else nothing."""
        try:
            part = _Part.decode(message)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            return ""
        key = (sender, part.id)
        if key not in self._open and len(self._open) >= self._open_max:
            del self._open[next(iter(self._open))]
        seen = self._open.setdefault(key, set())
        if self._folder is not None:
            self._write(sender, part)
        seen.add(part.part)
        if len(seen) < part.parts:
            return ""
        del self._open[key]
        return f"sent the file {printable(part.name[:100])}" + self._finish(sender, part)

    def _write(self, sender: str, part: _Part) -> None:
        path = self._scratch(sender, part)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("r+b" if path.exists() else "w+b") as file:
                file.seek(part.part * PART_BYTES)
                file.write(part.data)
        except OSError as error:
            raise _unwritten(error, path) from error

    def _scratch(self, sender: str, part: _Part) -> Path:
        assert self._folder is not None
        whose = hashlib.sha256(f"{len(sender)}:{sender}:{part.id}".encode()).hexdigest()[:32]
        return self._folder / f".{whose}.part"

    def _finish(self, sender: str, part: _Part) -> str:
        if self._folder is None:
            return "; --save DIR keeps files"
        plain = Path(part.name).name.lstrip(".") or "file"
        target = self._folder / plain[:200]
        number = 1
        while target.exists():
            target = self._folder / f"{number}-{plain[:200]}"
            number += 1
        try:
            move_whole(self._scratch(sender, part), target)
        except OSError as error:
            raise _unwritten(error, target) from error
        return f" -> {target}"


def _send(arguments: argparse.Namespace) -> int:
    try:
        size = arguments.file.stat().st_size
    except OSError as error:
        raise InputError(
            f"cannot read the file: {error.strerror}", where=str(arguments.file)
        ) from error
    if size > FILE_BYTES_MAX:
        raise InputError(f"larger than {FILE_BYTES_MAX:,} bytes", where=str(arguments.file))
    progress = Progress()
    parts: list[dict[str, Any]] = []
    try:
        _run(_deliver, arguments, size, progress, parts)
    except TimeoutError as error:
        paced = arguments.epoch_size_ms is not None or arguments.messages_per_epoch is not None
        hint = "is somebody else in the channel? what they have is not lost; send it again"
        if paced:
            hint = f"each {PART_BYTES:,} bytes are a message of an epoch; {hint}"
        raise MessagingError(
            f"not everything was acknowledged within {arguments.wait_s} s",
            where=str(arguments.file),
            hint=hint,
        ) from error
    finally:
        progress.close()
    if arguments.json:
        _print({"file": arguments.file.name, "bytes": size, "parts": parts})
    else:
        print(f"{arguments.file.name}: {size:,} bytes delivered")
    return 0


async def _deliver(
    arguments: argparse.Namespace, size: int, progress: Progress, told: list[dict[str, Any]]
) -> None:
    parts = max(1, -(-size // PART_BYTES))
    outcomes = _Outcomes()
    patient = SdsConfig(
        acknowledgement_timeout_ms=PART_TIMEOUT_MS, max_retransmissions=PART_RETRANSMISSIONS
    )
    async with _open(arguments, patient, "/file") as channel:
        with anyio.fail_after(arguments.wait_s):
            async with anyio.create_task_group() as tasks:

                async def listen() -> None:
                    async for event in channel.events():
                        outcomes.hear(event)
                        progress.update(bar(outcomes.done, parts, size))

                tasks.start_soon(listen)
                for part in _parts_of(arguments.file, parts):
                    await outcomes.below(PARTS_IN_FLIGHT, or_failed=True)
                    if outcomes.error:
                        break
                    request_id = await channel.send(part.encode())
                    segments = [each.request_id for each in channel.requests_of(request_id)]
                    told.append({"requestId": request_id, "segments": segments})
                    outcomes.begin(request_id)
                await outcomes.below(1, or_failed=True)
                tasks.cancel_scope.cancel()
        if outcomes.error:
            raise MessagingError(outcomes.error, where=f"part of {arguments.file}")
        progress.step(bar(parts, parts, size))


def _parts_of(path: Path, parts: int) -> Iterator[_Part]:
    """Yield the parts of a file, under one id each time that it is sent with the same content."""
    try:
        with path.open("rb") as file:
            name = hashlib.sha256(path.name.encode(errors="surrogateescape") + b"\0")
            while data := file.read(_READ_BYTES):
                name.update(data)
            identity = name.hexdigest()[:32]
            file.seek(0)
            for number in range(parts):
                yield _Part(path.name, identity, number, parts, file.read(PART_BYTES))
    except OSError as error:
        raise InputError(f"cannot read the file: {error.strerror}", where=str(path)) from error


def _unwritten(error: OSError, path: Path) -> InputError:
    return InputError(
        f"cannot write: {error.strerror}",
        where=str(path),
        hint="check free space and the permissions of the folder",
    )


def bar(done: int, total: int, size: int, width: int = 30) -> str:
    """Return a progress bar with the bytes that are acknowledged."""
    filled = width * done // total
    acknowledged = min(size, size * done // total)
    return f"[{'█' * filled}{'░' * (width - filled)}] {acknowledged:,} of {size:,} bytes"
