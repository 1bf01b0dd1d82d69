"""Quantises a dense checkpoint by rounding to the nearest, into any form of `tests/model/data/quantised`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

STORED = Path(__file__).parents[1] / "model" / "data" / "quantised"
E4M3 = torch.finfo(torch.float8_e4m3fn).max
E2M1_MIDDLES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
"""Between the magnitudes of the codes 0 to 7 of a float of two exponent bits and one mantissa bit."""
AWQ_COLUMNS = [0, 2, 4, 6, 1, 3, 5, 7]
"""Column of eight that each four bits of a word hold, from the lowest."""

Tensors = dict[str, Tensor]


def words(fields: Tensor, bits: int) -> Tensor:
    """Packs integers of so many bits along the last dimension into int32, lowest bits first."""
    shifts = torch.arange(0, 32, bits)
    packed = (fields.long().unflatten(-1, (-1, 32 // bits)) << shifts).sum(-1)
    return packed.to(torch.int32).contiguous()  # modulo 2^32


def integers(
    weight: Tensor, bits: int, group: int, symmetric: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes from 0 on `[O, K]`, zero points `[O, K / group]`, and scales as they are stored, in `dtype`."""
    grouped = weight.float().unflatten(1, (-1, group))
    if symmetric:
        scales = grouped.abs().amax(-1) / (2 ** (bits - 1) - 0.5)
        zeros = torch.full_like(scales, 2 ** (bits - 1))
    else:
        least, largest = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
        scales = (largest - least) / (2**bits - 1)
        zeros = torch.round(-least / scales).clamp(0, 2**bits - 1)
    scales = scales.to(dtype)
    codes = torch.round(grouped / scales.float().unsqueeze(-1)) + zeros.unsqueeze(-1)
    return codes.clamp(0, 2**bits - 1).flatten(1), zeros, scales


def gptq(weight: Tensor, bits: int = 4, symmetric: bool = True, less: int = 1) -> Tensors:
    """`less`: 1 in the first version of the format, whose words of zero points have one less in every field."""
    codes, zeros, scales = integers(weight, bits, 128, symmetric, torch.float16)
    ones = sum(1 << at for at in range(0, 32, bits))
    packed = words(zeros.T, bits).long() - less * ones
    return {
        "qweight": words(codes, bits).T.contiguous(),
        "qzeros": packed.to(torch.int32),
        "scales": scales.T.contiguous(),
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // 128,
    }


def awq(weight: Tensor) -> Tensors:
    codes, zeros, scales = integers(weight, 4, 128, False, weight.dtype)

    def pack(fields: Tensor) -> Tensor:
        return words(fields.T.unflatten(-1, (-1, 8))[..., AWQ_COLUMNS].flatten(-2), 4)

    return {"qweight": pack(codes), "qzeros": pack(zeros), "scales": scales.T.contiguous()}


def pack_quantized(weight: Tensor, bits: int = 4, symmetric: bool = True) -> Tensors:
    codes, zeros, scales = integers(weight, bits, 128, symmetric, weight.dtype)
    shape = torch.tensor(weight.shape)
    tensors = {"weight_packed": words(codes, bits), "weight_scale": scales, "weight_shape": shape}
    return tensors if symmetric else {**tensors, "weight_zero_point": words(zeros.T, bits).T.contiguous()}


def int_quantized(weight: Tensor, symmetric: bool = True) -> Tensors:
    codes, zeros, scales = integers(weight, 8, weight.shape[1], symmetric, weight.dtype)
    tensors = {"weight": (codes - 128).to(torch.int8), "weight_scale": scales}
    return tensors if symmetric else {**tensors, "weight_zero_point": (zeros - 128).to(torch.int8)}


