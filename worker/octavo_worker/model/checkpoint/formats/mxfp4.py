"""MXFP4 as gpt-oss is released in it: experts alone, stacked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo_kernels.products.weights import Codes, QuantisedWeight, Scheme
from octavo_worker.model.checkpoint.formats.stored import Part, Stored, Wanted

GROUP = 32
"""Columns that share a scale."""
EXPERTS = ".mlp.experts."


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """The method of a config, which says no more than that it is this one."""

    @classmethod
    def stated(cls, config: Mapping[str, Any]) -> Mxfp4:
        return cls()

    def stored(self, part: Part) -> Stored | None:
        return Blocks(part) if part.found.keys() & {"blocks", "scales"} else None

    def scheme(self, name: str, depth: int) -> Scheme | None:
        return Scheme(Codes.FP4, GROUP) if EXPERTS in name else None


@dataclass(frozen=True, slots=True)
class Blocks:
    """Two e2m1 a byte, the first in the lower half, 16 bytes a group, times two to the power of its scale less 127 (OCP
    Microscaling Formats 1.0, section 5.4.1)."""

    part: Part

    @property
    def scheme(self) -> Scheme:
        return Scheme(Codes.FP4, GROUP)

    @property
    def wanted(self) -> dict[str, Wanted]:
        rows, groups = self.part.rows, -(-self.part.depth // GROUP)
        return {
            "blocks": Wanted([(rows, groups * GROUP // 2)], [torch.uint8], {"rows": 1, "depth": 2}),
            "scales": Wanted([(rows, groups)], [torch.uint8], {"rows": 1, "depth": GROUP}),
        }

    def weight(self, raw: dict[str, Tensor]) -> QuantisedWeight:
        scales = raw["scales"].T.contiguous().view(torch.float8_e8m0fnu).float()
        return QuantisedWeight(self.scheme, raw["blocks"], scales)
