"""What is cited is in the repository: decisions, requirement rows, rules, ADRs, files and tests.

Python is read by its comments and strings, other files whole. What only looks like an id is named
in `NO_CITATIONS`, with the reason; an entry that matches nothing any more has to go.
"""

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DECISIONS = DOCS / "decisions"
FOLDERS = ("src", "tests", "docs", "bench", "examples", "tools", "changelog.d")
SUFFIXES = {".md", ".proto", ".py", ".pyi", ".rst", ".toml"}
DECISION = re.compile(r"(?<![\w/.#%+])[HGPJSC][1-9]\d?(?!\w)")
ROW = re.compile(r"(?<![\w-])(?:(?:11|20|21)-\d\d|user-\d\d)(?![\w-])")
ADR = re.compile(r"\bADR (\d{4})((?:,? §\d+)*)")
NO_CITATIONS = {
    ("src/luxrelay/gossip/score", r"\bP[1-7]b?\b"): "gossipsub's names of the terms of a score",
    ("tests/unit/gossip/test_score", r"\bP[1-7]b?\b"): "the same",
    ("docs/explanation/gossip.md", r"\| P[1-7]\b.*|P1 to P4"): "the same",
    ("docs/decisions/protocol.md", r"\(P[1-7](?: of gossipsub|, P3b)?\)"): "the same",
    ("src/luxrelay/sync/rpc/relay_gateway", r"(?://|\"\"\") ?P[1-7]\b"): "the same",
    ("src/luxrelay/bus/kzg.py", r"\bC1 ‖"): "the first commitment of several",
    ("docs/reference/keys.md", r"\bC1 ‖"): "the same",
    ("src/luxrelay/text.py", r"\(C0, C1, DEL"): "the control characters of ISO 6429",
}
"""Beginning of a path, and what there only looks like a citation: why."""
ABSENT = re.compile(
    r"(?i)\bissue (?:of|on) the\b|\bissue \"|\bissue \d|\bthe issue(?:'s| asks)|\bwhat users ask\b"
    r"|\b(?:archive|crypto|net|retention|store)[- ]notes\b|\bdesign notes?\b|\blux-family\b"
    r"|\breliable-channel\.md|\bconformance-audit|\bdecisions\.md|\bstyle §?\d|\brules? \d of the h"
    r"|(?<![\w/])(?:\.\./)*shared/"
)
"""Notes that are no part of the repository."""


def files() -> list[Path]:
    """Return every text that people write, without generated and foreign ones."""
    found = [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in SUFFIXES and "node_modules" not in path.parts and path != Path(__file__)
    ]
    return [*found, *sorted(ROOT.glob("*.md")), ROOT / "pyproject.toml"]


