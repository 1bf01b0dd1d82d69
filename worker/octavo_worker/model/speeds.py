"""What preemption costs on this machine, measured once when a model is loaded."""

from __future__ import annotations

import time

from octavo_worker.engine.plan import SequenceStep, Speeds, StepPlan
from octavo_worker.model.cuda.runner import CudaRunner
from octavo_worker.model.runner import PagedRunner

PROMPT_TOKENS = 64
COPIED_BLOCKS = 32
RUNS = 4


def measure_speeds(runner: PagedRunner | CudaRunner) -> Speeds:
    """Computes a short prompt and copies some blocks out and back, on a cache that nobody uses yet.

    A short prompt underrates devices that need large batches to be busy: there, recomputing looks dearer than it is,
    and victims are rather swapped, which on such devices is cheaper by an order of magnitude.
    """
    block_bytes = runner.kv_cache[0].nbytes
    blocks = min(COPIED_BLOCKS, runner.num_blocks, runner.num_host_blocks) - 1
    tokens = min(PROMPT_TOKENS, runner.max_model_len, (runner.num_blocks - 1) * runner.block_size)
    table = list(range(1, runner.num_blocks))
    prompt = StepPlan([SequenceStep([0] * tokens, 0, table)], 0)
    pairs = [(block, block) for block in range(1, blocks + 1)]
    swap = StepPlan([], 0, swap_out=pairs, swap_in=pairs)
    computing, copying = (_seconds(runner, plan) for plan in (prompt, swap))
    return Speeds(block_bytes, link=2 * blocks * block_bytes / copying, prefill=tokens / computing)


def _seconds(runner: PagedRunner | CudaRunner, plan: StepPlan) -> float:
    """The least of some runs: the first also pays for pages and code that are touched for the first time, and others
    for whatever else the machine does meanwhile."""
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        runner.launch(plan).result()
        seconds.append(time.perf_counter() - began)
    return max(min(seconds), 1e-9)
