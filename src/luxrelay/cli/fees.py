"""fees issue, attach, show: prepaid quotas, and what a node has counted of them."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from luxrelay.bus import Identity, IdentityType, NamespaceId, topic_namespace
from luxrelay.bus import constants as c
from luxrelay.bus.fee import NONCE_BYTES, Prepaid
from luxrelay.bus.prepaid import SignedQuota
from luxrelay.cli.arguments import SubParsers, add_command, hex_bytes, whole_number
from luxrelay.cli.gateway import add_gateway, chosen_token
from luxrelay.cli.header import header_name, header_of
from luxrelay.cli.output import print_json
from luxrelay.cli.passphrase import add_passphrase_file, open_key
from luxrelay.cli.quotas import payer_of, read_quotas
from luxrelay.errors import BusArgumentError, HeaderError, UsageError

_DAY_MS: Final = 86_400_000


def register(commands: SubParsers) -> None:
    """Add the command."""
    fees = commands.add_parser("fees", help="issue, attach and show prepaid quotas")
    actions = fees.add_subparsers(dest="action", metavar="ACTION", required=True)
    _register_issue(actions)
    _register_attach(actions)
    _register_show(actions)


def _register_issue(actions: SubParsers) -> None:
    issue = add_command(
        actions,
        "issue",
        "print a signed quota in hex: its owner's messages, paid in advance",
        "luxrelay fees issue --key issuer.pem --network devnet --owner 0x01… --messages 1000 "
        "--topic /chat/1/room > alice.quota",
        _issue,
    )
    issue.add_argument("--key", type=Path, required=True, metavar="FILE", help="the issuer's key")
    add_passphrase_file(issue)
    issue.add_argument("--network", required=True, metavar="NAME", help="network it is meant for")
    issue.add_argument(
        "--owner",
        required=True,
        metavar="HEX",
        help="who may spend it: a senderPubKey field (`keys export-public`) or an address of 20 "
        "bytes, of an Ed25519 or secp256k1 key",
    )
    issue.add_argument(
        "--messages",
        type=whole_number(1, c.MAX_U64),
        required=True,
        metavar="N",
        help="messages that it pays",
    )
    issue.add_argument(
        "--bytes",
        dest="bytes_total",
        type=whole_number(0, c.MAX_U64),
        default=None,
        metavar="N",
        help="blob bytes that it pays (default: 1,024 a message)",
    )
    ends = issue.add_mutually_exclusive_group()
    ends.add_argument(
        "--days",
        type=whole_number(1, 36_500),
        default=30,
        metavar="N",
        help="days from now until it ends (default %(default)s)",
    )
    ends.add_argument(
        "--expires-ms",
        type=whole_number(0, c.MAX_U64),
        default=None,
        metavar="N",
        help="the timestamp of the last message that it pays, Unix milliseconds",
    )
    place = issue.add_mutually_exclusive_group(required=True)
    place.add_argument("--topic", metavar="TEXT", help="it pays in this content topic's namespace")
    place.add_argument("--namespace", metavar="HEX", help="it pays in this namespace and its lanes")
    place.add_argument("--anywhere", action="store_true", help="it pays in every namespace")
    issue.add_argument("--json", action="store_true", help="print JSON, with the hex in it")


def _register_attach(actions: SubParsers) -> None:
    attach = add_command(
        actions,
        "attach",
        "print the hex of a signed header with a fee proof in it; its signature stays valid",
        "luxrelay fees attach 0x0100… --quota alice.quota --key alice.pem",
        _attach,
    )
    attach.add_argument(
        "--quota",
        type=Path,
        required=True,
        action="append",
        metavar="FILE",
        help="quotas in hex, one a line; the first that pays the message is taken",
    )
    attach.add_argument("--key", type=Path, required=True, metavar="FILE", help="the owner's key")
    add_passphrase_file(attach)
    attach.add_argument(
        "input",
        nargs="?",
        default="-",
        metavar="HEX",
        help="the header, a file that holds it, or - for standard input",
    )


def _register_show(actions: SubParsers) -> None:
    show = add_command(
        actions,
        "show",
        "print quotas as JSON, with what a node has counted of them",
        "luxrelay fees show alice.quota --gateway 127.0.0.1:9643",
        _show,
    )
    add_gateway(show, default=None)
    show.add_argument(
        "quota", type=Path, nargs="+", metavar="FILE", help="quotas in hex, one a line"
    )


def _issue(arguments: argparse.Namespace) -> int:
    key = open_key(arguments.key, arguments.passphrase_file)
    expires_ms = arguments.expires_ms
    if expires_ms is None:
        expires_ms = time.time_ns() // 1_000_000 + arguments.days * _DAY_MS
    owner = hex_bytes(arguments.owner, None, "--owner")
    kind = IdentityType.WALLET if len(owner) == c.ADDRESS_BYTES else IdentityType.RAW_KEY
    total = arguments.bytes_total
    try:
        unsigned = Prepaid(
            owner=Identity(kind, owner),
            namespace_id=_place(arguments),
            messages=arguments.messages,
            bytes_total=min(c.MAX_U64, 1024 * arguments.messages) if total is None else total,
            expires_at=expires_ms,
            nonce=os.urandom(NONCE_BYTES),
            issuer=key.public_field,
        )
        signed = SignedQuota(network=arguments.network, quota=unsigned)
        signed = replace(signed, quota=unsigned.issued_by(key, arguments.network))
    except BusArgumentError as error:
        raise UsageError(error.what, where="fees issue") from error
    text = "0x" + signed.encode().hex()
    if arguments.json:
        print_json({"quota": text, **_shown(signed)})
    else:
        print(text)
    return 0


def _place(arguments: argparse.Namespace) -> NamespaceId:
    if arguments.anywhere:
        return NamespaceId(bytes(c.NAMESPACE_BYTES))
    if arguments.topic is not None:
        return topic_namespace(arguments.topic)
    return NamespaceId(hex_bytes(arguments.namespace, c.NAMESPACE_BYTES, "--namespace"))


def _attach(arguments: argparse.Namespace) -> int:
    from luxrelay.bus import verify_header  # noqa: PLC0415  with the schemes' libraries

    header = header_of(arguments)
    if not verify_header(header):
        raise HeaderError(
            "the signature does not verify, or is bound to a network, where it covers the proof",
            where=header_name(arguments.input),
            hint="`luxrelay header sign --quota FILE --bound NETWORK` signs with the proof in it",
        )
    key = open_key(arguments.key, arguments.passphrase_file)
    payer = payer_of(key, [quota for path in arguments.quota for quota in read_quotas(path)])
    print("0x" + payer.pay(header, header.sender_pub_key).encode().hex())
    return 0


def _show(arguments: argparse.Namespace) -> int:
    quotas = [quota for path in arguments.quota for quota in read_quotas(path)]
    shown = [_shown(each) for each in quotas]
    if arguments.gateway is not None:
        _ask(arguments, quotas, shown)
    print_json(shown)
    return 0


def _ask(
    arguments: argparse.Namespace, quotas: list[SignedQuota], shown: list[dict[str, Any]]
) -> None:
    """Add to each quota what a node has counted of it, and whether it honours it."""
    from luxrelay.client import RelayClient  # noqa: PLC0415  for those who ask

    with RelayClient(
        arguments.gateway,
        token=chosen_token(arguments),
        timeout_s=arguments.timeout_s,
        token_in_clear=arguments.token_in_clear,
    ) as client:
        limits = client.described("/v1/limits")
        for signed, each in zip(quotas, shown, strict=True):
            use, quota = client.quota(signed.account), signed.quota
            each["node"] = {
                "honoured": limits.get("network") == signed.network
                and each["issuer"] in limits.get("prepaidIssuers", ()),
                "messagesUsed": use.messages_used,
                "messagesLeft": max(0, quota.messages - use.messages_used),
                "bytesUsed": use.bytes_used,
                "bytesLeft": max(0, quota.bytes_total - use.bytes_used),
            }


def _shown(signed: SignedQuota) -> dict[str, Any]:
    quota = signed.quota
    left_ms = quota.expires_ms - time.time_ns() // 1_000_000
    anywhere = not any(quota.namespace_id)
    return {
        "account": "0x" + signed.account.hex(),
        "network": signed.network,
        "issuer": "0x" + quota.issuer.hex(),
        "owner": "0x" + quota.owner.value.hex(),
        "namespaceId": None if anywhere else "0x" + quota.namespace_id.hex(),
        "messagesLimit": quota.messages,
        "bytesLimit": quota.bytes_total,
        "expiresMs": quota.expires_ms,
        "endsInMs": max(0, left_ms),
        "signatureValid": signed.verify(),
        "valid": signed.verify() and left_ms >= 0,
    }