def texts(path: Path) -> Iterator[str]:
    """Yield what may cite: the comments and strings of Python, everything of other files."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield text
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            yield re.sub(r"# noqa: *[A-Z]+\d+(?:, ?[A-Z]+\d+)*", "", token.string)


def name_of(path: Path) -> str:
    """Return the path from the root."""
    return path.relative_to(ROOT).as_posix()


@cache
def citing() -> dict[str, str]:
    """Return the text of each file that may cite, without what only looks like a citation."""
    found = {}
    for path in files():
        name, text = name_of(path), "\n".join(texts(path))
        for beginning, pattern in NO_CITATIONS:
            if name.startswith(beginning):
                text = re.sub(pattern, "", text)
        found[name] = text
    return found


PROTOCOL = (DECISIONS / "protocol.md").read_text(encoding="utf-8")
REQUIREMENTS = (DECISIONS / "requirements.md").read_text(encoding="utf-8")
ANCHORS = re.findall(r"^### ([HGPJSC]\d+)$", PROTOCOL, re.MULTILINE)
ROWS = re.findall(r'^\| <a id="([\w-]+)"></a>\1 \|', REQUIREMENTS, re.MULTILINE)


def cited(pattern: re.Pattern[str]) -> dict[str, list[str]]:
    """Return the ids that match, each with the files that name it."""
    found: dict[str, list[str]] = {}
    for name, text in citing().items():
        for each in set(pattern.findall(text)):
            found.setdefault(each, []).append(name)
    return found


@pytest.mark.parametrize(
    ("pattern", "known"), [(DECISION, ANCHORS), (ROW, ROWS)], ids=["decision", "row"]
)
def test_every_id_has_an_anchor(pattern: re.Pattern[str], known: list[str]) -> None:
    """A decision or a row that is cited can be read in docs/decisions; each stands there once."""
    ids = cited(pattern)

    assert len(ids) > 100
    assert not {each: ids[each] for each in ids.keys() - set(known)}
    assert len(known) == len(set(known))


def test_every_anchor_says_something() -> None:
    """A decision has text of its own, before the next one begins."""
    parts = re.split(r"^### ([HGPJSC]\d+)$", PROTOCOL, flags=re.MULTILINE)
    texts_of = dict(zip(parts[1::2], parts[2::2], strict=True))

    assert texts_of.keys() == set(ANCHORS)
    assert not [each for each, text in texts_of.items() if len(text.split()) < 12]


def test_every_row_names_a_test_that_cites_it() -> None:
    """The third column of the requirements is true."""
    wrong = []
    for line in REQUIREMENTS.splitlines():
        row = re.match(r'\| <a id="(\d\d-\d\d)">', line)
        if row is None:
            continue
        named = re.findall(r"\]\((?:\.\./)+([^)]+)\)", line)
        if not named or not all(row[1] in (ROOT / each).read_text() for each in named):
            wrong.append(row[1])

    assert not wrong


def test_rules_and_adrs_exist() -> None:
    """A rule of the architecture, an ADR and its paragraph are there when they are cited."""
    rules = re.findall(
        r"^(\d+)\. \*\*", (DOCS / "explanation" / "architecture.md").read_text(), re.MULTILINE
    )
    wrong = []
    for name, text in citing().items():
        flat = re.sub(r"\s[\s#]*", " ", text)
        for match in re.findall(r"\barchitecture(?:\.md)?, rules? (\d+)(?: and (\d+))?", flat):
            wrong += [(name, "rule", each) for each in match if each and each not in rules]
        for number, sections in ADR.findall(flat):
            pages = [*DECISIONS.glob(f"{number}-*.md")]
            if not pages:
                wrong.append((name, "ADR", number))
                continue
            headings = re.findall(r"^## (\d+) ", pages[0].read_text(), re.MULTILINE)
            wrong += [(name, number, e) for e in re.findall(r"\d+", sections) if e not in headings]

    assert len(rules) == 10
    assert not wrong


def test_nothing_outside_the_repository_is_cited() -> None:
    """A reader has the specifications and this repository, no notes of those who wrote it."""
    wrong = [(name, match[0]) for name, text in citing().items() for match in ABSENT.finditer(text)]

    assert not wrong


@pytest.mark.parametrize("entry", NO_CITATIONS, ids=" ".join)
def test_what_only_looks_like_a_citation_is_there(entry: tuple[str, str]) -> None:
    """An exception that nothing needs any more goes."""
    beginning, pattern = entry

    assert any(
        re.search(pattern, text)
        for path in files()
        if name_of(path).startswith(beginning)
        for text in texts(path)
    )


def paths_in(text: str) -> set[str]:
    """Return the paths into the repository that a text names, in backticks or plainly."""
    return set(
        re.findall(
            r"(?<![\w/.-])(?:bench|docs|examples|src|tests|tools|vectors)/[\w./*-]*\w\.(?:md|proto|py)"
            r"(?:::\w+)*",
            text,
        )
    )


def test_files_that_are_named_exist() -> None:
    """A path in the documentation or in a docstring leads somewhere; so does a test behind it."""
    wrong = []
    for name, text in citing().items():
        for path in paths_in(text):
            file, *names = path.split("::")
            found = list(ROOT.glob(file))
            if not found or any(
                not re.search(rf"\b{each}\b", found[0].read_text()) for each in names
            ):
                wrong.append((name, path))

    assert not wrong


def test_modules_that_pages_name_exist() -> None:
    """`room/module.py` is below src/luxrelay, a bare file name or a test somewhere in the house."""
    modules = {path.relative_to(ROOT / "src" / "luxrelay").as_posix() for path in SOURCES}
    everywhere = [
        p for f in ("src", "tests", "bench", "examples", "tools") for p in (ROOT / f).rglob("*")
    ]
    names = {path.name for path in everywhere}
    tests = set(re.findall(r"def (test_\w+)", "\n".join(p.read_text() for p in TESTS)))
    tests |= {path.stem for path in TESTS}
    wrong = []
    for page in sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")]):
        for word in re.findall(r"(?<!`)`([\w./*-]+)`", page.read_text()):
            if re.fullmatch(r"test_\w+", word):
                good = word in tests
            elif not word.endswith((".py", ".proto")) or word.startswith("."):
                good = True
            elif "/" not in word:
                good = word in names or "*" in word
            else:
                good = word in modules or bool([*ROOT.glob(word)]) or word.split("/")[0] == "job"
            if not good:
                wrong.append((name_of(page), word))

    assert not wrong


SOURCES = [p for p in (ROOT / "src" / "luxrelay").rglob("*") if p.suffix in {".py", ".proto"}]
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
