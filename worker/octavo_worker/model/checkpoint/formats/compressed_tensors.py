"""compressed-tensors, as llm-compressor writes it: which matrices are quantised, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_kernels.products.weights import Codes, Scheme
from octavo_worker.model.checkpoint.formats.compressed_groups import Group
from octavo_worker.model.checkpoint.formats.compressed_parts import EightBits, FourBitFloats, PackedIntegers
from octavo_worker.model.checkpoint.formats.stored import Part, Stored
from octavo_worker.model.errors import CheckpointError, UnsupportedModel

QUANTISED = {"weight_packed", "weight_scale", "weight_zero_point", "weight_global_scale", "weight_shape"}


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    groups: Sequence[Group]
    ignored: Sequence[str]

    @classmethod
    def stated(cls, config: Mapping[str, Any]) -> CompressedTensors:
        """The method of a config. Raises `UnsupportedModel` for sparse or rotated weights."""
        sparsity = config.get("sparsity_config") or {}
        if sparsity.get("format", "dense") != "dense":
            raise UnsupportedModel(
                f"sparse weights ({sparsity['format']!r}) are not loaded; give a checkpoint that is quantised only."
            )
        if (config.get("transform_config") or {}).get("config_groups"):
            raise UnsupportedModel(
                "weights that were rotated (transform_config: Hadamard, SpinQuant, QuIP) are not loaded; quantise the "
                "model without transforms."
            )
        groups, form = config.get("config_groups") or {}, config.get("format")
        made = [Group.stated(name, group, form) for name, group in groups.items() if group.get("weights")]
        return cls(made, config.get("ignore") or ())

    def stored(self, part: Part) -> Stored | None:
        """The form of a part. Raises `CheckpointError` where its tensors and the config disagree."""
        found = part.found
        weight = found.get("weight")
        if not found.keys() & QUANTISED and (weight is None or weight.kind not in ("I8", "F8_E4M3")):
            return None
        if any(_rank(name, part.name) for name in self.ignored):
            raise CheckpointError(f"tensor '{part.name}.weight' is quantised, but quantization_config ignores it.")
        group = self._group(part.name)
        if group is None:
            raise CheckpointError(
                f"tensor '{part.name}.weight' is quantised, but no group of quantization_config names it."
            )
        if group.codes is Codes.FP4:
            return FourBitFloats(part, group)
        packed = group.format == "pack-quantized" or (group.format is None and "weight_packed" in found)
        return PackedIntegers(part, group) if packed else EightBits(part, group)

    def scheme(self, name: str, depth: int) -> Scheme | None:
        group = None if any(_rank(each, name) for each in self.ignored) else self._group(name)
        return None if group is None else group.scheme(depth)

    def _group(self, name: str) -> Group | None:
        """The one that names it most exactly, of those the first."""
        rank, group = 0, None
        for each in self.groups:
            best = max((_rank(target, name) for target in each.targets), default=0)
            if best > rank:
                rank, group = best, each
        return group


def _rank(target: str, name: str) -> int:
    """How exactly a target names a matrix: 3 by its name, 2 by a pattern, 1 as a linear layer, 0 not."""
    if target == name:
        return 3
    if target.startswith("re:"):
        return 2 if re.match(target.removeprefix("re:"), name) else 0
    return 1 if target == "Linear" else 0
