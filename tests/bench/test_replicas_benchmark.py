"""`benchmarks/replicas.py` on the bundled model on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import STALL_S

DRIVER = Path(__file__).parents[2] / "benchmarks" / "replicas.py"
SIZES = ["--jobs", "24", "--prompt", "16", "--output", "16", "--max-running", "8", "--kv-memory", "0.1"]


def run(out: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(DRIVER), "--model", "demo", "--device", "cpu", "--threads", "1", *SIZES]
    subprocess.run([*command, "--out", str(out), *arguments], check=True, timeout=STALL_S)
    return json.loads(out.read_text())


@pytest.mark.full
def test_replicas_share_a_batch_and_a_run_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "replicas.json"
    alone = run(out, "--replicas", "1")
    (row,) = alone["rows"]
    assert (row["replicas"], row["ratio"]) == (1, 1.0)
    assert alone["runs"]["1"][0]["by_worker"] == [24]

    both = run(out, "--replicas", "1,2", "--resume")
    assert both["runs"]["1"] == alone["runs"]["1"], "it is not run again"
    assert [row["replicas"] for row in both["rows"]] == [1, 2]
    (shared,) = both["runs"]["2"]
    assert sum(shared["by_worker"]) == 24
    assert both["rows"][1]["jobs_per_s"] == round(24 / shared["seconds"], 3)
    assert both["rows"][1]["ratio"] == round(24 / shared["seconds"] / both["rows"][0]["jobs_per_s"], 3)
