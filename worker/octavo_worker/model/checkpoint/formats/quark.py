"""FP8 as AMD's Quark writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from octavo_kernels.products.weights import Activations, Scheme
from octavo_worker.model.checkpoint.formats.compressed_groups import Group
from octavo_worker.model.checkpoint.formats.scaled_fp8 import fp8_group, fp8_part
from octavo_worker.model.checkpoint.formats.stored import Part, Stored
from octavo_worker.model.errors import CheckpointError, UnsupportedModel

EXTENTS = {"per_tensor": "tensor", "per_channel": "row"}
ROTATIONS = ("rotation", "quarot")


@dataclass(frozen=True, slots=True)
class Quark:
    """Groups of layers by patterns of their names, the first that matches; then `others`, those of all the rest."""

    layers: Mapping[str, Group | None]
    others: Group | None
    excluded: tuple[str, ...]

    @classmethod
    def stated(cls, config: Mapping[str, Any]) -> Quark:
        """The method of a config. Raises `UnsupportedModel` for other types than e4m3, and for rotated weights."""
        algorithms = config.get("algo_config") or []
        for each in algorithms if isinstance(algorithms, list) else [algorithms]:
            if each.get("name") in ROTATIONS:
                raise UnsupportedModel(
                    f"Quark weights that were rotated ({each['name']}) are not loaded; quantise the model without "
                    "rotations."
                )
        layers = {
            pattern: _group(pattern, layer)
            for pattern, layer in (config.get("layer_quant_config") or {}).items()
            if layer.get("weight") is not None  # others are of the cache
        }
        others = _group("global_quant_config", config.get("global_quant_config") or {})
        return cls(layers, others, tuple(config.get("exclude") or ()))

    def stored(self, part: Part) -> Stored | None:
        """The form of a part. Raises `CheckpointError` where its tensors and the config disagree."""
        group = self._group(part.name)
        form = fp8_part(part, group or fp8_group("tensor"))
        if form is not None and group is None:
            raise CheckpointError(f"tensor '{part.name}.weight' is quantised, but quantization_config leaves it out.")
        return form

    def scheme(self, name: str, depth: int) -> Scheme | None:
        group = self._group(name)
        return None if group is None else group.scheme(depth)

    def _group(self, name: str) -> Group | None:
        if any(_matches(pattern, name) for pattern in self.excluded):
            return None
        return next((group for pattern, group in self.layers.items() if _matches(pattern, name)), self.others)


def _matches(pattern: str, name: str) -> bool:
    return fnmatchcase(name, pattern)


def _group(where: str, layer: Mapping[str, Any]) -> Group | None:
    weight, inputs = layer.get("weight"), layer.get("input_tensors")
    if weight is None:
        return None
    kinds = [part.get("dtype") if isinstance(part, dict) else "several types" for part in (weight, inputs) if part]
    if set(kinds) != {"fp8_e4m3"}:
        raise UnsupportedModel(
            f"Quark weights and activations of {' and '.join(map(str, kinds))} ({where}) are not loaded, only "
            "fp8_e4m3; give a checkpoint in FP8, or in 16 bits."
        )
    if weight.get("qscheme") not in EXTENTS:
        raise UnsupportedModel(
            f"Quark weights with scales {weight.get('qscheme')!r} ({where}) are not loaded, only "
            f"{' and '.join(EXTENTS)}; give a checkpoint with one of these."
        )
    return fp8_group(EXTENTS[weight["qscheme"]], Activations.FP8 if inputs else Activations.AS_GIVEN)
