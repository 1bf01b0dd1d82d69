"""Files, functions and rooms fit the head of a reader: how long they may be."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from import_rules import ROOMS, folder_of
from sources import statements

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
        for node in statements(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert lengths
    assert {name: count for name, count in lengths.items() if count > MOST_LINES_OF_A_FUNCTION} == {}


def test_the_readme_is_a_page_and_not_a_manual():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MOST_LINES_OF_THE_README


BUDGETS = {
    "octavo.cli": 2950,
    "octavo_worker.bench": 2300,
    "octavo_worker.assembly": 1860,
    "octavo_gateway": 7560,
    "octavo_worker.agent": 5390,
    "octavo_worker.engine": 7470,
    "octavo_worker.memory": 1160,
    "octavo_worker.runner": 3690,
    "octavo_worker.model": 10241,
    "octavo_worker.ranks": 660,
    "octavo_worker.contract": 1710,
    "octavo_kernels": 5634,
    "octavo.service": 4900,
    "octavo.dialects": 7800,
    "octavo.client": 2720,
    "octavo.queue": 5570,
    "octavo.terms": 3500,
}
"""Lines of Python that a room may have, and all rooms together: raised only by a commit that says why. A new room sets
its own."""
MOST_LINES_IN_ALL = 74_615


def lines_of(room: str) -> int:
    return sum(len(path.read_text().splitlines()) for path in (ROOT / folder_of(room)).rglob("*.py"))


def test_every_room_has_a_budget() -> None:
    assert BUDGETS.keys() == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_stays_within_its_budget(room: str) -> None:
    assert lines_of(room) <= BUDGETS[room], "what does the change make superfluous?"


def test_all_rooms_stay_within_their_budget() -> None:
    assert sum(map(lines_of, ROOMS)) <= MOST_LINES_IN_ALL
