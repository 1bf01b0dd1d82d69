"""Files and functions fit the head of a reader: how long they may be."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60
MOST_LINES_OF_THE_README = 170


def tracked() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "-z", "*.py", ":!benchmarks/lab"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    return [path for name in names.decode().split("\0") if name and (path := ROOT / name).exists()]


def test_no_python_file_is_longer_than_400_lines():
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in tracked()}
    assert lines
    assert {name: count for name, count in lines.items() if count > MOST_LINES_OF_A_FILE} == {}


def test_no_python_function_is_longer_than_60_lines():
    lengths = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in tracked()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert lengths
    assert {name: count for name, count in lengths.items() if count > MOST_LINES_OF_A_FUNCTION} == {}


def test_the_readme_is_a_page_and_not_a_manual():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES_OF_THE_README
