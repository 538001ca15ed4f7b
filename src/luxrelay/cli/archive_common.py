"""Shared parts of the archive subcommands: Spark session, folders, relays, output."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from luxrelay.bus.signed_policy import SignedPolicy
from luxrelay.cli.arguments import DEFAULT_RELAY, SubParsers, whole_number
from luxrelay.cli.output import print_json, table
from luxrelay.errors import UsageError
from luxrelay.node.policies import read_policy_file
from luxrelay.wire import from_hex

if TYPE_CHECKING:
    from luxrelay.archive import ArchiveSession
    from luxrelay.archive.rules import ArchiveRules
    from luxrelay.archive.statements import Statements

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


def add_action(
    actions: SubParsers,
    name: str,
    summary: str,
    more: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Return the parser of a subcommand that runs Spark."""
    example = f"luxrelay archive {name} --out archive{more}"
    parser: argparse.ArgumentParser = actions.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"example: {example}",
        parents=[_SESSION],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    add_out(parser)
    return parser


def add_out(parser: argparse.ArgumentParser) -> None:
    """Add --out."""
    parser.add_argument(
        "--out", type=Path, default=Path("archive"), metavar="FOLDER", help="the archive folder"
    )


def add_relays(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add --relay, which may be given again."""
    parser.add_argument(
        "--relay",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="sync port of a relay; may be given again"
        + (f" (default {DEFAULT_RELAY})" if required else ""),
    )


def add_tls(parser: argparse.ArgumentParser) -> None:
    """Add the files by which relays are spoken to over TLS."""
    for name, text in (
        ("ca", "the authority of the relays"),
        ("certificate", "our own certificate"),
        ("key", "its key"),
    ):
        parser.add_argument(
            f"--tls-{name}", metavar="FILE", help=f"PEM file with {text}, read where tasks run"
        )


def tls_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of the source that name such files."""
    names = {"tlsCa": "tls_ca", "tlsCertificate": "tls_certificate", "tlsKey": "tls_key"}
    return {key: value for key, name in names.items() if (value := getattr(arguments, name))}


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add the options that say by which rules messages are checked."""
    parser.add_argument(
        "--policies", type=Path, action="append", default=[], metavar="FILE",
        help="signed policies, as `luxrelay policy sign` writes them; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--network", metavar="NAME", help="network of the policies and the statements"
    )
    parser.add_argument(
        "--bound", action="store_true", help="signatures of the network are bound (H3)"
    )


def rules_of(arguments: argparse.Namespace) -> ArchiveRules:
    """Return the rules that the options name."""
    from luxrelay.archive.rules import ArchiveRules  # noqa: PLC0415  with the extra only

    if arguments.bound and not arguments.network:
        raise UsageError("bound signatures name their network", where="--network")
    documents: list[SignedPolicy] = []
    for path in arguments.policies:
        documents += read_policy_file(path)
    return ArchiveRules.of(documents, network=arguments.network, bound=arguments.bound)


def add_finality(parser: argparse.ArgumentParser) -> None:
    """Add the options that name signed statements; --network is the caller's to add."""
    parser.add_argument(
        "--finality", type=Path, metavar="FILE", help="signed statements, one in hex a line"
    )
    parser.add_argument(
        "--finality-signer",
        action="append",
        default=[],
        metavar="HEX",
        help="key field of one whose statements count; may be given again",
    )


def statements_of(arguments: argparse.Namespace) -> Statements | None:
    """Return the statements that the options name; None when they name none."""
    from luxrelay.archive.statements import Statements  # noqa: PLC0415  with the extra only

    if arguments.finality is None and not arguments.finality_signer:
        return None
    if arguments.finality is None or not arguments.finality_signer or not arguments.network:
        raise UsageError("name a file, its signers and their network", where="--finality")
    try:
        signers = [from_hex(each) for each in arguments.finality_signer]
    except ValueError:
        raise UsageError("a key field is written in hex", where="--finality-signer") from None
    return Statements(path=arguments.finality, network=arguments.network, signers=tuple(signers))


def open_session(arguments: argparse.Namespace) -> ArchiveSession:
    """Start Spark as the options say."""
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


def show(arguments: argparse.Namespace, values: dict[str, Any]) -> None:
    """Print values as a table, or as JSON when asked."""
    if arguments.json:
        print_json(values)
    else:
        print(table(("what", "value"), list(values.items())))
