"""Every cut of the gated delta rule into blocks, for steps of many shapes: what `cut_of` (delta.cu) chooses by.

    python benchmarks/lab/recurrent_cuts.py [--cuts 1 4] [--steps 256x1 1x8192]

`AxB` is A sequences of B tokens, `AxB+C` a prompt of C tokens beside them. Needs a GPU of Hopper.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import torch

from octavo_kernels.ops import Moves

sys.path.insert(0, str(Path(__file__).parents[1]))  # kernel_rows is shared with benchmarks/kernels.py
from kernel_rows.measuring import bf16, measure, rotations
from kernel_rows.recurrent import CUTS, Delta, in_blocks, states

STEPS = ("1x1", "2x1", "4x1", "8x1", "16x1", "32x1", "64x1", "256x1", "32x4", "1x8192", "4x4096", "16x2048", "32x1+2048")


def lengths(step: str) -> list[int]:
    size, _, prompt = step.partition("+")
    sequences, tokens = map(int, size.split("x"))
    return [tokens] * sequences + ([int(prompt)] if prompt else [])


def seconds(layer: Delta, rows: list[int], cut: int) -> float:
    count, tokens = len(rows), sum(rows)
    slots = torch.arange(1, count + 1, dtype=torch.int32, device="cuda")
    starts = torch.tensor([0, *rows], dtype=torch.int32, device="cuda").cumsum(0, dtype=torch.int32)
    none = torch.empty(0, dtype=torch.int32, device="cuda")
    moves = Moves(starts, slots, slots, torch.zeros_like(starts), none, none)
    x, out = bf16(tokens, layer.width), bf16(tokens, layer.inner)
    layers = rotations(8.0 * count * torch.Size(layer.matrix).numel(), 2)
    each = [states(count, layer.channels, layer.taps, *layer.matrix) for _ in range(layers)]
    with in_blocks(cut):
        return measure([partial(layer.step, x, one, moves, out=out) for one in each], 7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, nargs="+", default=range(CUTS + 1), help="0: as the step chooses")
    parser.add_argument("--steps", nargs="+", default=STEPS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    layer = Delta()
    print("step", *(f"cut {cut}" for cut in arguments.cuts), sep="\t")
    for step in arguments.steps:
        print(step, *(f"{1e6 * seconds(layer, lengths(step), cut):.1f}" for cut in arguments.cuts), sep="\t", flush=True)


if __name__ == "__main__":
    main()
