"""Write the reference pages that are made from code; `--check` says whether they are current."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from prometheus_client import Metric

from luxrelay.archive.schema import RAW, TABLES
from luxrelay.bus import structure
from luxrelay.bus.semantics import LIVE_RULES, PROVEN_RULES, SYNC_RULES, VALIDATOR_RULES
from luxrelay.cli.main import build_parser
from luxrelay.errors import CATALOGUE
from luxrelay.gossip import GossipStats
from luxrelay.net import DriverCounters, HostStats, NetStats
from luxrelay.net.guarded import Faults
from luxrelay.net.swarm import SwarmCounters
from luxrelay.net.yamux import MuxCounters
from luxrelay.node.catch_up import CatchUpTotals
from luxrelay.node.gateway.service import GatewayStats
from luxrelay.node.metrics import NodeCollector, Sources
from luxrelay.node.rates import LAYERS
from luxrelay.node.rounds import Rounds
from luxrelay.node.settings import KEYS, PROFILES
from luxrelay.node.stages.deliver import LatencyHistogram
from luxrelay.node.stages.verify import VerdictCounts
from luxrelay.node.totals import BLOBS, STREAMS
from luxrelay.sim.faults import KINDS
from luxrelay.sim.measures import MEANINGS
from luxrelay.sim.scenario import SECTIONS, Expectation
from luxrelay.store import RelayStore, RelayStoreConfig
from luxrelay.sync.rpc.stats import SyncCounters

if TYPE_CHECKING:
    from luxrelay.node.ingress import Doors

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
NOTE = "<!-- Made by tools/generate_reference.py from the code; do not edit. -->\n\n"
ROFF_NOTE = '.\\" ' + NOTE.removeprefix("<!-- ").replace(" -->\n", "")


def config_page() -> str:
    """Return config.md: every key of a node's file."""
    lines = [
        "# The configuration of a node\n",
        "One TOML file; `luxrelay node init` writes it with every key in a comment, and",
        "`luxrelay node check --config FILE` says all that is wrong in it and where.\n",
        "A variable of the environment overrides a key: `LUXRELAY_STORE_TTL_MS=60000` stands for",
        "`[store] ttl_ms = 60000`; the entries of a list stand between commas.\n",
        "J2, P34 and their like are [decisions](../decisions/protocol.md).\n",
    ]
    section = ""
    for key in KEYS:
        if key.section != section:
            section = key.section
            title = f"[[{section}]]" if section == "namespace" else f"[{section}]"
            lines += [f"\n## {title}\n", "| key | default | unit | meaning |", "|---|---|---|---|"]
        default = "(required)" if key.default is None else f"`{_toml(key.default)}`"
        lines.append(f"| `{key.name}` | {default} | {key.unit} | {key.sentence} |")
    lines += [
        "\n## Profiles\n",
        "`node.profile` changes these defaults; what the file says counts all the same.\n",
        "| key | " + " | ".join(PROFILES) + " |",
        "|---|" + "---|" * len(PROFILES),
    ]
    defaults = {(key.section, key.name): key.default for key in KEYS}
    for place in sorted({place for changes in PROFILES.values() for place in changes}):
        values = [_toml(changes.get(place, defaults[place])) for changes in PROFILES.values()]
        lines.append(f"| `{place[0]}.{place[1]}` | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def errors_page() -> str:
    """Return errors.md: every error code."""
    lines = [
        "# Errors\n",
        "Each error has a stable code. Its text is one line: what was wrong; where; what to do.\n",
        "| code | meaning | what to do |",
        "|---|---|---|",
    ]
    lines += [f"| `{e.code}` | {e.meaning} | {e.remedy} |" for e in CATALOGUE.values()]
    return "\n".join(lines) + "\n"


def verdicts_page() -> str:
    """Return verdicts.md: every rule on a message, in the order in which it is asked."""
    lines = [
        "# Verdicts\n",
        "A message is accepted, ignored (nobody's fault) or rejected (counted against the peer).",
        "The first rule it breaks decides; rules are asked in this order. Letters with numbers are",
        "[decisions](../decisions/protocol.md).\n",
        "## Structure: REJECT\n",
        "| code | rule broken | source |",
        "|---|---|---|",
    ]
    for code, (section, reason) in structure.REASONS.items():
        lines.append(f"| {code.value} `{code.name.lower()}` | {reason} | {section} |")
    lines.append(
        "\n1111 is asked after each length field, and for the sidecar reference before 1121."
    )
    for title, rules in (
        ("Live: gossip and publish", LIVE_RULES),
        ("History: sync", SYNC_RULES),
        ("In order: a validator's view", VALIDATOR_RULES),
        ("After the signature, everywhere", PROVEN_RULES),
    ):
        lines += [
            f"\n## {title}\n",
            "| code | verdict | rule broken | source |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {r.code.value} `{r.code.name.lower()}` | {r.kind.name} | {r.reason} | {r.section} |"
            for r in rules
        ]
    lines.append(
        "\nBetween the rules of a view and those after the signature stand the blob, the\n"
        "announcement's signature and the sender's signature. Rules on policies, fees, finality,\n"
        "slots and rates are asked where the node knows what they need. The view in order is a\n"
        "subscription's ([ordered](http.md)): clock, rates and fees were asked when a message\n"
        "came, so it asks the other rules of its table."
    )
    return "\n".join(lines) + "\n"


def command_page() -> str:
    """Return command.md: every subcommand with its options and its example."""
    lines = [
        "# The command\n",
        "Exit codes: 0 success, 1 a clear error on standard error, 2 wrong usage.",
    ]
    for words, parser in _subcommands(build_parser(), []):
        lines += [f"\n## luxrelay {' '.join(words)}\n", f"{_sentence(parser.description)}\n"]
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [_argument(action) for action in parser._actions if action.dest != "help"]
        lines.append(f"\n    {(parser.epilog or '').removeprefix('example: ')}")
    return "\n".join(lines) + "\n"


def _subcommands(
    parser: argparse.ArgumentParser, words: list[str]
) -> Iterator[tuple[list[str], argparse.ArgumentParser]]:
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    for action in inner:
        for name, below in action.choices.items():
            yield from _subcommands(below, [*words, name])
    if not inner:
        yield words, parser


def _argument(action: argparse.Action) -> str:
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar}`"
    value = f" `{action.metavar}`" if action.option_strings and action.metavar else ""
    fields = {"default": action.default}
    return f"| {names}{value} | {_sentence((action.help or '') % fields)} |"


def _sentence(text: str | None) -> str:
    words = text or ""
    return words[:1].upper() + words[1:] + "."


def manual_page() -> str:
    """Return luxrelay.1: the command as a manual page, in roff."""
    lines = [
        '.TH LUXRELAY 1 "" "LuxRelay" "User commands"',
        ".SH NAME",
        "luxrelay \\- a message bus without a master: relays, their store, and their archive",
        ".SH SYNOPSIS",
        ".B luxrelay",
        "COMMAND ...",
        ".SH DESCRIPTION",
        "Each command below says what it does, its arguments, and an example.",
        ".SH COMMANDS",
    ]
    for words, parser in _subcommands(build_parser(), []):
        lines += [f".SS luxrelay {' '.join(words)}", _roff(_sentence(parser.description))]
        for action in parser._actions:
            if action.dest == "help":
                continue
            names = ", ".join(action.option_strings) or str(action.metavar)
            value = f" {action.metavar}" if action.option_strings and action.metavar else ""
            meaning = _sentence((action.help or "") % {"default": action.default})
            lines += [".TP", f".B {_roff(names + value)}", _roff(meaning)]
        lines += [".PP", "Example:", _roff((parser.epilog or "").removeprefix("example: "))]
    lines += [
        ".SH EXIT STATUS",
        "0 success, 1 a clear error on standard error, 2 wrong usage, 130 interrupted.",
        ".SH SEE ALSO",
        "The documentation in docs/: tutorial, how\\-to, reference, explanation.",
    ]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Return text that roff takes for text."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("\n", " ")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


def metrics_page() -> str:
    """Return metrics.md: every metric a node exports, read from a node that has done nothing."""
    lines = ["# Metrics\n", "| name | type | labels | meaning |", "|---|---|---|---|"]
    for metric in sorted(_idle_metrics(), key=lambda metric: metric.name):
        name = metric.name + ("_total" if metric.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in getattr(metric, "_labelnames", ()))
        lines.append(f"| `{name}` | {metric.type} | {labels} | {metric.documentation} |")
    lines.append(
        "\nNames that begin with `relay_` are those of LP-6420 and LP-6421, `luxda_` those of "
        "LP-6491. Those that the retention\ndocument has under `p2pmes_` stand under `luxrelay_`, "
        "with namespaces where it has chats.\nLabels come from closed sets; `topic` is one of a "
        "configured namespace."
    )
    return "\n".join(lines) + "\n"


def _idle_metrics() -> list[Metric]:
    net = NetStats(
        host=HostStats(
            inbound=0,
            outbound=0,
            peers=0,
            bytes_in=0,
            bytes_out=0,
            swarm=SwarmCounters(),
            mux=MuxCounters(),
        ),
        router=GossipStats(),
        driver=DriverCounters(),
        peers={},
    )
    with tempfile.TemporaryDirectory() as folder:
        now_ms = 1_704_067_200_000
        store = RelayStore.open(Path(folder) / "store", RelayStoreConfig.small(), now_ms=now_ms)
        held = store.stats()
        store.close()
    counted = SimpleNamespace(counts=VerdictCounts(), latency=LatencyHistogram())
    rounds = Rounds(Faults(), clock=lambda: 0.0, stall_s=60.0)
    sources = Sources(
        net=lambda: net,
        store=lambda: held,
        sync=lambda: SyncCounters().snapshot(),
        doors=cast("Doors", counted),
        uptime_s=lambda: 0.0,
        clock_ms=lambda: now_ms,
        catch_up=lambda: dict.fromkeys(CatchUpTotals.__slots__, 0),
        blobs=lambda: dict.fromkeys(BLOBS, 0),
        streams=lambda: dict.fromkeys(STREAMS, 0),
        catch_up_lag=dict,
        rates=lambda: dict.fromkeys(LAYERS, 0),
        modules=dict,
        rounds=rounds.view,
        round_ages=rounds.ages_s,
        faults=lambda: {"other": 0},
        gateway=GatewayStats.none,
    )
    return list(NodeCollector(sources).collect())


def tables_page() -> str:
    """Return tables.md: the archive's tables and the source's rows."""
    lines = ["# Tables of the archive\n"]
    for table in (*TABLES, replace(RAW, name="Rows of the source luxrelay")):
        lines += [f"\n## {table.name}\n", f"{table.meaning}\n"]
        if table.partition_by:
            lines.append(f"Partitioned by {', '.join(table.partition_by)}.\n")
        if table.cluster_by:
            lines.append(f"Clustered by {', '.join(table.cluster_by)} when compacted.\n")
        if table.key:
            lines.append(f"A row is named by {', '.join(table.key)}.\n")
        lines += ["| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{c.name}` | {c.kind.ddl} | {c.meaning} |" for c in table.columns]
    return "\n".join(lines) + "\n"


