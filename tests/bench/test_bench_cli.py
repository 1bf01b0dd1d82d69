"""`octavo bench` as it is called: requests that do not fit, figures that are no numbers, tables in files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from octavo_worker.bench.cli import bench
from octavo_worker.bench.report import report
from octavo_worker.bench.tables import show
from octavo_worker.bench.workloads import GPU_WORKLOADS, LONG_WORKLOADS, workload

SMALL = ("engine", "--device", "cpu", "--threads", "1", "--rounds", "1", "--num-blocks", "256")


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_what_was_not_measured_is_null(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    result = CliRunner().invoke(bench, [*SMALL, "--workloads", "prefill", "--json", "--out", str(out)])
    assert result.exit_code == 0, result.output
    (row,) = strict(result.stdout)["rows"]
    assert row["workload"] == "prefill"
    assert None in row.values()
    assert strict(out.read_text())["rows"] == [row]


@pytest.mark.parametrize("value", [math.nan, math.inf, [math.nan], {"x": (1.0, -math.inf)}])
def test_reports_are_json(value: Any) -> None:
    text = json.dumps(report("x", [{"figure": value}], extra=value), allow_nan=False)
    assert "null" in text


@pytest.mark.parametrize("longest", [100, 512])
def test_requests_longer_than_the_context_are_refused_in_words(longest: int) -> None:
    result = CliRunner().invoke(bench, [*SMALL, "--workloads", "prefill", "--max-model-len", str(longest)])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    said = " ".join(result.output.replace("│", " ").split())
    assert "prefill has sequences of 513 tokens" in said
    assert "--max-model-len" in said


@pytest.mark.parametrize("columns", [10, 30])
def test_a_redirected_table_is_whole(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"workload": "a" * 30} | {f"a_figure_of_{number}": 1234567.25 for number in range(columns)}
    show(report("engine", [row, row]), as_json=False, out=None)
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert shown.count("1234567.25") == 2 * columns
    assert shown.count("a" * 30) == 2


def test_workloads_of_long_prompts_have_to_be_asked_for() -> None:
    assert not GPU_WORKLOADS.keys() & LONG_WORKLOADS.keys()
    for name in LONG_WORKLOADS:
        assert max(len(work.prompt) for work in workload("gpu", name, 100)) > 9216
    with pytest.raises(ValueError, match=", ".join(LONG_WORKLOADS)):
        workload("gpu", "prefill", 100)
