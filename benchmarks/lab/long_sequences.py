"""A sequence that is five times as long as the KV cache, beside the same one in a cache that holds it.

    python benchmarks/lab/long_sequences.py [--device cpu|cuda] [--model smollm-135m] [--prompt 1500] [--new 64]
    [--beside 4] [--rounds 3] [--out benchmarks/results/long_sequences.json]

Random weights, both caches in one process, interleaved; medians over the rounds. On a CPU both pools are the same
memory, so what is left of the difference is scheduling: smaller chunks of the prompt, and one copy of every block. On a
GPU every new token reads what lies on the host over the link: `most_decode_tokens_per_s` is what the link would allow
if nothing else took time, at the speed that the worker measured for copies. `--beside`: so many short sequences arrive
when it decodes, and the same ones alone.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path

from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.engine import EngineBench, Timing
from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.bench.workloads import Work
from octavo_worker.contract.capacity import Capacity
from octavo_worker.contract.options import ModelOptions

BLOCK = 16


def figures(timings: list[Timing], prompt: int) -> dict[str, float]:
    prefill = statistics.median(prompt / timing.first_token[0] for timing in timings)
    decode = statistics.median(1 / statistics.mean(timing.between_tokens) for timing in timings)
    first = statistics.median(timing.first_token[0] for timing in timings)
    return {
        "prompt_tokens_per_s": round(prefill, 1),
        "first_token_s": round(first, 3),
        "decode_tokens_per_s": round(decode, 1),
    }


def beside(bench: EngineBench, long: Work, others: list[Work], arrival: float) -> dict[str, float]:
    """How fast the others get their tokens beside the long one, which outlives them, and without it."""
    together = bench.run([long, *others], arrivals=[0.0] + [arrival] * len(others))
    alone = bench.run(others)
    return {
        "others_tokens_per_s": round(sum(1 / seconds for seconds in sorted(together.per_token)[: len(others)]), 1),
        "others_alone_tokens_per_s": round(sum(1 / seconds for seconds in alone.per_token), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--model", choices=SHAPES, default="smollm-135m")
    parser.add_argument("--prompt", type=int, default=1500)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--beside", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    prompt, new = arguments.prompt, arguments.new
    blocks = -(-(prompt + new) // BLOCK)
    few = Capacity(blocks // 5, BLOCK, blocks)
    rng, vocabulary = random.Random(0), SHAPES[arguments.model]["vocab_size"]
    work = [Work([rng.randrange(vocabulary) for _ in range(prompt)], new)]
    others = [Work([rng.randrange(vocabulary) for _ in range(64)], 128) for _ in range(arguments.beside)]
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_shape(arguments.model, Path(folder)))

        def options(num_blocks: int, host_bytes: int = 0) -> ModelOptions:
            return ModelOptions(
                model=model, load_format="dummy", device=arguments.device, num_blocks=num_blocks + 1, max_running=8,
                host_cache_bytes=host_bytes,
            )  # fmt: skip

        whole = options(blocks)
        roomy = load_runner(whole)
        fifth = options(few.device, few.host * roomy.kv_cache[0].nbytes)
        tight = load_runner(fifth)
        benches = {
            "all in the cache": EngineBench(roomy, whole),
            "a fifth in the cache": EngineBench(tight, fifth),
        }
        rounds = [{name: bench.run(work) for name, bench in benches.items()} for _ in range(arguments.rounds + 1)]
        rows = [{"cache": name, **figures([timings[name] for timings in rounds[1:]], prompt)} for name in benches]
        if others:
            rows[1] |= beside(benches["a fifth in the cache"], work[0], others, rows[1]["first_token_s"])
    if arguments.device == "cuda" and tight.speeds is not None:
        cold = (blocks - few.share) * tight.speeds.block_bytes
        rows[1] |= {
            "bytes_over_the_link_per_token": cold,
            "link_gb_per_s": round(tight.speeds.link / 1e9, 1),
            "most_decode_tokens_per_s": round(tight.speeds.link / cold, 1),
        }
    for row in rows:
        print(row)
    if arguments.out is not None:
        write(report("long_sequences", rows, model=arguments.model, prompt=prompt, new=new), arguments.out)


if __name__ == "__main__":
    main()
