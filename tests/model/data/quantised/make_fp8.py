"""Writes the `fp8-*` checkpoints (`quant_method: fp8`) by the rules of the format: no tool writes them on a CPU.

    python make_fp8.py FOLDER

Sources: DeepSeek-V3's inference/kernel.py (`weight_dequant`: blocks of 128 x 128, multiplied by `weight_scale_inv`),
vLLM's layers/quantization/fp8.py (`weight_scale` and `input_scale`, one number each), transformers'
integrations/finegrained_fp8.py (the same numbers as `weight_scale_inv` and `activation_scale`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import calibration, keep, save_expected, write_base
from quantised_base import CONFIG
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

LARGEST = torch.finfo(torch.float8_e4m3fn).max
METHOD = {"quant_method": "fp8", "fmt": "e4m3"}
BLOCKS = {**METHOD, "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
FORMS: dict[str, tuple[dict[str, Any], str, str]] = {
    "fp8-block": ({**BLOCKS, "modules_to_not_convert": ["lm_head"]}, "weight_scale_inv", ""),
    "fp8-tensor-dynamic": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]},
        "weight_scale",
        "",
    ),
    "fp8-tensor-static": (
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        "weight_scale",
        "input_scale",
    ),
    "fp8-tensor-static-inv": (
        {**METHOD, "activation_scheme": "static", "weight_block_size": None, "modules_to_not_convert": ["lm_head"]},
        "weight_scale_inv",
        "activation_scale",
    ),
}
"""The quantization_config, the name of a weight's scales, the name of its activations' scale."""


def by_tensor(weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = weight.float().abs().max() / LARGEST
    return (weight.float() / scale).to(torch.float8_e4m3fn), scale


def by_block(weight: Tensor, size: int = 128) -> tuple[Tensor, Tensor]:
    rows, columns = (torch.arange(length) // size for length in weight.shape)
    scales = torch.zeros(int(rows[-1]) + 1, int(columns[-1]) + 1)
    for row in range(len(scales)):
        for column in range(scales.shape[1]):
            block = weight[rows == row][:, columns == column]
            scales[row, column] = block.float().abs().max() / LARGEST
    return (weight.float() / scales[rows][:, columns]).to(torch.float8_e4m3fn), scales


def activation_scales(base: Path) -> dict[str, Tensor]:
    """Scales of the input of every projection, over the calibration's tokens."""
    model, largest = LlamaForCausalLM.from_pretrained(base, trust_remote_code=False), {}
    for name, module in model.named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(lambda _, x, name=name: largest.update({name: x[0].float().abs().max()}))
    with torch.no_grad():
        model(torch.tensor(calibration(CONFIG)))
    return {name: value / LARGEST for name, value in largest.items()}


def quantise(base: Path, folder: Path, config: dict[str, Any], scale_name: str, activation_name: str) -> None:
    state, scales = load_file(base / "model.safetensors"), activation_scales(base)
    quantised = {}
    for name, tensor in state.items():
        module = name.removesuffix(".weight")
        if not module.endswith("_proj"):
            quantised[name] = tensor
            continue
        convert = by_block if config.get("weight_block_size") else by_tensor
        quantised[name], quantised[f"{module}.{scale_name}"] = convert(tensor)
        if activation_name:
            quantised[f"{module}.{activation_name}"] = scales[module]
    folder.mkdir(exist_ok=True)
    save_file(quantised, folder / "model.safetensors", {"format": "pt"})
    described = json.loads((base / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, "quantization_config": config}))
    keep(folder)


def dequantised(folder: Path) -> dict[str, Tensor]:
    """Weights of the quantised modules by transformers, where there is no GPU."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, trust_remote_code=False)
    return {name: tensor for name, tensor in model.state_dict().items() if name.endswith("_proj.weight")}


def main(output: Path) -> None:
    with tempfile.TemporaryDirectory() as base:
        write_base(Path(base), CONFIG)
        for name, form in FORMS.items():
            quantise(Path(base), output / name, *form)
            if form[1] == "weight_scale_inv":  # the only name that transformers reads
                save_expected(output, name, dequantised(output / name))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
