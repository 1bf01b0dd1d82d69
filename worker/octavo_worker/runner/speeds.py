"""The speeds that decide what a preemption costs and whether drafts pay, measured once when a model is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from msgspec import structs

from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.state import NO_SLOT, StateMove
from octavo_worker.contract.step import UNKNOWN, SampleSpec, SequenceStep, Speeds, StepPlan, StepSeconds
from octavo_worker.runner.cuda.runner import CudaRunner
from octavo_worker.runner.cuda.shapes import DRAFTED_TOKENS
from octavo_worker.runner.draft_model import DraftModel
from octavo_worker.runner.paged import PagedRunner

SHORTEST_PROMPT = 64
BUSY_SECONDS = 0.03
COPIED_BLOCKS = 32
MISSED_TOKENS = 256
RUNS = 3
STEP_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
PADDED_ROWS = (1, 2, *DRAFTED_TOKENS)
"""Rows to which steps with drafts are padded on a GPU."""
STEP_ROWS_AT_LEAST = (1, 8)
SWEEPS = 4
SWEEP_SECONDS = 0.1
"""No further sizes are timed on a CPU after this: a step that takes so long is limited by its rows, not by what begins
it."""
GPU_SWEEP_SECONDS = 0.4
"""On a GPU all sizes are timed once, however long they take: many rows may take little longer than one. A sweep takes
about this long with 8B."""
SAMPLE = SampleSpec(EngineSampling(seed=0, max_tokens=1), 0, (), ())


def measure_speeds(runner: PagedRunner | CudaRunner) -> Speeds:
    """Computes prompts and copies some blocks out and back, on a cache that is not in use yet."""
    block_bytes = runner.kv_cache[0].nbytes
    blocks = min(COPIED_BLOCKS, runner.num_blocks, runner.num_host_blocks) - 1
    out = [(block, runner.first_host_block + block) for block in range(1, blocks + 1)]
    back = [(host, block) for block, host in out]
    copying = _seconds(runner, StepPlan([], 0, swap_out=out, swap_in=back))
    link = 2 * blocks * block_bytes / copying
    windows = 0 if runner.window_layout is None else runner.window_layout.block_bytes
    return Speeds(block_bytes, link, _prefill(runner), runner.state_layout.slot_bytes, windows)


def measure_steps(runner: PagedRunner | CudaRunner, max_running: int, most_drafts: int) -> StepSeconds:
    """Times steps of one token a sequence and of up to `most_drafts` more, and passes of a draft model, on a cache that
    is not in use yet. All sizes in turns, some times: what else the machine does at one moment must not make a size
    look slow."""
    width = min(1 + most_drafts, runner.max_model_len)
    longest = min(max_running * width, runner.num_blocks - 1, runner.most_samples or max_running * width)
    plain, ragged, drafting = dict[int, float](), dict[int, float](), dict[int, float]()
    padded = runner.asynchronous
    began, sizes = time.perf_counter(), [rows for rows in (PADDED_ROWS if padded else STEP_ROWS) if rows <= longest]
    for rows in (*(rows for rows in STEP_ROWS_AT_LEAST if rows <= longest), *sizes * SWEEPS):
        is_new = rows not in ragged
        if is_new:
            limit = inf if runner.asynchronous or rows in STEP_ROWS_AT_LEAST else SWEEP_SECONDS
        else:
            limit = SWEEPS * (GPU_SWEEP_SECONDS if runner.asynchronous else SWEEP_SECONDS)
        if time.perf_counter() - began > limit:
            continue
        wide = [width] * (rows // width) + [rows % width] * (rows % width > 0)
        ragged[rows] = min(ragged.get(rows, inf), _seconds(runner, _decodes(runner, wide), runs=1))
        if rows <= max_running:
            ones = [1] * rows
            plain[rows] = min(plain.get(rows, inf), _decoding_seconds(runner, _decodes(runner, ones)))
            if runner.draft_model is not None:
                drafting[rows] = min(drafting.get(rows, inf), _pass_seconds(runner.draft_model, runner, ones))
    if not runner.asynchronous:  # rows cost the same either way: what differs is noise
        ragged = {rows: min(taken, plain.get(rows, inf)) for rows, taken in ragged.items()}
        plain = {rows: ragged[rows] for rows in plain}
    found = StepSeconds(sorted(plain.items()), sorted(ragged.items()), runner.most_samples, padded=padded)
    if runner.draft_model is None:
        return found
    catching_up = _catching_up_seconds(runner.draft_model, runner)
    return replace(found, drafting=sorted(drafting.items()), catching_up=catching_up)


def _decodes(runner: PagedRunner | CudaRunner, queries: Sequence[int]) -> StepPlan:
    """A step of decodes with so many tokens each, all of which are sampled, in blocks of their own. As in steps that
    verify drafts, several tokens leave a state behind each, as long as there are slots."""
    steps, block, slots = [], 1, iter(range(1, runner.num_state_slots))
    for count in queries:
        table = range(block, block + -(-count // runner.block_size))
        rows = tuple(range(count)) if count > 1 else ()
        kept = [next(slots, NO_SLOT) for _ in range(count)]
        move = StateMove(kept[0], kept[0]) if count == 1 else StateMove(NO_SLOT, NO_SLOT, tuple(enumerate(kept, 1)))
        step = SequenceStep([0] * count, 0, list(table), (SAMPLE,) * count, rows, state=move)
        steps.append(_windowed(runner, step))
        block = table.stop
    return StepPlan(steps, len(steps))


def _windowed(runner: PagedRunner | CudaRunner, step: SequenceStep) -> SequenceStep:
    """The step with blocks of layers with a window, where there is such a group: any will do, what is in them means
    nothing."""
    windows = runner.windows
    return step if windows is None else step.windowed([1 + at % (windows.num_blocks - 1) for at in step.block_table])


def _pass_seconds(model: DraftModel, runner: PagedRunner | CudaRunner, ones: Sequence[int]) -> float:
    """Seconds of a pass that guesses a token for each of some sequences, which have a prompt of one."""
    spec = SampleSpec(SAMPLE.params, 0, (0,), ())
    steps = [
        structs.replace(step, tokens=(0, UNKNOWN), start=1, samples=(spec, spec), sample_rows=(0, 1))
        for step in _decodes(runner, ones).sequences
    ]
    return model.pass_seconds(steps)


def _catching_up_seconds(model: DraftModel, runner: PagedRunner | CudaRunner) -> float:
    """A token, of a sequence that the target alone has computed."""
    fitting = min(runner.token_budget, runner.max_model_len - 1, (runner.num_blocks - 1) * runner.block_size - 1)
    count = max(2, min(MISSED_TOKENS, fitting))  # a prompt, and the token that a decode begins with
    table = list(range(1, 2 + count // runner.block_size))
    computed = [SequenceStep([0] * count, 0, table)]
    spec = SampleSpec(SAMPLE.params, 0, (0,) * count, ())
    asked = [SequenceStep((0, UNKNOWN), count - 1, table, (spec, spec), (0, 1))]

    def catch_up() -> None:
        model.fill_in(computed)
        model.fill_in(asked)
        model.wait()

    return _least(catch_up, RUNS) / count


def _decoding_seconds(runner: PagedRunner | CudaRunner, plan: StepPlan) -> float:
    """Seconds of a step that is launched while the one before it runs, where the engine does so."""
    if not runner.asynchronous:
        return _seconds(runner, plan, runs=1)
    runner.launch(plan).result()
    began, before = time.perf_counter(), runner.launch(plan)
    for _ in range(RUNS):
        behind = runner.launch(plan)
        before.result()
        before = behind
    before.result()
    return max((time.perf_counter() - began) / (1 + RUNS), 1e-9)


def _prefill(runner: PagedRunner | CudaRunner) -> float:
    """Tokens a second of a prompt that keeps the device busy. Its length doubles until a step takes `BUSY_SECONDS` or
    nothing longer fits: the fixed cost of a step would make a fast device look slow."""
    longest = min(runner.token_budget, runner.max_model_len, (runner.num_blocks - 1) * runner.block_size)
    table = list(range(1, runner.num_blocks))
    tokens = min(SHORTEST_PROMPT, longest)
    while (
        seconds := _seconds(runner, StepPlan([_windowed(runner, SequenceStep([0] * tokens, 0, table))], 0))
    ) < BUSY_SECONDS:
        if tokens == longest:
            break
        tokens = min(2 * tokens, longest)
    return tokens / seconds


def _seconds(runner: PagedRunner | CudaRunner, plan: StepPlan, runs: int = RUNS) -> float:
    """The least of some runs: the first also pays for first touches of pages and code, others for what else the machine
    does."""
    return _least(lambda: runner.launch(plan).result(), runs)


def _least(run: Callable[[], object], runs: int) -> float:
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return max(min(seconds), 1e-9)
