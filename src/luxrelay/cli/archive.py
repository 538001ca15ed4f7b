"""archive: ingest, audit, report, compact, retain, erase, query, restore, serve."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from luxrelay.bus.policy import RetentionClass
from luxrelay.cli.archive_audit import register_audit
from luxrelay.cli.archive_common import (
    add_action,
    add_finality,
    add_out,
    add_relays,
    add_tls,
    open_session,
    show,
    statements_of,
    tls_of,
)
from luxrelay.cli.archive_ingest import register_ingest
from luxrelay.cli.archive_query import run_query
from luxrelay.cli.archive_restore import register_restore
from luxrelay.cli.arguments import (
    SubParsers,
    add_command,
    hex_bytes,
    whole_number,
)
from luxrelay.errors import UsageError


def register(commands: SubParsers) -> None:
    """Add the command."""
    archive = commands.add_parser("archive", help="keep what leaves the relays; ask it, audit it")
    actions = archive.add_subparsers(dest="action", metavar="ACTION", required=True)
    register_ingest(actions)
    register_audit(actions)
    report = add_action(
        actions, "report", "write an HTML page about the archive", " --to a.html", _report
    )
    report.add_argument(
        "--to", type=Path, default=Path("archive.html"), metavar="FILE", help="the page"
    )
    add_relays(report, required=False)
    add_tls(report)
    compact = add_action(actions, "compact", "rewrite many small files into few", "", _compact)
    compact.add_argument("--json", action="store_true", help="print JSON")
    retain = add_action(actions, "retain", "delete what is past its retention class", "", _retain)
    for name, days in (("standard", 30), ("archive", 365)):
        retain.add_argument(
            f"--{name}-days",
            type=whole_number(1, 36_500),
            default=days,
            metavar="N",
            help=f"days that the class {name} is kept (default %(default)s)",
        )
    retain.add_argument("--json", action="store_true", help="print JSON")
    erase = add_action(
        actions, "erase", "delete one namespace for good", " --namespace HEX --yes", _erase
    )
    erase.add_argument("--namespace", required=True, metavar="HEX", help="40 hex digits")
    erase.add_argument("--yes", action="store_true", help="there is no way back")
    erase.add_argument("--json", action="store_true", help="print JSON")
    finality = add_action(
        actions,
        "finality",
        "give archived messages the states that signed statements say",
        " --finality FILE --finality-signer HEX --network NAME",
        _finality,
    )
    add_finality(finality)
    finality.add_argument("--network", metavar="NAME", help="network of the statements")
    finality.add_argument("--json", action="store_true", help="print JSON")
    _register_query(actions)
    register_restore(actions)


def _register_query(actions: SubParsers) -> None:
    query = add_command(
        actions,
        "query",
        "ask by SQL, or by namespace, time, sender or blob; needs no Java",
        "luxrelay archive query --out archive "
        "--sql 'SELECT date, count(*) FROM messages GROUP BY date'",
        run_query,
    )
    add_out(query)
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


def _report(arguments: argparse.Namespace) -> int:
    from luxrelay.archive import audit, report  # noqa: PLC0415  with the extra only
    from luxrelay.archive.overview import overview  # noqa: PLC0415  as above
    from luxrelay.archive.pipeline import derive  # noqa: PLC0415  as above

    with open_session(arguments) as session:
        derive(session, out=arguments.out)
        found = audit(session, out=arguments.out, relays=arguments.relay, tls=tls_of(arguments))
    print(report(overview(arguments.out, found), out=arguments.to))
    return 0


def _compact(arguments: argparse.Namespace) -> int:
    from luxrelay.archive import compact  # noqa: PLC0415  with the extra only

    with open_session(arguments) as session:
        done = compact(session, out=arguments.out)
    show(
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
    with open_session(arguments) as session:
        done = retain(session, out=arguments.out, config=config)
    show(arguments, _removed(done.messages, done.others, done.namespaces, done.seconds))
    return 0


def _erase(arguments: argparse.Namespace) -> int:
    from luxrelay.archive.upkeep import erase  # noqa: PLC0415  with the extra only

    namespace = hex_bytes(arguments.namespace, 20, "--namespace")
    if not arguments.yes:
        raise UsageError("erasing has no way back", where="--yes", hint="say so with --yes")
    with open_session(arguments) as session:
        done = erase(session, out=arguments.out, namespace_id=namespace)
    show(arguments, _removed(done.messages, done.others, done.namespaces, done.seconds))
    return 0


def _finality(arguments: argparse.Namespace) -> int:
    from luxrelay.archive.statements import apply_finality  # noqa: PLC0415  with the extra only

    statements = statements_of(arguments)
    if statements is None:
        raise UsageError("name a file, its signers and their network", where="--finality")
    with open_session(arguments) as session:
        done = apply_finality(session, out=arguments.out, statements=statements)
    show(
        arguments,
        {"statements": done.applied, "refused": done.refused, "messages": done.messages},
    )
    return 1 if done.refused else 0


def _removed(messages: int, others: int, namespaces: int, seconds: float) -> dict[str, Any]:
    return {
        "messages": messages,
        "rawAndRejectedRows": others,
        "namespaces": namespaces,
        "seconds": round(seconds, 1),
    }
