"""A checkpoint's statement of its quantisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo_worker.contract.files import DamagedFile, read_json
from octavo_worker.model.errors import CheckpointError, UnsupportedModel

BESIDE = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
"""Files of older checkpoints, and the method of each."""


def stated_quantisation(folder: Path) -> dict[str, Any] | None:
    """`quantization_config` of config.json, of its text part, or else the file beside it; None: there is none. Raises
    `CheckpointError` for one that is no object."""
    config = _read(folder / "config.json")
    stated = (
        config.get("quantization_config")
        or (config.get("text_config") or {}).get("quantization_config")
        or config.get("quantization")  # MLX's name
    )
    if stated:
        if not isinstance(stated, dict):
            raise CheckpointError(f"{folder / 'config.json'} has a quantization_config that is no object.")
        return stated
    for name, method in BESIDE.items():
        if (folder / name).is_file():
            return {"quant_method": method} | _read(folder / name)
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except DamagedFile as error:
        raise UnsupportedModel(str(error)) from error
