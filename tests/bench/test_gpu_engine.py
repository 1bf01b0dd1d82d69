"""`benchmarks/gpu_engine.py` on the bundled model on a CPU, with a stand-in where vLLM would be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import STALL_S

from octavo_worker.bench.shapes import SHAPES

DRIVER = Path(__file__).parents[2] / "benchmarks" / "gpu_engine.py"
VLLM = """
import os
__version__ = "stand-in"
def SamplingParams(**parameters): return parameters["max_tokens"]
class Answer:
    def __init__(self, count): self.outputs, self.token_ids = [self], [1] * count
class LLM:
    def __init__(self, tensor_parallel_size, **settings):
        print("a stand-in talks, too")
        assert tensor_parallel_size == 1 or os.environ["NCCL_NVLS_ENABLE"] == "0"
    def reset_prefix_cache(self): pass
    def generate(self, prompts, counts, use_tqdm): return [Answer(count) for count in counts]
"""


def write_stand_in(folder: Path) -> None:
    (folder / "vllm").mkdir()
    (folder / "vllm" / "__init__.py").write_text(VLLM)
    (folder / "vllm" / "inputs.py").write_text("TokensPrompt = dict\n")


def compare(out: Path, *arguments: str) -> dict:
    command = [sys.executable, str(DRIVER), "--models", "demo", "--device", "cpu", "--family", "cpu"]
    command += [
        "--rounds",
        "3",
        "--workloads",
        "single",
        "--max-model-len",
        "1024",
        "--limit",
        str(STALL_S),
        "--out",
        str(out),
    ]
    command += arguments
    subprocess.run(command, check=True, timeout=STALL_S)
    return json.loads(out.read_text())


@pytest.mark.full
def test_engines_are_compared_and_a_run_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    alone = compare(out, "--engines", "octavo,vllm", "--short", "0")  # there is no vLLM here
    assert "vLLM cannot be imported" in alone["engines"]["demo"]["vllm"]["failed"]
    assert alone["rows"][0]["tokens_per_s"].keys() == {"octavo"}
    assert "vLLM cannot be imported" in alone["rows"][0]["peer_failed"]
    assert "peer_log" in alone["engines"]["demo"]["vllm"]
    assert [log.name for log in out.with_suffix(".logs").iterdir()] == ["demo-vllm.log"]
    assert len(alone["engines"]["demo"]["octavo"]["runs"]["single"]) == 1, "a workload that is not short runs once"

    write_stand_in(tmp_path)
    both = compare(out, "--resume", "--short", "0", "--vllm-path", str(tmp_path))
    assert both["engines"]["demo"]["octavo"] == alone["engines"]["demo"]["octavo"]
    assert not {"failed", "peer_log"} & both["engines"]["demo"]["vllm"].keys()
    assert not out.with_suffix(".logs").exists(), "only what failed leaves a log"
    assert both["engines"]["demo"]["vllm"]["about"]["start_s"] > 0
    (row,) = both["rows"]
    assert row["unit"] == "output tokens/s"
    assert {"machine", "versions", "command", "date"} <= both.keys()
    assert both["engines"]["demo"]["octavo"]["about"]["priority"] == "batch"
    octavo, vllm = (row["tokens_per_s"][engine] for engine in ("octavo", "vllm"))
    assert abs(row["ratio"] - octavo / vllm) < 0.001


@pytest.mark.full
def test_what_is_short_runs_several_times(tmp_path: Path) -> None:
    document = compare(tmp_path / "short.json", "--engines", "octavo", "--short", "60")
    seconds = [run["seconds"] for run in document["engines"]["demo"]["octavo"]["runs"]["single"]]
    slowest, middle, fastest = sorted(round(128 / taken, 1) for taken in seconds)
    (row,) = document["rows"]
    assert row["tokens_per_s"]["octavo"] == middle
    assert row["tokens_per_s_min_max"]["octavo"] == [slowest, fastest]


@pytest.mark.full
def test_ranks_are_compared_with_one_and_with_as_many_of_vllm(tmp_path: Path) -> None:
    write_stand_in(tmp_path)
    out = tmp_path / "ranks.json"
    arguments = ["--engines", "octavo@1,octavo@2,vllm@2", "--short", "0", "--vllm-path", str(tmp_path)]
    document = compare(out, *arguments)
    alone, both = document["rows"]
    assert (alone["ranks"], both["ranks"]) == (1, 2)
    assert alone["tokens_per_s"].keys() == {"octavo"}
    assert not {"ratio", "scaling"} & alone.keys()
    assert both["tokens_per_s"].keys() == {"octavo@2", "vllm@2"}
    runs = {name: engine["runs"]["single"] for name, engine in document["engines"]["demo"].items()}
    one, two, theirs = (runs[name][0]["seconds"] for name in ("octavo", "octavo@2", "vllm@2"))
    assert both["scaling"] == round(one / two, 3)
    assert both["ratio"] == round(theirs / two, 3)
    engines = document["engines"]["demo"]
    assert engines["octavo@2"]["about"]["numerics"].endswith(" tp2")
    assert engines["octavo@2"]["about"]["weight_bytes"] < engines["octavo"]["about"]["weight_bytes"]
    assert engines["vllm@2"]["about"]["environment"]["NCCL_NVLS_ENABLE"] == "0"

    again = compare(out, "--resume", "--seconds", "0", *arguments)
    assert again["rows"] == document["rows"], "nothing is begun when the time is over, and nothing is lost"


FAILS = """
import subprocess, sys
print("loading", flush=True)
subprocess.run([sys.executable, "-c", "import sys; sys.exit('no such kernel')"])
raise SystemExit(3)
"""
HANGS = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(3600)"])
"""


