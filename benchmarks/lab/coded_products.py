"""Products with weights of codes beside those with the same matrices in bfloat16, on one GPU.

    python benchmarks/lab/coded_products.py --out benchmarks/results/h200-coded.json

All products of a layer of an 8B by themselves, then its layers one after the other, as a decoder has them: norms, gates
and residuals are where a layer has them. Floors are the bytes of the weights at the speed of a paged read or, where
that is longer, the operations at the speed of a large matrix product. Kernels are those that `choice` names; `--only`
measures another one in its place, to find where one should follow the other.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.operands import RmsNorm
from octavo_kernels.products import coded_choice
from octavo_kernels.products.product import COUNTERS, Product
from octavo_kernels.products.weights import DTYPES, PER_BYTE, Codes, PackedWeight, QuantisedWeight, Scheme
from octavo_worker.bench.report import report, write

sys.path.insert(0, str(Path(__file__).parents[1]))  # kernel_rows is shared with benchmarks/kernels.py
from kernel_rows.measuring import MATMUL, READ, Row, bf16, changed, measure_by_turns, rotations, row

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 8192)
# (name, columns, depth, gated): an 8B's, with a norm in front of the first and the third, a residual behind the others.
LAYER = (("qkv", 6144, 4096, False), ("o", 4096, 4096, False), ("gate_up", 28672, 4096, True),
         ("down", 4096, 14336, False))  # fmt: skip
LAYERS = 32
FORMS = {
    "int4-g128": (Codes.INT4, 128, False), "int4-g128-zeros": (Codes.INT4, 128, True),
    "int4-g32": (Codes.INT4, 32, False),
    "int8-row": (Codes.INT8, 1 << 20, False), "fp8-row": (Codes.FP8, 1 << 20, False), "mxfp4": (Codes.FP4, 32, False),
    "nvfp4": (Codes.FP4, 16, False),
}  # fmt: skip
ALONE: dict[str, dict[str, int]] = {
    "few": {},
    "tiles": {"CODED_FEW_ROWS": 0, "CODED_WIDE_ROWS": 0, "CODED_TILE_ROWS": 1 << 30},
    "wide": {"CODED_FEW_ROWS": 0, "CODED_NARROW_ROWS": 0, "CODED_WIDE_ROWS": 1 << 30},
    "matrix": {"CODED_FEW_ROWS": 0, "CODED_WIDE_ROWS": 0, "CODED_TILE_ROWS": 0},
}


def coded(form: str, columns: int, depth: int) -> PackedWeight:
    kind, group, zeros = FORMS[form]
    groups = -(-depth // group)
    raw = torch.randint(0, 256, (columns, depth // PER_BYTE[kind]), dtype=torch.uint8, device="cuda")
    if kind is Codes.FP8:
        raw &= 0xBF  # no NaN
    scales = (torch.rand(groups, columns, device="cuda") / depth**0.5 / 8).bfloat16().float()
    points = torch.randint(0, 16, (groups, columns), dtype=torch.uint8, device="cuda") if zeros else None
    return ops.pack(QuantisedWeight(Scheme(kind, min(group, depth)), raw.view(DTYPES[kind]), scales, points))


class Call:
    """One product as a layer has it, with its own operands."""

    def __init__(self, name: str, columns: int, depth: int, gated: bool, rows: int) -> None:
        self.gated, self.x, self.normed = gated, bf16(rows, depth), bf16(rows, depth)
        self.norm = RmsNorm(bf16(depth), 1e-5) if name in ("qkv", "gate_up") else None
        self.out = bf16(rows, columns // 2 if gated else columns)
        self.scratch = bf16(rows, columns) if gated else None
        self.residual = None if self.norm else bf16(rows, columns)
        self.counter = torch.zeros(COUNTERS, dtype=torch.int32, device="cuda")

    def run(self, weight: PackedWeight | Tensor) -> None:
        p = Product(
            self.x, weight, out=self.out, residual=self.residual, norm=self.norm, normed=self.normed, counter=self.counter
        )
        if self.gated:
            ops.gated_linear(p, "silu", self.scratch)
        else:
            ops.linear(p)


def product_row(form: str, name: str, rows: int, calls: list[tuple[Call, PackedWeight, Tensor]], count: int) -> Row:
    """`count`: how many of these calls are one of what is reported."""
    rivals = {
        "codes": [lambda c=c, w=w: c.run(w) for c, w, _ in calls],
        "bf16": [lambda c=c, d=d: c.run(d) for c, _, d in calls],
    }
    seconds = measure_by_turns(rivals, replays=9)
    share = count / len(calls)
    read = sum(w.nbytes for _, w, _ in calls) * share / READ
    multiplied = sum(2 * rows * w.columns * w.depth for _, w, _ in calls) * share / MATMUL
    floor = max(read, multiplied)
    return row(
        form, f"{rows} x {name}", seconds["codes"] * count, floor, ("bf16 linear", seconds["bf16"] * count)
    )  # fmt: skip


def rows_of(form: str, numbers: tuple[int, ...]) -> list[Row]:
    results, decoder = [], []
    for name, columns, depth, gated in LAYER:
        copies = rotations(columns * depth / PER_BYTE[FORMS[form][0]], 2)
        weights = [(coded(form, columns, depth), bf16(columns, depth)) for _ in range(copies)]
        decoder.append(weights)
        for n in numbers:
            call = Call(name, columns, depth, gated, n)
            results.append(product_row(form, name, n, [(call, *pair) for pair in weights], 1))
    for n in numbers:
        calls = [Call(name, columns, depth, gated, n) for name, columns, depth, gated in LAYER]
        layer = list(zip(calls, decoder, strict=True))
        chain = [(call, *weights[i % len(weights)]) for i in range(LAYERS) for call, weights in layer]
        results.append(product_row(form, "layers", n, chain, len(chain)))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", nargs="*", choices=FORMS, default=["int4-g128", "int8-row"])
    parser.add_argument("--rows", nargs="*", type=int, default=list(ROWS))
    parser.add_argument("--only", choices=ALONE, help="this kernel, with all rows that it takes")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    numbers = tuple(n for n in args.rows if args.only != "few" or n <= coded_choice.CODED_FEW_ROWS)
    torch.manual_seed(0)
    print("form | shape | us | floor us | % of floor | peer | peer us | times faster")
    with changed(coded_choice, **ALONE.get(args.only, {})):
        rows = [r for form in args.forms for r in rows_of(form, numbers)]
    if args.out:
        document = report("coded_products", [asdict(r) for r in rows], device=torch.cuda.get_device_name())
        write(document, args.out)


if __name__ == "__main__":
    main()
