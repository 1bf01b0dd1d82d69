"""What online quantisation costs in quality, by how it rounds: python benchmarks/lab/rounding.py

The bundled model with its matrices in each form of `--quantization`, in four bits with symmetric codes as well, and
with the head in the same form, beside the model in 16 bits, on a text that the model in 16 bits samples. Writes
benchmarks/results/rounding.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.products.weights import Codes, QuantisedWeight, Scheme
from octavo_worker.assembly import models
from octavo_worker.bench.quality import Reference
from octavo_worker.bench.report import report, write
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.options import ModelOptions, OnlineQuantization
from octavo_worker.model.checkpoint.formats import online
from octavo_worker.model.checkpoint.rounding import quantised
from octavo_worker.model.decoder import DecoderLayers
from octavo_worker.model.layers.linear import Products
from octavo_worker.model.layers.quantised import Quantised

RESULTS = Path(__file__).parents[1] / "results"
Rounding = Callable[[Tensor, OnlineQuantization], QuantisedWeight]
GROUP = 128


def symmetric(weight: Tensor, kind: OnlineQuantization) -> QuantisedWeight:
    """In four bits without zero points: the largest magnitude of a group is the code 7."""
    groups = weight.float().unflatten(1, (-1, GROUP))
    scales = groups.abs().amax(-1, keepdim=True) / 7
    codes = ((groups / scales).round() + 8).to(torch.uint8).flatten(1)
    return QuantisedWeight(
        Scheme(Codes.INT4, GROUP), codes[:, ::2] | codes[:, 1::2] << 4, scales[..., 0].T.contiguous()
    )


def row(reference: Reference, kind: OnlineQuantization, rounding: Rounding, *, head: bool) -> dict[str, Any]:
    """One form beside 16 bits; with `head` the head, too, which is the embedding's table in the bundled model."""
    options = ModelOptions(model=str(model_folder("demo")), device="cpu", quantization=kind)
    build = models.build_layers

    def built(*given: Any) -> DecoderLayers:
        layers = build(*given)
        if not head:
            return layers
        packed = ops.pack(rounding(layers.embed, kind))
        return replace(layers, head=Quantised(packed, None, Products(), layers.embed.dtype))

    with patch.object(online, "quantised", rounding), patch.object(models, "build_layers", built):
        divergence, _ = reference.beside(options)
    return {"form": kind, "codes": rounding.__name__, "head": head, **divergence.to_json()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--context", type=int, default=256)
    arguments = parser.parse_args()
    options = ModelOptions(model=str(model_folder("demo")), device="cpu")
    reference = Reference.of(options, None, arguments.tokens, arguments.context)
    rows = []
    for kind, rounding in (("fp8", quantised), ("int8", quantised), ("int4", quantised), ("int4", symmetric)):
        for head in (False, True):
            rows.append(row(reference, kind, rounding, head=head))
            print(rows[-1], flush=True)
    write(report("rounding", rows, model="demo", numerics=reference.numerics), RESULTS / "rounding.json")


if __name__ == "__main__":
    main()
