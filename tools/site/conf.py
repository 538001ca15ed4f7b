"""How `make site` turns the pages of docs/ into HTML; Sphinx reads this file.

The pages are written for GitHub as well: links that lead out of docs/ go to files of the repository
there, and to copies of them here.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

project = "LuxRelay"
html_title = "LuxRelay"
extensions = ["myst_parser"]
root_doc = "index"
highlight_language = "text"  # an indented block is a command, no Python
myst_heading_anchors = 6  # named as GitHub names them
html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False

_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)\)")


def _lead_out(app: Sphinx, name: str, text: list[str]) -> None:
    """Let links to files beyond docs/ give the file, and those to folders be words."""
    page = Path(app.srcdir) / f"{name}.md"

    def led(link: re.Match[str]) -> str:
        words, target = link.groups()
        place = (page.parent / target).resolve()
        if place.is_relative_to(Path(app.srcdir).resolve()):
            return link[0]
        return words if place.is_dir() else f"[{words}](path:{target})"

    text[0] = _LINK.sub(led, text[0])


def setup(app: Sphinx) -> None:
    """Register what is above."""
    app.connect("source-read", _lead_out)
