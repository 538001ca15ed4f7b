"""Arguments that several commands share, with their checks."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from luxrelay.bus import CiphertextType, NamespaceId, TFHECiphertext, topic_namespace
from luxrelay.bus.constants import MAX_U64
from luxrelay.bus.sidecar import MAX_CIPHERTEXT_BYTES
from luxrelay.errors import UsageError
from luxrelay.files import read_bounded
from luxrelay.wire import from_hex

if TYPE_CHECKING:
    from luxrelay.sync import RelaySyncClient

SubParsers = Any
"""What argparse's add_subparsers returns; its class is private."""

DEFAULT_RELAY: Final = "127.0.0.1:9641"
"""The sync port of a node with the default configuration (P37)."""


def add_command(
    commands: SubParsers,
    name: str,
    summary: str,
    example: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Return the parser of a new subcommand with its example."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_relay(parser: argparse.ArgumentParser) -> None:
    """Add --relay, --timeout-s and the files of TLS."""
    parser.add_argument(
        "--relay",
        default=DEFAULT_RELAY,
        metavar="HOST:PORT",
        help="sync port of the relay to ask (default %(default)s)",
    )
    add_timeout(parser)
    for name, words in (
        ("--tls-ca", "authorities of the relay, PEM; with it the connection is over TLS"),
        ("--tls-certificate", "certificate to show to the relay, PEM"),
        ("--tls-key", "private key of that certificate, PEM"),
    ):
        parser.add_argument(name, type=Path, default=None, metavar="FILE", help=words)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """Add --timeout-s for commands that ask relays."""
    parser.add_argument(
        "--timeout-s",
        type=whole_number(1, 3_600),
        default=None,
        metavar="N",
        help="seconds that a relay has for each call (default 10, for a page of messages 30, for "
        "what is published 60)",
    )


def open_relay(arguments: argparse.Namespace, token: str = "") -> RelaySyncClient:
    """Return a client of the relay that --relay names, over TLS when a --tls option is given.

    ``token`` is for the gRPC port of a gateway; a sync port asks for none.

    Raises:
        SyncArgumentError: the address is none, or a file is not what it should be.

    """
    from luxrelay.sync import (  # noqa: PLC0415  gRPC, for those who ask
        ClientTls,
        RelaySyncClient,
        SyncClientConfig,
    )

    files = (arguments.tls_ca, arguments.tls_certificate, arguments.tls_key)
    tls = ClientTls.from_files(*files) if any(files) else None
    config = SyncClientConfig.waiting(arguments.timeout_s)
    in_clear = bool(token) and arguments.token_in_clear
    return RelaySyncClient(
        arguments.relay, config=config, tls=tls, token=token, token_in_clear=in_clear
    )


def add_namespace(parser: argparse.ArgumentParser) -> None:
    """Add --topic and --namespace, of which one is given."""
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--topic", metavar="TEXT", help="content topic, such as /chat/1/room")
    group.add_argument("--namespace", metavar="HEX", help="namespace id, 40 hex digits")


def chosen_namespace(arguments: argparse.Namespace) -> NamespaceId:
    """Return the namespace that --topic or --namespace names.

    Raises:
        UsageError: the id is not 40 hex digits, or the topic is not UTF-8.

    """
    if arguments.topic is not None:
        try:
            return topic_namespace(arguments.topic)
        except UnicodeEncodeError as error:
            raise UsageError("the topic is not UTF-8", where="--topic") from error
    return NamespaceId(hex_bytes(arguments.namespace, 20, "--namespace"))


def hex_bytes(text: str, length: int | None, name: str) -> bytes:
    """Return the bytes of hex digits, with or without 0x.

    Raises:
        UsageError: the text is not hex or has another length.

    """
    try:
        return from_hex(text.strip(), length)
    except ValueError as error:
        raise UsageError(str(error), where=name) from error


def whole_number(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return an argparse type: a whole number within bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= maximum:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {minimum:,} to {maximum:,}"
            )
        return value

    return parse


def add_sidecar(parser: argparse.ArgumentParser) -> None:
    """Add --sidecar and what says more of it."""
    parser.add_argument(
        "--sidecar",
        type=Path,
        metavar="FILE",
        help="carry the TFHE ciphertext in FILE in a sidecar, which relays take in networks with "
        'signing = "bound"',
    )
    parser.add_argument(
        "--sidecar-type",
        choices=[each.name.lower() for each in CiphertextType],
        default="bytes",
        help="what is encrypted (default %(default)s)",
    )
    parser.add_argument(
        "--sidecar-epoch",
        type=whole_number(0, MAX_U64),
        metavar="N",
        help="epoch of the TFHE keys (default: the hour of the message since 1970)",
    )


def chosen_ciphertext(arguments: argparse.Namespace) -> TFHECiphertext | None:
    """Return what --sidecar names; None without it.

    Raises:
        OSError: the file cannot be read or is too large.
        UsageError: it is empty.

    """
    if arguments.sidecar is None:
        return None
    data = read_bounded(arguments.sidecar, MAX_CIPHERTEXT_BYTES)
    if not data:
        raise UsageError("the ciphertext is empty", where="--sidecar")
    kind = CiphertextType[arguments.sidecar_type.upper()]
    return TFHECiphertext(type=kind, data=data, epoch=arguments.sidecar_epoch)
