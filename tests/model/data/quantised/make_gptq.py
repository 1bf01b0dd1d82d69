"""Writes the `gptq-*` and `awq-*` checkpoints: GPTQModel quantises the tiny Llama and says what each weight is.

    python make_gptq.py FOLDER [NAME ...]

The first run compiles an extension for a minute or two. Versions of the tools are in README.md beside this script.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import cores  # noqa: F401 - before gptqmodel
import torch
from common import calibration, keep, save_expected, tokenizer, write_base
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from gptqmodel.nn_modules.qlinear import BaseQuantLinear
from quantised_base import CONFIG

FORMS: dict[str, dict[str, Any]] = {
    "gptq-4": {},
    "gptq-4-asym": {"sym": False, "format": "gptq"},
    "gptq-4-asym-v2": {"sym": False, "format": "gptq_v2"},
    "gptq-4-desc-act": {"desc_act": True, "act_group_aware": False, "group_size": 32},
    "gptq-4-channel": {"group_size": -1, "act_group_aware": False},
    "gptq-8": {"bits": 8},
    "gptq-dynamic": {"dynamic": {r"+:.*\.down_proj": {"bits": 8, "group_size": 64}, r"-:.*\.v_proj": {}}},
    "awq-4": {"method": "awq", "format": "gemm", "sym": False},
}
"""Arguments of `QuantizeConfig` besides 4 bits, groups of 128."""

DAMPED = {"damp_percent": 0.99}
"""GPTQ moves weights to make up for the rounding of others, far where activations of so few tokens say little. Damped,
it stays nearer to what it was given."""


def quantise(arguments: dict[str, Any], folder: Path) -> None:
    data = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in calibration(CONFIG)]
    with tempfile.TemporaryDirectory() as base:
        write_base(Path(base), CONFIG)
        tokenizer().save_pretrained(base)
        damped = {} if arguments.get("method") == "awq" else DAMPED
        described = QuantizeConfig(**{"bits": 4, "group_size": 128, "offload_to_disk": False, **damped, **arguments})
        model = GPTQModel.load(base, described)
        model.quantize(data, batch_size=8)
        model.save(str(folder))


def dequantised(folder: Path) -> dict[str, torch.Tensor]:
    """Weights of the quantised modules by GPTQModel, from products with an identity matrix."""
    model = GPTQModel.load(str(folder), device="cpu", dtype=torch.float16, backend=BACKEND.TORCH).model
    result = {}
    for name, module in model.named_modules():
        if isinstance(module, BaseQuantLinear):
            identity = torch.eye(module.in_features, dtype=torch.float16)
            result[f"{name}.weight"] = module(identity).T.contiguous()
    return result


def main(output: Path, names: list[str]) -> None:
    for name, arguments in FORMS.items():
        if not names or name in names:
            quantise(arguments, output / name)
            save_expected(output, name, dequantised(output / name))
            keep(output / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
