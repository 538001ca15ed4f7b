"""archive ingest, audit, report, compact, retain, erase, query: what stays, by Spark and Delta."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from luxrelay.bus.policy import RetentionClass
from luxrelay.bus.signed_policy import SignedPolicy
from luxrelay.cli.archive_query import run_query
from luxrelay.cli.arguments import (
    DEFAULT_RELAY,
    SubParsers,
    add_command,
    hex_bytes,
    whole_number,
)
from luxrelay.cli.output import Progress, print_json, printable, table
from luxrelay.errors import UsageError
from luxrelay.node.policies import read_policy_file

if TYPE_CHECKING:
    from luxrelay.archive import ArchiveSession
    from luxrelay.archive.batches import BatchReport
    from luxrelay.archive.completeness import AuditReport
    from luxrelay.archive.pipeline import IngestReport
    from luxrelay.archive.rules import ArchiveRules

_GAPS_SHOWN: Final = 20
_SESSION: Final = argparse.ArgumentParser(add_help=False)
_SESSION.add_argument(
    "--master", default="local[2]", metavar="URL", help="Spark master (default %(default)s)"
)
_SESSION.add_argument(
    "--tasks",
    type=whole_number(1, 1_024),
    default=2,
    metavar="N",
    help="parallel tasks (default %(default)s)",
)
_SESSION.add_argument(
    "--memory-mb",
    type=whole_number(512, 1_048_576),
    default=1_024,
    metavar="N",
    help="heap of the driver, MiB (default %(default)s)",
)
_SESSION.add_argument(
    "--spark",
    action="append",
    default=[],
    metavar="KEY=VALUE",
    help="a further Spark setting; may be given again",
)
_SESSION.add_argument("--spark-log", type=Path, metavar="FILE", help="where Spark's output goes")


def register(commands: SubParsers) -> None:
    """Add the command."""
    archive = commands.add_parser("archive", help="keep what leaves the relays; ask it, audit it")
    actions = archive.add_subparsers(dest="action", metavar="ACTION", required=True)
    _register_ingest(actions)
    audit = _add(
        actions, "audit", "say what the archive holds and lacks; 1 when incomplete", "", _audit
    )
    _add_relays(audit, required=False)
    audit.add_argument("--refetch", action="store_true", help="read what is missing again")
    audit.add_argument("--json", action="store_true", help="print JSON")
    report = _add(
        actions, "report", "write an HTML page about the archive", " --to a.html", _report
    )
    report.add_argument(
        "--to", type=Path, default=Path("archive.html"), metavar="FILE", help="the page"
    )
    _add_relays(report, required=False)
    compact = _add(actions, "compact", "rewrite many small files into few", "", _compact)
    compact.add_argument("--json", action="store_true", help="print JSON")
    retain = _add(actions, "retain", "delete what is past its retention class", "", _retain)
    for name, days in (("standard", 30), ("archive", 365)):
        retain.add_argument(
            f"--{name}-days",
            type=whole_number(1, 36_500),
            default=days,
            metavar="N",
            help=f"days that the class {name} is kept (default %(default)s)",
        )
    retain.add_argument("--json", action="store_true", help="print JSON")
    erase = _add(
        actions, "erase", "delete one namespace for good", " --namespace HEX --yes", _erase
    )
    erase.add_argument("--namespace", required=True, metavar="HEX", help="40 hex digits")
    erase.add_argument("--yes", action="store_true", help="there is no way back")
    erase.add_argument("--json", action="store_true", help="print JSON")
    _register_query(actions)


def _add(actions: SubParsers, name: str, summary: str, more: str, run: Any) -> Any:
    example = f"luxrelay archive {name} --out archive{more}"
    parser = actions.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"example: {example}",
        parents=[_SESSION],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    _add_out(parser)
    return parser


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("archive"), metavar="FOLDER", help="the archive folder"
    )


def _add_relays(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--relay",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="sync port of a relay; may be given again"
        + (f" (default {DEFAULT_RELAY})" if required else ""),
    )


def _register_ingest(actions: SubParsers) -> None:
    ingest = _add(
        actions,
        "ingest",
        "read everything the relays hold and the archive has not read",
        " --relay 127.0.0.1:9641 --relay 127.0.0.1:9642",
        _ingest,
    )
    _add_relays(ingest, required=True)
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
        default=100_000,
        metavar="N",
        help="rows of one micro-batch (default %(default)s)",
    )
    ingest.add_argument(
        "--policies", type=Path, action="append", default=[], metavar="FILE",
        help="signed policies, as `luxrelay policy sign` writes them; may be given again",
    )  # fmt: skip
    ingest.add_argument(
        "--handoff",
        action="store_true",
        help="tell the relays how far the archive is; they keep what it has not read",
    )
    for name, text in (
        ("ca", "the authority of the relays"),
        ("certificate", "our own certificate"),
        ("key", "its key"),
    ):
        ingest.add_argument(
            f"--tls-{name}", metavar="FILE", help=f"PEM file with {text}, read where tasks run"
        )
    ingest.add_argument(
        "--segments", type=Path, metavar="FOLDER", help="read segment files instead of relays"
    )
    ingest.add_argument("--network", metavar="NAME", help="network of the policies")
    ingest.add_argument(
        "--bound", action="store_true", help="signatures of the network are bound (H3)"
    )
    ingest.add_argument("--json", action="store_true", help="print JSON")


def _register_query(actions: SubParsers) -> None:
    query = add_command(
        actions,
        "query",
        "ask by SQL, or by namespace, time, sender or blob; needs no Java",
        "luxrelay archive query --out archive "
        "--sql 'SELECT date, count(*) FROM messages GROUP BY date'",
        run_query,
    )
    _add_out(query)
    query.add_argument("--sql", metavar="TEXT", help="a SELECT over the tables")
    query.add_argument("--namespace", metavar="HEX", help="40 hex digits")
    query.add_argument("--sender", metavar="HEX", help="an address, 40 hex digits")
    query.add_argument("--blob", metavar="HEX", help="a commitment, 64 hex digits")
    sequence = whole_number(0, 2**63 - 1)
    query.add_argument("--from-seq", type=sequence, default=1, metavar="N", help="from it on")
    query.add_argument("--to-seq", type=sequence, default=2**63 - 1, metavar="N", help="up to it")
    query.add_argument("--from-ms", type=sequence, metavar="MS", help="from this time on")
    query.add_argument("--to-ms", type=sequence, metavar="MS", help="up to this time")
    query.add_argument(
        "--limit", type=whole_number(1, 10_000), default=100, metavar="N", help="messages"
    )
    query.add_argument("--cursor", default="", metavar="HEX", help="nextCursor of the page before")
    query.add_argument("--proof", action="store_true", help="with a proof for each message")
    query.add_argument("--json", action="store_true", help="print JSON")


def _session(arguments: argparse.Namespace) -> ArchiveSession:
    from luxrelay.archive import ArchiveSession  # noqa: PLC0415  with the extra only
    from luxrelay.archive.session import SessionConfig  # noqa: PLC0415  as above

    options = [tuple(each.partition("=")[::2]) for each in arguments.spark]
    if not all(key and value for key, value in options):
        raise UsageError("write KEY=VALUE", where="--spark")
    return ArchiveSession(
        SessionConfig(
            master=arguments.master,
            tasks=arguments.tasks,
            driver_memory_mb=arguments.memory_mb,
            log_file=arguments.spark_log,
            options=tuple((key, value) for key, value in options),
        )
    )


def _rules(arguments: argparse.Namespace) -> ArchiveRules:
    from luxrelay.archive.rules import ArchiveRules  # noqa: PLC0415  with the extra only

    if arguments.bound and not arguments.network:
        raise UsageError("bound signatures name their network", where="--network")
    documents: list[SignedPolicy] = []
    for path in arguments.policies:
        documents += read_policy_file(path)
    return ArchiveRules.of(documents, network=arguments.network, bound=arguments.bound)


def _ingest(arguments: argparse.Namespace) -> int:
    from luxrelay.archive import ingest  # noqa: PLC0415  with the extra only
    from luxrelay.archive.pipeline import ingest_segments  # noqa: PLC0415  as above

    progress = Progress()
    rules = _rules(arguments)
    progress.step("starting Spark")

    def told(batch: BatchReport) -> None:
        rate = batch.rows / batch.seconds
        progress.update(f"batch {batch.batch}: {batch.rows:,} rows, {rate:,.0f} a second")

    names = {"tlsCa": "tls_ca", "tlsCertificate": "tls_certificate", "tlsKey": "tls_key"}
    tls = {key: value for key, name in names.items() if (value := getattr(arguments, name))}
    with _session(arguments) as session:
        if arguments.segments is not None:
            done = ingest_segments(
                session,
                segments=arguments.segments,
                out=arguments.out,
                progress=told,
                rules=rules,
            )
            progress.close()
            _show(arguments, _ingest_json(done))
            return 0
        done = ingest(
            session,
            relays=arguments.relay or [DEFAULT_RELAY],
            handoff=arguments.handoff,
            tls=tls,
            out=arguments.out,
            namespaces=arguments.namespaces,
            read_mode=arguments.read_mode,
            heads=arguments.heads,
            starting=arguments.starting,
            fail_on_data_loss=not arguments.allow_loss,
            rows_per_batch=arguments.rows_per_batch,
            progress=told,
            rules=rules,
        )
    progress.close()
    for relay, why in done.handoff.refused.items() if done.handoff else ():
        print(f"luxrelay: {relay} took no watermark: {printable(why)}", file=sys.stderr)
    _show(arguments, _ingest_json(done))
    return 0


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


def _audit(arguments: argparse.Namespace) -> int:
    from luxrelay.archive import audit  # noqa: PLC0415  with the extra only

    with _session(arguments) as session:
        if arguments.refetch:
            from luxrelay.archive.refetching import refetch  # noqa: PLC0415  as above

            again = refetch(session, out=arguments.out, relays=arguments.relay)
            print(f"{again.messages:,} messages of the gaps were read again", file=sys.stderr)
        found = audit(session, out=arguments.out, relays=arguments.relay)
    if arguments.json:
        print_json(_audit_json(found))
    else:
        from luxrelay.archive.reporting import audit_tables  # noqa: PLC0415  as above

        for part in audit_tables(found):
            rows = part.rows[:_GAPS_SHOWN]
            print(f"{part.title}\n{table(part.head, rows)}\n")
            if len(part.rows) > len(rows):
                print(f"… and {len(part.rows) - len(rows):,} more\n")
    return 0 if found.complete else 1


def _audit_json(found: AuditReport) -> dict[str, Any]:
    return {
        "complete": found.complete,
        "messages": found.rows,
        "namespaces": len(found.namespaces),
        "duplicates": found.duplicates,
        "contested": found.contested,
        "missing": found.missing,
        "rejectedByCode": found.rejected_by_code,
        "gaps": [
            {
                "namespaceId": "0x" + gap.namespace.hex(),
                "first": gap.first,
                "last": gap.last,
                "heldBy": list(gap.held_by),
            }
            for gap in found.gaps
        ],
        "behind": [
            {
                "namespaceId": "0x" + each.namespace.hex(),
                "archived": each.archived,
                "head": each.head,
            }
            for each in found.behind
        ],
        "unreachable": list(found.unreachable),
    }


def _report(arguments: argparse.Namespace) -> int:
    from luxrelay.archive import audit, report  # noqa: PLC0415  with the extra only
    from luxrelay.archive.overview import overview  # noqa: PLC0415  as above
    from luxrelay.archive.pipeline import derive  # noqa: PLC0415  as above

    with _session(arguments) as session:
        derive(session, out=arguments.out)
        found = audit(session, out=arguments.out, relays=arguments.relay)
    print(report(overview(arguments.out, found), out=arguments.to))
    return 0


def _compact(arguments: argparse.Namespace) -> int:
    from luxrelay.archive import compact  # noqa: PLC0415  with the extra only

    with _session(arguments) as session:
        done = compact(session, out=arguments.out)
    _show(
        arguments,
        {
            "filesBefore": done.files_before,
            "filesAfter": done.files_after,
            "rewritten": done.compacted,
            "seconds": round(done.seconds, 1),
        },
    )
    return 0


def _retain(arguments: argparse.Namespace) -> int:
    from luxrelay.archive import retain  # noqa: PLC0415  with the extra only
    from luxrelay.archive.upkeep import RetentionConfig  # noqa: PLC0415  as above

    config = RetentionConfig(
        keep_days={
            RetentionClass.STANDARD: arguments.standard_days,
            RetentionClass.ARCHIVE: arguments.archive_days,
            RetentionClass.PERMANENT: None,
        }
    )
    with _session(arguments) as session:
        done = retain(session, out=arguments.out, config=config)
    _show(arguments, _removed(done.messages, done.others, done.namespaces, done.seconds))
    return 0


def _erase(arguments: argparse.Namespace) -> int:
    from luxrelay.archive.upkeep import erase  # noqa: PLC0415  with the extra only

    namespace = hex_bytes(arguments.namespace, 20, "--namespace")
    if not arguments.yes:
        raise UsageError("erasing has no way back", where="--yes", hint="say so with --yes")
    with _session(arguments) as session:
        done = erase(session, out=arguments.out, namespace_id=namespace)
    _show(arguments, _removed(done.messages, done.others, done.namespaces, done.seconds))
    return 0


def _removed(messages: int, others: int, namespaces: int, seconds: float) -> dict[str, Any]:
    return {
        "messages": messages,
        "rawAndRejectedRows": others,
        "namespaces": namespaces,
        "seconds": round(seconds, 1),
    }


def _show(arguments: argparse.Namespace, values: dict[str, Any]) -> None:
    if arguments.json:
        print_json(values)
    else:
        print(table(("what", "value"), list(values.items())))
