"""`benchmarks/gpu_engine.py` on the bundled model on a CPU, with a stand-in where vLLM would be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from waiting import STALL_S

DRIVER = Path(__file__).parents[2] / "benchmarks" / "gpu_engine.py"
VLLM = """
__version__ = "stand-in"
def SamplingParams(**parameters): return parameters["max_tokens"]
class Answer:
    def __init__(self, count): self.outputs, self.token_ids = [self], [1] * count
class LLM:
    def __init__(self, **settings): print("a stand-in talks, too")
    def reset_prefix_cache(self): pass
    def generate(self, prompts, counts, use_tqdm): return [Answer(count) for count in counts]
"""


def compare(out: Path, *arguments: str) -> dict:
    command = [sys.executable, str(DRIVER), "--models", "demo", "--device", "cpu", "--family", "cpu"]
    command += ["--rounds", "3", "--workloads", "single", "--max-model-len", "1024", "--limit", "60", "--out", str(out)]
    command += arguments
    subprocess.run(command, check=True, timeout=STALL_S)
    return json.loads(out.read_text())


def test_engines_are_compared_and_a_run_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    alone = compare(out, "--engines", "octavo,vllm", "--short", "0")  # there is no vLLM here
    assert "vLLM cannot be imported" in alone["engines"]["demo"]["vllm"]["failed"]
    assert alone["rows"][0]["tokens_per_s"].keys() == {"octavo"}
    assert len(alone["engines"]["demo"]["octavo"]["runs"]["single"]) == 1, "a workload that is not short runs once"

    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(VLLM)
    (tmp_path / "vllm" / "inputs.py").write_text("TokensPrompt = dict\n")
    both = compare(out, "--resume", "--short", "0", "--vllm-path", str(tmp_path))
    assert both["engines"]["demo"]["octavo"] == alone["engines"]["demo"]["octavo"]
    assert "failed" not in both["engines"]["demo"]["vllm"]
    assert both["engines"]["demo"]["vllm"]["about"]["start_s"] > 0
    (row,) = both["rows"]
    assert row["unit"] == "output tokens/s"
    assert {"machine", "versions", "command", "date"} <= both.keys()
    assert both["engines"]["demo"]["octavo"]["about"]["priority"] == "batch"
    octavo, vllm = (row["tokens_per_s"][engine] for engine in ("octavo", "vllm"))
    assert abs(row["ratio"] - octavo / vllm) < 0.001


def test_what_is_short_runs_several_times(tmp_path: Path) -> None:
    document = compare(tmp_path / "short.json", "--engines", "octavo", "--short", "60")
    seconds = [run["seconds"] for run in document["engines"]["demo"]["octavo"]["runs"]["single"]]
    slowest, middle, fastest = sorted(round(128 / taken, 1) for taken in seconds)
    (row,) = document["rows"]
    assert row["tokens_per_s"]["octavo"] == middle
    assert row["tokens_per_s_min_max"]["octavo"] == [slowest, fastest]
