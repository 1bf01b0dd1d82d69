"""The real engine, which takes its speeds from here: measured ones would choose other drafts, and another way to
preempt, on a busy machine than on an idle one. The command line is that of `octavo_worker.assembly.engine_process`."""

from __future__ import annotations

from typing import Any

from octavo_worker.assembly import engine_process, loading
from octavo_worker.contract.step import Speeds, StepSeconds

ROWS = (1, 512)


def speeds(runner: Any) -> Speeds:
    return Speeds(block_bytes=runner.kv_cache[0].nbytes, link=1e9, prefill=1e4)


def step_seconds(runner: Any, max_running: int, most_drafts: int) -> StepSeconds:
    """A step takes as long whatever its rows, and a pass of a draft model a hundredth of that: any guess pays."""
    steps, passes = [(rows, 1.0) for rows in ROWS], [(rows, 0.01) for rows in ROWS]
    drafting = None if runner.draft_model is None else passes
    return StepSeconds(steps, steps, runner.most_samples, drafting, catching_up=1e-4)


if __name__ == "__main__":
    loading.measure_speeds, loading.measure_steps = speeds, step_seconds
    engine_process.main()
