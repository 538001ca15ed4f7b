"""Each defence that a page claims can be taken out by a patch that still applies."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import mutants  # noqa: E402  it stands in tools


def test_what_was_found_at_another_commit_is_tried_again(tmp_path: Path) -> None:
    """Nor does a tree with changes, or one of no known commit, go on from before."""
    kept = tmp_path / "build" / "mutants.json"
    assert mutants.found_before("commit a", kept) == set()
    mutants.keep("commit a", {"one", "two"}, kept)
    assert mutants.found_before("commit a", kept) == {"one", "two"}
    assert mutants.found_before("commit b", kept) == set()
    for nowhere in ("commit a-dirty", mutants.UNKNOWN):
        mutants.keep(nowhere, {"one"}, kept)
        assert mutants.found_before(nowhere, kept) == set()
    kept.write_text("{")
    assert mutants.found_before("commit a", kept) == set()


@pytest.mark.parametrize("mutant", mutants.mutants(), ids=lambda each: each.name)
def test_the_patch_applies_and_names_tests_that_are_there(mutant: mutants.Mutant) -> None:
    """`git apply` takes it, and each test that it names stands in the file."""
    checked = subprocess.run(
        ["git", "apply", "--check", "--unidiff-zero", "--recount", str(mutant.path)],  # noqa: S607
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    for test in mutant.tests:
        path, _, name = test.partition("::")
        function = re.sub(r"\[.*", "", name.rpartition("::")[2] or name)
        assert f"def {function}(" in (ROOT / path).read_text(), test
