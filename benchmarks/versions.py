"""The engine of this checkout beside that of another one, in turns, on one machine.

usage: python benchmarks/versions.py --other CHECKOUT [--models llama-8b,...] [--workloads ...] [--rounds 5]

Both engines stay loaded, each with a KV cache of --kv-tokens, and one is idle while the other runs. Turns alternate, so
that a drift of the machine's speed meets both alike. `ratio` is the speed of this checkout over that of the other, the
median over neighbouring turns. The kernels of both must be compiled in their `kernels` folders.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from peers.process import BENCHMARKS, Peer

from octavo_worker.bench.engine import blocks_for
from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.bench.workloads import CPU_LENGTHS, GPU_WORKLOADS, workload
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.options import ModelOptions

PACKAGES = ("shared", "gateway", "worker", "kernels")
BLOCK_SIZE = 16


def peer(name: str, checkout: Path, model: Path, options: argparse.Namespace) -> Peer:
    chosen = ModelOptions(
        model=str(model),
        load_format="dummy" if model.name in SHAPES else "auto",
        device=options.device,
        max_model_len=options.max_model_len,
        block_size=BLOCK_SIZE,
        num_blocks=blocks_for(options.kv_tokens, BLOCK_SIZE),
    )
    command = ["peers/octavo_engine.py", chosen.to_json(), options.family, str(options.temperature)]
    folders = os.pathsep.join(str(checkout / package) for package in PACKAGES)
    return Peer(name, command, path=Path(folders), benchmarks=checkout / "benchmarks")


def row(model: str, name: str, family: str, ours: list[float], others: list[float]) -> dict[str, Any]:
    work = workload(family, name, vocab_size=2)
    tokens = sum(w.max_tokens for w in work) + (sum(len(w.prompt) for w in work) if name.startswith("prefill") else 0)
    ratios = [other / our for our, other in zip(ours, others, strict=True)]
    return {
        "model": model,
        "workload": name,
        "tokens_per_s": round(tokens / statistics.median(ours), 1),
        "other_tokens_per_s": round(tokens / statistics.median(others), 1),
        "ratio": round(statistics.median(ratios), 4),
        "ratio_min_max": [round(min(ratios), 4), round(max(ratios), 4)],
        "seconds": {"this": ours, "other": others},
    }


def compare(model: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    this = peer("this", BENCHMARKS.parent, model, options)
    with this, peer("other", options.other, model, options) as other:
        for name in options.workloads:
            taken: dict[str, list[float]] = {"this": [], "other": []}
            for number in range(options.rounds):
                for turn in (this, other) if number % 2 else (other, this):
                    taken[turn.name].append(turn.run(name)["seconds"])
            rows.append(row(model.name, name, options.family, taken["this"], taken["other"]))
            print(json.dumps({key: value for key, value in rows[-1].items() if key != "seconds"}), flush=True)
    return rows


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True, help="the other checkout, with its kernels compiled")
    parser.add_argument("--models", type=lambda text: text.split(","), default=["qwen3-0.6b", "llama-8b"])
    parser.add_argument("--family", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--workloads", type=lambda text: text.split(","), help="all of the family by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--max-model-len", type=int, default=9216)
    parser.add_argument("--kv-tokens", type=int, default=125_000, help="tokens that the KV cache of each engine holds")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.other = options.other.resolve()
    options.workloads = options.workloads or list(CPU_LENGTHS if options.family == "cpu" else GPU_WORKLOADS)
    return options


def main() -> None:
    options = parse()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            model = write_shape(name, Path(folder)) if name in SHAPES else model_folder(name)
            rows += compare(model, options)
            settings = {key: getattr(options, key) for key in ("family", "kv_tokens", "max_model_len", "temperature")}
            write(report("versions", rows, **settings), options.out)


if __name__ == "__main__":
    main()
