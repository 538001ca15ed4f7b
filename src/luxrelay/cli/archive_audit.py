"""archive audit: completeness of the archive, alone and beside relays."""

from __future__ import annotations

import argparse
import random
import sys
from typing import TYPE_CHECKING, Any, Final

from luxrelay.cli.archive_common import (
    add_action,
    add_relays,
    add_rules,
    add_tls,
    open_session,
    rules_of,
    tls_of,
)
from luxrelay.cli.arguments import SubParsers, whole_number
from luxrelay.cli.output import print_json, printable, table

if TYPE_CHECKING:
    from luxrelay.archive.completeness import AuditReport
    from luxrelay.archive.rules import ArchiveRules
    from luxrelay.archive.verification import VerifyReport

_GAPS_SHOWN: Final = 20


def register_audit(actions: SubParsers) -> None:
    """Add the subcommand."""
    audit = add_action(
        actions, "audit", "say what the archive holds and lacks; 1 when incomplete", "", _audit
    )
    add_relays(audit, required=False)
    add_rules(audit)
    add_tls(audit)
    audit.add_argument("--refetch", action="store_true", help="read what is missing again")
    audit.add_argument(
        "--verify",
        type=whole_number(1, 100_000),
        metavar="N",
        help="check N messages again at random, and compare Merkle roots with the relays",
    )
    audit.add_argument("--json", action="store_true", help="print JSON")


def _audit(arguments: argparse.Namespace) -> int:
    from luxrelay.archive import audit  # noqa: PLC0415  with the extra only

    rules, tls = rules_of(arguments), tls_of(arguments)
    with open_session(arguments) as session:
        if arguments.refetch:
            from luxrelay.archive.refetching import refetch  # noqa: PLC0415  as above

            before = _verified(arguments, rules, tls) if arguments.verify else None
            again = refetch(
                session,
                out=arguments.out,
                relays=arguments.relay,
                rules=rules,
                tls=tls,
                also=before.missing_here() if before else (),
            )
            print(f"{again.messages:,} messages were read again", file=sys.stderr)
        found = audit(session, out=arguments.out, relays=arguments.relay, tls=tls, rules=rules)
    done = _verified(arguments, rules, tls) if arguments.verify else None
    if done is not None:
        _show_verified(done)
    if arguments.json:
        print_json(_audit_json(found) | (_verify_json(done) if done else {}))
    else:
        from luxrelay.archive.reporting import audit_tables  # noqa: PLC0415  as above

        for part in audit_tables(found):
            rows = part.rows[:_GAPS_SHOWN]
            print(f"{part.title}\n{table(part.head, rows)}\n")
            if len(part.rows) > len(rows):
                print(f"… and {len(part.rows) - len(rows):,} more\n")
    return 0 if found.complete and not (done and done.wrong) else 1


def _verified(
    arguments: argparse.Namespace, rules: ArchiveRules, tls: dict[str, str]
) -> VerifyReport:
    from luxrelay.archive.query import ArchiveReader  # noqa: PLC0415  with the extra only
    from luxrelay.archive.verification import verify  # noqa: PLC0415  as above

    return verify(
        ArchiveReader(arguments.out),
        rng=random.SystemRandom(),
        relays=arguments.relay,
        sample=arguments.verify,
        rules=rules,
        tls=tls,
    )


def _show_verified(done: VerifyReport) -> None:
    for finding in done.findings:
        print(printable(finding), file=sys.stderr)
    for each in done.relays:
        root = f"Merkle root over {each.ids:,} messages {each.root}" if each.ids else "no root"
        print(
            f"{each.relay}: {root}{f' ({printable(each.note)})' if each.note else ''},"
            f" {each.namespaces:,} namespaces, {each.blocks:,} blocks by digest,"
            f" {each.blocks_read:,} read, {each.newer:,} newer, {each.kept_out:,} kept out",
            file=sys.stderr,
        )
    print(
        f"{done.messages:,} messages looked at, {done.proofs:,} proven, {done.wrong:,} findings",
        file=sys.stderr,
    )


def _verify_json(done: VerifyReport) -> dict[str, Any]:
    return {
        "wrong": done.wrong,
        "findings": done.findings,
        "relays": [
            {
                "relay": each.relay,
                "root": each.root,
                "note": each.note,
                "failed": each.failed,
                "ids": each.ids,
                "namespaces": each.namespaces,
                "blocks": each.blocks,
                "blocksRead": each.blocks_read,
                "furtherBlocks": each.further_blocks,
                "newer": each.newer,
                "keptOut": each.kept_out,
                "further": each.further,
                "differences": [
                    {
                        "namespaceId": "0x" + difference.namespace_id.hex(),
                        "seq": difference.seq,
                        "contentId": "0x" + difference.content_id.hex(),
                        "missing": difference.missing,
                        "heldBy": list(difference.held_by),
                    }
                    for difference in each.differences
                ],
            }
            for each in done.relays
        ],
    }


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
                "rejected": list(gap.rejected),
            }
            for gap in found.gaps
        ],
        "behind": [
            {
                "namespaceId": "0x" + each.namespace.hex(),
                "archived": each.archived,
                "head": each.head,
                "rejected": list(each.rejected),
            }
            for each in found.behind
        ],
        "unreachable": list(found.unreachable),
    }
