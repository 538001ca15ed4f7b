"""channel chat, channel send: a reliable channel through a node's gateway.

A file travels in parts, each one message of the channel, so that a part is acknowledged or sent
again by itself. A part begins with ``_FILE_MARK`` and a line of JSON that says which it is.
"""

from __future__ import annotations

import argparse
import json
import secrets
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
    Persistence,
    ReliableChannel,
    SdsConfig,
    SegmentationConfig,
    SqlitePersistence,
    create_reliable_channel,
)
from luxrelay.channel.runtime.remote import RemoteMessaging
from luxrelay.cli.arguments import SubParsers, add_command, whole_number
from luxrelay.cli.gateway import add_first_contact, add_gateway, chosen_token
from luxrelay.cli.output import Progress, printable
from luxrelay.cli.passphrase import add_passphrase_file, open_key
from luxrelay.client import AsyncRelayClient, Retry
from luxrelay.client.transport import in_background
from luxrelay.errors import InputError, LuxRelayError, MessagingError
from luxrelay.files import move_whole
from luxrelay.text import parse_json

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
        command.add_argument(
            "--state", type=Path, metavar="DIR", help="keep the channel's state over restarts"
        )


@asynccontextmanager
async def _open(
    arguments: argparse.Namespace, sds_config: SdsConfig | None = None
) -> AsyncIterator[ReliableChannel]:
    key = open_key(arguments.key, arguments.passphrase_file)
    state: Persistence | None = SqlitePersistence(arguments.state) if arguments.state else None
    async with (
        AsyncRelayClient(
            arguments.gateway,
            token=chosen_token(arguments),
            timeout_s=arguments.timeout_s,
            token_in_clear=arguments.token_in_clear,
        ) as client,
        create_reliable_channel(
            RemoteMessaging(client, key, retry=Retry(first_contact_s=arguments.connect_s)),
            arguments.name,
            arguments.topic,
            key.public_field.hex()[:16],
            sds_config=replace(sds_config or SdsConfig(), persistence=state),
            segmentation_config=SegmentationConfig(segment_size_bytes=SEGMENT_BYTES),
        ) as channel,
    ):
        yield channel


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
    async with _open(arguments) as channel, anyio.create_task_group() as tasks:
        print(f"luxrelay: in {printable(arguments.name)}; Ctrl-D ends", file=sys.stderr, flush=True)
        sent = ended = 0
        changed = anyio.Event()

        async def listen() -> None:
            nonlocal ended, changed
            received = 0
            async for event in channel.events():
                received += _hear(event, files)
                if isinstance(event, MessageSent | MessageSendError):
                    ended += 1
                    changed.set()
                    changed = anyio.Event()
                if arguments.count and received == arguments.count:
                    tasks.cancel_scope.cancel()

        tasks.start_soon(listen)
        while True:
            line = await in_background(sys.stdin.buffer.readline, _LINE_BYTES_MAX)
            if not line:
                break
            if text := line.strip():
                await channel.send(text)
                sent += 1
        if arguments.count:
            return  # the input is over, others may still speak
        with anyio.move_on_after(LINGER_S):
            while ended < sent:
                await changed.wait()
        tasks.cancel_scope.cancel()


def _hear(event: ChannelEvent, files: _Files) -> int:
    """Show an event; return how many whole messages or files it completes."""
    if isinstance(event, MessageSendError):
        print(f"luxrelay: not acknowledged: {printable(event.error)}", file=sys.stderr, flush=True)
    if not isinstance(event, MessageReceived):
        return 0
    if event.message.startswith(_FILE_MARK):
        done = files.take(event.sender_id, event.message)
        if done:
            print(f"{printable(event.sender_id)}: {done}", flush=True)
        return bool(done)
    text = printable(event.message.decode(errors="replace"))
    print(f"{printable(event.sender_id)}: {text}", flush=True)
    return 1


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
            self._write(part)
        seen.add(part.part)
        if len(seen) < part.parts:
            return ""
        del self._open[key]
        return f"sent the file {printable(part.name[:100])}" + self._finish(part)

    def _write(self, part: _Part) -> None:
        path = self._scratch(part)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("r+b" if path.exists() else "w+b") as file:
                file.seek(part.part * PART_BYTES)
                file.write(part.data)
        except OSError as error:
            raise _unwritten(error, path) from error

    def _scratch(self, part: _Part) -> Path:
        assert self._folder is not None
        safe = "".join(c for c in part.id if c.isalnum())[:32]
        return self._folder / f".{safe or 'file'}.part"

    def _finish(self, part: _Part) -> str:
        if self._folder is None:
            return "; --save DIR keeps files"
        plain = Path(part.name).name.lstrip(".") or "file"
        target = self._folder / plain[:200]
        number = 1
        while target.exists():
            target = self._folder / f"{number}-{plain[:200]}"
            number += 1
        try:
            move_whole(self._scratch(part), target)
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
    try:
        _run(_deliver, arguments, size, progress)
    except TimeoutError as error:
        raise MessagingError(
            f"not everything was acknowledged within {arguments.wait_s} s",
            where=str(arguments.file),
            hint="is somebody else in the channel? what they have is not lost; send it again",
        ) from error
    finally:
        progress.close()
    print(f"{arguments.file.name}: {size:,} bytes delivered")
    return 0


async def _deliver(arguments: argparse.Namespace, size: int, progress: Progress) -> None:
    parts = max(1, -(-size // PART_BYTES))
    done = 0
    room = anyio.Semaphore(PARTS_IN_FLIGHT)
    patient = SdsConfig(
        acknowledgement_timeout_ms=PART_TIMEOUT_MS, max_retransmissions=PART_RETRANSMISSIONS
    )
    async with _open(arguments, patient) as channel:
        with anyio.fail_after(arguments.wait_s):
            async with anyio.create_task_group() as tasks:

                async def listen() -> None:
                    nonlocal done
                    async for event in channel.events():
                        if isinstance(event, MessageSendError):
                            raise MessagingError(event.error, where=f"part of {arguments.file}")
                        if isinstance(event, MessageSent):
                            done += 1
                            room.release()
                            progress.update(bar(done, parts, size))
                            if done == parts:
                                return

                tasks.start_soon(listen)
                for part in _parts_of(arguments.file, parts):
                    await room.acquire()
                    await channel.send(part.encode())
        progress.step(bar(parts, parts, size))


def _parts_of(path: Path, parts: int) -> Iterator[_Part]:
    identity = secrets.token_hex(8)
    try:
        with path.open("rb") as file:
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
