"""Products of few rows, of dozens with the norm behind them, and of any number with a gate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernel_rows.measuring import MATMUL, READ, Row, bf16, measure_by_turns, rotations, row
from octavo_kernels import ops
from octavo_kernels.product import Product

# (N, K) of a layer's products in their order, how many layers, and of the head.
DECODERS = {
    "8B": ([(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)], 32, (128256, 4096)),
    "13B": ([(15360, 5120), (5120, 5120), (27648, 5120), (5120, 13824)], 40, (32000, 5120)),
    "0.6B": ([(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)], 28, (151936, 1024)),
}
LINEAR_ROWS = (1, 2, 4, 8, 16, 32, 64)
GATED_ROWS = (40, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 8192)

Step = Callable[[Tensor], object]


def linear(shape: str, rows: int, weights: list[Tensor], calls: int = 1) -> Row:
    """A sequence of products, one after the other, as `calls` calls of what `shape` names; cuBLAS runs the same one
    by turns, because what is between them may be 1 %."""
    x = {w.shape[1]: bf16(rows, w.shape[1]) for w in weights}
    out = {w.shape[0]: bf16(rows, w.shape[0]) for w in weights}
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    n = len(weights) / calls
    kernels = [lambda w=w: ops.linear(Product(x[w.shape[1]], w, out=out[w.shape[0]], counter=counter)) for w in weights]
    torch_mm = [lambda w=w: torch.mm(x[w.shape[1]], w.T, out=out[w.shape[0]]) for w in weights]
    seconds = measure_by_turns({"octavo": kernels, "cuBLAS": torch_mm}, replays=9)
    floor = sum(w.nbytes for w in weights) / calls / READ
    return row("linear", f"{rows} x {shape}", seconds["octavo"] * n, floor, ("cuBLAS", seconds["cuBLAS"] * n))


def linear_rows() -> list[Row]:
    rows = []
    for name, (layer, layers, head) in DECODERS.items():
        weights = [[bf16(*shape) for shape in layer] for _ in range(layers)]
        last = bf16(*head)
        rows += [linear(f"{name} decoder", n, [w for part in weights for w in part] + [last]) for n in LINEAR_ROWS]
        for i, (columns, depth) in enumerate(layer):
            same = [part[i] for part in weights]
            rows += [linear(f"{columns} x {depth}", n, same, len(same)) for n in LINEAR_ROWS]
        rows += [linear(f"{head[0]} x {head[1]}", n, [last, last.clone()], 2) for n in LINEAR_ROWS]
    return rows


def beside_cublas(
    operation: str, name: str, rows: int, weights: list[Tensor], octavo: Step, apart: Step, peer: str
) -> Row:
    """A product with each of `weights` and what follows it; cuBLAS's product and what follows it, `apart`, run by
    turns."""
    columns, depth = weights[0].shape
    calls = {"octavo": octavo, "cuBLAS": apart}
    rivals = {rival: [lambda w=w, call=call: call(w) for w in weights] for rival, call in calls.items()}
    seconds = measure_by_turns(rivals, replays=9)
    floor = max(weights[0].nbytes / READ, 2 * rows * columns * depth / MATMUL)
    shape = f"{rows} x {columns} x {depth} ({name})"
    return row(operation, shape, seconds["octavo"], floor, (peer, seconds["cuBLAS"]))


def weights_of(columns: int, depth: int) -> list[Tensor]:
    return [bf16(columns, depth) for _ in range(rotations(2 * columns * depth, 2))]


def gated(name: str, rows: int, weights: list[Tensor]) -> Row:
    """The first half of a gated MLP."""
    columns, depth = weights[0].shape
    x, middle = bf16(rows, depth), bf16(rows, columns)
    out = bf16(rows, columns // 2)

    def octavo(weight: Tensor) -> None:
        ops.gated_linear(Product(x, weight, out=out), "silu", middle)

    def apart(weight: Tensor) -> None:
        torch.mm(x, weight.T, out=middle)
        ops.act_and_mul(middle, "silu", out=out)

    return beside_cublas("gated linear", name, rows, weights, octavo, apart, "cuBLAS and the activation")


def gated_rows() -> list[Row]:
    rows = []
    for name, (layer, *_) in DECODERS.items():
        weights = weights_of(*layer[2])
        rows += [gated(name, n, weights) for n in GATED_ROWS]
    return rows
