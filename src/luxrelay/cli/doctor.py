"""doctor: is everything here that a node, the demo and the archive need?

With ``--gateway`` it asks a running node as well how far its clock is from its peers' (G36).
"""

from __future__ import annotations

import argparse
import importlib.util
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from luxrelay.bus.constants import LIVE_TOLERANCE_MS
from luxrelay.cli.arguments import SubParsers, add_command
from luxrelay.cli.gateway import add_gateway, chosen_token, clock_text
from luxrelay.cli.output import print_json, table
from luxrelay.client import RelayClient
from luxrelay.errors import ArchiveError, LuxRelayError

_CLOCK_MS: Final = 5_000
"""Offset of a node's clock above which a note says so, milliseconds."""
_PORTS: Final = (("gossip", 9640), ("sync", 9641), ("http", 9642))


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str
    """What was looked at."""
    state: str
    """``ok``, ``note`` (works without) or ``fail``."""
    found: str
    """What is there."""
    remedy: str = ""
    """What to do, unless all is well."""


def register(commands: SubParsers) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "doctor",
        "check Python, libraries, ports, Java and jars, and a node's clock; say what to do",
        "luxrelay doctor",
        _run,
    )
    add_gateway(parser, default=None)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(arguments: argparse.Namespace) -> int:
    findings = [finding for check in _CHECKS for finding in check()]
    silent: LuxRelayError | None = None
    if arguments.gateway:
        try:
            findings.append(_clock(arguments))
        except LuxRelayError as error:  # what else was found is told all the same
            silent = error
            findings.append(Finding("clock", "fail", "the node does not tell", "see below"))
    if arguments.json:
        print_json([{s: getattr(f, s) for s in f.__slots__} for f in findings])
    else:
        rows = [(f.check, f.state, f.found, f.remedy) for f in findings]
        print(table(("check", "state", "found", "what to do"), rows))
    if silent is not None:
        raise silent
    return 1 if any(finding.state == "fail" for finding in findings) else 0


def _clock(arguments: argparse.Namespace) -> Finding:
    with RelayClient(
        arguments.gateway,
        token=chosen_token(arguments),
        timeout_s=arguments.timeout_s,
        token_in_clear=arguments.token_in_clear,
    ) as client:
        clock = client.described("/v1/peers").get("clock")
    if clock is None:
        return Finding("clock", "note", "not told", "the node is older than this command")
    off_ms = abs(clock["offsetMs"]) if clock["known"] else 0
    state = "fail" if off_ms > LIVE_TOLERANCE_MS else "note" if off_ms > _CLOCK_MS else "ok"
    remedy = "" if state == "ok" else "set the machine's clock, and keep it by NTP"
    if not clock["known"]:
        state, remedy = "note", "two peers at least have to tell their clocks"
    return Finding("clock", state, clock_text(clock), remedy)


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    fits = sys.version_info[:2] >= (3, 11)
    remedy = "" if fits else "install Python 3.11, 3.12 or 3.13"
    yield Finding("python", "ok" if fits else "fail", version, remedy)
    if sys.version_info[:2] >= (3, 14):
        yield Finding("python 3.14", "note", "coincurve has no wheel yet", "use 3.11 to 3.13")


def _libraries() -> Iterator[Finding]:
    for name, extra in (
        ("rocksdict", ""),
        ("libp2p", ""),
        ("grpc", ""),
        ("nacl", ""),
        ("pyspark", "archive"),
        ("delta", "archive"),
        ("pyarrow", "archive"),
    ):
        if importlib.util.find_spec(name) is not None:
            yield Finding(name, "ok", "installed")
        elif extra:
            yield Finding(name, "note", "missing", f"pip install 'luxrelay[{extra}]'")
        else:
            yield Finding(name, "fail", "missing", "pip install luxrelay")


def _compiler() -> Iterator[Finding]:
    """libp2p's fastecdsa compiles at installation; once it is there nothing is missing."""
    if importlib.util.find_spec("fastecdsa") is not None:
        yield Finding("fastecdsa", "ok", "installed")
        return
    header = Path(sysconfig.get_paths()["include"]).parent / "gmp.h"
    yield Finding(
        "fastecdsa",
        "fail",
        "missing" if header.exists() else "missing; so is gmp.h",
        "install a C compiler and libgmp's headers (gcc, libgmp-dev), then luxrelay again",
    )


def _ports() -> Iterator[Finding]:
    for name, port in _PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                yield Finding(
                    f"port {port} ({name})",
                    "note",
                    error.strerror or "not free",
                    f"set another {name}.listen in the configuration",
                )
            else:
                yield Finding(f"port {port} ({name})", "ok", "free")


def _folder() -> Iterator[Finding]:
    try:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "probe").write_bytes(b"x")
    except OSError as error:
        yield Finding(
            "temporary folder", "fail", str(error), "set TMPDIR to a folder you may write"
        )
    else:
        yield Finding("temporary folder", "ok", tempfile.gettempdir())


def _java_and_jars() -> Iterator[Finding]:
    if importlib.util.find_spec("pyspark") is None:
        yield Finding("java", "note", "not asked", "only the archive needs it")
        return
    from luxrelay.archive.jars import find_jars, jar_folders  # noqa: PLC0415  only with the extra
    from luxrelay.archive.java import find_java  # noqa: PLC0415  only with the extra

    try:
        java = find_java()
        yield Finding("java", "ok", f"{java.major} at {java.path}")
    except ArchiveError as error:
        yield Finding("java", "fail", error.what, error.hint)
    jars = find_jars(jar_folders())
    if jars:
        yield Finding("delta jars", "ok", str(jars[0].parent))
    else:
        yield Finding(
            "delta jars",
            "note",
            "not on this machine",
            "python -m luxrelay.archive.jars fetches them; else Spark does at its first start",
        )


_CHECKS: Final[tuple[Callable[[], Iterator[Finding]], ...]] = (
    _python,
    _libraries,
    _compiler,
    _folder,
    _ports,
    _java_and_jars,
)
