"""demo: real messages from a signer, through relays, an outage and a rogue, to the archive."""

from __future__ import annotations

import argparse
import fcntl
import json
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, TextIO

from luxrelay.cli.arguments import SubParsers, add_command, whole_number
from luxrelay.cli.demo.archiving import ArchivingAct, archive, missing_extra, require_java
from luxrelay.cli.demo.outcome import CorruptOutcome, DemoOutcome
from luxrelay.cli.demo.plan import Plan
from luxrelay.cli.output import Progress, print_json, printable, table
from luxrelay.errors import DemoError, InputError
from luxrelay.node.config import NAMESPACES_MAX
from luxrelay.sim import ChatMessage, generate_chat, read_chat

MESSAGES: Final = 2000
MESSAGES_MIN: Final = 3
"""One before the outage, one in it, and one after it."""
MARKER: Final = ".luxrelay-demo"
"""Says that a folder is ours to empty."""
_OURS: Final = ("relays", "archive", "report.json", "report.html", "spark.log")


def register(commands: SubParsers) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "demo",
        "run the main job here: relays, an outage, a rogue peer, and the archive",
        "luxrelay demo --messages 5000 --corrupt 60 --out demo-out",
        _run,
    )
    parser.add_argument(
        "--messages",
        type=whole_number(MESSAGES_MIN, 1_000_000),
        metavar="N",
        help="messages to publish, 3 to 1,000,000 "
        f"(default {MESSAGES}, or what the file holds if fewer)",
    )
    parser.add_argument(
        "--relays",
        type=whole_number(1, 16),
        default=3,
        metavar="N",
        help="relays, 1 to 16 (default 3)",
    )
    parser.add_argument(
        "--input",
        type=Path,
        metavar="FILE",
        help="JSON lines {channel, sender, sent_ms, text}, plain or .gz; generated without it",
    )
    parser.add_argument(
        "--corrupt",
        type=whole_number(0, 10_000),
        default=30,
        metavar="N",
        help="broken messages from a rogue peer, 0 to 10,000 (default %(default)s)",
    )
    parser.add_argument(
        "--rate",
        type=whole_number(0, 100_000),
        default=1000,
        metavar="N",
        help="messages a second to 100,000, 0 for as fast as receipts come (default %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0, 2**32 - 1),
        default=1,
        metavar="N",
        help="seed of keys and generated messages (default %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo-out"),
        metavar="DIR",
        help="folder for relays, archive and report; an earlier demo's is emptied "
        "(default %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print report.json")


