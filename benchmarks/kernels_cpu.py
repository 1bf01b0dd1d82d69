"""Speed of the CPU kernels beside torch's, interleaved: python benchmarks/kernels_cpu.py [--cores N] [--quick]

Prints a table and writes benchmarks/results/kernels_cpu.json (`--only SECTION`: kernels_cpu-SECTION.json). Weights and
caches rotate through more memory than the last-level cache holds where the product's own size does not exceed it, so
figures are those of cold data.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from octavo_kernels import _cpu, ops
from octavo_kernels.products.product import Product

RESULTS = Path(__file__).parent / "results" / "kernels_cpu.json"
PRODUCTS = [(576, 960), (1024, 3072), (576, 49152), (1024, 151936)]  # depth, columns
ROWS = [1, 2, 4, 8, 16, 32, 64, 128, 512, 2048]


TURN = 0.03  # seconds; the first half of a turn is not counted, while the other library's threads still spin


def interleaved(
    calls: list[Callable[[], object]], budget: float, pick: Callable[[list[float]], float] = statistics.median
) -> list[float]:
    """Seconds of each call, the median or what `pick` takes, in turns so that noise hits all alike."""
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + budget
    while not times[-1] or time.perf_counter() < end:
        for call, record in zip(calls, times, strict=True):
            begin = now = time.perf_counter()
            while True:
                start = now
                call()
                now = time.perf_counter()
                if start - begin >= TURN / 2:
                    record.append(now - start)
                if now - begin >= TURN and start - begin >= TURN / 2:
                    break
    return [pick(record) for record in times]


def rotating(make: Callable[[], Tensor], memory: float) -> Callable[[], Tensor]:
    first = make()
    copies = [first, *(make() for _ in range(int(min(63, memory / first.nbytes))))]
    turn = iter(range(2**62))
    return lambda: copies[next(turn) % len(copies)]


def measure_linear(budget: float, memory: float) -> list[dict]:
    rows = []
    for depth, columns in PRODUCTS:
        weight = rotating(lambda d=depth, n=columns: torch.randn(n, d).to(torch.bfloat16), memory)
        for t in ROWS:
            x = torch.randn(t, depth).to(torch.bfloat16)
            ours, torchs = interleaved(
                [
                    lambda x=x, w=weight: ops.linear(Product(x, w())),
                    lambda x=x, w=weight: torch.nn.functional.linear(x, w()),
                ],
                budget,
            )
            size, flops = depth * columns * 2, 2 * t * depth * columns
            rows.append(
                {
                    "depth": depth, "columns": columns, "rows": t,
                    "ours_ms": ours * 1e3, "torch_ms": torchs * 1e3, "speedup": torchs / ours,
                    "ours_gb_s": size / ours / 1e9, "torch_gb_s": size / torchs / 1e9,
                    "ours_gflop_s": flops / ours / 1e9, "torch_gflop_s": flops / torchs / 1e9,
                }
            )  # fmt: skip
            print("linear", {k: round(v, 2) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    return rows


def paged(
    sequences: int, queries: int, context: int, heads: int, kv_heads: int, dim: int, cells: torch.dtype = torch.bfloat16
) -> dict[str, object]:
    width = -(-context // 16)
    cache = ops.empty_cache(sequences * width + 1, 1, kv_heads, 16, dim, cells)
    for block in range(1, sequences * width + 1):
        k, v = torch.randn(2, 16, kv_heads, dim).to(torch.bfloat16)
        ops.write_kv(k, v, cache[:, 0], torch.arange(16 * block, 16 * block + 16))
    tables = (torch.randperm(sequences * width) + 1).to(torch.int32).reshape(sequences, width)
    q = torch.randn(sequences * queries, heads, dim).to(torch.bfloat16)
    return {
        "q": q, "layer_cache": cache[:, 0], "block_tables": tables,
        "context_lens": torch.full((sequences,), context, dtype=torch.int32),
        "query_start": (torch.arange(sequences + 1) * queries).to(torch.int32), "out": torch.empty_like(q),
        "scale": dim**-0.5,
    }  # fmt: skip


def measure_decode(budget: float) -> list[dict]:
    rows = []
    for sequences, context, heads, kv_heads, dim in [
        (1, 4096, 9, 3, 64), (32, 256, 9, 3, 64), (32, 1024, 9, 3, 64),
        (32, 1024, 16, 8, 128), (16, 4096, 8, 8, 128), (16, 4096, 32, 8, 128), (16, 4096, 64, 8, 128),
    ]:  # fmt: skip
        arguments = paged(sequences, 1, context, heads, kv_heads, dim)
        (seconds,) = interleaved([lambda a=arguments: ops.paged_attention(**a)], budget)
        size = sequences * context * kv_heads * dim * 2 * 2
        rows.append(
            {
                "sequences": sequences, "context": context, "heads": heads, "kv_heads": kv_heads, "head_dim": dim,
                "ms": seconds * 1e3, "gb_s": size / seconds / 1e9,
                "gflop_s": 4 * sequences * context * heads * dim / seconds / 1e9,
            }
        )  # fmt: skip
        print("decode", {k: round(v, 2) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    return rows


def measure_cache_types(budget: float) -> list[dict]:
    """Decode steps over caches in bfloat16 and in 8 bits; the least of many, for machines that are not quiet."""
    rows = []
    for sequences, context, heads, kv_heads, dim in [
        (1, 4096, 9, 3, 64), (32, 1024, 9, 3, 64),
        (32, 1024, 16, 8, 128), (16, 4096, 32, 8, 128), (4, 16384, 32, 8, 128),
    ]:  # fmt: skip
        calls = {
            name: paged(sequences, 1, context, heads, kv_heads, dim, cells)
            for name, cells in {"bf16": torch.bfloat16, **ops.KV_DTYPES}.items()
        }
        times = interleaved([lambda a=a: ops.paged_attention(**a) for a in calls.values()], 6 * budget, min)
        seconds = dict(zip(calls, times, strict=True))
        rows.append(
            {
                "sequences": sequences, "context": context, "heads": heads, "kv_heads": kv_heads, "head_dim": dim,
                **{f"{name}_ms": s * 1e3 for name, s in seconds.items()},
                **{f"{name}_speedup": seconds["bf16"] / seconds[name] for name in ops.KV_DTYPES},
                **{
                    f"{name}_bytes_a_token": ops.block_bytes(1, kv_heads, 16, dim, cells) // 16
                    for name, cells in {"bf16": torch.bfloat16, **ops.KV_DTYPES}.items()
                },
            }
        )  # fmt: skip
        print("cache", {k: round(v, 3) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    return rows


def measure_prefill(budget: float) -> list[dict]:
    rows = []
    for sequences, length, heads, kv_heads, dim in [(4, 512, 9, 3, 64), (4, 512, 16, 8, 128), (1, 2048, 16, 8, 128)]:
        arguments = paged(sequences, length, length, heads, kv_heads, dim)
        q = torch.randn(sequences, heads, length, dim).to(torch.bfloat16)
        k = torch.randn(sequences, kv_heads, length, dim).to(torch.bfloat16)
        ours, sdpa = interleaved(
            [
                lambda a=arguments: ops.paged_attention(**a),
                lambda q=q, k=k: torch.nn.functional.scaled_dot_product_attention(
                    q, k, k, is_causal=True, enable_gqa=True
                ),
            ],
            budget,
        )
        flops = 2 * heads * dim * sequences * length * (length + 1)
        rows.append(
            {
                "sequences": sequences, "length": length, "heads": heads, "kv_heads": kv_heads, "head_dim": dim,
                "ours_ms": ours * 1e3, "sdpa_ms": sdpa * 1e3,
                "ours_gflop_s": flops / ours / 1e9, "sdpa_gflop_s": flops / sdpa / 1e9,
            }
        )  # fmt: skip
        print("prefill", {k: round(v, 2) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    return rows


def measure_small(budget: float) -> dict[str, float]:
    """Microseconds of the operations around the products, and of the sampler a row."""
    x, weight = torch.randn(8, 1024).to(torch.bfloat16), torch.ones(1024, dtype=torch.bfloat16)
    gate, out = torch.randn(8, 6144).to(torch.bfloat16), torch.empty_like(x)
    tiny, tiny_weight = torch.randn(1, 64), torch.randn(64, 64)
    rows, vocab = 8, 151936
    logits = torch.randn(rows, vocab) * 3

    def sample(top_k: int, top_p: float, temperature: float = 0.8) -> Callable[[], Tensor]:
        samples = ops.pack_samples(
            rows, seeds=range(rows), positions=7, temperature=temperature, top_k=top_k, top_p=top_p
        )
        return lambda: ops.sample(logits, samples)

    calls: dict[str, tuple[Callable[[], object], int]] = {
        "call overhead (linear 1x64x64)": (lambda: ops.linear(Product(tiny, tiny_weight)), 1),
        "rms_norm 8x1024": (lambda: ops.rms_norm(x, weight, out=out), 1),
        "act_and_mul 8x6144": (lambda: ops.act_and_mul(gate, "silu"), 1),
        "sample greedy, a row of 151936": (sample(0, 1.0, 0.0), rows),
        "sample without filters": (sample(0, 1.0), rows),
        "sample top_k 50": (sample(50, 1.0), rows),
        "sample top_p 0.95": (sample(0, 0.95), rows),
        "sample top_k 50, top_p 0.95": (sample(50, 0.95), rows),
        "logprobs top 20": (lambda: ops.logprobs(logits, torch.arange(rows), 20), rows),
    }
    results = {}
    for name, (call, share) in calls.items():
        results[name] = interleaved([call], budget)[0] * 1e6 / share
        print(f"{name}: {results[name]:.1f} us", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores", type=int, help="run on this many cores only")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and less memory")
    parser.add_argument("--only", help="one section of the report")
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
        ops.set_num_threads(arguments.cores)
        torch.set_num_threads(arguments.cores)
    budget, memory = (0.1, 2e8) if arguments.quick else (0.5, 1.5e9)
    torch.manual_seed(0)
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    report = {
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": processor[1] if processor else "unknown", "architecture": platform.machine(),
            "threads": ops.num_threads(),
            "level": _cpu.level(), "load_average": os.getloadavg()[0],
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }  # fmt: skip
    sections: dict[str, Callable[[], object]] = {
        "linear_bf16": lambda: measure_linear(budget, memory),
        "decode_bf16": lambda: measure_decode(budget),
        "decode_cache_types": lambda: measure_cache_types(budget),
        "prefill_bf16": lambda: measure_prefill(budget),
        "small_us": lambda: measure_small(budget),
    }
    chosen = [arguments.only] if arguments.only else list(sections)
    report |= {name: sections[name]() for name in chosen}
    results = RESULTS.with_stem(f"{RESULTS.stem}-{arguments.only}") if arguments.only else RESULTS
    # Late: importing the worker sets how OpenMP's threads wait, and torch is measured as it comes.
    from octavo_worker.bench.report import write

    write(report, results)
    print(f"wrote {results}")


if __name__ == "__main__":
    main()