def scenario_page() -> str:
    """Return scenario.md: every setting of a simulation, and every measure."""
    lines = [
        "# The scenario of a simulation\n",
        "A TOML file; `luxrelay sim run FILE` says what is wrong and where. At the top stand",
        "`name`, `sentence` and `seed`. `[gossip]`, `[score]` and `[diversity]` take the fields of",
        "`GossipParams`, `ScoreParams` and `DiversityParams`.",
    ]
    for name, kind in SECTIONS.items():
        lines += [f"\n## [{name}]\n", *_settings(kind)]
    lines.append("\nEach `[[fault]]` has a `kind` and its settings.")
    for name, fault in KINDS.items():
        lines += [f'\n## [[fault]] kind = "{name}"\n', f"{fault.__doc__}\n", *_settings(fault)]
    lines += ["\n## [[expect]]\n", *_settings(Expectation)]
    lines += ["\n## Measures\n", "| measure | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in MEANINGS.items()]
    return "\n".join(lines) + "\n"


def _settings(kind: type) -> list[str]:
    rows = ["| key | default | unit | meaning |", "|---|---|---|---|"]
    for each in fields(kind):
        about = each.metadata
        rows.append(
            f"| `{each.name}` | `{_toml(each.default)}` | {about['unit']} | {about['sentence']} |"
        )
    return rows if len(rows) > 2 else []


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    return f'"{value}"' if isinstance(value, str) else f"{value}"


PAGES: dict[str, Callable[[], str]] = {
    "config.md": config_page,
    "errors.md": errors_page,
    "verdicts.md": verdicts_page,
    "command.md": command_page,
    "metrics.md": metrics_page,
    "tables.md": tables_page,
    "scenario.md": scenario_page,
    "luxrelay.1": manual_page,
}


def main() -> int:
    """Write every page, or compare; return 1 when a page is not current."""
    check = "--check" in sys.argv[1:]
    stale = []
    for name, make in PAGES.items():
        note = NOTE if name.endswith(".md") else ROFF_NOTE
        path, text = FOLDER / name, note + make()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not check:
                FOLDER.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    if check and stale:
        print(f"not current: {', '.join(stale)}; run make docs")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
