"""A module has one task and a function fits a screen; exceptions have a reason."""

import ast
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src" / "luxrelay"
MODULE_LINES_MAX = 1000
FUNCTION_LINES_MAX = 60
EXCUSED: dict[str, str] = {}


def modules() -> list[Path]:
    """Return every module that a person wrote."""
    return [path for path in sorted(SRC.rglob("*.py")) if "_pb2" not in path.name]


def test_modules_are_short() -> None:
    """No module is above 1,000 lines without a reason."""
    long = {
        str(path.relative_to(SRC)): lines
        for path in modules()
        if (lines := len(path.read_text().splitlines())) > MODULE_LINES_MAX
    }
    assert set(long) <= set(EXCUSED), long


def test_functions_fit_a_screen() -> None:
    """No function is above 60 lines, docstring aside."""
    long = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first = node.body[0]
            documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            assert first.end_lineno is not None
            begin = first.end_lineno if documented else node.lineno
            lines = (node.end_lineno or begin) - begin
            if lines > FUNCTION_LINES_MAX:
                long.append(f"{path.relative_to(SRC)}:{node.name} has {lines} lines")
    assert not long, "\n".join(long)
