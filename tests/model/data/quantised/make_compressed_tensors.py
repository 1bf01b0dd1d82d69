"""Writes the `ct-*` checkpoints: llm-compressor quantises the tiny Llama, compressed-tensors says what each weight is.

    python make_compressed_tensors.py FOLDER [NAME ...]

Each form takes less than a second on a CPU. Versions of the tools are in README.md beside this script.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from common import calibration, keep, save_expected, tokenizer, write_base
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme
from compressed_tensors.utils import match_named_modules
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers import Modifier
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
from quantised_base import CONFIG, RAGGED
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

HEAD = ["lm_head"]
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
INT8_ROWS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
PER_TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
PER_TENSOR = {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "tensor", "dynamic": False}


@dataclass(frozen=True)
class Form:
    """`calibrated`: the recipe looks at activations."""

    recipe: list[Modifier]
    calibrated: bool = False
    config: dict[str, Any] = field(default_factory=lambda: CONFIG)


def preset(scheme: str, ignore: list[str] = HEAD, targets: str | list[str] = "Linear") -> QuantizationModifier:
    return QuantizationModifier(scheme=scheme, targets=targets, ignore=ignore)


def group(weights: dict[str, Any], activations: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}}


def forms() -> dict[str, Form]:
    attention, mlp = [r"re:.*self_attn\.[qkvo]_proj$"], [r"re:.*mlp\.(gate|up|down)_proj$"]
    mixed = {"W4A16": attention, "FP8_DYNAMIC": mlp}
    return {
        "ct-w4a16": Form([preset("W4A16")]),
        "ct-w4a16-asym": Form([preset("W4A16_ASYM")]),
        "ct-w4a16-actorder-weight": Form(
            [GPTQModifier(config_groups=group({**INT4, "actorder": "weight"}), ignore=HEAD)], calibrated=True
        ),
        "ct-w8a16": Form([preset("W8A16")]),
        "ct-w8a8": Form([preset("W8A8")]),
        "ct-w8a8-asym": Form(
            [QuantizationModifier(config_groups=group({**INT8_ROWS, "symmetric": False}, PER_TOKEN), ignore=HEAD)]
        ),
        "ct-w8a8-static": Form(
            [QuantizationModifier(config_groups=group(INT8_ROWS, PER_TENSOR), ignore=HEAD)], calibrated=True
        ),
        "ct-fp8-dynamic": Form([preset("FP8_DYNAMIC")]),
        "ct-fp8-static": Form([preset("FP8")], calibrated=True),
        "ct-fp8-block": Form([preset("FP8_BLOCK")], config=RAGGED),
        "ct-nvfp4a16": Form([preset("NVFP4A16")]),
        "ct-mxfp4a16": Form([preset("MXFP4A16")]),
        "ct-mixed": Form([QuantizationModifier(scheme=mixed, ignore=HEAD)]),
        "ct-ignored": Form([preset("W4A16", [*HEAD, "re:.*v_proj$"])]),
    }


def quantise(form: Form, folder: Path) -> None:
    extra: dict[str, Any] = {}
    if form.calibrated:
        ids = calibration(form.config)
        data = Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]})
        extra = {"dataset": data, "num_calibration_samples": len(ids), "max_seq_length": len(ids[0])}
        extra["tokenizer"] = tokenizer()
    with tempfile.TemporaryDirectory() as base:
        write_base(Path(base), form.config)
        model = oneshot(model=base, recipe=form.recipe, **extra)
        model.save_pretrained(folder, save_compressed=True)
    keep(folder)


def decompressed(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of the quantised modules by compressed-tensors."""
    config = LlamaConfig.from_pretrained(folder, trust_remote_code=False)
    described = QuantizationConfig.model_validate(config.quantization_config)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    stored = load_file(folder / "model.safetensors")
    result = {}
    for scheme in described.config_groups.values():
        for name, _ in match_named_modules(model, scheme.targets, described.ignore):
            parts = {key.rpartition(".")[2]: stored[key] for key in stored if key.rpartition(".")[0] == name}
            result[f"{name}.weight"] = weight(parts, scheme)
    return result


def weight(parts: dict[str, torch.Tensor], scheme: QuantizationScheme) -> torch.Tensor:
    return BaseCompressor.get_value_from_registry(scheme.format).decompress(parts, scheme)["weight"]


def main(output: Path, names: list[str]) -> None:
    for name, form in forms().items():
        if not names or name in names:
            quantise(form, output / name)
            save_expected(output, name, decompressed(output / name))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
