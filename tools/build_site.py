"""Build the documentation as a site of HTML pages that stand alone.

    python tools/build_site.py build/site

A link that leads nowhere, a page that no table of contents names, or a page that would load
something from another host is an error. The pages search without a server: open index.html.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
_OUTSIDE: Final = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_IN_CSS: Final = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", re.IGNORECASE)
_LOADED: Final = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
}
"""What a browser fetches by itself: element and attributes."""


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the element loads."""
        values = {name: value or "" for name, value in attrs}
        self.found += [values[name] for name in _LOADED.get(tag, ()) if name in values]
        self.found += _in_css(values.get("style", ""))


def _in_css(text: str) -> list[str]:
    return [one or other for one, other in _IN_CSS.findall(text)]


def loaded_from_outside(page: Path) -> Iterator[str]:
    """Yield the addresses of other hosts that a page or a style sheet loads from."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".css":
        found = _in_css(text)
    else:
        loads = _Loads()
        loads.feed(text)
        found = loads.found
    yield from (each for each in found if _OUTSIDE.match(each))


def build(site: Path) -> list[str]:
    """Build the site and return what is wrong with it, one line each; Sphinx prints its own."""
    from sphinx.cmd.build import main as sphinx_build

    options = ["-c", str(ROOT / "tools" / "site"), "-d", str(site.parent / "doctrees")]
    if sphinx_build(["-W", "--keep-going", "-n", "-q", *options, str(DOCS), str(site)]) != 0:
        return ["the pages above cannot be built"]
    faults = []
    for page in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        faults += [f"{page}: loads {each}" for each in loaded_from_outside(page)]
    for source in DOCS.rglob("*.md"):
        page = (site / source.relative_to(DOCS)).with_suffix(".html")
        if not page.is_file():
            faults.append(f"{source.relative_to(ROOT)} is no page of the site")
    return faults


def main(arguments: list[str]) -> int:
    """Build into the named folder; 1 when something is wrong."""
    if len(arguments) != 1:
        print(__doc__)
        return 2
    site = Path(arguments[0])
    faults = build(site)
    for fault in faults:
        print(fault, file=sys.stderr)
    if not faults:
        print(f"{site / 'index.html'}: {len(list(site.rglob('*.html')))} pages")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
