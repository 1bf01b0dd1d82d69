"""Products of 65 to 256 rows by `linear_swapped.cuh` in every way it can be told, beside what `choice` names and beside
cuBLAS, on one GPU; then a decoder's layers one after the other, attention included.

    python benchmarks/lab/swapped_products.py --out benchmarks/results/h200-swapped.json

A way is `consumers`x`tokens`/`pairs of blocks that share the depth` (0: whole tiles). In a chain `now` is what `choice`
names without the kernel, `best` the fastest way of each product by itself, `even` and `whole` those of two consumers, and
the name of a product is that one's best way alone. Floors are the bytes of the weights at the speed of a paged read or,
where that is longer, the operations at the speed of a large matrix product.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products import choice, dense_cuda
from octavo_kernels.products.choice import Kernel, Launch, Tile, over
from octavo_kernels.products.product import COUNTERS, Product
from octavo_worker.bench.report import report, write

sys.path.insert(0, str(Path(__file__).parents[1]))  # kernel_rows is shared with benchmarks/kernels.py
from kernel_rows.decode import attention
from kernel_rows.measuring import COLD_BYTES, MATMUL, READ, bf16, changed, measure_by_turns


class Shape(NamedTuple):
    hidden: int
    inner: int
    heads: int
    kv_heads: int

    def products(self) -> dict[str, tuple[int, int]]:
        """Columns and depth."""
        q, kv = self.heads * 128, self.kv_heads * 128
        return {
            "qkv": (q + 2 * kv, self.hidden), "o": (self.hidden, q), "gate_up": (2 * self.inner, self.hidden),
            "down": (self.hidden, self.inner),
        }  # fmt: skip


MODELS = {"8B": Shape(4096, 14336, 32, 8), "0.6B": Shape(1024, 3072, 16, 8), "13B": Shape(5120, 13824, 40, 40)}
ROWS = (96, 128, 200, 256)
CONTEXT = 512  # tokens of each sequence in a chain
WAYS = {2: (96, 128, 160, 192, 208, 224, 240, 256), 3: (96, 128, 160, 192), 4: (96, 128)}  # consumers, tokens


def ways(rows: int, columns: int, depth: int, pairs: int) -> list[Launch]:
    """Whole tiles; where there are fewer than pairs of blocks as many for each tile, and all of them evenly."""
    found = []
    for consumers, all_tokens in WAYS.items():
        tokens = next((n for n in all_tokens if n >= rows), None)
        if tokens is None:
            continue
        tiles, stages = over(columns, 128 * consumers), over(depth, 64)
        shares = {0, min(pairs, tiles * stages)}
        if tiles <= pairs // 2:
            shares |= {tiles * (pairs // tiles), tiles * max(1, pairs // tiles // 2)}
        tiles_of = [Tile(consumers, tokens)] + [Tile(2, tokens, True)] * ((consumers, tokens) in ((2, 208), (2, 256)))
        found += [Launch(Kernel.SWAPPED, tile, shares=n) for tile in tiles_of for n in sorted(shares)]
    return found


def name_of(launch: Launch | None) -> str:
    return "choice" if launch is None else f"{launch.tile.consumers}x{launch.tile.columns}{'t' * launch.tile.tall}/{launch.shares}"


class Layer:
    """The products of a layer with their operands; by `way` each of them is computed."""

    def __init__(self, shape: Shape, rows: int, weights: dict[str, Tensor], counter: Tensor) -> None:
        self.weights, self.counter, self.norm = weights, counter, RmsNorm(bf16(shape.hidden), 1e-5)
        sizes = shape.products()
        self.out = {n: bf16(rows, c // 2 if n == "gate_up" else c) for n, (c, _) in sizes.items()}
        self.x = {n: bf16(rows, d) for n, (_, d) in sizes.items()}
        self.scratch, self.normed = bf16(rows, 2 * shape.inner), bf16(rows, shape.hidden)

    def product(self, name: str, way: Launch | None) -> None:
        out, gated = self.out[name], name == "gate_up"
        residual = bool(name in ("o", "down"))
        p = Product(
            self.x[name], self.weights[name], out=out, residual=out if residual else None, counter=self.counter
        )
        if way is not None:
            code = ops.ACTIVATIONS["silu"] if gated else None
            if not dense_cuda.launched(p, dense_cuda.operands_of(p, out), way, code):
                raise RuntimeError(f"{name}: {name_of(way)} was not launched")
        elif gated:
            ops.gated_linear(p, "silu", self.scratch)
        else:
            ops.linear(p)

    def run(self, chosen: dict[str, Launch | None], attend: Callable[[], object]) -> None:
        for name in self.weights:
            if name in ("qkv", "gate_up"):
                ops.rms_norm(self.normed, self.norm.weight, self.norm.eps, out=self.x[name])
            if name == "o":
                attend()
            self.product(name, chosen[name])


def alone(shape: Shape, name: str, rows: int, counter: Tensor, pairs: int) -> tuple[dict[str, Any], dict[str, Launch]]:
    columns, depth = shape.products()[name]
    copies = max(2, int(COLD_BYTES / (2 * columns * depth)) + 1)
    layers = [Layer(shape, rows, {name: bf16(columns, depth)}, counter) for _ in range(copies)]
    candidates: dict[str, Launch | None] = {"choice": None}
    candidates |= {name_of(way): way for way in ways(rows, columns, depth, pairs)}
    rivals = {
        label: [lambda layer=layer, way=way: layer.product(name, way) for layer in layers]
        for label, way in candidates.items()
    }
    with changed(choice, SWAPPED_ROWS=(0, 0)):
        choice.choose.cache_clear()
        seconds = measure_by_turns(rivals, replays=5)
    floor = max(2 * columns * depth / READ, 2 * rows * columns * depth / MATMUL)
    times = {label: round(took * 1e6, 1) for label, took in sorted(seconds.items(), key=lambda item: item[1])}
    result = {"product": name, "rows": rows, "floor_microseconds": round(floor * 1e6, 1), "microseconds": times}
    best = next(label for label in times if label != "choice")
    print(
        f"{name:8} {rows:4} floor {floor * 1e6:6.1f} choice {times['choice']:6.1f} best {times[best]:6.1f} "
        f"({100 * floor * 1e6 / times[best]:.0f} %) | " + " ".join(f"{k} {v}" for k, v in times.items()),
        flush=True,
    )
    kept = {"best": candidates[best]}
    for label, wanted in (("even", True), ("whole", False)):
        kept[label] = next(candidates[k] for k in times if k.startswith("2x") and (not k.endswith("/0")) is wanted)
    return result, kept


def chain(shape: Shape, rows: int, found: dict[str, dict[str, Launch]], counter: Tensor, count: int) -> dict[str, Any]:
    layers = [Layer(shape, rows, {n: bf16(*size) for n, size in shape.products().items()}, counter) for _ in range(count)]
    attend = attention([CONTEXT] * rows, shape.heads, shape.kv_heads, layers=count)
    none = dict.fromkeys(found)
    variants: dict[str, dict[str, Launch | None]] = {"now": none}
    variants |= {kind: {n: own[kind] for n, own in found.items()} for kind in ("best", "even", "whole")}
    variants |= {n: {**none, n: own["best"]} for n, own in found.items()}

    def step(chosen: dict[str, Launch | None]) -> Callable[[], None]:
        def run() -> None:
            for i, layer in enumerate(layers):
                layer.run(chosen, lambda: attend(i))

        return run

    with changed(choice, SWAPPED_ROWS=(0, 0)):
        choice.choose.cache_clear()
        seconds = measure_by_turns({label: [step(chosen)] for label, chosen in variants.items()}, replays=7)
    times = {label: round(took / count * 1e6, 1) for label, took in seconds.items()}
    print(f"layer    {rows:4} | " + " ".join(f"{k} {v}" for k, v in times.items()), flush=True)
    return {"product": "layer", "rows": rows, "microseconds": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    counter = torch.zeros(COUNTERS, dtype=torch.int32, device="cuda")
    pairs = torch.cuda.get_device_properties(0).multi_processor_count // 2
    results = []
    for model in args.models:
        shape = MODELS[model]
        print(model, flush=True)
        count = max(4, int(COLD_BYTES / sum(2 * c * d for c, d in shape.products().values())))
        for rows in args.rows:
            found = {}
            for name in shape.products():
                result, found[name] = alone(shape, name, rows, counter, pairs)
                results.append({"model": model, **result})
            results.append({"model": model, **chain(shape, rows, found, counter, count)})
            torch.cuda.empty_cache()
    if args.out:
        write(report("swapped_products", results, device=torch.cuda.get_device_name()), args.out)


if __name__ == "__main__":
    main()
