"""What each kernel for products is worth to the engine, on one GPU: every workload with all kernels, and without one.

    python benchmarks/lab/kernel_variants.py --model qwen3-0.6b --out benchmarks/results/variants-0.6b.json

A variant is taken away by what `octavo_kernels.products.choice` decides; graphs are captured anew. Variants take
turns, because the clocks of a GPU drift. A kernel whose absence costs less than 2 % everywhere is not worth its lines.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from octavo_kernels.products import choice
from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.engine import EngineBench
from octavo_worker.bench.report import median, report, write
from octavo_worker.bench.shapes import write_shape
from octavo_worker.bench.workloads import Work
from octavo_worker.contract.messages import BATCH
from octavo_worker.contract.options import ModelOptions

sys.path.insert(0, str(Path(__file__).parents[1]))  # kernel_rows is shared with benchmarks/kernels.py
from kernel_rows.measuring import changed

Change = Callable[..., Any] | int | tuple[Any, ...]

VARIANTS: dict[str, dict[str, Change]] = {
    "all": {},
    "without row": {"_row_takes": lambda *_: False},
    "without held": {"_is_held": lambda *_: False},
    "without ring": {"RING_ROWS": 0, "RING_LARGE": 1 << 62},
    "held for ring": {"RING_ROWS": 0, "RING_LARGE": 1 << 62, "HELD_SMALL": 1 << 62},
    "without wide gates": {"_gate": lambda *_: None},
    "without wide plain": {"_plain": lambda *_: None},
    "without cuBLASLt": {"LT_ROWS": 0},
}
SEQUENCES = (1, 8, 24, 48, 64, 100, 128, 256)


def work_of(sequences: int) -> list[Work]:
    """So much output that decoding takes nearly all of the time."""
    generator = torch.Generator().manual_seed(sequences)
    prompts = torch.randint(10, 30_000, (sequences, 128), generator=generator).tolist()
    return [Work(prompt, 256) for prompt in prompts]


@contextmanager
def chosen_otherwise(names: dict[str, Change]) -> Iterator[None]:
    """`choice` remembers what it chose."""
    try:
        with changed(choice, **names):
            choice.choose.cache_clear()
            yield
    finally:
        choice.choose.cache_clear()


def seconds_of(options: ModelOptions, sequences: list[int], runs: int) -> dict[int, float]:
    bench = EngineBench(load_runner(options), options, temperature=1.0)
    took = {}
    for count in sequences:
        work = work_of(count)
        bench.run([Work(w.prompt, 8) for w in work], priority=BATCH)
        took[count] = min(bench.run(work, priority=BATCH).seconds for _ in range(runs))
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="variants beside `all`")
    parser.add_argument("--sequences", nargs="*", type=int, default=list(SEQUENCES))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    variants = {
        name: changes
        for name, changes in VARIANTS.items()
        if all(hasattr(choice, key) for key in changes) and (not args.only or name in ("all", *args.only))
    }
    seconds: dict[str, list[dict[int, float]]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as folder:
        path = write_shape(args.model, Path(folder))
        options = ModelOptions(
            model=str(path), load_format="dummy", max_model_len=1024, max_running=max(args.sequences), device="cuda"
        )
        for _ in range(args.turns):
            for name, changes in variants.items():
                with chosen_otherwise(changes):
                    seconds[name].append(seconds_of(options, args.sequences, args.runs))
                gc.unfreeze()
                gc.collect()
                torch.cuda.empty_cache()
    rows: list[dict[str, Any]] = []
    for sequences in args.sequences:
        whole = median([turn[sequences] for turn in seconds["all"]])
        for name, turns in seconds.items():
            took = median([turn[sequences] for turn in turns])
            rows.append(
                {
                    "sequences": sequences,
                    "variant": name,
                    "seconds": [round(turn[sequences], 4) for turn in turns],
                    "slower_percent": round(100 * (took / whole - 1), 2),
                }
            )
            print(f"{sequences:4} {name:20} {took:8.4f} s {rows[-1]['slower_percent']:+6.2f} %", flush=True)
    document = report("kernel_variants", rows, model=args.model, device=torch.cuda.get_device_name())
    if args.out:
        write(document, args.out)


if __name__ == "__main__":
    main()
