"""Names and leftovers that have no place in the house."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BANNED_FILES = re.compile(r"^(utils?|helpers?|common|base|manager|misc|core)\.py$")
LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError|breakpoint\(\)")
HOSTS = re.compile(
    "|".join(["py" + "pi.org", "python" + "hosted", "repo1?." + "maven", "npm" + "js"])
)


def texts() -> list[Path]:
    """Return the files that people read."""
    found = [
        path
        for folder in ("src", "tests", "docs", "bench", "tools", "examples")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ".proto"}
    ]
    return [*found, ROOT / "README.md", ROOT / "Makefile", ROOT / "pyproject.toml"]


def test_no_module_without_a_subject() -> None:
    """A thing has a home or no reason: no utils, helpers or common."""
    bad = [str(p) for p in (ROOT / "src").rglob("*.py") if BANNED_FILES.match(p.name)]
    assert not bad


def test_no_leftovers() -> None:
    """No unfinished work and no stub in the package."""
    written = [p for p in (ROOT / "src").rglob("*.py") if "_pb2" not in p.name]
    bad = [str(p) for p in written if LEFTOVERS.search(p.read_text())]
    assert not bad


def test_no_registry_host_is_named() -> None:
    """No file names the host of a package registry."""
    bad = [str(p) for p in texts() if p.name != "test_words.py" and HOSTS.search(p.read_text())]
    assert not bad
