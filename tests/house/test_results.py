"""Each file in benchmarks/results holds figures that a document quotes, with the command that made them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from octavo_worker.bench.report import encode

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
DOCUMENTS = [
    ROOT / "README.md",
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "benchmarks").glob("*.md"),
    ROOT / "kernels" / "README.md",
]
BENCH = ROOT / "worker" / "octavo_worker" / "bench" / "cli.py"


def script_of(command: str) -> Path:
    """The file that runs a recorded command."""
    if re.match(r"octavo bench (engine|quality|replay|service)\b", command):
        return BENCH
    script = re.match(r"(?:taskset -c \S+ )?(?:python )?(?:benchmarks/)?(\w+\.py)\b", command)
    assert script, command
    places = (ROOT / folder / script[1] for folder in ("benchmarks", "benchmarks/lab", "tests/faults"))
    return next(path for path in places if path.exists())


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_has_a_date_and_a_command_that_this_checkout_runs(path: Path) -> None:
    result = json.loads(path.read_text())
    assert re.match(r"\d{4}-\d\d-\d\dT", result["date"])
    script = script_of(result["command"]).read_text()
    for flag in re.findall(r"--([a-z-]+)", result["command"]):
        assert f"--{flag}" in script or re.search(rf"\b{flag.replace('-', '_')}\b", script), flag


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_has_a_line_a_row(path: Path) -> None:
    assert path.read_text() == encode(json.loads(path.read_text())) + "\n", "written by octavo_worker.bench.report"


def test_a_table_has_a_line_a_row_and_everything_else_one_line() -> None:
    runs = [{"seconds": [0.1] * 200}, {"seconds": [0.2] * 200}]
    document = {"name": "é", "about": {"cores": 2}, "rows": [{"a": [1, 2]}, {"a": {}}], "empty": [], "runs": {8: runs}}
    text = encode(document)
    assert text.splitlines()[:6] == [
        "{",
        ' "name": "\\u00e9",',
        ' "about": {"cores": 2},',
        ' "rows": [',
        '  {"a": [1, 2]},',
        '  {"a": {}}',
    ]
    assert len(text.splitlines()) == 15, "a long table inside another value has a line a row, too"
    assert json.loads(text) == document | {"runs": {"8": runs}}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_is_quoted(path: Path) -> None:
    assert any(path.name in document.read_text() for document in DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_result_that_is_quoted_exists(document: Path) -> None:
    quoted = set(re.findall(r"\bresults/([\w.-]+\.json)", document.read_text()))
    assert quoted <= {path.name for path in RESULTS}
