"""FP8 and NVFP4 as NVIDIA's ModelOpt exports them, in config.json or in hf_quant_config.json alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from octavo_kernels.products.weights import Activations, Codes, QuantisedWeight, Scheme
from octavo_worker.model.checkpoint.formats.compressed_parts import EightBits
from octavo_worker.model.checkpoint.formats.fp8 import SCALAR
from octavo_worker.model.checkpoint.formats.scaled_fp8 import fp8_group
from octavo_worker.model.checkpoint.formats.stored import SCALES, Part, Stored, Wanted
from octavo_worker.model.errors import CheckpointError, UnsupportedModel

COLUMNS = 16
"""Columns of NVFP4 that share a scale."""
FP8 = {
    "FP8": fp8_group("tensor"),
    "FP8_PER_CHANNEL_PER_TOKEN": fp8_group("row"),
    "FP8_PB_WO": fp8_group("block", Activations.AS_GIVEN),
}
FP4 = ("NVFP4", "W4A16_NVFP4")
MIXED = "MIXED_PRECISION"


@dataclass(frozen=True, slots=True)
class ModelOpt:
    """The algorithm of all layers, or of those that `layers` name; `excluded` are patterns of those without one."""

    algorithm: str | None
    layers: Mapping[str, str]
    excluded: tuple[str, ...]

    @classmethod
    def stated(cls, config: Mapping[str, Any]) -> ModelOpt:
        """The method of a config in either of its two places. Raises `UnsupportedModel` for other algorithms."""
        stated: Mapping[str, Any] = config.get("quantization", config)
        algorithm = str(stated["quant_algo"]).upper()
        layers = dict[str, str]()
        if algorithm == MIXED:
            layers = {name: str(each["quant_algo"]).upper() for name, each in stated["quantized_layers"].items()}
        for each in layers.values() if algorithm == MIXED else [algorithm]:
            if each not in (*FP8, *FP4):
                raise UnsupportedModel(
                    f"ModelOpt weights of the algorithm {each!r} are not loaded; give a checkpoint in one of "
                    f"{', '.join((*FP8, *FP4))}, or in 16 bits."
                )
        if (size := int(stated.get("group_size") or COLUMNS)) != COLUMNS and algorithm in FP4:
            raise UnsupportedModel(f"NVFP4 in groups of {size} has no kernel; give a checkpoint in groups of 16.")
        excluded = stated.get("exclude_modules") or stated.get("ignore") or ()
        return cls(None if algorithm == MIXED else algorithm, layers, tuple(excluded))

    def stored(self, part: Part) -> Stored | None:
        """The form of a part. Raises `CheckpointError` where its tensors and the config disagree, `UnsupportedModel`
        for inputs that have to be scaled."""
        weight = part.found.get("weight")
        if weight is None or (weight.kind not in ("F8_E4M3", "U8") and "weight_scale" not in part.found):
            return None
        algorithm = self._algorithm(part.name)
        if algorithm is None:
            raise CheckpointError(f"tensor '{part.name}.weight' is quantised, but the quantisation leaves it out.")
        if "pre_quant_scale" in part.found:
            raise UnsupportedModel(
                f"{part.name} has inputs that are scaled before the product (pre_quant_scale), which is not computed; "
                "quantise the model without AWQ or SmoothQuant."
            )
        if algorithm in FP4:
            return Nvfp4(part)
        scaled = EightBits(part, FP8[algorithm])
        return ScaledBlocks(scaled) if algorithm == "FP8_PB_WO" else scaled

    def scheme(self, name: str, depth: int) -> Scheme | None:
        algorithm = self._algorithm(name)
        if algorithm is None:
            return None
        return _nvfp4(depth) if algorithm in FP4 else FP8[algorithm].scheme(depth)

    def _algorithm(self, name: str) -> str | None:
        if any(fnmatchcase(name, pattern) for pattern in self.excluded):
            return None
        return self.algorithm or self.layers.get(name)


@dataclass(frozen=True, slots=True)
class ScaledBlocks:
    """Blocks of 128 x 128 whose scales may lie `[rows, 1, columns, 1]`."""

    blocks: EightBits

    @property
    def scheme(self) -> Scheme:
        return self.blocks.scheme

    @property
    def wanted(self) -> dict[str, Wanted]:
        wanted = self.blocks.wanted
        scale = wanted["weight_scale"]
        high, wide = scale.shapes[0]
        return wanted | {"weight_scale": scale._replace(shapes=[*scale.shapes, (high, 1, wide, 1)])}

    def weight(self, raw: dict[str, Tensor]) -> QuantisedWeight:
        return self.blocks.weight(raw)


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """Two e2m1 a byte, the first in the lower half, times `weight_scale`, e4m3, of 16 columns, times `weight_scale_2`,
    of the matrix."""

    part: Part

    @property
    def scheme(self) -> Scheme:
        return _nvfp4(self.part.depth)

    @property
    def wanted(self) -> dict[str, Wanted]:
        rows, depth = self.part.rows, self.part.depth
        axes = {"rows": 1, "depth": COLUMNS}
        return {
            "weight": Wanted([(rows, depth // 2)], [torch.uint8], {"rows": 1, "depth": 2}),
            "weight_scale": Wanted([(rows, -(-depth // COLUMNS))], [torch.float8_e4m3fn], axes),
            "weight_scale_2": Wanted(SCALAR, SCALES),
        }

    def weight(self, raw: dict[str, Tensor]) -> QuantisedWeight:
        scales = raw["weight_scale"].T.float() * raw["weight_scale_2"].float().reshape(())
        return QuantisedWeight(self.scheme, raw["weight"], scales.contiguous())


def _nvfp4(depth: int) -> Scheme:
    """Activations stay as they are: that is finer, and as fast."""
    return Scheme(Codes.FP4, min(COLUMNS, depth))
