"""config.json without transformers, whose import takes seconds, if the file itself states all that the decoder needs.

Files that rely on defaults of transformers' class, and all other families, are left to transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from octavo_worker.contract.files import DamagedFile, read_json

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ModelConfig: TypeAlias = "FileConfig | PreTrainedConfig"

ROPES: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
UNKNOWN = ("per_layer_config", "partial_rotary_factor")
"""Keys that only transformers understands."""


@dataclass(frozen=True, slots=True)
class Stated:
    """Fields, with their types, that the file of a family must have to be read without transformers. A family with a
    `switched_window` names one even where it does not use it."""

    fields: Mapping[str, tuple[type, ...]]
    switched_window: bool = False


class FileConfig(SimpleNamespace):
    """The values of a config.json as attributes, by the names and in the form of transformers' class of the family."""

    def get_text_config(self, decoder: bool | None = None) -> FileConfig:
        return self


def read_file(folder: Path, families: Mapping[str, Stated]) -> FileConfig | None:
    """None if transformers must read it: the file is of none of `families` (by `model_type`), or lacks a field."""
    try:
        values = read_json(folder / "config.json")
    except (DamagedFile, OSError):
        return None
    stated = families.get(values.get("model_type", ""))
    if stated is None or not _states_all(values, stated.fields):
        return None
    rope = _rope(values)
    if rope is None:
        return None
    derived = {"rope_parameters": rope, "dtype": values.get("dtype") or values.get("torch_dtype")}
    if stated.switched_window:
        derived |= _sliding(values)
    return FileConfig(**{"is_encoder_decoder": False} | values | derived)


def _states_all(values: dict[str, Any], required: Mapping[str, tuple[type, ...]]) -> bool:
    if any(name in values for name in UNKNOWN):
        return False
    if not all(name in values and isinstance(values[name], kinds) for name, kinds in required.items()):
        return False
    if values.get("use_sliding_window") and not values.get("layer_types"):
        return False
    return bool(values["hidden_size"] % values["num_attention_heads"] == 0)


def _rope(values: dict[str, Any]) -> dict[str, Any] | None:
    """Parameters in today's form: files older than transformers 5 have `rope_theta` beside `rope_scaling`."""
    stated = values.get("rope_scaling") or values.get("rope_parameters") or {}
    theta = stated.get("rope_theta", values.get("rope_theta"))
    kind = stated.get("rope_type", stated.get("type", "default"))
    numbers = [theta, *(stated.get(name) for name in ROPES.get(kind, ()))]
    if kind not in ROPES or not all(isinstance(number, int | float) for number in numbers):
        return None
    if any(isinstance(value, dict) for value in stated.values()):  # one for each kind of layer
        return None
    return {**stated, "rope_type": kind, "rope_theta": theta}


def _sliding(values: dict[str, Any]) -> dict[str, Any]:
    """The window of a file that may have switched it off."""
    if values.get("use_sliding_window"):
        return {}
    kinds = values.get("layer_types") or ["full_attention"] * values["num_hidden_layers"]
    return {"sliding_window": None, "layer_types": kinds}
