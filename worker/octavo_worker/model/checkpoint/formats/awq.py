"""AWQ (arXiv 2306.00978) in the layout of AutoAWQ's kernel for matrices, "gemm"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo_kernels.products.weights import Codes, QuantisedWeight, Scheme
from octavo_worker.model.checkpoint.formats.columns import ROWS
from octavo_worker.model.checkpoint.formats.fields import pack, unpack
from octavo_worker.model.checkpoint.formats.stored import HEAD, SCALES, Part, Wanted
from octavo_worker.model.errors import CheckpointError, UnsupportedModel

PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Place of each column of eight in its word."""


@dataclass(frozen=True, slots=True)
class Awq:
    group_size: int
    dense: tuple[str, ...]

    @classmethod
    def stated(cls, config: Mapping[str, Any]) -> Awq:
        """Older files call their values `w_bit` and `q_group_size`. Raises `UnsupportedModel` for other bits or
        layouts."""
        bits = int(config.get("bits", config.get("w_bit", 4)))
        if bits != 4:
            raise UnsupportedModel(f"AWQ weights of {bits} bits have no kernel; give a checkpoint of 4 bits.")
        layout = str(config.get("version", "gemm")).lower()
        if layout != "gemm":
            raise UnsupportedModel(f"AWQ weights in the layout {layout!r} are not loaded; save them as 'gemm'.")
        size = int(config.get("group_size", config.get("q_group_size", 128)))
        return cls(size, tuple(config.get("modules_to_not_convert") or ()))

    def stored(self, part: Part) -> AwqPart | None:
        """The form of a part. Raises `CheckpointError` where its tensors and the config disagree."""
        if not part.found.keys() & {"qweight", "qzeros", "scales"}:
            return None
        if part.name in self.dense:
            raise CheckpointError(f"tensor '{part.name}.qweight' is quantised, but modules_to_not_convert names it.")
        return AwqPart(part, self._scheme(part.depth))

    def scheme(self, name: str, depth: int) -> Scheme | None:
        return None if name in (HEAD, *self.dense) else self._scheme(depth)

    def _scheme(self, depth: int) -> Scheme:
        return Scheme(Codes.INT4, self.group_size if 0 < self.group_size < depth else depth)


@dataclass(frozen=True, slots=True)
class AwqPart:
    """Element `[n, k]` is `(q[k, n] - z[k // group, n]) * scales[k // group, n]`, with q and z of eight rows a word."""

    part: Part
    scheme: Scheme

    @property
    def wanted(self) -> dict[str, Wanted]:
        rows, depth = self.part.rows, self.part.depth
        groups = -(-depth // self.scheme.group)
        return {
            "qweight": Wanted([(depth, rows // 8)], [torch.int32], {"depth": 1, "rows": 8}),
            "qzeros": Wanted([(groups, rows // 8)], [torch.int32], {"depth": self.scheme.group, "rows": 8}),
            "scales": Wanted([(groups, rows)], SCALES, {"depth": self.scheme.group, "rows": 1}),
        }

    def weight(self, raw: dict[str, Tensor]) -> QuantisedWeight:
        words = raw["qweight"]
        codes = torch.empty(self.part.rows, self.part.depth // 2, dtype=torch.uint8, device=words.device)
        for some, target in zip(words.split(ROWS), codes.split(ROWS // 2, dim=1), strict=True):
            target.copy_(pack(_columns(some).T))
        zeros = _columns(raw["qzeros"])
        return QuantisedWeight(self.scheme, codes, raw["scales"].float(), zeros)


def _columns(words: Tensor) -> Tensor:
    fields = unpack(words, 4).view(len(words), -1, 8)
    return fields[..., PLACES].flatten(1)
