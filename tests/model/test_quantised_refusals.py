"""Faults of a quantised checkpoint are said in a sentence before anything is served."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packers
import pytest
import torch
from quantised_checkpoint import write
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig

from octavo_worker.assembly.models import load_model
from octavo_worker.contract.files import ModelNotFound
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.checkpoint.formats import format_of
from octavo_worker.model.errors import CheckpointError, ModelError, UnsupportedModel

WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
GROUP = {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": None}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": GROUP}}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}


def compressed(weights: dict[str, Any] | None = None, **group: Any) -> dict[str, Any]:
    return COMPRESSED | {"config_groups": {"group_0": GROUP | {"weights": WEIGHTS | (weights or {})} | group}}


FORMS = {
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, r"by bitsandbytes, .* in 16 bits"),
    "gguf": ({"quant_method": "gguf"}, r"by gguf, .*llama\.cpp's"),
    "unknown": ({"quant_method": "aqlm"}, r"by aqlm, .* give a checkpoint .* gptq, awq, compressed-tensors, fp8"),
    "nameless": ({"bits": 4}, "by a method without a name"),
    **{f"gptq-{bits}": (GPTQ | {"bits": bits}, f"GPTQ weights of {bits} bits") for bits in (2, 3, 5, 6, 7)},
    "gptq-dynamic": (GPTQ | {"dynamic": {"+:.*": {"bits": 3}}}, "GPTQ weights of 3 bits"),
    "gptq-marlin": (GPTQ | {"checkpoint_format": "marlin"}, "layout 'marlin' .* save them as 'gptq'"),
    "gptq-empty": ({"quant_method": "gptq"}, "lacks what gptq needs .*bits"),
    "awq-gemv": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "layout 'gemv' .* save them as 'gemm'"),
    "awq-gemv_fast": ({"quant_method": "awq", "version": "gemv_fast"}, "layout 'gemv_fast'"),
    "awq-3": ({"quant_method": "awq", "bits": 3}, "AWQ weights of 3 bits"),
    "fp8-e5m2": ({"quant_method": "fp8", "fmt": "e5m2"}, "type 'e5m2'"),
    "transforms": (COMPRESSED | {"transform_config": {"config_groups": {"u": {}}}}, "rotated .*without transforms"),
    "sparsity": (COMPRESSED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse weights .*quantised only"),
    "marlin-24": (COMPRESSED | {"format": "marlin-24"}, "format 'marlin-24'"),
    "mixed-marlin": (compressed(format="marlin-24"), "group_0 .* format 'marlin-24'"),
    "int3": (compressed({"num_bits": 3}), r"group_0 .* 3 bits \(int\)"),
    "float6": (compressed({"num_bits": 6, "type": "float"}), r"6 bits \(float\)"),
    "fp4-groups": (compressed({"type": "float", "group_size": 64}), "floats of 4 bits in groups of 64"),
    "strategy": (compressed({"strategy": "attn_head"}), "scales by 'attn_head'"),
    "mixed-types": (
        compressed({"num_bits": 8}, input_activations={"num_bits": 8, "type": "float"}),
        r"INT8 weights with activations of 8 bits \(float\)",
    ),
}


@pytest.mark.parametrize("case", FORMS)
def test_a_form_that_does_not_load_is_refused_by_name(tmp_path: Path, case: str) -> None:
    config, reason = FORMS[case]
    LlamaConfig(quantization_config=config).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps(json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": config})
    )
    with pytest.raises(ModelError, match=reason) as refusal:
        load_model(ModelOptions(model=str(tmp_path), device="cpu"))
    assert str(refusal.value).endswith(".")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("quantize_config.json", {"bits": 3, "group_size": 128}, "GPTQ weights of 3 bits"),
        ("quant_config.json", {"w_bit": 4, "version": "GEMV"}, "layout 'gemv'"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "W4A8_AWQ"}}, "'W4A8_AWQ' are not loaded"),
    ],
)
def test_what_is_stated_beside_the_config_counts(tmp_path: Path, file: str, content: object, reason: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(UnsupportedModel, match=reason):
        format_of(tmp_path)


def test_the_config_of_the_text_part_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"quantization_config": GPTQ | {"bits": 3}}}))
    with pytest.raises(UnsupportedModel, match="GPTQ weights of 3 bits"):
        format_of(tmp_path)


def test_a_folder_of_gguf_files_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "model-q4_k_m.gguf"
    file.write_bytes(b"GGUF")
    for model in (tmp_path, file):
        with pytest.raises(ModelNotFound, match=r"llama\.cpp's .*weights: give .* safetensors checkpoint"):
            load_model(ModelOptions(model=str(model), device="cpu"))
    LlamaConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"\.gguf.* safetensors checkpoint"):
        load_model(ModelOptions(model=str(tmp_path), device="cpu"))


UNSTATED = {
    "fp8": ({"m.weight": torch.zeros(4, 8).to(torch.float8_e4m3fn)}, r"weights in FP8 \('m\.weight'\), but no quant"),
    "gptq": ({"m.qweight": torch.zeros(1, 8, dtype=torch.int32)}, r"packed weights \('m\.qweight'\), but no quant"),
    "mlx": ({"m.weight": torch.zeros(4, 1, dtype=torch.uint32), "m.scales": torch.zeros(4, 1)}, "quantised by MLX"),
}


@pytest.mark.parametrize("form", UNSTATED)
def test_quantised_tensors_without_a_config_are_refused_by_name(tmp_path: Path, form: str) -> None:
    tensors, reason = UNSTATED[form]
    write(tmp_path, tensors, LlamaConfig().to_dict())
    with pytest.raises(UnsupportedModel, match=rf"{reason}.* in bfloat16 or float16"):
        load_model(ModelOptions(model=str(tmp_path), device="cpu"))


def test_matrices_that_lie_the_other_way_round_are_refused(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=48, n_embd=32, n_layer=1, n_head=2, n_positions=32)
    tensors = {name: tensor.clone() for name, tensor in GPT2LMHeadModel(config).state_dict().items()}
    del tensors["lm_head.weight"], tensors["transformer.h.0.attn.c_proj.weight"]
    zeros = torch.zeros(32, 1, dtype=torch.long)
    packed = packers.gptq(torch.zeros(32, 32, dtype=torch.long), zeros, torch.ones(32, 1), None, 4, 1)
    tensors |= {f"transformer.h.0.attn.c_proj.{ending}": tensor for ending, tensor in packed.items()}
    write(tmp_path, tensors, config.to_dict() | {"quantization_config": GPTQ})
    with pytest.raises(UnsupportedModel, match=r"c_proj is quantised, but its family stores .* other way round"):
        load_model(ModelOptions(model=str(tmp_path), device="cpu"))


NAME = "model.layers.0.mlp.down_proj"
Change = Callable[[dict[str, Tensor]], None]


def without(ending: str) -> Change:
    return lambda tensors: tensors.__delitem__(f"{NAME}.{ending}")


def renamed(ending: str, other: str) -> Change:
    return lambda tensors: tensors.update({f"{NAME}.{other}": tensors.pop(f"{NAME}.{ending}")})


def changed(ending: str, change: Callable[[Tensor], Tensor]) -> Change:
    return lambda tensors: tensors.update({f"{NAME}.{ending}": change(tensors[f"{NAME}.{ending}"]).contiguous()})


def half(tensor: Tensor) -> Tensor:
    return tensor[: len(tensor) // 2]


DAMAGES = {
    "gptq-4": {
        "qweight-missing": (without("qweight"), r"down_proj\.qweight' is missing"),
        "scales-missing": (without("scales"), r"down_proj\.scales' is missing"),
        "qzeros-renamed": (renamed("qzeros", "zeros"), r"down_proj\.qzeros' is missing"),
        "qweight-short": (changed("qweight", half), r"down_proj\.qweight' has shape"),
        "scales-turned": (changed("scales", lambda t: t.T), r"down_proj\.scales' has shape"),
        "g_idx-short": (changed("g_idx", half), r"down_proj\.g_idx' has shape"),
        "qweight-type": (changed("qweight", lambda t: t.long()), r"down_proj\.qweight' is stored as I64, .* I32"),
        "scales-type": (changed("scales", lambda t: t.to(torch.float8_e4m3fn)), r"scales' is stored as F8_E4M3"),
        "all-renamed": (
            lambda tensors: [renamed(each, f"q.{each}")(tensors) for each in ("qweight", "qzeros", "scales", "g_idx")],
            r"down_proj\.weight' is missing",
        ),
        "surplus": (lambda tensors: tensors.update({f"{NAME}.lora_a": torch.ones(1)}), r"no place for: .*lora_a"),
    },
    "ct-w4a16-asym": {
        "packed-missing": (without("weight_packed"), r"down_proj\.weight_packed' is missing"),
        "zeros-missing": (without("weight_zero_point"), r"down_proj\.weight_zero_point' is missing"),
        "zeros-turned": (changed("weight_zero_point", lambda t: t.T), r"weight_zero_point' has shape"),
        "scale-short": (changed("weight_scale", half), r"weight_scale' has shape"),
        "packed-type": (changed("weight_packed", lambda t: t.float()), r"weight_packed' is stored as F32, .* I32"),
    },
    "ct-w8a8": {
        "weight-type": (changed("weight", lambda t: t.to(torch.float8_e4m3fn)), r"weight' is stored as F8_E4M3, .* I8"),
        "scale-missing": (without("weight_scale"), r"weight_scale' is missing"),
    },
    "fp8-block": {
        "scale-missing": (without("weight_scale_inv"), r"weight_scale_inv' is missing"),
        "scale-short": (changed("weight_scale_inv", half), r"weight_scale_inv' has shape"),
        "weight-type": (changed("weight", lambda t: t.to(torch.float8_e5m2)), r"weight' is stored as F8_E5M2"),
    },
    "ct-nvfp4a16": {
        "global-missing": (without("weight_global_scale"), r"weight_global_scale' is missing"),
        "scale-type": (changed("weight_scale", lambda t: t.float()), r"weight_scale' is stored as F32, .* F8_E4M3"),
    },
}


@pytest.mark.parametrize(("name", "damage"), [(name, each) for name, damages in DAMAGES.items() for each in damages])
def test_a_damaged_tensor_is_named(tmp_path: Path, name: str, damage: str) -> None:
    source = Path(__file__).parent / "data" / "quantised" / name
    tensors = load_file(source / "model.safetensors")
    change, reason = DAMAGES[name][damage]
    change(tensors)
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    save_file({key: tensor.clone() for key, tensor in tensors.items()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=reason):
        load_model(ModelOptions(model=str(tmp_path), device="cpu"))
