"""archive restore and serve: from the tables back to relays; they need no Java."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from luxrelay.cli.archive_common import add_out, add_rules, rules_of, show
from luxrelay.cli.arguments import SubParsers, add_command, hex_bytes, whole_number
from luxrelay.cli.output import Progress, printable
from luxrelay.errors import ArchiveError, UsageError
from luxrelay.store import RelayStore, RelayStoreConfig

if TYPE_CHECKING:
    from luxrelay.archive.serving import ArchiveStore
    from luxrelay.sync import RelaySyncServer

_BOUNDLESS: Final = 2**62
"""Bytes for a store whose node's limits this command does not know."""
_MS_PER_DAY: Final = 86_400_000


def register_restore(actions: SubParsers) -> None:
    """Add both subcommands."""
    restore = add_command(
        actions,
        "restore",
        "put the archive into an empty relay store; 1 when the roots differ",
        "luxrelay archive restore --out archive --store relay-data/store --days 30",
        _restore,
    )
    add_out(restore)
    restore.add_argument(
        "--store", type=Path, required=True, metavar="FOLDER", help="the store; made when absent"
    )
    restore.add_argument(
        "--namespace", metavar="HEX", action="append", help="only this one; may be given again"
    )
    restore.add_argument(
        "--days",
        type=whole_number(1, 36_500),
        default=30,
        metavar="N",
        help="messages older than this are left out (default %(default)s)",
    )
    add_rules(restore)
    restore.add_argument("--json", action="store_true", help="print JSON")
    _register_serve(actions)


def _register_serve(actions: SubParsers) -> None:
    serve = add_command(
        actions,
        "serve",
        "serve the archive on a sync port, as a relay that has not forgotten",
        "luxrelay archive serve --out archive --port 9651",
        _serve,
    )
    add_out(serve)
    serve.add_argument(
        "--port",
        type=whole_number(0, 65_535),
        default=9_651,
        metavar="N",
        help="TCP port; 0 lets the system choose (default %(default)s)",
    )
    serve.add_argument(
        "--query-port",
        type=whole_number(0, 65_535),
        metavar="N",
        help="also answer LP-6440's questions over HTTP on this port of the loopback",
    )
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where it listens (default %(default)s)",
    )
    for name, text in (
        ("certificate", "certificate chain; without it the port speaks in the clear"),
        ("key", "its private key, without a passphrase"),
        ("client-ca", "authorities whose clients alone are let in"),
    ):
        serve.add_argument(f"--tls-{name}", type=Path, metavar="FILE", help=f"PEM file: {text}")
    serve.add_argument(
        "--refresh",
        type=whole_number(1, 86_400),
        default=60,
        metavar="SECONDS",
        help="how often it looks for new messages (default %(default)s)",
    )


def _restore(arguments: argparse.Namespace) -> int:
    from luxrelay.archive.query import ArchiveReader  # noqa: PLC0415  with the extra only
    from luxrelay.archive.recovery import restore  # noqa: PLC0415  as above

    names = [hex_bytes(text, 20, "--namespace") for text in arguments.namespace or ()]
    reader, now_ms = ArchiveReader(arguments.out), time.time_ns() // 1_000_000
    span = arguments.days * _MS_PER_DAY
    config = RelayStoreConfig(
        max_storage_bytes=_BOUNDLESS,
        namespace_quota_bytes=_BOUNDLESS,
        cold_store_ttl_ms=span,
        retention_window_ms=span,
    )
    progress = Progress()
    with RelayStore.open(arguments.store, config, now_ms=now_ms) as store:
        if store.stats().messages:
            raise UsageError(
                "the store is not empty", where=str(arguments.store), hint="name a new folder"
            )
        done = restore(
            reader,
            store,
            now_ms=now_ms,
            namespaces=names or None,
            rules=rules_of(arguments),
            progress=lambda read: progress.update(f"{read:,} messages read"),
        )
    progress.close()
    show(
        arguments,
        {
            "read": done.read,
            "stored": done.stored,
            "surplusOfContestedSlots": done.surplus,
            "refused": done.refused,
            "expired": done.expired,
            "full": done.full,
            "root": "0x" + done.root.hex(),
            "whole": done.whole,
        },
    )
    return 0 if done.whole else 1


def _serve(arguments: argparse.Namespace) -> int:
    from luxrelay.archive.serving import ArchiveStore  # noqa: PLC0415  with the extra only
    from luxrelay.archive.store_query import (  # noqa: PLC0415  as above
        StoreQueryServer,
        StoreQueryService,
    )

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    store = ArchiveStore(arguments.out)
    server = server_of(arguments, store)
    place = f"{arguments.host}:{server.start()}"
    print(f"serving {arguments.out} at {place}", file=sys.stderr, flush=True)
    try:
        with ExitStack() as stack:
            seen: list[Refreshed] = [store]
            if arguments.query_port is not None:
                service = StoreQueryService(arguments.out)
                asked = stack.enter_context(StoreQueryServer(service, arguments.query_port))
                where = f"http://127.0.0.1:{asked.port}/v1/messages"
                print(f"answering questions at {where}", file=sys.stderr, flush=True)
                seen.append(service)
            keep_fresh(seen, stop, arguments.refresh)
    finally:
        server.stop(5)
    return 0


def server_of(arguments: argparse.Namespace, store: ArchiveStore) -> RelaySyncServer:
    """Return the server that the options describe; it is not started yet.

    Raises:
        UsageError: a certificate without its key, or clients' authorities without either.
        SyncArgumentError: a file cannot be read or is not what it should be.

    """
    from luxrelay.sync import ServerTls, SyncServerConfig  # noqa: PLC0415  gRPC
    from luxrelay.sync.rpc.gateway_server import SearchRpcServer  # noqa: PLC0415  gRPC

    certificate, key = arguments.tls_certificate, arguments.tls_key
    if (certificate is None) != (key is None):
        raise UsageError("a certificate and its key belong together", where="--tls-key")
    if arguments.tls_client_ca is not None and certificate is None:
        raise UsageError(
            "clients cannot show a certificate to a port that speaks in the clear",
            where="--tls-client-ca",
            hint="give --tls-certificate and --tls-key as well",
        )
    tls = None
    if certificate is not None:
        tls = ServerTls.from_files(certificate, key, arguments.tls_client_ca)
    return SearchRpcServer(
        store,
        SyncServerConfig(host=arguments.host, port=arguments.port),
        clock_ms=lambda: time.time_ns() // 1_000_000,
        tls=tls,
    )


class Refreshed(Protocol):
    """What is looked at again and again."""

    def refresh(self) -> None:
        """Look at the tables as they are now."""


def keep_fresh(seen: Sequence[Refreshed], stop: threading.Event, every_s: float) -> None:
    """Look at the tables again and again until ``stop``; one that fails is told and tried again."""
    while not stop.wait(every_s):
        for each in seen:
            try:
                each.refresh()
            except ArchiveError as error:
                print(f"luxrelay: {printable(str(error))}", file=sys.stderr, flush=True)
