"""compressed-tensors, as llm-compressor writes it: groups of matrices that are quantised alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_kernels.products.weights import Activations, Codes, Scheme
from octavo_worker.model.errors import UnsupportedModel

FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
)
MIXED = ("mixed-precision", "dense")
"""Formats of a whole checkpoint only: each group of matrices has a format of its own."""
ALL = 1 << 30


@dataclass(frozen=True, slots=True)
class Group:
    """Matrices that are quantised alike: those that `targets` name. `columns` and `rows`: how many of a matrix share a
    scale; `ALL` of them may. With `act_order` the columns of a group need not lie side by side. `format`: None where
    the config leaves it to the headers."""

    targets: Sequence[str]
    codes: Codes
    columns: int
    rows: int
    symmetric: bool
    act_order: bool
    activations: Activations
    format: str | None

    @classmethod
    def stated(cls, name: str, config: Mapping[str, Any], form: str | None) -> Group:
        """A group of the config. Raises `UnsupportedModel` for a form without a kernel."""
        form = config.get("format") or form
        if form not in (*FORMATS, *MIXED, None):
            raise UnsupportedModel(
                f"{name} of the quantisation is in the format {form!r}, which is not loaded; save it in one of "
                f"{', '.join(FORMATS)}."
            )
        weights = config["weights"]
        codes = _codes(name, weights)
        columns, rows = _extent(name, weights)
        if codes is Codes.FP4 and columns not in (16, 32):
            raise UnsupportedModel(
                f"{name} of the quantisation has floats of 4 bits in groups of {columns}, which no kernel takes; "
                "give a checkpoint in NVFP4 (groups of 16) or MXFP4 (of 32)."
            )
        return cls(
            targets=config.get("targets") or (),
            codes=codes,
            columns=columns,
            rows=rows,
            symmetric=bool(weights.get("symmetric", True)),
            act_order=weights.get("actorder") in ("group", "dynamic"),
            activations=_activations(name, codes, config.get("input_activations")),
            format=None if form in MIXED else form,
        )

    def scheme(self, depth: int) -> Scheme:
        """Scheme of a matrix of that depth. Activations of FP8 in blocks have a scale for each block's columns."""
        size = min(self.columns, depth)
        in_blocks = 1 < self.rows < ALL and size < depth and self.activations is Activations.FP8
        return Scheme(self.codes, size, self.activations, size if in_blocks else 0)


def _codes(name: str, weights: Mapping[str, Any]) -> Codes:
    kinds = {("int", 4): Codes.INT4, ("int", 8): Codes.INT8, ("float", 4): Codes.FP4, ("float", 8): Codes.FP8}
    kind = (weights.get("type", "int"), weights["num_bits"])
    if kind not in kinds:
        raise UnsupportedModel(
            f"{name} of the quantisation has weights of {kind[1]} bits ({kind[0]}), for which there is no kernel; give "
            "a checkpoint of 4 or 8 bits."
        )
    return kinds[kind]


def _extent(name: str, weights: Mapping[str, Any]) -> tuple[int, int]:
    """How many columns and rows share a scale."""
    size = weights.get("group_size") or 0
    strategy = weights.get("strategy") or ("group" if size > 0 else "tensor")
    match strategy:
        case "tensor":
            return ALL, ALL
        case "channel":
            return ALL, 1
        case "group" | "tensor_group":
            return size if size > 0 else ALL, 1
        case "block":
            rows, columns = weights["block_structure"]
            return columns, rows
    raise UnsupportedModel(
        f"{name} of the quantisation has scales by {strategy!r}, for which there is no kernel; give a checkpoint with "
        "scales by tensor, channel, group or block."
    )


def _activations(name: str, codes: Codes, inputs: Mapping[str, Any] | None) -> Activations:
    """Form of the activations. Beside weights in four bits they stay as they are: that is finer, and as fast."""
    if not inputs or codes in (Codes.INT4, Codes.FP4):
        return Activations.AS_GIVEN
    kind = (inputs.get("type", "int"), inputs.get("num_bits", 8))
    if (codes, kind) == (Codes.INT8, ("int", 8)):
        return Activations.INT8
    if (codes, kind) == (Codes.FP8, ("float", 8)):
        return Activations.FP8
    raise UnsupportedModel(
        f"{name} of the quantisation multiplies {codes.name} weights with activations of {kind[1]} bits ({kind[0]}), "
        "for which there is no kernel; give a checkpoint with both of one type, or with weights alone quantised."
    )
