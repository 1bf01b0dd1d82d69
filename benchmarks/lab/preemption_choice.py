"""The choice between swapping and recomputing a victim of a model with recurrent states, beside what takes less time.

    python benchmarks/lab/preemption_choice.py [--models qwen3.5-0.8b,lfm2-1.2b] [--out FILE.json]

A victim has some tokens, of which the prefix cache keeps the first with a state behind them; a swap moves all of its
blocks and its state out and back, a recomputation begins at the snapshot. Both are steps of the real runner, of random
weights in blocks of 16. The cost model has just measured its speeds, as in a worker at its start. Least times of some
rounds. A row says what the model expects of both, what it chooses, and what was cheaper; `right` counts rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import write_shape
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.state import NO_SLOT, StateMove
from octavo_worker.contract.step import ModelRunner, SequenceStep, StepPlan
from octavo_worker.memory.cost import CostModel, Decision, Victim

VICTIMS = (
    (64, 0),
    (64, 48),
    (256, 0),
    (256, 240),
    (1024, 0),
    (1024, 960),
    (1024, 1008),
    (2048, 0),
    (2048, 1984),
    (2048, 2032),
)
"""Tokens of a victim, and those of them that are kept."""
LONGEST = max(tokens for tokens, _ in VICTIMS)
SLOT, SNAPSHOT = 1, 2


def least_seconds(run: Callable[[], None], rounds: int) -> float:
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def swap_seconds(runner: ModelRunner, blocks: int, rounds: int) -> float:
    host, state = runner.first_host_block, runner.first_host_state_slot + 1
    pairs = [(block, host + block) for block in range(1, blocks + 1)]
    out = StepPlan([], 0, swap_out=pairs, state_out=[(SLOT, state)])
    back = StepPlan([], 0, swap_in=[(there, here) for here, there in pairs], state_in=[(state, SLOT)])

    def swap() -> None:
        runner.launch(out).result()
        runner.launch(back).result()

    return least_seconds(swap, rounds)


def recompute_seconds(runner: ModelRunner, tokens: int, kept: int, rounds: int) -> float:
    table, steps = list(range(1, tokens // runner.block_size + 1)), []
    for start in range(kept, tokens, runner.token_budget):
        count = min(runner.token_budget, tokens - start)
        first = SNAPSHOT if kept else NO_SLOT
        move = StateMove(first if start == kept else SLOT, SLOT)
        steps.append(StepPlan([SequenceStep([7] * count, start, table, state=move)], 0))

    def recompute() -> None:
        for step in steps:
            runner.launch(step).result()

    return least_seconds(recompute, rounds)


def measure(shape: str, device: str, rounds: int) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        options = ModelOptions(
            model=str(write_shape(shape, Path(folder))), load_format="dummy", device=device,
            num_blocks=LONGEST // 16 + 1, max_model_len=LONGEST, host_cache_bytes=1 << 29, state_slots=8, max_running=4,
        )  # fmt: skip
        runner = load_runner(options)
    speeds = runner.speeds
    assert speeds is not None
    costs = CostModel(speeds.block_bytes, speeds.link, speeds.prefill, state_bytes=speeds.state_bytes)
    for tokens, kept in VICTIMS:
        victim = Victim(tokens // runner.block_size, tokens - kept, kept, states=1)
        swap = swap_seconds(runner, victim.blocks, rounds)
        recompute = recompute_seconds(runner, tokens, kept, max(2, rounds // 3))
        chosen = "swap" if costs.choose(victim) is Decision.SWAP else "recompute"
        cheaper = "swap" if swap < recompute else "recompute"
        yield {
            "model": shape,
            "tokens": tokens,
            "kept": kept,
            "state_mb": round(speeds.state_bytes / 1e6, 2),
            "swap_ms": round(1e3 * swap, 2),
            "model_swap_ms": round(1e3 * costs.swap_seconds(victim), 2),
            "recompute_ms": round(1e3 * recompute, 2),
            "model_recompute_ms": round(1e3 * costs.recompute_seconds(victim), 2),
            "chosen": chosen,
            "cheaper": cheaper,
            "right": chosen == cheaper,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="qwen3.5-0.8b,lfm2-1.2b")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for shape in arguments.models.split(","):
        for row in measure(shape, arguments.device, arguments.rounds):
            rows.append(row)
            print(json.dumps(row), flush=True)
            if arguments.out is not None:
                right = f"{sum(row['right'] for row in rows)} of {len(rows)}"
                write(report("preemption-choice", rows, device=arguments.device, right=right), arguments.out)


if __name__ == "__main__":
    main()
