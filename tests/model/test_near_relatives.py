"""Forms of other tools, near relatives of those that octavo's own tests make by the tools themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from quantised_checkpoint import logits, read_weight
from safetensors.torch import load_file
from tool_forms import FORMS

from octavo_kernels.products.weights import dequantise
from octavo_worker.assembly.inspection import inspect
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.checkpoint.formats import format_of
from octavo_worker.model.errors import CheckpointError, ModelError

IDS = torch.randint(0, 64, (40,), generator=torch.Generator().manual_seed(1)).tolist()


def options(folder: Path, load_format: str = "auto") -> ModelOptions:
    return ModelOptions(model=str(folder), device="cpu", dtype="float32", load_format=load_format)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FORMS)
def test_weights_and_answers_are_those_of_the_dequantised_model(name: str, tmp_path: Path) -> None:
    FORMS[name].save(tmp_path)
    dense = load_file(tmp_path / "dense" / "model.safetensors")
    stored = load_file(tmp_path / "model.safetensors")
    matrices = [key for key in dense if "_proj" in key and (key not in stored or stored[key].dtype != torch.bfloat16)]
    assert len(matrices) >= 6
    for key in matrices:
        assert torch.equal(
            dequantise(read_weight(tmp_path, key.removesuffix(".weight"), *dense[key].shape)), dense[key]
        )
    assert (logits(tmp_path, IDS) - logits(tmp_path / "dense", IDS)).abs().max() < 1e-5


@pytest.mark.parametrize("name", FORMS)
def test_the_doctor_calls_it_what_a_worker_calls_it(name: str, tmp_path: Path) -> None:
    FORMS[name].save(tmp_path)
    model, _ = load_model(options(tmp_path))
    drawn, _ = load_model(options(tmp_path, "dummy"))
    assert inspect(options(tmp_path)).quantization == " + ".join(sorted(model.forms))
    assert drawn.forms == model.forms
    assert inspect(options(tmp_path, "dummy")).quantization == " + ".join(sorted(model.forms))
    assert FORMS[name].scheme in inspect(options(tmp_path)).quantization


EXCLUDING = {
    "modelopt-fp8": ("ignore", ["*down_proj"]),
    "fbgemm": ("modules_to_not_convert", ["model.layers.0.mlp.down_proj"]),
    "quark-tensor": ("exclude", ["*down_proj"]),
    "autoround-awq": ("extra_config", {"model.layers.0.mlp.down_proj": {"bits": 16}}),
    "autoround-gptq": ("extra_config", {"model.layers.0.mlp.down_proj": {"bits": 16}}),
}


@pytest.mark.parametrize("name", EXCLUDING)
def test_a_quantised_tensor_that_the_config_leaves_out_is_named(name: str, tmp_path: Path) -> None:
    FORMS[name].save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    key, value = EXCLUDING[name]
    config["quantization_config"][key] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"tensor 'model.layers.0.mlp.down_proj.(q?weight)' is quantised, but"):
        load_model(options(tmp_path))


QUARK = FORMS["quark-tensor"].config
INT4 = {"global_quant_config": {"weight": {"dtype": "int4", "qscheme": "per_group"}}, "layer_quant_config": {}}
REFUSED = {
    "modelopt-w4a8": ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, r"'W4A8_AWQ' .* FP8.*NVFP4"),
    "modelopt-groups": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "in groups of 32"),
    "modelopt-empty": ({"quant_method": "modelopt"}, "lacks what modelopt needs .*quant_algo"),
    "quark-int4": (QUARK | INT4, r"of int4 \(global_quant_config\) .*only fp8_e4m3"),
    "quark-groups": (
        QUARK | {"layer_quant_config": {"*": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_group"}}}},
        r"scales 'per_group' \(\*\)",
    ),
    "quark-rotated": (QUARK | {"algo_config": [{"name": "rotation"}]}, "were rotated"),
    "autoround-packing": ({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round"}, "packing 'auto_r"),
    "autoround-type": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 16, "data_type": "nv_fp", "act_bits": 4},
        r"type 'nv_fp' with activations of 4 bits .* 'llm_compressor'",
    ),
    "autoround-bits": ({"quant_method": "auto-round", "bits": 2, "group_size": 64}, "GPTQ weights of 2 bits"),
    "mlx": ({"group_size": 64, "bits": 4, "mode": "affine"}, r"quantised by MLX.* --dequantize"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_form_without_a_kernel_is_refused_by_its_name(case: str, tmp_path: Path) -> None:
    config, reason = REFUSED[case]
    beside = {"quantization": config} if case == "mlx" else {}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config, **beside}))
    with pytest.raises(ModelError, match=reason) as refusal:
        format_of(tmp_path)
    assert str(refusal.value).endswith(".")
