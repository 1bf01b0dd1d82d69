"""The forms in which compressed-tensors stores a matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_kernels.products.weights import DTYPES, Codes, QuantisedWeight, Scheme
from octavo_worker.model.checkpoint.formats.columns import ordered, sorted_by_group
from octavo_worker.model.checkpoint.formats.compressed_groups import ALL, Group
from octavo_worker.model.checkpoint.formats.fields import signed, unpack
from octavo_worker.model.checkpoint.formats.fp8 import SCALAR, block_scales
from octavo_worker.model.checkpoint.formats.stored import SCALES, Part, Wanted
from octavo_worker.model.errors import CheckpointError

MXFP4 = 32  # columns a scale


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """pack-quantized: element `[n, k]` is `(q[n, k] - z[n, k // group]) * weight_scale[n, k // group]`, where a
    symmetric z is 8 or 128. `weight_packed` has the bits of q along the depth, `weight_zero_point` those of z along the
    rows. With act-order, `weight_g_idx` has the group of each column."""

    part: Part
    group: Group

    @property
    def scheme(self) -> Scheme:
        return self.group.scheme(self.part.depth)

    @property
    def bits(self) -> int:
        return 4 if self.group.codes is Codes.INT4 else 8

    @property
    def wanted(self) -> dict[str, Wanted]:
        rows, depth, a_word = self.part.rows, self.part.depth, 32 // self.bits
        size = self.group.scheme(depth).group
        groups = -(-depth // size)
        wanted = {
            "weight_packed": Wanted([(rows, -(-depth // a_word))], [torch.int32], {"rows": 1, "depth": a_word}),
            "weight_scale": Wanted([(rows, groups)], SCALES, {"rows": 1, "depth": size}),
            "weight_shape": Wanted([(2,)], [torch.int64, torch.int32]),
        }
        if _has_zeros(self.part, self.group):
            wanted["weight_zero_point"] = Wanted(
                [(-(-rows // a_word), groups)], [torch.int32], {"rows": a_word, "depth": size}
            )
        if "weight_g_idx" in self.part.found or self.group.act_order:
            wanted["weight_g_idx"] = Wanted([(depth,)], [torch.int32], {"groups": 1})
        return wanted

    def weight(self, raw: dict[str, Tensor]) -> QuantisedWeight:
        """The canonical form. Raises `CheckpointError` for a shape that is not the config's."""
        part = self.part
        if (shape := raw["weight_shape"].tolist()) != list(part.whole):
            raise CheckpointError(
                f"tensor '{part.name}.weight_shape' says {shape}, but config.json says {list(part.whole)}."
            )
        codes = raw.pop("weight_packed").view(torch.uint8)[:, : part.depth * self.bits // 8].contiguous()
        zeros = None
        if "weight_zero_point" in raw:
            zeros = unpack(raw["weight_zero_point"].T, self.bits)[:, : part.rows].contiguous()
        if self.bits == 8:
            codes, zeros = signed(codes), None if zeros is None else signed(zeros)
        order = self._order(raw.get("weight_g_idx"), self.scheme.group)
        scales = raw["weight_scale"].T.float().contiguous()
        return QuantisedWeight(self.scheme, ordered(codes, order), scales, zeros, order)

    def _order(self, groups: Tensor | None, size: int) -> Tensor | None:
        if groups is None or bool((groups == -1).all()):  # what an unused one is filled with
            return None
        return sorted_by_group(f"{self.part.name}.weight_g_idx", groups, size)


@dataclass(frozen=True, slots=True)
class EightBits:
    """int-quantized, float-quantized and naive-quantized: codes in a type of their own, times `weight_scale`: one of
    the matrix, of a row, of a group of columns of a row, or of a block of rows and columns."""

    part: Part
    group: Group

    @property
    def scheme(self) -> Scheme:
        return self.group.scheme(self.part.depth)

    @property
    def wanted(self) -> dict[str, Wanted]:
        rows, depth = self.part.rows, self.part.depth
        high, wide = -(-rows // self.group.rows), -(-depth // self.group.columns)
        shapes: list[tuple[int, ...]] = [(high, wide)]
        if (high, wide) == (rows, 1):
            shapes.append((rows,))
        if self.group.rows == self.group.columns == ALL:
            shapes += SCALAR
        codes, axes = DTYPES[self.group.codes], {"rows": self.group.rows, "depth": self.group.columns}
        wanted = {
            "weight": Wanted([(rows, depth)], [codes], {"rows": 1, "depth": 1}),
            "weight_scale": Wanted(shapes, SCALES, axes),
        }
        if _has_zeros(self.part, self.group):
            wanted["weight_zero_point"] = Wanted(shapes, [torch.int8], axes)
        return wanted

    def weight(self, raw: dict[str, Tensor]) -> QuantisedWeight:
        zeros = self._rows(raw["weight_zero_point"]) if "weight_zero_point" in raw else None
        scales = self._rows(raw["weight_scale"].float())
        return QuantisedWeight(self.scheme, raw["weight"], scales, zeros)

    def _rows(self, values: Tensor) -> Tensor:
        """Values of every row: `[groups, rows]`."""
        rows, depth = self.part.rows, self.part.depth
        high, wide = -(-rows // self.group.rows), -(-depth // self.group.columns)
        return block_scales(values.reshape(high, wide), min(self.group.rows, rows), rows)


@dataclass(frozen=True, slots=True)
class FourBitFloats:
    """nvfp4-pack-quantized: e2m1 times `weight_scale`, e4m3, of 16 columns, divided by `weight_global_scale`.
    mxfp4-pack-quantized: e2m1 times two to the power of `weight_scale` less 127, of 32 columns (OCP Microscaling
    Formats 1.0, section 5.4.1)."""

    part: Part
    group: Group

    @property
    def scheme(self) -> Scheme:
        return self.group.scheme(self.part.depth)

    @property
    def wanted(self) -> dict[str, Wanted]:
        rows, depth = self.part.rows, self.part.depth
        scales, axes = [(rows, -(-depth // self.group.columns))], {"rows": 1, "depth": self.group.columns}
        wanted = {"weight_packed": Wanted([(rows, depth // 2)], [torch.uint8], {"rows": 1, "depth": 2})}
        if self.group.columns == MXFP4:
            return wanted | {"weight_scale": Wanted(scales, [torch.uint8, torch.float8_e8m0fnu], axes)}
        return wanted | {
            "weight_scale": Wanted(scales, [torch.float8_e4m3fn], axes),
            "weight_global_scale": Wanted(SCALAR, [torch.float32]),
        }

    def weight(self, raw: dict[str, Tensor]) -> QuantisedWeight:
        scales = raw["weight_scale"].T
        if self.group.columns == MXFP4:
            scales = scales.view(torch.float8_e8m0fnu).float()
        else:
            scales = scales.float() / raw["weight_global_scale"].reshape(())
        return QuantisedWeight(self.scheme, raw["weight_packed"], scales.contiguous())


def _has_zeros(part: Part, group: Group) -> bool:
    """Older versions store zero points of symmetric weights, too."""
    return not group.symmetric or "weight_zero_point" in part.found
