"""Forms in which checkpoints store a quantised matrix: the tensors of each, and the values that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import packers
import torch
from torch import Tensor

Packer = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
FP8 = torch.float8_e4m3fn


def integers(bits: int, layout: str) -> Packer:
    """Codes in groups of 32 columns, with zero points."""

    def pack(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        groups, most = torch.arange(weight.shape[1]) // 32, (1 << bits) - 1
        by_group = weight.unflatten(1, (-1, 32))
        low, high = by_group.amin(2), by_group.amax(2)
        scales = ((high - low) / most).half()
        zeros = (-low / scales.float()).round().clamp(0, most).long()
        q = (weight / scales.float()[:, groups] + zeros[:, groups]).round().clamp(0, most).long()
        if layout == "gptq":
            made = packers.gptq(q, zeros, scales, groups, bits, 1)
        elif layout == "awq":
            made = packers.awq(q, zeros, scales)
        else:
            made = packers.pack_quantized(q, zeros, scales, None, bits)
        return made, (q - zeros[:, groups]) * scales.float()[:, groups]

    return pack


def floats(high: int, wide: int, scale: str = "weight_scale") -> Packer:
    """FP8, of which blocks of so many rows and columns have a scale; 0: all of them."""

    def pack(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        rows, depth = weight.shape
        blocks = weight.unflatten(1, (-1, wide or depth)).unflatten(0, (-1, high or rows))
        scales = blocks.abs().amax((1, 3)) / 448
        codes = (blocks / scales[:, None, :, None]).to(FP8)
        values = (codes.float() * scales[:, None, :, None]).flatten(2).flatten(0, 1)
        return {"weight": codes.flatten(2).flatten(0, 1), scale: scales if high else scales.reshape(())}, values

    return pack


def four_bits(group: int) -> Packer:
    """MXFP4 or NVFP4, whose groups are of 32 and of 16."""

    def pack(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        table = torch.cat((table, -table))
        most = weight.unflatten(1, (-1, group)).abs().amax(2) / 6
        if group == 32:
            exponents = most.log2().ceil()
            scales, stored = exponents.exp2(), (exponents + 127).to(torch.uint8)
        else:
            stored = (most * 100).to(FP8)
            scales = stored.float() / 100
        spread = scales.repeat_interleave(group, dim=1)
        codes = ((weight / spread)[..., None] - table).abs().argmin(-1)
        return packers.four_bit_floats(codes, stored, None if group == 32 else 100.0), table[codes] * spread

    return pack


def eight_bits(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    scales = weight.abs().amax(1, keepdim=True) / 127
    codes = (weight / scales).round().to(torch.int8)
    return {"weight": codes, "weight_scale": scales}, codes * scales


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    groups = {"all": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


GROUPED = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}
FORMS: dict[str, tuple[dict[str, Any], Packer, str]] = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}, integers(4, "gptq"), "int4g32"),
    "gptq-8": ({"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": False}, integers(8, "gptq"), "int8g32"),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, integers(4, "awq"), "int4g32"),
    "packed": (compressed("pack-quantized", **GROUPED), integers(4, "compressed"), "int4g32"),
    "int8": (compressed("int-quantized", num_bits=8, type="int", strategy="channel"), eight_bits, "int8"),
    "fp8": (compressed("float-quantized", num_bits=8, type="float", strategy="channel"), floats(1, 0), "fp8"),
    "fp8-tensor": (compressed("float-quantized", num_bits=8, type="float", strategy="tensor"), floats(0, 0), "fp8"),
    "fp8-block": (
        {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"},
        floats(32, 32, "weight_scale_inv"),
        "fp8g32 by fp8g32",
    ),
    "nvfp4": (
        compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16),
        four_bits(16),
        "fp4g16",
    ),
    "mxfp4": (
        compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32),
        four_bits(32),
        "fp4g32",
    ),
}
"""A config, a packer and what a worker calls the form, by name."""
