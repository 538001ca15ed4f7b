"""node run, node check: one relay from its configuration file."""

from __future__ import annotations

import argparse
from pathlib import Path

from luxrelay.cli.arguments import SubParsers, add_command
from luxrelay.node.config import load_config
from luxrelay.node.policies import load_registry


def register(commands: SubParsers) -> None:
    """Add the command."""
    node = commands.add_parser("node", help="run a relay, or check its configuration")
    actions = node.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary, run in (
        ("run", "run a relay until SIGTERM or Ctrl-C", _run),
        ("check", "check a configuration file and say what is wrong", _check),
    ):
        parser = add_command(
            actions, name, summary, f"luxrelay node {name} --config relay.toml", run
        )
        parser.add_argument(
            "--config", type=Path, required=True, metavar="FILE", help="the TOML file"
        )


def _run(arguments: argparse.Namespace) -> int:
    from luxrelay.node.node import run_node  # noqa: PLC0415  libp2p takes seconds to import

    return run_node(load_config(arguments.config))


def _check(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config)
    load_registry(config)
    print(f"{arguments.config}: well-formed; {len(config.namespaces)} namespaces")
    return 0
