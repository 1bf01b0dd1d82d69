"""Configs and models by the classes of the installed transformers: the only calls of its loaders.

No code of a model's folder runs: transformers never gets the folder, only the values of its config.json, without what
names code, and the tensors of its safetensors files. So it finds no module, no `custom_generate`, no adapter and no
pickle there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig
from transformers import dynamic_module_utils as dynamic

from octavo_worker.contract.files import DamagedFile, read_json
from octavo_worker.model.checkpoint.header import Place
from octavo_worker.model.errors import NEXT, CheckpointError, UnsupportedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel  # whose import takes as long as that of all configs

CODE = "auto_map"
"""The key under which a config, or one inside it, names classes in Python files of its folder or of the hub."""

CONVERSION = "automatic conversion"
"""Part of transformers' sentence on tensors that it cannot join, whose names it only logs."""
THREADLESS = "HF_DEACTIVATE_ASYNC_LOAD"
"""The variable by which transformers fills a model in the calling thread. Tensors without values keep to one."""

transformers.logging.set_verbosity_error()  # its reports would stand between a refusal and its reader
transformers.logging.disable_progress_bar()

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
        config.get_text_config()  # which of several parts is the text's, some configs do not say
    except UnsupportedModel:
        raise
    except DamagedFile as error:
        raise UnsupportedModel(str(error)) from error
    except Exception as error:  # classes of configs check their values, each in its own way
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UnsupportedModel(
            f"transformers cannot read {folder / 'config.json'} ({reason}); it must be that of a text model that the "
            "installed transformers knows."
        ) from error
    return config


def drawn_model(config: PreTrainedConfig, **ways: Any) -> PreTrainedModel:
    """A model with random weights on the device of the context."""
    model: PreTrainedModel = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False, **ways)
    return model


def filled_model(config: PreTrainedConfig, tensors: Mapping[str, Tensor], **ways: Any) -> tuple[PreTrainedModel, Any]:
    """A model with the weights `tensors`, and transformers' report of names and shapes that do not fit. Raises
    `CheckpointError` for tensors that cannot be made into those of the model."""
    with torch.device("meta"):
        outline = drawn_model(config, **ways)
    known = {"output_loading_info": True, "ignore_mismatched_sizes": True, "trust_remote_code": False}
    fill: Any = type(outline).from_pretrained
    try:
        model, report = fill(None, config=outline.config, state_dict=dict(tensors), **known, **ways)
    except RuntimeError as error:
        if CONVERSION not in str(error):
            raise
        raise CheckpointError(
            "tensors of the checkpoint are missing, or have other shapes than their neighbours: they cannot be joined "
            "into those of the model; does config.json belong to it?"
        ) from error
    return model, report


def fitted(config: PreTrainedConfig, places: Mapping[str, Place], **ways: Any) -> Any:
    """transformers' report of names and shapes that do not fit, by the headers of a checkpoint alone."""
    with FakeTensorMode():  # of shapes and types, on a device that they say they are on
        tensors = {name: torch.empty(place.shape, dtype=place.dtype or torch.uint8) for name, place in places.items()}
    threads = os.environ.get(THREADLESS)
    os.environ[THREADLESS] = "1"
    try:
        return filled_model(config, tensors, **ways)[1]
    finally:
        os.environ.pop(THREADLESS)
        if threads is not None:
            os.environ[THREADLESS] = threads


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
