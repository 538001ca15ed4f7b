"""sync: catch a node's store up while it does not run, or compare it with relays."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from luxrelay.bus import NamespaceId
from luxrelay.cli.arguments import SubParsers, add_command, add_timeout, chosen_namespace
from luxrelay.cli.output import Progress, print_json, printable, table
from luxrelay.errors import StoreError, SyncRemoteError, SyncUnreachableError, UsageError
from luxrelay.node.config import NodeConfig, load_config

if TYPE_CHECKING:  # both load libp2p
    from luxrelay.node.offline import OfflineNode
    from luxrelay.sync import RelaySyncClient
    from luxrelay.sync.report import CatchUpProgress, CatchUpReport
    from luxrelay.sync.rpc.comparing import Comparison

_BAR: Final = 24
"""Characters of the progress bar."""
_LISTED: Final = 50
"""Lanes that differ, as many as a table shows; ``--json`` shows all."""


def register(commands: SubParsers) -> None:
    """Add the command."""
    sync = add_command(
        commands,
        "sync",
        "catch a node's store up from relays while the node is stopped; --dry-run only compares",
        "luxrelay sync --config relay.toml --relay 192.0.2.7:9641 --dry-run",
        _sync,
    )
    sync.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="the node's TOML file"
    )
    sync.add_argument(
        "--relay",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="sync port of a relay to ask; may be given again (default: sync.peers of the file)",
    )
    add_timeout(sync)
    which = sync.add_mutually_exclusive_group()
    which.add_argument("--topic", metavar="TEXT", help="only this content topic of the file")
    which.add_argument("--namespace", metavar="HEX", help="only this namespace of the file")
    sync.add_argument(
        "--dry-run",
        action="store_true",
        help="say what differs by lane and change nothing; the node may run; 1 when something does",
    )
    sync.add_argument("--json", action="store_true", help="print JSON")


def _sync(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config, os.environ)
    relays = arguments.relay or list(config.sync_peers)
    if not relays:
        raise UsageError(
            "there is no relay to ask",
            where=str(arguments.config),
            hint="name one with --relay HOST:PORT, or in sync.peers",
        )
    parents = _parents(arguments, config)
    if arguments.dry_run:
        return _compare(arguments, config, relays, parents)
    return _catch_up(arguments, config, relays, parents)


def _parents(arguments: argparse.Namespace, config: NodeConfig) -> list[NamespaceId | None]:
    """Return what is caught up with; None stands for every namespace, in an open node."""
    from luxrelay.node.policies import carried_of  # noqa: PLC0415  the command starts without it

    carried = carried_of(config)
    if arguments.topic is not None or arguments.namespace is not None:
        wanted = chosen_namespace(arguments)
        if wanted not in carried and not carried.everything:
            raise UsageError(
                "the node does not carry that namespace",
                where=wanted.hex(),
                hint="add it to the file as a [[namespace]], have the node follow it, or leave the "
                "option out for all",
            )
        return [wanted]
    if not carried.caught_up():
        raise UsageError(
            "the node carries no namespace",
            where=str(arguments.config),
            hint="add a [[namespace]] with its content_topic",
        )
    return list(carried.caught_up())


def _catch_up(
    arguments: argparse.Namespace,
    config: NodeConfig,
    relays: Sequence[str],
    parents: Sequence[NamespaceId | None],
) -> int:
    from luxrelay.node.offline import clients_of, offline_node  # noqa: PLC0415  loads libp2p

    progress = Progress()
    totals: dict[str, dict[str, Any]] = {relay: _blank() for relay in relays}
    with clients_of(config, relays, arguments.timeout_s) as clients:
        try:
            with offline_node(config, clients) as node:
                reports = [node.catch_up(each, _told(each, progress)) for each in parents]
                for report in reports:
                    for peer in report.peers:
                        _add(totals[peer.peer], peer)
                for client in clients:
                    if not totals[client.address]["state"]:
                        _reconcile(node, client, parents, totals[client.address])
                blobs = node.fetch_blobs()
        except StoreError as error:
            if error.code != "store.locked":
                raise
            raise UsageError(
                "the node runs on this store",
                where=str(config.data_dir),
                hint="it catches up by itself; stop it first, or compare with --dry-run",
            ) from error
        finally:
            progress.close()
    complete = all(report.complete for report in reports)
    summary = {
        "complete": complete,
        "stored": sum(each["stored"] for each in totals.values()),
        "rejected": sum(each["rejected"] for each in totals.values()),
        "stillMissing": sum(map(_missing, reports)),
        "blobs": blobs,
        "relays": [{"relay": relay, **each} for relay, each in totals.items()],
    }
    if arguments.json:
        print_json(summary)
    else:
        _show(summary)
    return 0 if complete else 1


def _blank() -> dict[str, Any]:
    return {
        "received": 0,
        "stored": 0,
        "rejected": 0,
        "withheld": 0,
        "failures": 0,
        "state": "",
        "reason": "",
    }


def _add(total: dict[str, Any], peer: Any) -> None:
    for name in ("received", "stored", "rejected", "withheld", "failures"):
        total[name] += getattr(peer, name)
    total["state"] = total["state"] or peer.given_up
    if peer.given_up:
        total["reason"] = peer.reason


def _told(parent: NamespaceId | None, progress: Progress) -> Callable[[CatchUpProgress], None]:
    def tell(now: CatchUpProgress) -> None:
        share = now.namespaces_done / now.namespaces if now.namespaces else 1.0
        bar = "█" * int(share * _BAR)
        name = "every" if parent is None else parent.hex()[:12]
        progress.update(
            f"{name}  {bar:░<{_BAR}}  {now.namespaces_done:,} of "
            f"{now.namespaces:,} lanes, {now.stored:,} stored, {now.rejected:,} refused"
        )

    return tell


def _reconcile(
    node: OfflineNode,
    client: RelaySyncClient,
    parents: Sequence[NamespaceId | None],
    total: dict[str, Any],
) -> None:
    """Fetch what heads do not show; a relay that cannot be had is named, the others go on."""
    for parent in parents:
        try:
            report = node.reconcile(client, parent)
        except (SyncUnreachableError, SyncRemoteError) as error:
            total["failures"] += 1
            total["state"], total["reason"] = "cannot be compared with", error.what
            return
        total["received"] += report.fetched
        total["stored"] += report.stored
        total["rejected"] += report.rejected
        total["withheld"] += report.withheld


def _missing(report: CatchUpReport) -> int:
    return sum(span.size for _, span in report.holes_left) + report.holes_unlisted


def _show(summary: dict[str, Any]) -> None:
    names = ("received", "stored", "rejected", "withheld", "failures", "state")
    rows = [
        (each["relay"], *(each[name] for name in names[:-1]), each["state"] or "served us")
        for each in summary["relays"]
    ]
    print(table(("relay", *names), rows))
    for each in summary["relays"]:
        if each["state"]:
            reason = f"{each['state']}: {each['reason']}" if each["reason"] else each["state"]
            print(printable(f"luxrelay: {each['relay']}: {reason}"), file=sys.stderr)
    if summary["complete"]:
        print(f"complete: {summary['stored']:,} messages and {summary['blobs']:,} blobs came")
        return
    if all(each["state"] for each in summary["relays"]):
        print(
            "not complete: no relay could be asked, so it is not known what is missing. Is it the "
            "relay's sync port (sync.listen)? --timeout-s waits longer.",
            file=sys.stderr,
        )
        return
    print(
        f"not complete: {summary['stillMissing']:,} messages are missing still. What came is kept; "
        "run it again, or name further relays with --relay",
        file=sys.stderr,
    )


def _compare(
    arguments: argparse.Namespace,
    config: NodeConfig,
    relays: Sequence[str],
    parents: Sequence[NamespaceId | None],
) -> int:
    from luxrelay.node.offline import clients_of, compare  # noqa: PLC0415  loads libp2p

    found: list[Comparison] = []
    faults: dict[str, str] = {}
    with clients_of(config, relays, arguments.timeout_s) as clients:
        for client in clients:
            try:
                found += compare(config, client, parents)
            except (SyncUnreachableError, SyncRemoteError) as error:
                faults[client.address] = str(error)
    if arguments.json:
        print_json({"comparisons": [_as_json(each) for each in found], "unreachable": faults})
    else:
        _show_differences(found)
        for fault in faults.values():
            print(f"luxrelay: {printable(fault)}", file=sys.stderr)
    return 0 if found and not faults and all(each.equal for each in found) else 1


def _as_json(each: Comparison) -> dict[str, Any]:
    return {
        "relay": each.peer,
        "equal": each.equal,
        "alike": each.alike,
        "contentsOnlyThere": each.contents_here,
        "contentsOnlyHere": each.contents_there,
        "cut": each.cut,
        "lanes": [
            {
                "namespaceId": "0x" + lane.namespace_id.hex(),
                "here": lane.ours,
                "there": lane.theirs,
                "onlyThere": [[span.first, span.last] for span in lane.lacking_here],
                "onlyHere": [[span.first, span.last] for span in lane.lacking_there],
            }
            for lane in each.lanes
        ],
    }


def _show_differences(found: Sequence[Comparison]) -> None:
    rows = [
        (each.peer, lane.namespace_id.hex(), lane.ours, lane.theirs, lane.here, lane.there)
        for each in found
        for lane in each.lanes
    ]
    if rows:
        names = ("relay", "lane", "here", "there", "only there", "only here")
        print(table(names, rows[:_LISTED]))
    if len(rows) > _LISTED:
        print(f"… and {len(rows) - _LISTED:,} more; --json lists all")
    for each in found:
        if each.equal:
            print(f"{each.peer}: equal, {each.alike:,} lanes")
            continue
        print(
            f"{each.peer}: {len(each.lanes):,} lanes differ, {each.alike:,} are alike; in the "
            f"window {each.contents_here:,} contents only there, {each.contents_there:,} only here"
        )
