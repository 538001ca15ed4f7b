"""The site of `make site` names every page, and its check sees what it should."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def build_site() -> ModuleType:
    """The program that builds it."""
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "tools" / "build_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_contents() -> None:
    """Sphinx says so too, but `make test` does not run it."""
    docs = ROOT / "docs"
    named = set(re.findall(r"^   ([\w/-]+)$", (docs / "index.rst").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(docs).with_suffix("")) for page in docs.rglob("*.md")}
    decisions = {page for page in pages if page.startswith("decisions/0")}  # by a pattern

    assert named == pages - decisions


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/css">',
        '<img alt="" src="HTTP://example/a.png">',
        "<div style=\"background: url('https://example/a.png')\"></div>",
    ],
)
def test_a_page_that_loads_from_elsewhere_is_noticed(
    build_site: ModuleType, tmp_path: Path, text: str
) -> None:
    """Whatever a browser fetches by itself comes from the site."""
    (tmp_path / "page.html").write_text(f"<body>{text}</body>")

    assert len(list(build_site.loaded_from_outside(tmp_path / "page.html"))) == 1


def test_links_and_own_files_are_no_loads(build_site: ModuleType, tmp_path: Path) -> None:
    """A reader may follow a link away; style sheets are looked at as well."""
    page, sheet = tmp_path / "page.html", tmp_path / "a.css"
    page.write_text('<a href="https://example.org">x</a><img alt="" src="../_images/a.png">')
    sheet.write_text("@import 'b.css'; a { background: url(data:image/png;base64,AA==) }")

    assert not list(build_site.loaded_from_outside(page))
    assert not list(build_site.loaded_from_outside(sheet))
    sheet.write_text('@import "https://example/b.css";')
    assert list(build_site.loaded_from_outside(sheet)) == ["https://example/b.css"]
