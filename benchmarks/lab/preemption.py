"""Swapping against recomputing a sequence, measured, beside what the cost model expects (figure 19 of the paper).

    python benchmarks/lab/preemption.py [--model smollm-135m] [--device cpu|cuda] [--tokens 1024] [--out FILE.json]
    python benchmarks/lab/preemption.py --read FILE.json --plot FILE.png

A sequence is copied to the host and back by the operation that the engine swaps with, from shuffled
blocks to shuffled blocks: the bytes of a token lie together, as in octavo, or scattered over its layers, as in the
paper's layout, keys and values apart. Computing it again is the engine's own prefill, in blocks of 16 (copies are the
only thing here that smaller blocks would change). The model expects what it expects in a worker that has just measured
its speeds at its start. Random weights; least times of several rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from octavo_kernels import ops
from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner, SequenceStep, StepPlan
from octavo_worker.memory.cost import CostModel, Victim

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def least_seconds(run: Callable[[], None], device: torch.device, rounds: int) -> float:
    """The first run pays for pages and code that are touched for the first time, and does not count."""
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def swap_seconds(token: torch.Tensor, tokens: int, pieces: int, rounds: int) -> float:
    """Out and back, in `pieces` copies each way. `token` is a token's part of the cache."""
    shape = (2 * pieces, 1, 2, 1, tokens * token.numel() // (2 * pieces))
    device = torch.zeros(shape, dtype=token.dtype, device=token.device)
    host = torch.zeros(shape, dtype=token.dtype, pin_memory=token.is_cuda)
    here, there = (torch.tensor(random.Random(side).sample(range(2 * pieces), pieces)) for side in (1, 2))
    out, back = torch.stack([here, there], 1), torch.stack([there, here], 1)

    def swap() -> None:
        ops.swap_blocks(device, host, out)
        ops.swap_blocks(host, device, back)

    return least_seconds(swap, token.device, rounds)


def prefill_seconds(runner: ModelRunner, tokens: int, device: torch.device, rounds: int) -> float:
    table = list(range(1, tokens // runner.block_size + 1))
    starts = range(0, tokens, runner.token_budget)
    chunks = [SequenceStep([7] * min(runner.token_budget, tokens - start), start, table) for start in starts]

    def prefill() -> None:
        for chunk in chunks:
            runner.launch(StepPlan([chunk], 0)).result()

    return least_seconds(prefill, device, rounds)


def measure(model: str, device: str, tokens: int, rounds: int) -> Iterator[dict[str, Any]]:
    """One row a block size."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_shape(model, Path(folder))
        options = ModelOptions(
            model=str(path),
            load_format="dummy",
            device=device,
            num_blocks=tokens // 16 + 1,
            max_model_len=tokens,
            host_cache_bytes=1 << 29,
        )
        runner = load_runner(options)
    cache, speeds = runner.kv_cache, runner.speeds
    assert speeds is not None
    token = cache[0].view(-1)[: cache[0].numel() // runner.block_size]
    layers = cache.shape[1]
    recompute = prefill_seconds(runner, tokens, token.device, max(2, rounds // 5))
    for size in BLOCK_SIZES:
        victim = Victim(tokens // size, tokens)
        costs = CostModel(speeds.block_bytes * size // runner.block_size, speeds.link, speeds.prefill)
        seconds = {
            "swap_ms": swap_seconds(token, tokens, tokens // size, rounds),
            "swap_scattered_ms": swap_seconds(token, tokens, tokens // size * layers * 2, max(2, rounds // 5)),
            "recompute_ms": recompute,
            "model_swap_ms": costs.swap_seconds(victim),
            "model_recompute_ms": costs.recompute_seconds(victim),
        }
        gigabytes = 2 * tokens * token.nbytes / seconds["swap_ms"] / 1e9
        rounded = {name: round(value * 1e3, 3) for name, value in seconds.items()}
        yield {"block_size": size, **rounded, "swap_gb_per_s": round(gigabytes, 2)}


def plot(rows: list[dict[str, Any]], tokens: int, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = {
        "swap_ms": ("swap, one copy a block", "-"),
        "swap_scattered_ms": ("swap, two copies a layer", "-"),
        "recompute_ms": ("recompute", "-"),
        "model_swap_ms": ("swap, as the cost model expects", ":"),
        "model_recompute_ms": ("recompute, as the cost model expects", ":"),
    }
    sizes = [row["block_size"] for row in rows]
    for key, (label, style) in lines.items():
        plt.plot(sizes, [row[key] for row in rows], style, marker="o", label=label)
    plt.xscale("log", base=2)
    plt.yscale("log")
    plt.xlabel("tokens a block")
    plt.ylabel(f"ms for {tokens:,} tokens")
    plt.legend()
    plt.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="smollm-135m")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tokens", type=int, default=1024, help="a multiple of 128")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", type=Path, help="figures of an earlier run, to plot them")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    if arguments.read is not None:
        figures = json.loads(arguments.read.read_text())
    else:
        model, device, tokens = arguments.model, arguments.device, arguments.tokens
        figures = report("preemption", [], model=model, device=device, tokens=tokens)
        for row in measure(model, device, tokens, arguments.rounds):
            print(row, flush=True)
            figures["rows"].append(row)
            if arguments.out is not None:  # after every row: a run that is cut short keeps what it has
                write(figures, arguments.out)
    if arguments.plot is not None:
        plot(figures["rows"], figures["tokens"], arguments.plot)


if __name__ == "__main__":
    main()
