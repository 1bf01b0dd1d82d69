"""Each file in benchmarks/results holds figures that a document quotes, with the command that made them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

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


def script_of(command: str) -> Path | None:
    """The file that runs a recorded command, if there is one."""
    if re.match(r"octavo bench (engine|quality|replay|service)\b", command):
        return BENCH
    script = re.match(r"(?:taskset -c \S+ )?(?:python )?(?:benchmarks/(?:lab/)?)?(\w+\.py)\b", command)
    places = (ROOT / folder / script[1] for folder in ("benchmarks", "benchmarks/lab", "tests/faults") if script)
    return next((path for path in places if path.exists()), None)


def problems_of(path: Path) -> Iterator[str]:
    result = json.loads(path.read_text())
    if not re.match(r"\d{4}-\d\d-\d\dT", result["date"]):
        yield f"{path.name}: its date is {result['date']}"
    if (script := script_of(result["command"])) is None:
        yield f"{path.name}: this checkout has no script for {result['command']}"
        return
    source = script.read_text()
    for flag in re.findall(r"--([a-z-]+)", result["command"]):
        if f"--{flag}" not in source and not re.search(rf"\b{flag.replace('-', '_')}\b", source):
            yield f"{path.name}: {script.name} has no --{flag}"


def test_a_result_has_a_date_and_a_command_that_this_checkout_runs() -> None:
    assert RESULTS
    problems = [problem for path in RESULTS for problem in problems_of(path)]
    assert not problems, "\n".join(problems)


def test_a_result_has_a_line_a_row() -> None:
    texts = {path.name: path.read_text() for path in RESULTS}
    others = [name for name, text in texts.items() if text != encode(json.loads(text)) + "\n"]
    assert not others, f"not as octavo_worker.bench.report writes them: {others}"


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


def test_a_result_is_quoted() -> None:
    texts = [document.read_text() for document in DOCUMENTS]
    unquoted = [path.name for path in RESULTS if not any(path.name in text for text in texts)]
    assert not unquoted, "\n".join(unquoted)


def test_a_result_that_is_quoted_exists() -> None:
    names = {path.name for path in RESULTS}
    missing = [
        f"{document.relative_to(ROOT)}: {name}"
        for document in DOCUMENTS
        for name in re.findall(r"\bresults/([\w.-]+\.json)", document.read_text())
        if name not in names
    ]
    assert not missing, "\n".join(missing)
