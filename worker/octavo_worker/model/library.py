"""Configs and models by the classes of the installed transformers: the only calls of its loaders.

No code of a model's folder runs: transformers never gets the folder, only the values of its config.json, without what
names code, and the tensors of its safetensors files. So it finds no module, no `custom_generate`, no adapter and no
pickle there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers import dynamic_module_utils as dynamic

from octavo_worker.contract.files import DamagedFile, read_json
from octavo_worker.model.errors import NEXT, UnsupportedModel

CODE = "auto_map"
"""The key under which a config, or one inside it, names classes in Python files of its folder or of the hub."""

dynamic.TIME_OUT_REMOTE_CODE = 0  # a call that transformers makes by itself refuses such a class and does not ask


def library_config(folder: Path) -> PreTrainedConfig:
    """The config of `folder` in transformers' own class. Raises `UnsupportedModel`."""
    try:
        values = read_json(folder / "config.json")
        family = values.get("model_type")
        if CODE in values and family not in CONFIG_MAPPING:
            raise UnsupportedModel(_refusal(folder, family))
        with TemporaryDirectory() as alone:
            (Path(alone) / "config.json").write_text(json.dumps(_without_code(values)), encoding="utf-8")
            config: PreTrainedConfig = AutoConfig.from_pretrained(alone, local_files_only=True, trust_remote_code=False)
    except UnsupportedModel:
        raise
    except DamagedFile as error:
        raise UnsupportedModel(str(error)) from error
    except Exception as error:  # classes of configs check their values, each in its own way
        reason = f"{type(error).__name__}: {error}"
        raise UnsupportedModel(
            f"transformers cannot read {folder / 'config.json'} ({reason}); it must be that of a text model that the "
            "installed transformers knows."
        ) from error
    return config


def drawn_model(config: PreTrainedConfig, **ways: Any) -> PreTrainedModel:
    """A model with random weights on the device of the context."""
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=False, **ways)
    return model


def filled_model(config: PreTrainedConfig, tensors: Mapping[str, Tensor], **ways: Any) -> tuple[PreTrainedModel, Any]:
    """A model with the weights `tensors`, and transformers' report of names and shapes that do not fit."""
    with torch.device("meta"):
        outline = drawn_model(config, **ways)
    loaded: Any = type(outline).from_pretrained(
        None, config=outline.config, state_dict=dict(tensors), output_loading_info=True, trust_remote_code=False, **ways
    )
    model, report = loaded
    return model, report


def _without_code(value: Any) -> Any:
    """The same at any depth."""
    if isinstance(value, dict):
        return {name: _without_code(item) for name, item in value.items() if name != CODE}
    return [_without_code(item) for item in value] if isinstance(value, list) else value


def _refusal(folder: Path, family: Any) -> str:
    return (
        f"{folder / 'config.json'} names code of its own ({CODE}) for {family!r}, and octavo never runs code of a "
        "folder: models run on octavo's decoder or on a class of the installed transformers "
        f"({transformers.__version__}). Give a checkpoint in transformers' form, which makers often publish beside "
        f"theirs (-hf in its name), install a transformers that knows {family!r}, or {NEXT}"
    )
