"""FP8 of several tools: codes in e4m3 times `weight_scale`, of the matrix, of each row, or of blocks."""

from __future__ import annotations

from octavo_kernels.products.weights import Activations, Codes
from octavo_worker.model.checkpoint.formats.compressed_groups import ALL, Group
from octavo_worker.model.checkpoint.formats.compressed_parts import EightBits
from octavo_worker.model.checkpoint.formats.stored import Part

EXTENTS = {"tensor": (ALL, ALL), "row": (ALL, 1), "block": (128, 128)}
"""Columns and rows that share a scale."""


def fp8_group(extent: str, activations: Activations = Activations.FP8) -> Group:
    """Matrices with a scale for each "tensor", "row" or "block". Scales of activations that the checkpoint has are not
    used: each token has its own."""
    columns, rows = EXTENTS[extent]
    return Group((), Codes.FP8, columns, rows, True, False, activations, None)


def fp8_part(part: Part, group: Group) -> EightBits | None:
    """None: the part is stored in floating point."""
    weight = part.found.get("weight")
    is_stored = weight is not None and (weight.kind == "F8_E4M3" or "weight_scale" in part.found)
    return EightBits(part, group) if is_stored else None
