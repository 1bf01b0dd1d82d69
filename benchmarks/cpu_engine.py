"""The engine beside its peers on a CPU, interleaved in one run.

usage: python benchmarks/cpu_engine.py [--models smollm-135m,qwen3-0.6b] [--workloads ...] [--rounds 3] [--out FILE]
           [--engines octavo-int4,llama.cpp-q4_0,llama.cpp-q4_k_m]

Behind a dash stands how weights are quantised: `fp8`, `int8` or `int4` by octavo, `q8_0`, `q4_0` or `q4_k_m` by
llama.cpp's own tool. The first engine is compared with the best of the others.
Each engine is one resident process; every round runs each engine once on each workload, so a drift of the machine's
speed hits all alike. Weights are random and of the same shape for all. Figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from peers.process import Peer

from octavo_worker.bench.report import report, write
from octavo_worker.bench.shapes import write_shape
from octavo_worker.bench.workloads import CPU_LENGTHS
from octavo_worker.contract.options import ModelOptions

HERE = Path(__file__).parent
PEERS = {
    "hf-generate": "peers/hf_generate.py",
    "hf-generate_batch": "peers/hf_batch.py",
    "llama.cpp": "peers/llamacpp.py",
}


def command(name: str, model: Path, threads: int) -> list[str]:
    engine, _, kind = name.rpartition("-") if name.startswith(("octavo-", "llama.cpp-")) else (name, "", "")
    if engine == "octavo":
        options = ModelOptions(
            model=str(model), dtype="bfloat16", device="cpu", threads=threads, max_model_len=2048,
            quantization=kind or "auto",
        )  # fmt: skip
        return ["peers/octavo_engine.py", options.to_json()]
    return [PEERS[engine], str(model), str(threads), *filter(None, [kind])]


def materialise(shape: str, folder: Path) -> Path:
    """A model folder with seeded random bf16 weights, as every peer can load it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    target = write_shape(shape, folder)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(target, trust_remote_code=False)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=False)
    model.save_pretrained(target)
    return target


def compare(shape: str, folder: Path, names: list[str], workloads: list[str], rounds: int, threads: int) -> list[dict]:
    peers = [Peer(name, command(name, folder, threads)) for name in names]
    rows = []
    for workload in workloads:
        lengths = CPU_LENGTHS[workload]()
        generated, prompt = sum(o for _, o in lengths), sum(i for i, _ in lengths)
        seconds: dict[str, list[float]] = {peer.name: [] for peer in peers}
        for _ in range(rounds):
            for peer in peers:
                seconds[peer.name].append(peer.run(workload)["seconds"])
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        tokens = prompt + generated if workload == "prefill" else generated
        row = {
            "model": shape,
            "workload": workload,
            "unit": "total tokens/s" if workload == "prefill" else "output tokens/s",
            "tokens_per_s": {name: round(tokens / value, 1) for name, value in medians.items()},
            "seconds": {name: [round(v, 3) for v in values] for name, values in seconds.items()},
        }
        ours, *others = names
        if others:
            best = min(others, key=medians.__getitem__)
            row["best_peer"], row["ratio"] = best, round(medians[best] / medians[ours], 2)
        rows.append(row)
        print(json.dumps({k: v for k, v in row.items() if k != "seconds"}), flush=True)
    for peer in peers:
        peer.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="smollm-135m,qwen3-0.6b")
    parser.add_argument("--workloads", default=",".join(CPU_LENGTHS))
    parser.add_argument("--engines", default="octavo,hf-generate,hf-generate_batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "cpu-engine.json")
    options = parser.parse_args()
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in options.models.split(","):
            model = materialise(shape, Path(folder))
            rows += compare(
                shape, model, options.engines.split(","), options.workloads.split(","), options.rounds, options.threads
            )
            write(report("cpu-engine", rows, threads=options.threads, rounds=options.rounds), options.out)


if __name__ == "__main__":
    main()
