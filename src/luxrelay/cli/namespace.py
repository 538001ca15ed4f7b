"""namespace derive: ids of topics, lanes, parents with a path, parties, groups and wallets."""

from __future__ import annotations

import argparse

from luxrelay.bus import NamespaceId, lane, topic_namespace
from luxrelay.bus.constants import MAX_U64, NAMESPACE_BYTES
from luxrelay.bus.namespace import (
    Naming,
    derived_namespace,
    direct_namespace,
    group_namespace,
    namespace_id,
)
from luxrelay.bus.policy import default_policy
from luxrelay.cli.arguments import SubParsers, add_command, hex_bytes, whole_number
from luxrelay.cli.output import print_json
from luxrelay.errors import UsageError


def register(commands: SubParsers) -> None:
    """Add the command."""
    namespace = commands.add_parser("namespace", help="derive namespace ids")
    actions = namespace.add_subparsers(dest="action", metavar="ACTION", required=True)
    derive = add_command(
        actions,
        "derive",
        "print the id of a namespace, with a sender's lane in it, as JSON",
        "luxrelay namespace derive --topic /chat/1/room --lane 0x01…",
        _derive,
    )
    what = derive.add_mutually_exclusive_group(required=True)
    what.add_argument("--topic", metavar="TEXT", help="of a content topic")
    what.add_argument("--namespace", metavar="HEX", help="an id that is known, for a lane in it")
    what.add_argument("--parent", metavar="HEX", help="of a parent and --path")
    what.add_argument("--owner", metavar="HEX", help="of a wallet, with --salt and --block")
    what.add_argument("--direct", nargs=2, metavar="HEX", help="of two parties, in any order")
    what.add_argument("--group", metavar="HEX", help="of a group")
    derive.add_argument("--path", metavar="TEXT", help="with --parent")
    derive.add_argument("--salt", metavar="HEX", help="with --owner, 32 bytes")
    derive.add_argument(
        "--block", type=whole_number(0, MAX_U64), metavar="N", help="with --owner: block number"
    )
    derive.add_argument(
        "--spec-names", action="store_true", help="with --direct and --group: LP-6410's own names"
    )
    derive.add_argument("--lane", metavar="HEX", help="a sender's key field: its lane as well")


def _derive(arguments: argparse.Namespace) -> int:
    found = _id(arguments)
    shown = {
        "namespaceId": "0x" + found.hex(),
        "defaultPolicyHash": "0x" + default_policy(found).policy_hash.hex(),
    }
    if arguments.topic is not None:
        shown["topic"] = arguments.topic
    if arguments.lane is not None:
        shown["lane"] = "0x" + lane(found, hex_bytes(arguments.lane, None, "--lane")).hex()
    print_json(shown)
    return 0


def _id(arguments: argparse.Namespace) -> NamespaceId:
    naming = Naming.SPEC if arguments.spec_names else Naming.CHAT
    if arguments.topic is not None:
        return topic_namespace(arguments.topic)
    if arguments.namespace is not None:
        return NamespaceId(hex_bytes(arguments.namespace, NAMESPACE_BYTES, "--namespace"))
    if arguments.parent is not None:
        parent = NamespaceId(hex_bytes(arguments.parent, NAMESPACE_BYTES, "--parent"))
        return derived_namespace(parent, _given(arguments.path, "--path").encode())
    if arguments.owner is not None:
        salt = hex_bytes(_given(arguments.salt, "--salt"), 32, "--salt")
        if arguments.block is None:
            raise UsageError("it is needed beside --owner", where="--block")
        return namespace_id(hex_bytes(arguments.owner, 20, "--owner"), salt, arguments.block)
    if arguments.direct is not None:
        first, second = (hex_bytes(each, None, "--direct") for each in arguments.direct)
        return direct_namespace(first, second, naming=naming)
    return group_namespace(hex_bytes(arguments.group, None, "--group"), naming=naming)


def _given(text: str | None, name: str) -> str:
    if text is None:
        raise UsageError("it is needed with what was chosen", where=name)
    return text
