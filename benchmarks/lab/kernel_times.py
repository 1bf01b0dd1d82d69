"""Where a workload's time goes: calls and microseconds of each kernel, from a profile of octavo's engine.

    python benchmarks/lab/kernel_times.py --model qwen3.5-9b --workload prefill1x8k [--tokens 16] [--most 30]

A model is a public shape with random weights. Kernels that run beside each other count with their whole time each. On a
CPU the rows are torch's operations.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.engine import EngineBench
from octavo_worker.bench.shapes import SHAPES, write_shape
from octavo_worker.bench.workloads import CPU_LENGTHS, GPU_WORKLOADS, Work, workload
from octavo_worker.contract.messages import BATCH
from octavo_worker.contract.options import ModelOptions

NAME = 90  # letters of a kernel's name that are shown


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    device, activity = ("cuda", ProfilerActivity.CUDA) if torch.cuda.is_available() else ("cpu", ProfilerActivity.CPU)
    options = ModelOptions(
        model=str(write_shape(arguments.model, folder)), load_format="dummy", device=device, max_model_len=9216
    )
    bench = EngineBench(load_runner(options), options, 1.0)
    family = "gpu" if device == "cuda" else "cpu"
    work = [
        Work(each.prompt, min(each.max_tokens, arguments.tokens))
        for each in workload(family, arguments.workload, bench.vocab_size)
    ]
    bench.run(work, priority=BATCH)  # what is loaded or captured on first use
    with profile(activities=[activity]) as profiled:
        timing = bench.run(work, priority=BATCH)
    found = profiled.key_averages()
    rows = [
        (each.key, each.count, each.self_device_time_total if device == "cuda" else each.self_cpu_time_total)
        for each in found
    ]
    print(f"{timing.seconds:.3f} s, {timing.stats.steps} steps", "calls | us | us a call | kernel", sep="\n")
    for name, calls, taken in sorted(rows, key=lambda row: -row[2])[: arguments.most]:
        plain = name.removeprefix("void ").replace("octavo::(anonymous namespace)::", "")
        print(calls, f"{taken:.0f}", f"{taken / calls:.1f}", plain[:NAME], sep=" | ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, required=True)
    parser.add_argument("--workload", choices=[*GPU_WORKLOADS, *CPU_LENGTHS], required=True)
    parser.add_argument("--tokens", type=int, default=16, help="generated for each request at most")
    parser.add_argument("--most", type=int, default=30, help="kernels that are shown")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(arguments, Path(folder))


if __name__ == "__main__":
    main()
