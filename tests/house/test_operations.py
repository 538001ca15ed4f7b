"""What an operator copies from deploy/: its names are ours, and its parts fit together."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
NAMES = re.compile(r"\b(?:luxrelay|relay|luxda)_[a-z0-9_]+\b")
SUFFIXES = ("_bucket", "_count", "_sum")


def exported() -> set[str]:
    """Return the name of every metric in the reference page, which is made from the code."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    return set(re.findall(r"^\| `([a-z0-9_]+)` \|", page, flags=re.MULTILINE))


def base_name(name: str) -> str:
    """Return a histogram's name for the name of one of its series."""
    for suffix in SUFFIXES:
        if name.endswith(suffix) and name not in exported():
            return name.removesuffix(suffix)
    return name


def expressions(path: Path) -> str:
    """Return what a file asks Prometheus."""
    if path.suffix == ".json":
        panels = json.loads(path.read_text())["panels"]
        return "\n".join(target["expr"] for panel in panels for target in panel["targets"])
    lines = path.read_text().splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


@pytest.mark.parametrize(
    "path",
    [DEPLOY / "prometheus" / "alerts.yml", DEPLOY / "grafana" / "luxrelay.json"],
    ids=lambda path: path.name,
)
def test_every_metric_asked_for_is_one_of_ours(path: Path) -> None:
    """Alerts and panels ask for metrics that a node exports."""
    asked = {base_name(name) for name in NAMES.findall(expressions(path))}
    assert asked
    assert asked <= exported(), f"not exported: {sorted(asked - exported())}"


def test_every_alert_is_tested_both_ways() -> None:
    """Promtool sees each rule fire and be silent; each says what to do."""
    rules = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    tests = (DEPLOY / "prometheus" / "alerts_test.yml").read_text()
    alerts = set(re.findall(r"- alert: (\w+)", rules))
    silent = set(re.findall(r"alertname: (\w+)", tests))
    assert alerts == silent
    assert f"value: {len(alerts)}}}" in tests, "the relay in trouble fires every rule"
    assert rules.count("action:") == len(alerts), "every alert says what to do"


def test_the_dashboard_has_no_panel_upon_another() -> None:
    """Panels lie beside each other within 24 columns."""
    panels = json.loads((DEPLOY / "grafana" / "luxrelay.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_service_checks_its_file_before_it_starts() -> None:
    """The unit checks the very file that it runs."""
    unit = (DEPLOY / "systemd" / "luxrelay.service").read_text()
    assert re.search(r"^ExecStartPre=\S+ node check --config (\S+)$", unit, flags=re.MULTILINE)
    (checked,) = re.findall(r"^ExecStartPre=.*--config (\S+)$", unit, flags=re.MULTILINE)
    (run,) = re.findall(r"^ExecStart=.*--config (\S+)$", unit, flags=re.MULTILINE)
    assert checked == run


def test_a_reload_of_the_service_checks_the_file_and_then_tells_the_node() -> None:
    """`systemctl reload` fails on a file that does not fit, before the node is asked to read it."""
    unit = (DEPLOY / "systemd" / "luxrelay.service").read_text()
    (start,) = re.findall(r"^ExecStartPre=(.*)$", unit, flags=re.MULTILINE)

    reload = re.findall(r"^ExecReload=(.*)$", unit, flags=re.MULTILINE)

    assert reload == [start, "/bin/kill -HUP $MAINPID"]
