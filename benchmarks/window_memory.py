"""Sequences that run at once in 20 GiB for keys and values, where some layers have a window.

    python benchmarks/window_memory.py [--gib 20] [--shapes gemma3-27b,gemma4-31b] [--out FILE.json]

The scheduler and its memory alone, no model: requests of a length come all at once, each with 128 tokens to generate,
none like another. A row says how many of them decoded in a step, on average over steps that decode: where all layers
are one group of blocks, where windows have half of the memory, and where both groups share it by slabs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from array import array
from pathlib import Path
from typing import Any

from octavo_worker.assembly.inspection import Inspection, inspect
from octavo_worker.assembly.window_blocks import WindowGroup
from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import write_shape
from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.messages import AddRequest, EngineSampling, SequenceInput
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import Sampled, SequenceResult, StepResult
from octavo_worker.contract.windows import WindowBlocks
from octavo_worker.engine.config import SchedulerConfig
from octavo_worker.engine.scheduler import Scheduler

BLOCK, CHUNK, RUNNING, OUTPUT = 16, 8192, 256, 128
LENGTHS = (500, 2_000, 8_000, 32_000)
TOKENS = 600_000  # of all prompts of a row


def memory(way: str, budget: int, model: Inspection) -> dict[str, Any]:
    """Sizes of pools in `budget` bytes, as a scheduler is told of them."""
    full, windowed = model.kept_bytes * BLOCK, model.window_bytes * BLOCK
    if way == "one_group":
        return {"num_blocks": budget // (full + windowed)}
    sequence = Capacity(1, BLOCK, window=model.window)
    live, chunk = sequence.sliding_blocks(1), sequence.sliding_blocks(CHUNK)
    group = WindowGroup(full, windowed, 1 + live, 1 + RUNNING * live + chunk, chunk, is_beside=False)
    if way == "halves":
        windows = group.blocks(budget, None)
        blocks = (budget - windows * windowed) // full
        return {"num_blocks": blocks, "windows": WindowBlocks(windows, model.window)}
    slabs = group.slabs(budget, 1 << 30)
    assert slabs is not None
    windows = WindowBlocks(slabs.number * slabs.windows, model.window, slabs=slabs)
    return {"num_blocks": slabs.number * slabs.blocks, "windows": windows}


def decoded_in_a_step(length: int, told: dict[str, Any]) -> float:
    """0 where one sequence does not fit."""
    config = SchedulerConfig(
        block_size=BLOCK, max_model_len=1 << 17, vocab_size=1 << 20, token_budget=CHUNK, max_running=RUNNING, **told
    )
    scheduler = Scheduler(config)
    for number in range(max(24, TOKENS // length)):
        prompt = array("I", range(number * length, (number + 1) * length))
        sampling = EngineSampling(seed=number, max_tokens=OUTPUT)
        scheduler.add(AddRequest(str(number), prompt, [SequenceInput(0)], sampling))
    decoded = steps = 0
    while (plan := scheduler.plan()) is not None:
        answers = [SequenceResult([Sampled(5) for _ in step.samples]) for step in plan.sequences]
        decoded, steps = decoded + plan.num_decodes, steps + (plan.num_decodes > 0)
        scheduler.commit(plan, StepResult(answers))
        assert not scheduler.take_output().failed
    return decoded / steps if steps else 0.0


def row(shape: str, model: Inspection, length: int, budget: int) -> dict[str, Any]:
    ways = ("one_group", "halves", "shared")
    found = {way: round(decoded_in_a_step(length, memory(way, budget, model)), 1) for way in ways}
    ratios = {f"ratio_to_{way}": round(found["shared"] / found[way], 2) if found[way] else None for way in ways[:-1]}
    print(json.dumps(line := {"shape": shape, "prompt_tokens": length, **found, **ratios}), flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=20)
    parser.add_argument("--shapes", default="gemma3-27b,gemma4-31b")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    budget, rows = int(args.gib * (1 << 30)), []
    for shape in args.shapes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            model = inspect(
                ModelOptions(model=str(write_shape(shape, Path(folder))), device="cpu", load_format="dummy")
            )
        rows += [row(shape, model, length, budget) for length in LENGTHS]
    if args.out is not None:
        write(report("window_memory", rows, gib=args.gib), args.out)


if __name__ == "__main__":
    main()
