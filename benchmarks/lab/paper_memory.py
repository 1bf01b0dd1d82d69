"""The memory experiments of the PagedAttention paper on octavo's scheduler and memory manager, without weights.

    python benchmarks/lab/paper_memory.py --traces FOLDER [--json benchmarks/results/paper_memory.json] [--plots
    docs/memory]

FOLDER holds length distributions (`*.dev.csv.gz`, see `LENGTHS`, with columns input_tokens and output_tokens) and
prompts with block identities (`mooncake_*.dev.jsonl.gz`, with input_tokens and hash_ids). Needs the extra `bench` for
the pictures. Takes a few minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paper import experiments, prefixes
from paper.workload import MAX_LEN, MEMORY_TOKENS, read_lengths

from octavo_worker.bench.report import encode, write

LENGTHS = {
    "alpaca": ("alpaca_lengths", "alpaca_lengths"),
    "sharegpt": ("sharegpt_aibrix_lengths", "sharegpt_aibrix_lengths"),
    # The paper's ShareGPT has short prompts and long answers (161 and 338 tokens in the mean). No trace here has both:
    # first prompts of ShareGPT, paired in file order with the answers of a conversation service.
    "sharegpt_like": ("sharegpt_first_prompt_lengths", "azure2023_conv"),
}
PROMPTS = ("mooncake_conversation", "mooncake_synthetic")
GROUPS = 400  # requests of the experiments with several sequences each


def run(traces: Path) -> dict[str, Any]:
    lengths = {
        name: read_lengths(traces / f"{prompts}.dev.csv.gz", traces / f"{outputs}.dev.csv.gz")
        for name, (prompts, outputs) in LENGTHS.items()
    }
    prompts = {name: prefixes.read_prompts(traces / f"{name}.dev.jsonl.gz") for name in PROMPTS}
    few = {name: requests if name == "alpaca" else requests[:GROUPS] for name, requests in lengths.items()}
    return {
        "requests": {name: len(requests) for name, requests in lengths.items()},
        "batches": {name: experiments.batches(requests) for name, requests in lengths.items()},
        "sharing": {name: experiments.sharing(requests) for name, requests in few.items()},
        "block_sizes": {name: experiments.block_sizes(requests) for name, requests in few.items()},
        "prefix_hit_rates": {name: prefixes.decline(requests) for name, requests in prompts.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/paper_memory.json"))
    parser.add_argument("--plots", type=Path, default=Path("docs/memory"))
    arguments = parser.parse_args()
    began = time.perf_counter()
    report: dict[str, Any] = {
        "command": "python benchmarks/lab/paper_memory.py --traces FOLDER",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        "memory_tokens": MEMORY_TOKENS,
        "max_model_len": MAX_LEN,
        **run(arguments.traces),
        "seconds": round(time.perf_counter() - began, 1),
    }
    write(report, arguments.json)
    print(text := encode(report))
    try:
        from paper.plots import draw
    except ImportError:
        print("no pictures: pip install 'octavo[bench]'", file=sys.stderr)
    else:
        draw(json.loads(text), arguments.plots)


if __name__ == "__main__":
    main()
