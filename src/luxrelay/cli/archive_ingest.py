"""archive ingest: from relays or segment files into the tables, once or for ever."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luxrelay.cli.archive_common import (
    add_action,
    add_finality,
    add_relays,
    add_rules,
    add_tls,
    open_session,
    rules_of,
    show,
    statements_of,
    tls_of,
)
from luxrelay.cli.arguments import DEFAULT_RELAY, SubParsers, whole_number
from luxrelay.cli.output import Progress, printable
from luxrelay.errors import LuxRelayError

if TYPE_CHECKING:
    from luxrelay.archive import ArchiveSession
    from luxrelay.archive.batches import BatchReport
    from luxrelay.archive.pipeline import IngestReport
    from luxrelay.archive.progress import ArchiveProgress
    from luxrelay.archive.rules import ArchiveRules


def register_ingest(actions: SubParsers) -> None:
    """Add the subcommand."""
    ingest = add_action(
        actions,
        "ingest",
        "read everything the relays hold and the archive has not read",
        " --relay 127.0.0.1:9641 --relay 127.0.0.1:9642",
        _ingest,
    )
    add_relays(ingest, required=True)
    ingest.add_argument(
        "--namespaces",
        default="all",
        metavar="TEXT",
        help="all, ids as hex with commas, or parent:HEX (default %(default)s)",
    )
    ingest.add_argument(
        "--read-mode",
        choices=("all", "any"),
        default="all",
        help="read each relay and count copies, or one of them a range (default %(default)s)",
    )
    ingest.add_argument(
        "--heads",
        choices=("contiguous", "latest"),
        default="contiguous",
        help="wait a while for late messages, or do not (default %(default)s)",
    )
    ingest.add_argument(
        "--hole-patience-ms",
        type=whole_number(1, 86_400_000),
        default=60_000,
        metavar="MS",
        help="with contiguous heads, go on past a hole when a message beyond it has been at a relay"
        " for so long (default %(default)s)",
    )
    ingest.add_argument(
        "--starting",
        default="earliest",
        metavar="TEXT",
        help="where the first run begins: earliest, latest or JSON offsets (default %(default)s)",
    )
    ingest.add_argument(
        "--allow-loss", action="store_true", help="go on around what relays have forgotten"
    )
    ingest.add_argument(
        "--rows-per-batch",
        type=whole_number(1, 10_000_000),
        default=200_000,
        metavar="N",
        help="rows of one micro-batch (default %(default)s)",
    )
    add_rules(ingest)
    add_finality(ingest)
    add_tls(ingest)
    _add_running(ingest)
    ingest.add_argument("--json", action="store_true", help="print JSON")


def _add_running(ingest: argparse.ArgumentParser) -> None:
    ingest.add_argument(
        "--handoff",
        action="store_true",
        help="tell the relays how far the archive is; they keep what it has not read",
    )
    ingest.add_argument(
        "--segments", type=Path, metavar="FOLDER", help="read segment files instead of relays"
    )
    ingest.add_argument(
        "--every",
        type=whole_number(1, 86_400),
        metavar="SECONDS",
        help="go on for ever, run after run, until SIGTERM or Ctrl-C",
    )
    ingest.add_argument(
        "--metrics-port",
        type=whole_number(0, 65_535),
        metavar="N",
        help="serve /metrics for Prometheus on the loopback",
    )


def _ingest(arguments: argparse.Namespace) -> int:
    from luxrelay.archive.progress import (  # noqa: PLC0415  with the extra only
        ArchiveProgress,
        MetricsServer,
    )

    counted = ArchiveProgress()
    with ExitStack() as stack:
        if arguments.metrics_port is not None:
            served = stack.enter_context(MetricsServer(counted, arguments.metrics_port))
            print(f"http://127.0.0.1:{served.port}/metrics", file=sys.stderr)
        stop = threading.Event()
        if arguments.every is not None:
            # Spark's own threads must not be cut off: stop is obeyed between two batches.
            for number in (signal.SIGTERM, signal.SIGINT):
                before = signal.signal(number, lambda *_: stop.set())
                stack.callback(signal.signal, number, before)
        return _ingest_with(arguments, counted, stop)


def _ingest_with(
    arguments: argparse.Namespace, counted: ArchiveProgress, stop: threading.Event
) -> int:
    from luxrelay.archive.continuous import follow  # noqa: PLC0415  with the extra only

    progress, rules = Progress(), rules_of(arguments)
    progress.step("starting Spark")

    def told(batch: BatchReport) -> None:
        counted.batch(batch, time.time_ns() // 1_000_000)
        rate = batch.rows / batch.seconds
        progress.update(f"batch {batch.batch}: {batch.rows:,} rows, {rate:,.0f} a second")

    def ended(report: IngestReport | LuxRelayError) -> None:
        if isinstance(report, LuxRelayError):
            counted.failed()
            print(f"luxrelay: {printable(str(report))}", file=sys.stderr)
            return
        counted.run(report)
        for relay, why in report.handoff.refused.items() if report.handoff else ():
            print(f"luxrelay: {relay} took no watermark: {printable(why)}", file=sys.stderr)
        progress.update(f"run ended: {report.messages:,} messages, {report.rejected:,} rejected")

    with open_session(arguments) as session:
        run = _runner(arguments, session, rules, told, stop)
        if arguments.every is not None:
            follow(run, every_s=arguments.every, stop=stop, told=ended)
            progress.close()
            return 0
        done = run()
    ended(done)
    progress.close()
    show(arguments, _ingest_json(done))
    return 0


def _runner(
    arguments: argparse.Namespace,
    session: ArchiveSession,
    rules: ArchiveRules,
    told: Callable[[BatchReport], None],
    stop: threading.Event,
) -> Callable[[], IngestReport]:
    """Return one run, of relays or of segment files."""
    from luxrelay.archive import ingest  # noqa: PLC0415  with the extra only
    from luxrelay.archive.pipeline import ingest_segments  # noqa: PLC0415  as above

    statements = statements_of(arguments)
    if arguments.segments is not None:
        return lambda: ingest_segments(
            session,
            segments=arguments.segments,
            out=arguments.out,
            progress=told,
            rules=rules,
            stop=stop,
            statements=statements,
        )
    return lambda: ingest(
        session,
        relays=arguments.relay or [DEFAULT_RELAY],
        out=arguments.out,
        namespaces=arguments.namespaces,
        read_mode=arguments.read_mode,
        heads=arguments.heads,
        starting=arguments.starting,
        fail_on_data_loss=not arguments.allow_loss,
        rows_per_batch=arguments.rows_per_batch,
        progress=told,
        rules=rules,
        handoff=arguments.handoff,
        statements=statements,
        tls=tls_of(arguments),
        hole_patience_ms=arguments.hole_patience_ms,
        stop=stop,
    )


def _ingest_json(done: IngestReport) -> dict[str, Any]:
    gaps = done.derived
    return {
        "batches": len(done.batches),
        "rows": done.rows,
        "messages": done.messages,
        "rejected": done.rejected,
        "ephemeral": done.ephemeral,
        "openGaps": gaps.open_gaps if gaps else None,
        "missing": gaps.missing if gaps else None,
        "unreadRelays": ", ".join(done.unread) if done.unread else "none",
        "handedOff": sum(done.handoff.told.values()) if done.handoff else None,
        "seconds": round(done.seconds, 1),
    }
