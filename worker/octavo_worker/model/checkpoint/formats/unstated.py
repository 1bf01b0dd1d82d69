"""Checkpoints whose config says nothing of a quantisation that their tensors show."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from octavo_worker.contract.files import DamagedFile, tensor_files
from octavo_worker.model.checkpoint.header import Place, read_header
from octavo_worker.model.errors import CheckpointError, UnsupportedModel

DENSE = "give the checkpoint in bfloat16 or float16 that it was made from"
MLX = f"is quantised by MLX, for Apple's GPUs, which is not loaded: {DENSE}, or undo it by mlx_lm.convert --dequantize"
LACKS = (
    "no quantization_config, in config.json or beside it, says how they are scaled: add that of the tool that made "
    f"them, or {DENSE}"
)
PACKED = ("qweight", "weight_packed", "qzeros")


def check_unstated(folder: Path) -> None:
    """Raises `UnsupportedModel`, naming the form, for tensors that are quantised."""
    for places in _headers(folder):
        reason = _reason(places)
        if reason is not None:
            raise UnsupportedModel(f"{folder} {reason}.")


def _headers(folder: Path) -> list[Mapping[str, Place]]:
    """None of files that are missing or damaged: loading names them."""
    with suppress(DamagedFile, CheckpointError, OSError):
        return [read_header(file) for file in tensor_files(folder)]
    return []


def _reason(places: Mapping[str, Place]) -> str | None:
    for name, place in places.items():
        module, _, ending = name.rpartition(".")
        if place.kind == "U32" and f"{module}.scales" in places:
            return MLX
        if place.kind.startswith("F8_") and not ending.endswith("scale"):
            return f"has weights in FP8 ({name!r}), but {LACKS}"
        if ending in PACKED:
            return f"has packed weights ({name!r}), but {LACKS}"
    return None
