"""Tiny checkpoints in the forms of tools that octavo does not run, by their documentation: each with the dense weights
that it stands for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import quantised_base
import quantised_reference as oracle
import quantised_writer as writer
import torch
from quantised_checkpoint import write
from torch import Tensor
from transformers import LlamaConfig

Stored = tuple[dict[str, Tensor], Tensor]
"""Tensors in place of a weight, and its values, float32."""

MODELOPT = {"producer": {"name": "modelopt", "version": "0.39.0"}}
QUARK_FP8 = {"dtype": "fp8_e4m3", "is_dynamic": False, "symmetric": True}
LAST = "down_proj"


@dataclass(frozen=True)
class Form:
    """`convert` takes a weight and its name. `beside`: the file that has the config, if it is not config.json."""

    convert: Callable[[Tensor, str], Stored]
    config: dict[str, Any]
    beside: str = ""
    scheme: str = ""
    extra: dict[str, float] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """The checkpoint in `folder`, and in `folder/dense` the one that it stands for."""
        tensors, dense = {}, {}
        for name, weight in quantised_base.weights().items():
            module, _, last = name.rpartition(".")
            dense[name] = tensors[name] = weight
            if "_proj" in module and last == "weight":
                del tensors[name]
                parts, dense[name] = self.convert(weight, module)
                tensors |= {f"{module}.{ending}": part for ending, part in parts.items()}
                tensors |= {f"{module}.{ending}": torch.tensor(value) for ending, value in self.extra.items()}
        config = LlamaConfig(**quantised_base.CONFIG).to_dict()
        (folder / "dense").mkdir()
        write(folder / "dense", {name: tensor.float() for name, tensor in dense.items()}, config)
        write(folder, tensors, config if self.beside else config | {"quantization_config": self.config})
        if self.beside:
            (folder / self.beside).write_text(json.dumps(self.config))


def fp8(weight: Tensor, _: str, extent: str, shape: Callable[[Tensor], Tensor] = lambda scale: scale) -> Stored:
    block = {"tensor": None, "row": (1, weight.shape[1]), "block": (128, 128)}[extent]
    made = writer.fp8(weight, block, "weight_scale", torch.float32)
    values = oracle.fp8(made).values
    return {**made, "weight_scale": shape(made["weight_scale"])}, values


def nvfp4(weight: Tensor, _: str) -> Stored:
    """ModelOpt multiplies by `weight_scale_2`; compressed-tensors divides by its inverse."""
    made = writer.nvfp4(weight)
    second = (1 / made["weight_global_scale"]).reshape(())
    codes = made["weight_packed"]
    fields = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1).long()
    signs, scales = 1 - 2 * (fields >> 3).float(), made["weight_scale"].float() * second
    values = oracle.E2M1[fields & 7] * signs * scales.repeat_interleave(16, 1)
    return {"weight": codes, "weight_scale": made["weight_scale"], "weight_scale_2": second}, values


def gptq(weight: Tensor, name: str, eight: str = "", dense: str = "") -> Stored:
    if dense and dense in name:
        return {"weight": weight}, weight.float()
    made = writer.gptq(weight, bits=8 if eight and eight in name else 4, symmetric=False)
    values = oracle.gptq(made, "gptq").values
    del made["g_idx"]
    return made, values


def awq(weight: Tensor, _: str) -> Stored:
    made = writer.awq(weight)
    return made, oracle.awq(made).values


def mixed(weight: Tensor, name: str) -> Stored:
    return nvfp4(weight, name) if LAST in name else fp8(weight, name, "tensor")


def quark(qscheme: str, inputs: bool = True) -> dict[str, Any]:
    layer = {"weight": QUARK_FP8 | {"qscheme": qscheme}, "bias": None, "output_tensors": None}
    layer["input_tensors"] = QUARK_FP8 | {"qscheme": "per_tensor"} if inputs else None
    cache = {"*k_proj": layer | {"output_tensors": QUARK_FP8 | {"qscheme": "per_tensor"}}}
    return {
        "quant_method": "quark",
        "global_quant_config": layer,
        "layer_quant_config": cache,
        "exclude": ["lm_head"],
        "algo_config": None,
        "export": {"kv_cache_group": ["*k_proj"], "pack_method": "reorder", "weight_format": "real_quantized"},
    }


def modelopt(algorithm: str, **more: Any) -> dict[str, Any]:
    """As it stands in config.json."""
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"], **MODELOPT, **more}


def hf_quant(algorithm: str, **more: Any) -> dict[str, Any]:
    """As it stands in hf_quant_config.json."""
    return MODELOPT | {"quantization": {"quant_algo": algorithm, "exclude_modules": ["lm_head"], **more}}


AUTOROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "data_type": "int", "iters": 200}
INPUT = {"input_scale": 0.25}
BESIDE = "hf_quant_config.json"
MIXTURE = {
    f"model.layers.0.{name}": {"quant_algo": "NVFP4" if LAST in name else "FP8"}
    for name in (*(f"self_attn.{part}_proj" for part in "qkvo"), "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
}

FORMS = {
    "modelopt-fp8": Form(partial(fp8, extent="tensor"), modelopt("FP8"), "", "fp8", INPUT),
    "modelopt-fp8-alone": Form(
        partial(fp8, extent="tensor"), hf_quant("FP8", kv_cache_quant_algo="FP8"), BESIDE, "fp8", INPUT
    ),
    "modelopt-fp8-rows": Form(
        partial(fp8, extent="row", shape=lambda scale: scale.flatten()),
        modelopt("FP8_PER_CHANNEL_PER_TOKEN"), "", "fp8",
    ),
    "modelopt-fp8-blocks": Form(
        partial(fp8, extent="block", shape=lambda scale: scale[:, None, :, None]), hf_quant("fp8_pb_wo"), BESIDE
    ),
    "modelopt-nvfp4": Form(nvfp4, modelopt("NVFP4", group_size=16), "", "", INPUT),
    "modelopt-nvfp4-alone": Form(nvfp4, hf_quant("NVFP4", group_size=16), BESIDE, "", INPUT),
    "modelopt-mixed": Form(mixed, hf_quant("MIXED_PRECISION", quantized_layers=MIXTURE), BESIDE),
    "fbgemm": Form(
        partial(fp8, extent="row"), {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "", "fp8",
        {"input_scale_ub": 1200.0},
    ),
    "quark-tensor": Form(partial(fp8, extent="tensor"), quark("per_tensor"), "", "fp8", INPUT),
    "quark-rows": Form(
        partial(fp8, extent="row", shape=lambda scale: scale.flatten()), quark("per_channel", inputs=False)
    ),
    "autoround-gptq": Form(gptq, AUTOROUND | {"packing_format": "auto_round:auto_gptq", "sym": False}),
    "autoround-gptq-extra": Form(
        partial(gptq, eight="down_proj", dense="o_proj"),
        AUTOROUND | {
            "packing_format": "auto_round:auto_gptq",
            "extra_config": {
                "model.layers.0.mlp.down_proj": {"bits": 8},
                "model.layers.0.self_attn.o_proj": {"bits": 16, "data_type": "float"},
                "lm_head": {"bits": 16, "data_type": "float"},
            },
        },
    ),
    "autoround-awq": Form(awq, AUTOROUND | {"packing_format": "auto_round:auto_awq", "sym": False}),
}  # fmt: skip
