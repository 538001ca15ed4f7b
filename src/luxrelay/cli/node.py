"""node init, node check, node run, node token: one relay from its configuration file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from luxrelay.cli import token
from luxrelay.cli.arguments import SubParsers, add_command
from luxrelay.cli.output import print_json, printable
from luxrelay.errors import ConfigError, NodeError, UsageError
from luxrelay.node.config import NodeConfig, load_config, problems_of
from luxrelay.node.document import unknown_variables
from luxrelay.node.folder import IDENTITY_FILE, DataFolder
from luxrelay.node.policies import load_registry
from luxrelay.node.settings import PROFILES
from luxrelay.node.template import commented_file

_FILE: Final = "relay.toml"


def register(commands: SubParsers) -> None:
    """Add the command."""
    node = commands.add_parser("node", help="make a relay's file, check it, run the relay")
    actions = node.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary, run in (
        ("run", "run a relay until SIGTERM or Ctrl-C", _run),
        ("check", "check a configuration file and say everything that is wrong in it", _check),
    ):
        parser = add_command(actions, name, summary, f"luxrelay node {name} --config {_FILE}", run)
        parser.add_argument(
            "--config", type=Path, required=True, metavar="FILE", help="the TOML file"
        )
    parser.add_argument("--json", action="store_true", help="print JSON")  # check, the last one
    init = add_command(
        actions,
        "init",
        "write a commented configuration file with every key and its default, and the node's key",
        f"luxrelay node init --profile relay --topic /chat/1/room --out {_FILE}",
        _init,
    )
    init.add_argument(
        "--profile",
        choices=sorted(PROFILES),
        default="relay",
        help="what kind of node it is (default %(default)s)",
    )
    init.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TEXT",
        help="content topic to carry; may be given several times",
    )
    init.add_argument(
        "--out", type=Path, default=Path(_FILE), metavar="FILE", help="default %(default)s"
    )
    token.register(actions)


def _run(arguments: argparse.Namespace) -> int:
    from luxrelay.node.node import run_node  # noqa: PLC0415  libp2p takes seconds to import

    def read() -> NodeConfig:
        return load_config(arguments.config, os.environ)

    config = read()
    return run_node(config, read, early=arguments.early, doubts=unknown_variables(os.environ))


def _check(arguments: argparse.Namespace) -> int:
    problems = problems_of(arguments.config, os.environ)
    doubts = unknown_variables(os.environ)
    if arguments.json:
        if not problems:
            load_registry(load_config(arguments.config, os.environ))
        shown = [{"where": p.where, "what": p.what, "hint": p.hint} for p in problems]
        print_json({"problems": shown, "doubts": doubts})
        return 1 if problems else 0
    for doubt in doubts:
        print(f"luxrelay: {printable(doubt)}", file=sys.stderr)
    if problems:
        for problem in problems:
            print(f"luxrelay: {printable(str(problem))}", file=sys.stderr)
        return 1
    config = load_config(arguments.config, os.environ)
    load_registry(config)
    print(f"{arguments.config}: well-formed; profile {config.profile}, {_carried(config)}")
    return 0


def _carried(config: NodeConfig) -> str:
    count = len(config.namespaces)
    if config.following.carry == "open":
        return f"{count} namespaces, and every other one whose policy can be told"
    if not count:
        return "no namespaces: it takes no messages until one is listed or followed"
    return "1 namespace" if count == 1 else f"{count} namespaces"


def _init(arguments: argparse.Namespace) -> int:
    text = commented_file(arguments.profile, arguments.topic)
    try:
        with arguments.out.open("x") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(
            "the file exists already", where=str(arguments.out), hint="give another with --out"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"cannot write the file: {error.strerror}", where=str(arguments.out)
        ) from error
    try:
        folder = DataFolder(load_config(arguments.out).data_dir)
        folder.identity()
    except (ConfigError, NodeError):
        arguments.out.unlink()  # so that the command may be given again
        raise
    identity = folder.path / IDENTITY_FILE
    print(f"wrote {arguments.out} and {identity}, the node's own key")
    print(f"next: luxrelay node run --config {arguments.out}")
    return 0
