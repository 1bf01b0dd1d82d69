"""Weights of eight bits and of floats in four: what is read are the same codes, and the scale of every row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import packers
import pytest
import torch
from quantised_checkpoint import read_weight, unpacked, write
from torch import Tensor

from octavo_kernels.products.weights import Activations, Codes, Scheme, dequantise

ROWS, DEPTH = 200, 272  # blocks of 128 end amid the second and the third
F8 = torch.float8_e4m3fn


def codes_of(dtype: torch.dtype) -> Tensor:
    drawn = torch.randn(ROWS, DEPTH, generator=torch.Generator().manual_seed(1))
    return (drawn * 40).round().clamp(-127, 127).to(dtype)


def scales_of(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(2)) + 0.5).to(dtype)


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


def compressed(kind: str, inputs: dict[str, Any] | None, **weights: Any) -> dict[str, Any]:
    form = "int-quantized" if kind == "int" else "float-quantized"
    stated = {"num_bits": 8, "type": kind, "strategy": "channel", "symmetric": True} | weights
    group = {"targets": ["Linear"], "weights": stated, "input_activations": inputs}
    return {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": form,
            "config_groups": {"group_0": group},
        }
    }


def inputs(kind: str, **stated: Any) -> dict[str, Any]:
    return {"num_bits": 8, "type": kind, "strategy": "token", "dynamic": True} | stated


CASES = {
    "int": (compressed("int", inputs("int")), torch.int8, Codes.INT8, Activations.INT8),
    "int-static": (
        compressed("int", inputs("int", dynamic=False, strategy="tensor", symmetric=False)),
        torch.int8,
        Codes.INT8,
        Activations.INT8,
    ),
    "int-weight-only": (compressed("int", None), torch.int8, Codes.INT8, Activations.AS_GIVEN),
    "float": (compressed("float", inputs("float")), F8, Codes.FP8, Activations.FP8),
    "float-weight-only": (compressed("float", None), F8, Codes.FP8, Activations.AS_GIVEN),
}


@pytest.mark.parametrize(
    "scales", [scales_of(ROWS, 1, dtype=torch.bfloat16), scales_of(ROWS)], ids=["column", "vector"]
)
@pytest.mark.parametrize("case", CASES)
def test_a_scale_a_row(tmp_path: Path, case: str, scales: Tensor) -> None:
    config, dtype, kind, activations = CASES[case]
    codes = codes_of(dtype)
    tensors = {"layer.weight": codes, "layer.weight_scale": scales}
    static = {"layer.input_scale": torch.ones(1), "layer.input_zero_point": torch.ones(1, dtype=torch.int8)}
    write(tmp_path, tensors | static, config)
    weight = read_weight(tmp_path, "layer", ROWS, DEPTH)
    assert weight.scheme == Scheme(kind, DEPTH, activations)
    assert torch.equal(bits(weight.codes), bits(codes))
    assert torch.equal(weight.scales, scales.float().reshape(1, ROWS))
    assert weight.zeros is None
    assert torch.equal(dequantise(weight), codes.float() * scales.float().reshape(ROWS, 1))


def test_zero_points_of_eight_bits(tmp_path: Path) -> None:
    codes, scales = codes_of(torch.int8), scales_of(ROWS, 1)
    zeros = torch.randint(-128, 128, (ROWS, 1), generator=torch.Generator().manual_seed(3)).to(torch.int8)
    tensors = {"layer.weight": codes, "layer.weight_scale": scales, "layer.weight_zero_point": zeros}
    write(tmp_path, tensors, compressed("int", inputs("int"), symmetric=False))
    weight = read_weight(tmp_path, "layer", ROWS, DEPTH)
    assert torch.equal(dequantise(weight), (codes.float() - zeros.float()) * scales)


@pytest.mark.parametrize("shape", [(), (1,)], ids=["scalar", "one"])
@pytest.mark.parametrize("method", ["compressed-tensors", "fp8", "fp8-inverse-name"])
def test_one_scale_for_a_matrix(tmp_path: Path, method: str, shape: tuple[int, ...]) -> None:
    codes, scale = codes_of(F8), scales_of(*shape)
    config = compressed("float", inputs("float", dynamic=False, strategy="tensor"), strategy="tensor")
    if method.startswith("fp8"):
        config = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}
    name = "weight_scale_inv" if method == "fp8-inverse-name" else "weight_scale"
    write(tmp_path, {"layer.weight": codes, f"layer.{name}": scale, "layer.input_scale": torch.ones(1)}, config)
    weight = read_weight(tmp_path, "layer", ROWS, DEPTH)
    assert weight.scheme == Scheme(Codes.FP8, DEPTH, Activations.FP8)
    assert torch.equal(dequantise(weight), codes.float() * scale)


def by_block(codes: Tensor, scales: Tensor) -> Tensor:
    made = codes.float()
    for high in range(scales.shape[0]):
        for wide in range(scales.shape[1]):
            made[128 * high : 128 * high + 128, 128 * wide : 128 * wide + 128] *= scales[high, wide].float()
    return made


BLOCKS = [scales_of(2, 3), scales_of(2, 3, dtype=torch.bfloat16)]
EXPONENTS = torch.tensor([[0.5, 1, 2], [4, 0.25, 8]]).to(torch.float8_e8m0fnu)


@pytest.mark.parametrize("scales", [*BLOCKS, EXPONENTS], ids=["float32", "bfloat16", "exponents"])
def test_a_scale_a_block(tmp_path: Path, scales: Tensor) -> None:
    stated = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    write_and_check_blocks(tmp_path, "weight_scale_inv", scales, {"quantization_config": stated})


@pytest.mark.parametrize("scales", BLOCKS, ids=["float32", "bfloat16"])
def test_a_scale_a_block_of_compressed_tensors(tmp_path: Path, scales: Tensor) -> None:
    activations = inputs("float", strategy="group", group_size=128)
    config = compressed("float", activations, strategy="block", block_structure=[128, 128])
    write_and_check_blocks(tmp_path, "weight_scale", scales, config)


def write_and_check_blocks(folder: Path, name: str, scales: Tensor, config: dict[str, Any]) -> None:
    codes = codes_of(F8)
    write(folder, {"layer.weight": codes, f"layer.{name}": scales}, config)
    weight = read_weight(folder, "layer", ROWS, DEPTH)
    assert weight.scheme == Scheme(Codes.FP8, 128, Activations.FP8, 128)
    assert torch.equal(bits(weight.codes), bits(codes))
    assert torch.equal(dequantise(weight), by_block(codes, scales))


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def four_bits(form: str, size: int) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "float", "group_size": size, "symmetric": True}
    weights["strategy"] = "tensor_group" if size == 16 else "group"
    group = {"targets": ["Linear"], "weights": weights, "format": form}
    stated = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {"group_0": group}}
    return {"quantization_config": stated}


def test_nvfp4(tmp_path: Path) -> None:
    codes = torch.randint(0, 16, (ROWS, DEPTH), generator=torch.Generator().manual_seed(4))
    scales = scales_of(ROWS, DEPTH // 16).mul(300).to(F8)
    tensors = packers.four_bit_floats(codes, scales, 30592.0) | {"input_global_scale": torch.ones(1)}
    write(tmp_path, {f"layer.{e}": tensor for e, tensor in tensors.items()}, four_bits("nvfp4-pack-quantized", 16))
    weight = read_weight(tmp_path, "layer", ROWS, DEPTH)
    assert weight.scheme == Scheme(Codes.FP4, 16)
    assert torch.equal(unpacked(weight.codes).long(), codes)
    assert torch.equal(weight.scales, (scales.float() / 30592.0).T)
    assert torch.equal(dequantise(weight), E2M1[codes] * (scales.float() / 30592.0).repeat_interleave(16, dim=1))


def test_mxfp4(tmp_path: Path) -> None:
    rows, depth = 64, 128
    codes = torch.randint(0, 16, (rows, depth), generator=torch.Generator().manual_seed(4))
    exponents = torch.randint(0, 255, (rows, depth // 32), generator=torch.Generator().manual_seed(5))
    exponents[0, :2] = torch.tensor([0, 254])
    tensors = packers.four_bit_floats(codes, exponents.to(torch.uint8), None)
    write(tmp_path, {f"layer.{e}": tensor for e, tensor in tensors.items()}, four_bits("mxfp4-pack-quantized", 32))
    weight = read_weight(tmp_path, "layer", rows, depth)
    assert weight.scheme == Scheme(Codes.FP4, 32)
    assert torch.equal(unpacked(weight.codes).long(), codes)
    assert weight.scales.T.tolist() == [[2.0 ** (exponent - 127) for exponent in row] for row in exponents.tolist()]


def test_the_group_that_names_a_matrix_most_exactly_counts(tmp_path: Path) -> None:
    codes, scales = codes_of(torch.int8), scales_of(ROWS, 1)
    config = compressed("int", inputs("int"))
    groups = config["quantization_config"]["config_groups"]
    plain = {"weights": groups["group_0"]["weights"], "input_activations": None}
    groups["group_1"] = plain | {"targets": ["layers.0.exact"]}
    groups["group_2"] = plain | {"targets": [r"re:.*layers\.\d\.pattern$"]}
    names = ["layers.0.exact", "layers.0.pattern", "layers.0.other"]
    tensors = {f"{name}.weight": codes for name in names} | {f"{name}.weight_scale": scales for name in names}
    write(tmp_path, {name: tensor.clone() for name, tensor in tensors.items()}, config)
    activations = [read_weight(tmp_path, name, ROWS, DEPTH).scheme.activations for name in names]
    assert activations == [Activations.AS_GIVEN, Activations.AS_GIVEN, Activations.INT8]
