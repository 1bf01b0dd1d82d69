"""`octavo bench replay` and its figures on the bundled model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from octavo_worker.bench.cli import bench

COUNT = 12


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A burst, a lull of five seconds and a straggler; all prompts begin with the same block."""
    path = tmp_path / "burst.jsonl"
    rows = [
        {"arrival_s": 5 * (i == COUNT - 1), "input_tokens": 540, "output_tokens": 40, "hash_ids": [1, 100 + i]}
        for i in range(COUNT)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def replayed(*arguments: str | Path) -> dict:
    result = CliRunner().invoke(bench, ["replay", *map(str, arguments), "--device", "cpu", "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.full
def test_every_request_is_replayed_in_time(trace: Path) -> None:
    document = replayed(trace, "--speed", "1")
    row = document["rows"][0]
    assert row["requests"] == COUNT
    assert row["seconds"] >= 5
    assert row["output_tokens_per_s"] == pytest.approx(COUNT * 40 / row["seconds"], rel=0.01)
    assert 0 <= row["queued_p50_ms"] <= row["ttft_p50_ms"] <= row["ttft_p99_ms"]
    assert row["per_token_p50_ms"] > 0
    assert 0 <= row["idle_share"] <= 1  # of the time with requests: the lull is not in it
    assert 0 < row["empty_share"] < 1
    assert sum(row["preemptions"].values()) == 0
    assert row["clipped_requests"] == 0
    assert {"rules", "machine", "versions", "command", "date"} <= set(document)


def test_shared_blocks_are_found(trace: Path) -> None:
    row = replayed(trace, "--speed", "10")["rows"][0]
    assert row["prefix_hit_share"] == pytest.approx((COUNT - 1) * 512 / (COUNT * 540), abs=0.001)


def test_a_small_cache_shows_preemption(trace: Path) -> None:
    sizes = ("--kv-tokens", "704", "--kv-tokens", "16000")
    small, ample = replayed(trace, "--speed", "1000", *sizes, "--seconds", "1")["rows"]
    assert (small["kv_tokens"], ample["kv_tokens"]) == (704, 16_000)
    assert small["requests"] == ample["requests"] == COUNT - 1
    assert small["preemptions"]["recompute_no_swap"] > 0
    assert small["recomputed_tokens"] > 0
    assert sum(ample["preemptions"].values()) == ample["recomputed_tokens"] == 0


def test_several_traces_share_one_loaded_model(trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("arrival_s,input_tokens,output_tokens\n0,20,3\n")
    rows = replayed(trace, other, "--speed", "1000")["rows"]
    assert [(row["workload"], row["requests"]) for row in rows] == [(trace.name, COUNT), (other.name, 1)]


def test_long_requests_are_clipped_and_counted(trace: Path) -> None:
    row = replayed(trace, "--speed", "1000", "--max-model-len", "64", "--requests", "3")["rows"][0]
    assert row["clipped_requests"] == 3
    assert row["kept_prompt_share"] == pytest.approx(32 / 540, abs=1e-4)


def test_steps_are_written_as_a_chrome_trace(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "steps.json"
    row = replayed(trace, "--speed", "1000", "--chrome-trace", str(out))["rows"][0]
    steps = [event for event in json.loads(out.read_text())["traceEvents"] if event["name"].startswith("step ")]
    assert len(steps) == row["steps"]


def test_a_file_that_is_no_trace_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("a,b\n1,2\n")
    result = CliRunner().invoke(bench, ["replay", str(path)])
    assert result.exit_code == 2
    assert "is not a trace of arrival_s" in " ".join(re.split(r"[│\s]+", result.output))
