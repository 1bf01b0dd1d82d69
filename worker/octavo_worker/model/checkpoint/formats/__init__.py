"""How a checkpoint stores its matrices, and which kind of `Linear` each of them becomes."""

from __future__ import annotations

from pathlib import Path

from octavo_worker.model.checkpoint.formats.base import Format, Matrix, Reader
from octavo_worker.model.checkpoint.formats.dense import DenseFormat
from octavo_worker.model.checkpoint.formats.online import OnlineFormat
from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.errors import UnsupportedModel

__all__ = ["DenseFormat", "Format", "Matrix", "OnlineFormat", "Reader", "format_of"]


def format_of(config: ModelConfig, folder: Path) -> Format:
    """The format of the checkpoint in `folder`. Raises `UnsupportedModel` if no kind of Linear computes with it."""
    if getattr(config, "quantization_config", None):
        raise UnsupportedModel(f"{folder} is quantised; give the checkpoint in bfloat16, float16 or float32.")
    return DenseFormat()
