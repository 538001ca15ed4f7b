"""namespace: ids of topics, lanes, parties and wallets; what a running node follows.

Source: LP-6410 §2; LP-6420 §2.2, §8.2; decision G35.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from luxrelay.bus import NamespaceId, lane, topic_namespace
from luxrelay.bus.constants import ADDRESS_BYTES, MAX_U64, NAMESPACE_BYTES, SALT_BYTES
from luxrelay.bus.namespace import (
    Intent,
    Naming,
    create_namespace,
    derived_namespace,
    direct_namespace,
    dkg_namespace,
    group_namespace,
    intent_namespace,
    key_directory_namespace,
    namespace_id,
)
from luxrelay.bus.policy import default_policy
from luxrelay.cli.arguments import SubParsers, add_command, hex_bytes, whole_number
from luxrelay.cli.gateway import DEFAULT_ADMIN, add_gateway, chosen_token
from luxrelay.cli.output import print_json, printable, table
from luxrelay.client import FollowedNamespace, RelayClient
from luxrelay.errors import UsageError
from luxrelay.node.policies import read_policy_file
from luxrelay.wire import to_hex


def register(commands: SubParsers) -> None:
    """Add the command."""
    namespace = commands.add_parser(
        "namespace", help="derive namespace ids; have a node follow namespaces"
    )
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
    what.add_argument("--owner", metavar="HEX", help="of a wallet, with --block")
    what.add_argument("--direct", nargs=2, metavar="HEX", help="of two parties, in any order")
    what.add_argument("--group", metavar="HEX", help="of a group")
    what.add_argument(
        "--ceremony",
        nargs="?",
        const="",
        metavar="HEX",
        help="of a parent's key ceremony, or all's",
    )
    what.add_argument("--directory", action="store_true", help="of the network's key directory")
    what.add_argument(
        "--intent", choices=[kind.name.lower() for kind in Intent], help="of the network's intents"
    )
    derive.add_argument("--path", metavar="TEXT", help="with --parent")
    derive.add_argument(
        "--salt", metavar="HEX", help="with --owner, 32 bytes; a new one without it"
    )
    derive.add_argument(
        "--block", type=whole_number(0, MAX_U64), metavar="N", help="with --owner: block number"
    )
    derive.add_argument("--spec-names", action="store_true", help="names of LP-6410, not of chats")
    derive.add_argument("--lane", metavar="HEX", help="a sender's key field: its lane as well")

    _register_following(actions)


def _register_following(actions: SubParsers) -> None:
    follow = add_command(
        actions,
        "follow",
        "have a running node follow a namespace, restarts included",
        "luxrelay namespace follow --topic /chat/1/room",
        _follow,
    )
    unfollow = add_command(
        actions,
        "unfollow",
        "have a running node follow a namespace no longer; what is stored stays for its time",
        "luxrelay namespace unfollow --topic /chat/1/room",
        _unfollow,
    )
    for command in (follow, unfollow):
        what = command.add_mutually_exclusive_group(required=True)
        what.add_argument("--topic", metavar="TEXT", help="of a content topic")
        what.add_argument("--namespace", metavar="HEX", help="its id")
    follow.add_argument(
        "--policy-file",
        type=Path,
        metavar="FILE",
        help="its signed policies, as `luxrelay policy sign` makes them (default: the default "
        "policy of its id)",
    )
    followed = add_command(
        actions,
        "followed",
        "list the namespaces that a running node follows",
        "luxrelay namespace followed --json",
        _list_followed,
    )
    for command in (follow, unfollow, followed):
        add_gateway(command, default=DEFAULT_ADMIN)
        command.add_argument("--json", action="store_true", help="print JSON")


def _admin(arguments: argparse.Namespace) -> RelayClient:
    return RelayClient(
        arguments.gateway,
        token=chosen_token(arguments),
        timeout_s=arguments.timeout_s,
        token_in_clear=arguments.token_in_clear,
    )


def _follow(arguments: argparse.Namespace) -> int:
    documents = []
    if arguments.policy_file is not None:
        documents = [each.encode() for each in read_policy_file(arguments.policy_file)]
    namespace = None if arguments.topic else _hex_id(arguments.namespace, "--namespace")
    with _admin(arguments) as client:
        entry = client.follow(namespace, content_topic=arguments.topic or "", documents=documents)
    _print_followed(arguments, [entry])
    return 0


def _unfollow(arguments: argparse.Namespace) -> int:
    if arguments.topic:
        namespace = topic_namespace(arguments.topic)
    else:
        namespace = _hex_id(arguments.namespace, "--namespace")
    with _admin(arguments) as client:
        client.unfollow(namespace)
    if arguments.json:
        print_json({"namespaceId": to_hex(namespace)})
    else:
        print(f"{to_hex(namespace)} is followed no longer; what is stored stays for its time")
    return 0


def _list_followed(arguments: argparse.Namespace) -> int:
    with _admin(arguments) as client:
        _print_followed(arguments, client.followed())
    return 0


def _print_followed(arguments: argparse.Namespace, entries: Sequence[FollowedNamespace]) -> None:
    if arguments.json:
        shown = [asdict(each) | {"namespace_id": to_hex(each.namespace_id)} for each in entries]
        print_json(shown)
        return
    rows = [
        (to_hex(each.namespace_id), printable(each.content_topic), each.origin, each.documents)
        for each in entries
    ]
    print(table(("namespace", "content topic", "origin", "policies"), rows))


def _derive(arguments: argparse.Namespace) -> int:
    salt = None
    if arguments.owner is not None:
        found, salt = _of_owner(arguments)
    else:
        found = _known(arguments) or _of_parties(arguments)
    shown = {
        "namespaceId": to_hex(found),
        "defaultPolicyHash": to_hex(default_policy(found).policy_hash),
    }
    if salt is not None:
        shown["salt"] = to_hex(salt)
    if arguments.topic is not None:
        shown["topic"] = arguments.topic
    if arguments.lane is not None:
        shown["lane"] = to_hex(lane(found, hex_bytes(arguments.lane, None, "--lane")))
    print_json(shown)
    return 0


def _of_owner(arguments: argparse.Namespace) -> tuple[NamespaceId, bytes]:
    """Return the id of a wallet and its salt: a new one gives an id in no reserved range."""
    owner = hex_bytes(arguments.owner, ADDRESS_BYTES, "--owner")
    if arguments.block is None:
        raise UsageError("it is needed beside --owner", where="--block")
    if arguments.salt is None:
        return create_namespace(owner, arguments.block, secrets.SystemRandom())
    salt = hex_bytes(arguments.salt, SALT_BYTES, "--salt")
    return namespace_id(owner, salt, arguments.block), salt


def _known(arguments: argparse.Namespace) -> NamespaceId | None:
    """Return the id of what has one name everywhere, or of a parent."""
    if arguments.topic is not None:
        return topic_namespace(arguments.topic)
    if arguments.namespace is not None:
        return _hex_id(arguments.namespace, "--namespace")
    if arguments.parent is not None:
        parent = _hex_id(arguments.parent, "--parent")
        return derived_namespace(parent, _given(arguments.path, "--path").encode())
    if arguments.intent is not None:
        return intent_namespace(Intent[arguments.intent.upper()])
    return key_directory_namespace() if arguments.directory else None


def _of_parties(arguments: argparse.Namespace) -> NamespaceId:
    """Return the id of a conversation or of a key ceremony."""
    naming = Naming.SPEC if arguments.spec_names else Naming.CHAT
    if arguments.ceremony is not None:
        parent = _hex_id(arguments.ceremony, "--ceremony") if arguments.ceremony else None
        return dkg_namespace(parent, naming=naming)
    if arguments.direct is not None:
        first, second = (hex_bytes(each, None, "--direct") for each in arguments.direct)
        return direct_namespace(first, second, naming=naming)
    return group_namespace(hex_bytes(arguments.group, None, "--group"), naming=naming)


def _hex_id(text: str, name: str) -> NamespaceId:
    return NamespaceId(hex_bytes(text, NAMESPACE_BYTES, name))


def _given(text: str | None, name: str) -> str:
    if text is None:
        raise UsageError("it is needed with what was chosen", where=name)
    return text
