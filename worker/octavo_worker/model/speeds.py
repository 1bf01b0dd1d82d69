"""The speeds that decide what a preemption costs, measured once when a model is loaded."""

from __future__ import annotations

import time

from octavo_worker.contract.step import SequenceStep, Speeds, StepPlan
from octavo_worker.model.cuda.runner import CudaRunner
from octavo_worker.model.runner import PagedRunner

SHORTEST_PROMPT = 64
BUSY_SECONDS = 0.03
COPIED_BLOCKS = 32
RUNS = 3


def measure_speeds(runner: PagedRunner | CudaRunner) -> Speeds:
    """Computes prompts and copies some blocks out and back, on a cache that is not in use yet."""
    block_bytes = runner.kv_cache[0].nbytes
    blocks = min(COPIED_BLOCKS, runner.num_blocks, runner.num_host_blocks) - 1
    out = [(block, runner.first_host_block + block) for block in range(1, blocks + 1)]
    back = [(host, block) for block, host in out]
    copying = _seconds(runner, StepPlan([], 0, swap_out=out, swap_in=back))
    return Speeds(block_bytes, link=2 * blocks * block_bytes / copying, prefill=_prefill(runner))


def _prefill(runner: PagedRunner | CudaRunner) -> float:
    """Tokens a second of a prompt that keeps the device busy. Its length doubles until a step takes `BUSY_SECONDS` or
    nothing longer fits: the fixed cost of a step would make a fast device look slow."""
    longest = min(runner.token_budget, runner.max_model_len, (runner.num_blocks - 1) * runner.block_size)
    table = list(range(1, runner.num_blocks))
    tokens = min(SHORTEST_PROMPT, longest)
    while (seconds := _seconds(runner, StepPlan([SequenceStep([0] * tokens, 0, table)], 0))) < BUSY_SECONDS:
        if tokens == longest:
            break
        tokens = min(2 * tokens, longest)
    return tokens / seconds


def _seconds(runner: PagedRunner | CudaRunner, plan: StepPlan) -> float:
    """The least of some runs: the first also pays for first touches of pages and code, others for what else the machine
    does."""
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        runner.launch(plan).result()
        seconds.append(time.perf_counter() - began)
    return max(min(seconds), 1e-9)