@pytest.mark.parametrize(("script", "why"), [(FAILS, "peer ended with status 3"), (HANGS, "did not answer within 2 s")])
def test_a_peer_that_fails_leaves_what_its_processes_wrote(
    script: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs is ended with its children, which hold what it writes to."""
    monkeypatch.syspath_prepend(DRIVER.parent)
    from peers.process import Peer, PeerFailed

    (tmp_path / "peer.py").write_text(script)
    log = tmp_path / "peer.log"
    log.write_text("of an earlier run")
    with pytest.raises(PeerFailed, match=why):
        Peer("peer", ["peer.py"], limit_s=None if script == FAILS else 2, benchmarks=tmp_path, log=log)
    if script == FAILS:
        assert sorted(log.read_text().splitlines()) == ["loading", "no such kernel"]
    else:
        assert log.read_text() in ("begun\n", "")


@pytest.mark.parametrize("name", ["octavo@0", "octavo-w5", "sglang", "octavo@2-fp8", "octavo@"])
def test_an_unknown_engine_is_refused(name: str) -> None:
    command = [sys.executable, str(DRIVER), "--engines", f"octavo,{name}"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=STALL_S, check=False)
    assert refused.returncode == 2
    assert f"unknown engine {name!r}" in refused.stderr


def test_plans_name_models_and_engines_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each engine as often as it is needed, and on no more GPUs than its plan is for."""
    monkeypatch.syspath_prepend(DRIVER.parent)
    from gpu_engine import contenders
    from ranks_engine import PLANS

    for plan, most in (("two", 2), ("two-large", 2), ("four", 4)):
        cells = [(model, engine) for model, engines in PLANS[plan] for engine in contenders(engines)]
        assert len(set(cells)) == len(cells)
        assert {model for model, _ in cells} <= set(SHAPES)
        assert max(engine.ranks for _, engine in cells) == most
    assert set(PLANS) == {"two", "two-large", "four"}


def test_the_table_of_a_plan_shows_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DRIVER.parent)
    from ranks_engine import table

    row = {"model": "llama-8b", "ranks": 2, "workload": "single", "tokens_per_s": {"octavo@2": 320.5, "vllm@2": 250.0}}
    lines = table([row | {"ratio": 1.282, "scaling": 1.7}, row | {"tokens_per_s": {"vllm@2": 9.0}}]).splitlines()
    assert lines[1].split() == ["llama-8b", "x2", "single", "320.5", "250.0", "1.282", "1.7", "-"]
    assert lines[2].split() == ["llama-8b", "x2", "single", "-", "9.0", "-", "-", "-"]
