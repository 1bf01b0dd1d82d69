"""FP8 in the form of DeepSeek-V3 and Qwen3 (blocks) and of older Neural Magic checkpoints (a scale a matrix)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo_kernels.products.weights import Activations, Codes, QuantisedWeight, Scheme
from octavo_worker.model.checkpoint.formats.stored import HEAD, SCALES, Part, Wanted
from octavo_worker.model.errors import CheckpointError, UnsupportedModel

SCALAR: list[tuple[int, ...]] = [(), (1,)]


@dataclass(frozen=True, slots=True)
class Fp8:
    """`block`: rows and columns that share a scale; None: all do."""

    block: tuple[int, int] | None
    dense: tuple[str, ...]

    @classmethod
    def stated(cls, config: Mapping[str, Any]) -> Fp8:
        """The method of a config. Raises `UnsupportedModel` for another type than e4m3."""
        kind = config.get("fmt", "e4m3")
        if kind != "e4m3":
            raise UnsupportedModel(f"FP8 weights of the type {kind!r} have no kernel; give a checkpoint in e4m3.")
        block = config.get("weight_block_size")
        dense = (*(config.get("ignored_layers") or ()), *(config.get("modules_to_not_convert") or ()))
        return cls((int(block[0]), int(block[1])) if block else None, dense)

    def stored(self, part: Part) -> Fp8Part | None:
        """The form of a part. Raises `CheckpointError` where its tensors and the config disagree."""
        weight = part.found.get("weight")
        if weight is None or (
            weight.kind != "F8_E4M3" and not part.found.keys() & {"weight_scale", "weight_scale_inv"}
        ):
            return None
        if part.name in self.dense:
            raise CheckpointError(f"tensor '{part.name}.weight' is quantised, but quantization_config ignores it.")
        return Fp8Part(part, self.block, self._scheme(part.depth))

    def scheme(self, name: str, depth: int) -> Scheme | None:
        return None if name in (HEAD, *self.dense) else self._scheme(depth)

    def _scheme(self, depth: int) -> Scheme:
        return block_scheme(self.block[1] if self.block else depth, depth)


@dataclass(frozen=True, slots=True)
class Fp8Part:
    """Codes times scales: `weight_scale_inv`, too, is what is multiplied by. Scales of activations that the checkpoint
    has are not used: each token has its own."""

    part: Part
    block: tuple[int, int] | None
    scheme: Scheme

    @property
    def wanted(self) -> dict[str, Wanted]:
        rows, depth = self.part.rows, self.part.depth
        weight = Wanted([(rows, depth)], [torch.float8_e4m3fn], {"rows": 1, "depth": 1})
        if self.block is None:
            return {"weight": weight, self._scale: Wanted(SCALAR, SCALES)}
        high, wide = self.block
        shape, axes = (-(-rows // high), -(-depth // wide)), {"rows": high, "depth": wide}
        return {"weight": weight, self._scale: Wanted([shape], (*SCALES, torch.float8_e8m0fnu), axes)}

    @property
    def _scale(self) -> str:
        names = ["weight_scale_inv", "weight_scale"]
        names = names if self.block is not None else names[::-1]
        return next((name for name in names if name in self.part.found), names[0])

    def weight(self, raw: dict[str, Tensor]) -> QuantisedWeight:
        rows, scale = self.part.rows, raw[self._scale].float()
        if self.block is None:
            scales = scale.reshape(1, 1).repeat(1, rows)
            return QuantisedWeight(self.scheme, raw["weight"], scales)
        return QuantisedWeight(self.scheme, raw["weight"], block_scales(scale, self.block[0], rows))


def block_scheme(columns: int, depth: int) -> Scheme:
    """Scheme of FP8 in blocks of so many columns: activations have a scale for as many."""
    if columns >= depth:
        return Scheme(Codes.FP8, depth, Activations.FP8)
    return Scheme(Codes.FP8, columns, Activations.FP8, columns)


def block_scales(scales: Tensor, size: int, rows: int) -> Tensor:
    """`scales[blocks of rows, groups]`, float32, for every row: `[groups, rows]`."""
    return scales.T.repeat_interleave(size, dim=1)[:, :rows].contiguous()
