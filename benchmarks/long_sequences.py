"""A sequence five times as long as the KV cache, beside the same one in a cache that holds it.

usage: python benchmarks/long_sequences.py [--rounds 3] [--out benchmarks/results/long_sequences.json]

The shape of SmolLM-135M with random weights on the CPU: a prompt of 1,500 tokens, 64 more. Both run in one process,
interleaved; medians over the rounds. On a CPU both pools are the same memory, so what is left of the difference is
scheduling: smaller chunks of the prompt, and one copy of every block.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path

from octavo_worker.bench.engine import EngineBench, Timing
from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import write_shape
from octavo_worker.bench.workloads import Work
from octavo_worker.engine.options import ModelOptions
from octavo_worker.model import load_runner

PROMPT, NEW = 1500, 64
BLOCKS = -(-(PROMPT + NEW) // 16)
CACHES = {
    "all in the cache": {"num_blocks": BLOCKS + 1},
    "a fifth in the cache": {"num_blocks": BLOCKS // 5 + 1, "host_cache_bytes": 256 << 20},
}


def figures(timings: list[Timing]) -> dict[str, float]:
    prefill = statistics.median(PROMPT / timing.first_token[0] for timing in timings)
    decode = statistics.median(1 / statistics.mean(timing.between_tokens) for timing in timings)
    return {"prompt_tokens_per_s": round(prefill, 1), "decode_tokens_per_s": round(decode, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rng = random.Random(0)
    work = [Work([rng.randrange(49_152) for _ in range(PROMPT)], NEW)]
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_shape("smollm-135m", Path(folder)))
        benches = {}
        for name, cache in CACHES.items():
            options = ModelOptions(model=model, load_format="dummy", **cache)
            benches[name] = EngineBench(load_runner(options), options)
        rounds = [{name: bench.run(work) for name, bench in benches.items()} for _ in range(arguments.rounds + 1)]
    rows = [{"cache": name, **figures([timings[name] for timings in rounds[1:]])} for name in CACHES]
    for row in rows:
        print(row)
    if arguments.out is not None:
        write(report("long_sequences", rows, prompt=PROMPT, new=NEW), arguments.out)


if __name__ == "__main__":
    main()
