"""Products with quantised weights beside those in bf16 on a CPU: python benchmarks/cpu_quantised.py [--budget 1]

The products of a layer of two small models, for a few numbers of rows. Weights rotate through more memory than the
caches near a core hold. Every figure is the least of many short repetitions in turns, for machines that are not quiet.
`floor_us` is the time that the weights' bytes take at the speed of the fastest product in bf16 with one row.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from kernels_cpu import interleaved, rotating

from octavo_kernels import _cpu, ops
from octavo_kernels.products.product import Product
from octavo_kernels.products.weights import DTYPES, PER_BYTE, Activations, Codes, PackedWeight, QuantisedWeight, Scheme

PRODUCTS = {
    "0.6B": {"qkv": (1024, 4096), "out": (2048, 1024), "gate_up": (1024, 6144), "down": (3072, 1024)},
    "135M": {"qkv": (576, 960), "out": (576, 576), "gate_up": (576, 3072), "down": (1536, 576)},
}  # depth, columns
SCHEMES = {
    "int4 g128": Scheme(Codes.INT4, 128),
    "int4 g32": Scheme(Codes.INT4, 32),
    "int8": Scheme(Codes.INT8, 1 << 20),
    "fp8": Scheme(Codes.FP8, 1 << 20),
    "nvfp4": Scheme(Codes.FP4, 16),
    "int8 x int8": Scheme(Codes.INT8, 1 << 20, Activations.INT8),
}
MEMORY = 6e7


def random_weight(scheme: Scheme, depth: int, columns: int) -> PackedWeight:
    codes = torch.randint(0, 127, (columns, depth // PER_BYTE[scheme.codes]), dtype=torch.uint8)
    scales = torch.rand(-(-depth // scheme.group), columns)
    return ops.pack(QuantisedWeight(scheme, codes.view(DTYPES[scheme.codes]), scales))


def measure(depth: int, columns: int, rows: int, budget: float) -> dict[str, float]:
    """Seconds by kind of weight."""
    x = torch.randn(rows, depth).to(torch.bfloat16)
    out = torch.empty(rows, columns, dtype=torch.bfloat16)
    plain = rotating(lambda: torch.randn(columns, depth).to(torch.bfloat16), MEMORY)
    calls: dict[str, Callable[[], object]] = {"bf16": lambda: ops.linear(Product(x, plain(), out=out))}
    for name, scheme in SCHEMES.items():
        weight = rotating(lambda s=scheme: random_weight(s, depth, columns), MEMORY / 4)
        calls[name] = lambda w=weight: ops.linear(Product(x, w(), out=out))
    return dict(zip(calls, interleaved(list(calls.values()), budget, min), strict=True))


def size_of(scheme: Scheme, depth: int, columns: int) -> int:
    return columns * (depth // PER_BYTE[scheme.codes] + 4 * -(-depth // scheme.group))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=1.0, help="seconds for each product and number of rows")
    parser.add_argument("--rows", type=lambda s: [int(n) for n in s.split(",")], default=[1, 8, 32, 256])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    ops.set_num_threads(options.threads)
    torch.set_num_threads(1)
    rows = []
    for model, products in PRODUCTS.items():
        for product, (depth, columns) in products.items():
            for count in options.rows:
                seconds = measure(depth, columns, count, options.budget)
                row = {"model": model, "product": product, "rows": count}
                row["us"] = {name: round(s * 1e6, 1) for name, s in seconds.items()}
                row["speedup"] = {name: round(seconds["bf16"] / s, 2) for name, s in seconds.items()}
                rows.append(row)
                print(json.dumps(row), flush=True)
    fastest = max(2 * d * n / r["us"]["bf16"] for r in rows for d, n in [PRODUCTS[r["model"]][r["product"]]])
    for row in rows:
        shape = PRODUCTS[row["model"]][row["product"]]
        row["floor_us"] = {n: round(size_of(s, *shape) / fastest, 1) for n, s in SCHEMES.items()}
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    report = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": processor[1] if processor else "unknown", "architecture": platform.machine(),
            "threads": options.threads, "level": _cpu.level(), "load_average": os.getloadavg()[0],
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "gb_s": round(fastest / 1e3, 1),
        "rows": rows,
    }  # fmt: skip
    if options.out:
        # Late: importing the worker sets how OpenMP's threads wait, and torch is measured as it comes.
        from octavo_worker.bench.report import write

        write(report, options.out)


if __name__ == "__main__":
    main()