def fp8(weight: Tensor, block: tuple[int, int] | None, scale_name: str, dtype: torch.dtype) -> Tensors:
    """`block`: so many rows and columns share a scale; the whole matrix without it."""
    rows, columns = (torch.arange(n) // size for n, size in zip(weight.shape, block or weight.shape, strict=True))
    blocks = rows.unsqueeze(1) * (int(columns[-1]) + 1) + columns
    largest = torch.zeros(int(blocks.max()) + 1).scatter_reduce(
        0, blocks.flatten(), weight.float().abs().flatten(), "amax"
    )
    scales = (largest / E4M3).to(dtype).reshape(int(rows[-1]) + 1, -1)
    scaled = weight.float() / scales.float()[rows][:, columns]
    stored = scales if block else scales.reshape(())
    return {"weight": scaled.clamp(-E4M3, E4M3).to(torch.float8_e4m3fn), scale_name: stored}


def fp8_rows(weight: Tensor) -> Tensors:
    return fp8(weight, (1, weight.shape[1]), "weight_scale", weight.dtype)


def e2m1(scaled: Tensor) -> Tensor:
    """Codes of the nearest floats, two a byte, the first in the lower four bits."""
    codes = torch.bucketize(scaled.abs(), E2M1_MIDDLES) + 8 * (scaled < 0)
    low, high = codes.unflatten(-1, (-1, 2)).unbind(-1)
    return (low + 16 * high).to(torch.uint8)


def nvfp4(weight: Tensor) -> Tensors:
    grouped = weight.float().unflatten(1, (-1, 16))
    largest = grouped.abs().amax(-1)
    multiplier = E4M3 * 6 / largest.max()
    scales = (largest / 6 * multiplier).to(torch.float8_e4m3fn)
    scaled = grouped / (scales.float() / multiplier).unsqueeze(-1)
    return {
        "weight_packed": e2m1(scaled.flatten(1)),
        "weight_scale": scales,
        "weight_global_scale": multiplier.reshape(1),
    }


def mxfp4(weight: Tensor) -> Tensors:
    """The exponent is that of the largest magnitude less that of 6, the largest float (OCP Microscaling 1.0, 6.3)."""
    grouped = weight.float().unflatten(1, (-1, 32))
    exponents = torch.floor(torch.log2(grouped.abs().amax(-1))) - 2
    scaled = grouped / torch.exp2(exponents).unsqueeze(-1)
    return {"weight_packed": e2m1(scaled.flatten(1)), "weight_scale": (exponents + 127).to(torch.uint8)}


CONVERTERS: dict[str, Callable[[Tensor], Tensors]] = {
    "gptq-4": gptq,
    "gptq-4-asym": partial(gptq, symmetric=False),
    "gptq-4-asym-v2": partial(gptq, symmetric=False, less=0),
    "gptq-8": partial(gptq, bits=8),
    "awq-4": awq,
    "ct-w4a16": pack_quantized,
    "ct-w4a16-asym": partial(pack_quantized, symmetric=False),
    "ct-w8a16": partial(pack_quantized, bits=8),
    "ct-w8a8": int_quantized,
    "ct-w8a8-asym": partial(int_quantized, symmetric=False),
    "ct-fp8-dynamic": fp8_rows,
    "ct-fp8-block": partial(fp8, block=(128, 128), scale_name="weight_scale", dtype=torch.bfloat16),
    "ct-nvfp4a16": nvfp4,
    "ct-mxfp4a16": mxfp4,
    "fp8-block": partial(fp8, block=(128, 128), scale_name="weight_scale_inv", dtype=torch.float32),
    "fp8-tensor-dynamic": partial(fp8, block=None, scale_name="weight_scale", dtype=torch.float32),
}
"""Tensors that each form stores in place of a weight; names are those of the folders of `STORED`."""


def round_to_nearest(source: Path, form: str, target: Path) -> None:
    """Writes the checkpoint `source`, of 16 bits in one file, as `form` into `target`: every `*_proj` is quantised. The
    `quantization_config` is that of the tool's own checkpoint of this form; other files are copied."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    state = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        module, _, last = name.rpartition(".")
        if module.endswith("_proj") and last == "weight":
            state |= {f"{module}.{part}": made for part, made in CONVERTERS[form](tensor).items()}
        else:
            state[name] = tensor
    save_file(state, target / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = json.loads((STORED / form / "config.json").read_text())["quantization_config"]
    (target / "config.json").write_text(json.dumps(config, indent=2))
