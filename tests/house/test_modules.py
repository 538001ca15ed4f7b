"""How rooms are cut: no circles, one meaning a class name, no module too small to stand."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"
SHORT = 120
"""Lines below which a module with a single importer needs a reason."""
REASONS = {
    "luxrelay.archive.continuous": "the loop of one command, without the command's arguments",
    "luxrelay.net.names": "what a peer's address may be, for the configuration of another room",
    "luxrelay.net.own_link": "a machine without I/O beside the driver, which has its sockets",
    "luxrelay.node.template": "the commented file that `node init` writes",
    "luxrelay.sim.plots": "needs an extra that its importer can do without",
    "luxrelay.testing.cases.kinds": "names modules that import the package",
}
"""Why a short module with one importer stands alone."""


def _modules() -> dict[str, Path]:
    found = {}
    for path in sorted((SRC / "luxrelay").rglob("*.py")):
        if "_pb2" not in path.name:
            parts = path.relative_to(SRC).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _imports(path: Path) -> set[str]:
    """Return the modules that a file imports when it runs, at its top or later."""
    tree = ast.parse(path.read_text())
    only_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if node in only_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                full = f"{node.module}.{name.name}"
                found.add(full if full in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return {name for name in found if name in MODULES and MODULES[name] != path}


IMPORTS = {name: _imports(path) for name, path in MODULES.items()}


def test_no_circle_between_files() -> None:
    """No module imports itself over others; a package's list of names is no module."""
    files = {name for name in MODULES if MODULES[name].name != "__init__.py"}
    left = {name: IMPORTS[name] & files for name in files}
    while done := {name for name, needs in left.items() if not needs}:
        left = {name: needs - done for name, needs in left.items() if name not in done}
    circles = sorted(left)
    while circles:  # take away those that only lead into a circle
        needed = {each for name in circles for each in left[name]}
        fewer = [name for name in circles if name in needed]
        if fewer == circles:
            break
        circles = fewer
    assert not circles


def test_a_class_name_means_one_thing() -> None:
    """A public class name stands for one class."""
    homes = defaultdict(list)
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    assert not {name: found for name, found in homes.items() if len(found) > 1}


def test_short_modules_with_one_importer_have_a_reason() -> None:
    """Each is in the table, and the table names no other."""
    importers = defaultdict(set)
    for name, needs in IMPORTS.items():
        for each in needs:
            importers[each].add(name)
    short = {
        name
        for name, path in MODULES.items()
        if len(importers[name]) == 1
        and not path.name.startswith("__")
        and len(path.read_text().splitlines()) < SHORT
    }
    assert short == set(REASONS)