def _run(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    progress = Progress(quiet=False)
    progress.step(
        "starting: making the messages"
        if arguments.input is None
        else f"starting: reading {arguments.input}"
    )
    messages = _messages(arguments)
    hint = missing_extra()
    if not hint:
        require_java()  # told now, not when the relays have done their part
    out: Path = arguments.out.resolve()
    marker = _prepare(out)
    plan = Plan(
        messages=messages,
        relays=arguments.relays,
        corrupt=arguments.corrupt,
        rate=arguments.rate,
        seed=arguments.seed,
        folder=out / "relays",
    )
    with marker, _ended_like_an_interrupt(), closing(progress):
        outcome = _rehearse(plan, out, progress, hint, began)
    _print(outcome, arguments, out)
    return 0 if not outcome.faults() else 1


def _rehearse(plan: Plan, out: Path, progress: Progress, hint: str, began: float) -> DemoOutcome:
    """Run the plan, archive what the relays hold unless ``hint`` says why not, and report."""
    from luxrelay.cli.demo.page import write_page  # noqa: PLC0415  imports a chart library
    from luxrelay.cli.demo.rehearsal import Rehearsal  # noqa: PLC0415  libp2p is slow

    with closing(Rehearsal(plan, progress)) as rehearsal:
        course = rehearsal.run()
        seconds = {"publish": course.publish_s, "catch_up": course.catch_up_s}
        archived = ArchivingAct(None, None, hint)
        if hint:
            progress.step(f"the archive is {hint}")
        else:
            progress.step("archiving every relay with Spark into Delta")
            started = time.monotonic()
            archived = archive(rehearsal.addresses(), out, progress)
            seconds["archive"] = time.monotonic() - started
        outcome = DemoOutcome(
            messages=len(course.published_at_s),
            senders=course.senders,
            namespaces=course.namespaces,
            relays=course.relays,
            corrupt=course.corrupt,
            latency_ms=course.latency(),
            archive=archived.outcome,
            archive_hint=archived.hint,
            seconds={**seconds, "total": time.monotonic() - began},
        )
        with _written(out):
            write_page(out / "report.html", outcome, course, archived)
            (out / "report.json").write_text(json.dumps(outcome.to_json(), indent=2) + "\n")
        progress.step("stopping the relays")
    return outcome


@contextmanager
def _written(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DemoError(
            f"the report cannot be written: {error.strerror}", where=str(out)
        ) from error


@contextmanager
def _ended_like_an_interrupt() -> Iterator[None]:
    """SIGTERM and a closed terminal stop the relays, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield  # nobody may set handlers here
        return
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _messages(arguments: argparse.Namespace) -> list[ChatMessage]:
    count = arguments.messages or MESSAGES
    if arguments.input is None:
        return list(generate_chat(count, random.Random(arguments.seed)))  # noqa: S311  a workload
    messages = list(islice(read_chat(arguments.input), count))
    if len(messages) < (arguments.messages or MESSAGES_MIN):
        few = len(messages) < MESSAGES_MIN
        least = f"at least {MESSAGES_MIN} are needed"
        wanted = least if few else f"{arguments.messages:,} are asked for"
        raise InputError(
            f"the file has {_several(len(messages))}, {wanted}",
            where=str(arguments.input),
            hint="give one with more lines" if few else "ask for fewer with --messages",
        )
    channels = {message.channel for message in messages}
    if len(channels) > NAMESPACES_MAX:
        raise InputError(
            f"{len(channels):,} channels are more than a relay carries ({NAMESPACES_MAX:,})",
            where=str(arguments.input),
        )
    return messages


def _several(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _prepare(out: Path) -> TextIO:
    """Return the marker of the folder, which is empty otherwise and this demo's alone.

    The folder is ours until the marker is closed or this process ends.

    Raises:
        DemoError: it holds something that is not an earlier demo's, or a demo is running in it;
            nothing was changed.

    """
    if not str(out).isprintable():  # the store takes UTF-8 only, and the report names the folder
        raise DemoError(
            "the folder's name has characters that cannot be shown",
            where=str(out),
            hint="choose another with --out",
        )
    try:
        if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
            raise DemoError(
                "the folder holds something else; nothing was changed",
                where=str(out),
                hint="choose an empty folder with --out",
            )
        out.mkdir(parents=True, exist_ok=True)
        marker = (out / MARKER).open("a")
        try:
            _lock(marker, out)
            for name in _OURS:
                path = out / name
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        except BaseException:
            marker.close()
            raise
    except OSError as error:
        raise DemoError(
            f"cannot use the folder: {error.strerror}",
            where=str(out),
            hint="choose a folder you may write with --out",
        ) from error
    return marker


def _lock(marker: TextIO, out: Path) -> None:
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DemoError(
            "another demo is running in the folder; nothing was changed",
            where=str(out),
            hint="wait for it, or choose another folder with --out",
        ) from error


def _print(outcome: DemoOutcome, arguments: argparse.Namespace, out: Path) -> None:
    if arguments.json:
        print_json(outcome.to_json())
        return
    rows = [
        (r.name, r.stored, r.missed_while_offline, r.recovered, r.contiguous)
        for r in outcome.relays
    ]
    print(table(("relay", "stored", "missed while offline", "recovered", "contiguous"), rows))
    latency, seconds = outcome.latency_ms, outcome.seconds
    spent = ", ".join(f"{part.replace('_', '-')} {took:.1f}" for part, took in seconds.items())
    print(
        f"\n{outcome.messages:,} messages of {outcome.senders:,} senders in "
        f"{outcome.namespaces:,} lanes"
    )
    print("\n".join(_corrupt(outcome.corrupt)))
    if len(outcome.relays) > 1:
        print(
            f"latency   p50 {latency['p50']:,} ms, p95 {latency['p95']:,} ms, "
            f"p99 {latency['p99']:,} ms (signature to commit)"
        )
    else:
        print("latency   – (gossip had no second relay to reach)")
    print(f"archive   {_archive(outcome)}")
    print(f"seconds   {spent}")
    print(f"report    {printable(str(out / 'report.html'))}")
    for fault in outcome.faults():
        print(f"FAULT     {fault}")
    print("ok" if not outcome.faults() else "not ok")


def _corrupt(corrupt: CorruptOutcome) -> Iterator[str]:
    yield (
        f"corrupt   {corrupt.sent:,} sent, {corrupt.rejected:,} refused, {corrupt.unheard:,} "
        f"unheard below the threshold, {corrupt.unaccounted:,} unaccounted for, "
        f"{corrupt.stored:,} stored"
    )
    for kind in corrupt.kinds:
        yield (
            f"          {kind.kind}: {kind.refused:,} refused as {kind.code}, "
            f"{kind.unheard:,} unheard"
        )


def _archive(outcome: DemoOutcome) -> str:
    archive = outcome.archive
    if archive is None:
        return outcome.archive_hint
    return (
        f"{archive.rows:,} rows of {archive.copies:,} copies, {archive.rejected:,} rejected, "
        f"{archive.duplicates:,} duplicates, {archive.gaps:,} gaps"
    )
