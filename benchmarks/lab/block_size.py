"""What smaller blocks of the KV cache cost and save an engine on the CPU that serves short sequences.

    python benchmarks/lab/block_size.py --traces FOLDER [--model demo] [--requests 64] [--rounds 5] [--out FILE.json]

FOLDER holds `alpaca_lengths.dev.csv.gz` (columns input_tokens and output_tokens): 20 tokens in and 58 out in the
mean. All requests arrive at once, at a cache that holds them all and at one that holds `--cache` tokens. One engine for
each block size, all in one process, interleaved; the best of the rounds, because a disturbance only ever costs.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from paper.workload import read_lengths

from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.engine import EngineBench
from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.bench.workloads import Work
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.options import ModelOptions

BLOCK_SIZES = (4, 8, 16, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--cache", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    trace = arguments.traces / "alpaca_lengths.dev.csv.gz"
    lengths = read_lengths(trace, trace)[: arguments.requests]
    caches = {"roomy": None, "tight": arguments.cache}
    with tempfile.TemporaryDirectory() as folder:
        shape = arguments.model in SHAPES
        model = write_shape(arguments.model, Path(folder)) if shape else model_folder(arguments.model)
        benches = {}
        for size in BLOCK_SIZES:
            options = ModelOptions(
                model=str(model), load_format="dummy" if shape else "auto", device="cpu", block_size=size,
                max_model_len=1024, kv_cache_bytes=256 << 20,
            )  # fmt: skip
            benches[size] = EngineBench(load_runner(options), options)
        rng = random.Random(0)
        vocabulary = benches[16].vocab_size
        work = [Work([rng.randrange(vocabulary) for _ in range(one.prompt)], one.output) for one in lengths]
        tokens = sum(one.max_tokens for one in work)
        speeds: dict[tuple[int, str], list[float]] = {}
        for _ in range(arguments.rounds):
            for cache, kv_tokens in caches.items():
                for size, bench in benches.items():
                    timing = bench.run(work, kv_tokens=kv_tokens)
                    speeds.setdefault((size, cache), []).append(tokens / timing.seconds)
    rows = [
        {"block_size": size}
        | {f"{cache}_tokens_per_s": round(max(speeds[size, cache]), 1) for cache in caches}
        for size in BLOCK_SIZES
    ]  # fmt: skip
    for row in rows:
        print(row)
    if arguments.out is not None:
        extra = {"model": arguments.model, "requests": len(work), "tokens": tokens, "cache_tokens": arguments.cache}
        write(report("block_size", rows, numerics=benches[16].numerics, **extra), arguments.out)


if __name__ == "__main__":
    main()
