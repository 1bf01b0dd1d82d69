"""Values of a quantised checkpoint's tensors, in a few lines a format. Shares nothing with what it is to judge.

Formulas and packing are from the documents and the sources of the tools that write the formats; tests compare the
result with those tools' own answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]
"""The four bits of a word, counted from its lowest, that hold its columns 0 to 7."""
BLOCK = 128


@dataclass(frozen=True)
class Parts:
    """Element `[o, k]` of a weight is `(codes[o, k] - zeros[o, g]) * scales[o, g]` with `g = groups[k]`.

    `codes[O, K]` are integers as they are stored (unsigned where they are packed), or, where `zeros` are missing, bit
    patterns of floats: `kind` is "int", "e4m3" or "e2m1". `scales[O, G]` are float32, `groups[K]` integers.
    `activation_scale` is the constant one of a static scheme.
    """

    kind: str
    codes: Tensor
    zeros: Tensor | None
    scales: Tensor
    groups: Tensor
    activation_scale: Tensor | None = None

    @property
    def order(self) -> Tensor:
        """The columns, those of a group side by side."""
        return torch.argsort(self.groups, stable=True)

    @property
    def values(self) -> Tensor:
        """Float32 `[O, K]`."""
        if self.kind == "e4m3":
            exact = self.codes.view(torch.float8_e4m3fn).float()
        elif self.kind == "e2m1":
            exact = E2M1[(self.codes & 7).long()] * (1 - 2 * (self.codes >> 3).float())
        else:
            assert self.zeros is not None
            exact = (self.codes - self.zeros[:, self.groups]).float()
        return exact * self.scales[:, self.groups]


def fields(words: Tensor, bits: int) -> Tensor:
    """Unpacks `[..., n]` words of 32 bits along the last dimension, lowest bits first."""
    shifts = torch.arange(0, 32, bits)
    return ((words.long().unsqueeze(-1) >> shifts) & (2**bits - 1)).flatten(-2)


def equal_groups(depth: int, count: int) -> Tensor:
    return torch.arange(depth) // (depth // count)


def gptq(tensors: dict[str, Tensor], version: str) -> Parts:
    depth, columns = len(tensors["g_idx"]), tensors["scales"].shape[1]
    bits = 32 * len(tensors["qweight"]) // depth
    zeros = tensors["qzeros"].long()
    if version != "gptq_v2":  # one less was stored, subtracted from the words: a field of 0 borrowed from the next
        zeros = (zeros + {4: 0x11111111, 8: 0x01010101}[bits]) & 0xFFFFFFFF
    codes = fields(tensors["qweight"].T, bits)
    unpacked = fields(zeros, bits)[:, :columns]
    return Parts("int", codes, unpacked.T, tensors["scales"].float().T, tensors["g_idx"].long())


def awq(tensors: dict[str, Tensor]) -> Parts:
    def unpack(words: Tensor) -> Tensor:
        return fields(words, 4).unflatten(-1, (-1, 8))[..., AWQ_ORDER].flatten(-2).T

    codes, scales = unpack(tensors["qweight"]), tensors["scales"].float().T
    return Parts("int", codes, unpack(tensors["qzeros"]), scales, equal_groups(codes.shape[1], scales.shape[1]))


def pack_quantized(tensors: dict[str, Tensor]) -> Parts:
    rows, depth = tensors["weight_shape"].tolist()
    bits = 32 * tensors["weight_packed"].shape[1] // depth
    codes, scales = fields(tensors["weight_packed"], bits)[:, :depth], tensors["weight_scale"].float()
    zeros = torch.full_like(scales, 2 ** (bits - 1), dtype=torch.long)
    if "weight_zero_point" in tensors:
        zeros = fields(tensors["weight_zero_point"].T, bits).T[:rows]
    groups = tensors.get("weight_g_idx", equal_groups(depth, scales.shape[1])).long()
    return Parts("int", codes, zeros, scales, groups)


def int_quantized(tensors: dict[str, Tensor]) -> Parts:
    codes, scales = tensors["weight"].long(), tensors["weight_scale"].float()
    zeros = tensors.get("weight_zero_point", torch.zeros_like(scales)).long()
    groups = torch.zeros(codes.shape[1], dtype=torch.long)
    return Parts("int", codes, zeros, scales, groups, tensors.get("input_scale"))


def fp8(tensors: dict[str, Tensor]) -> Parts:
    """A scale for the tensor, for each row, or for each block of 128 x 128; the last blocks may be smaller."""
    rows, depth = tensors["weight"].shape
    scales = tensors["weight_scale" if "weight_scale" in tensors else "weight_scale_inv"].float()
    groups = torch.zeros(depth, dtype=torch.long)
    if scales.numel() == 1:
        scales = scales.reshape(1, 1).expand(rows, 1)
    elif scales.shape != (rows, 1):
        scales, groups = scales.repeat_interleave(BLOCK, 0)[:rows], torch.arange(depth) // BLOCK
    activation_scale = tensors.get("input_scale", tensors.get("activation_scale"))
    return Parts("e4m3", tensors["weight"].view(torch.uint8), None, scales, groups, activation_scale)


def fp4(tensors: dict[str, Tensor]) -> Parts:
    """Sixteen or 32 elements share a scale: in e4m3, divided by a global one (nvfp4), or an exponent (mxfp4)."""
    packed = tensors["weight_packed"]
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
    if "weight_global_scale" in tensors:
        scales = tensors["weight_scale"].float() / tensors["weight_global_scale"]
    else:
        scales = torch.exp2(tensors["weight_scale"].float() - 127)
    return Parts("e2m1", codes, None, scales, equal_groups(codes.shape[1], scales.shape[1]))


def read(tensors: dict[str, Tensor], config: dict[str, Any]) -> Parts:
    """`tensors` are those of one module, by the last part of their names."""
    if "qweight" in tensors:
        if config["quant_method"] == "awq":
            return awq(tensors)
        return gptq(tensors, config.get("checkpoint_format", "gptq"))
    if "weight_packed" in tensors:
        return pack_quantized(tensors) if tensors["weight_packed"].dtype is torch.int32 else fp4(tensors)
    return int_quantized(tensors) if tensors["weight"].dtype is torch.int8 else fp8(tensors)


def modules(folder: Path) -> dict[str, dict[str, Tensor]]:
    """The tensors of every module, quantised or not, by the last part of their names."""
    found: dict[str, dict[str, Tensor]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            module, _, last = name.rpartition(".")
            found.setdefault(module, {})[last] = tensor
    return found


def is_quantised(tensors: dict[str, Tensor]) -> bool:
    return any(name in tensors for name in ("qweight", "weight_packed", "weight_scale", "weight_scale_inv"))


def quantisation_config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def parts(folder: Path, module: str) -> Parts:
    return read(modules(folder)[module], quantisation_config(folder))


def dense(folder: Path) -> dict[str, Tensor]:
    """A float32 state dict for the model of 16 bits."""
    config, state = quantisation_config(folder), {}
    for module, tensors in modules(folder).items():
        if is_quantised(tensors):
            state[f"{module}.weight"] = read(tensors, config).values
            tensors = {name: tensor for name, tensor in tensors.items() if name == "bias"}
        state |= {f"{module}.{name}": tensor.float() for name, tensor in tensors.items()}
    return state
