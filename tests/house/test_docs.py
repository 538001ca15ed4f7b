"""Documentation that is made from code is current, and links lead somewhere."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from luxrelay.cli.main import build_parser
from luxrelay.node.config import parse_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.slow
def test_reference_pages_are_current() -> None:
    """The pages made from code say what the code says."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "generate_reference.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def anchors(page: Path) -> set[str]:
    """Return what a page's headings are linked by."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {each.strip().replace(" ", "-") for each in kept}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    """Every relative link of a page names a file that is there, and a heading that it has."""
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}#{anchor}"


TYPED = {
    "README.md": "test_docs_commands.py",
    "docs/how-to/archive.md": "archive",
    "docs/how-to/operate.md": "test_docs_commands.py",
    "docs/how-to/secure.md": "test_docs_commands.py",
    "docs/how-to/prepaid.md": "test_docs_commands.py",
    "docs/how-to/simulate.md": "test_docs_commands.py",
    "docs/how-to/use-a-channel.md": "test_docs_commands.py",
    "docs/how-to/write-a-client.md": "gateway/test_http_examples.py",
    "docs/how-to/write-a-policy.md": "test_docs_commands.py",
    "docs/reference/command.md": "test_reference_commands.py",
    "docs/reference/fees-and-policies.md": "test_sidecars.py",
    "docs/reference/http.md": "test_reference_commands.py",  # the examples of node token
    "docs/tutorial/chat.md": "test_docs_commands.py",
    "docs/tutorial/three-relays.md": "test_docs_commands.py",
}
"""Pages with commands, and what below tests/integration types them."""


def test_every_page_with_commands_is_typed() -> None:
    """A new page that tells people to type something has a test that does."""
    pages = {str(page.relative_to(ROOT)) for page in PAGES if commands_of(page)}
    assert pages == set(TYPED)
    for place in TYPED.values():
        assert (ROOT / "tests" / "integration" / place).exists()


def test_readme_snippets_work() -> None:
    """The configuration and the library example of the README are what they claim to be."""
    text = (ROOT / "README.md").read_text()
    (config,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)

    parsed = parse_config(config, source="README.md", base=ROOT)
    exec(compile(example, "README.md", "exec"), {})  # noqa: S102  our own documentation

    assert len(parsed.namespaces) == 1


def test_tutorial_configurations_parse() -> None:
    """Every configuration of the tutorial passes `node check`."""
    text = (ROOT / "docs" / "tutorial" / "three-relays.md").read_text()
    configs = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)

    assert len(configs) == 2
    for config in configs:
        parse_config(config, source="three-relays.md", base=ROOT)


def commands_of(page: Path) -> list[list[str]]:
    """Return the arguments of every `luxrelay` command of a page's indented and fenced blocks."""
    text = page.read_text().replace("\\\n", " ")
    lines = re.findall(r"^(?: {4}|(?=luxrelay ))(.*)$", text, re.MULTILINE)
    parts = [part for line in lines for part in re.split(r" (?:\||>>?) ", line)]
    return [shlex.split(part, comments=True)[1:] for part in parts if part.startswith("luxrelay ")]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands_of(page)], ids=lambda page: str(page.name)
)
def test_commands_are_commands(page: Path) -> None:
    """Every command that a page shows is one, with options that exist."""
    for arguments in commands_of(page):
        if arguments[0].startswith("-"):
            continue
        try:
            build_parser().parse_args(arguments)
        except SystemExit as error:
            pytest.fail(f"{page.name}: luxrelay {' '.join(arguments)} ({error})")
