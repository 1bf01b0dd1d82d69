"""Random weights for vLLM. The processes of its ranks import this by name, as a function of the main script does not
travel to all of them."""

from __future__ import annotations

import math

import torch

from octavo_worker.bench.experts import skew_routing
from octavo_worker.model.checkpoint.source import RandomWeights

UNQUANTISED = (torch.bfloat16, torch.float16, torch.float32)
ROUTERS = ("mlp.gate.weight", "mixer.gate.weight", "router.layer.weight", "router.proj.weight", "mlp.router.weight")
SCALES = ("weight_scale", "weight_scale_inv")
FP8_DEVIATION = 80.0
FP8_SCALE = 2.0**-12
INT4_SCALE = 0.02 / 4.3  # the deviation of -7 to 7
E8M0_SCALE = 120  # 2^-7; codes of FP4 have a deviation of 3


def draw_weights(decoder: torch.nn.Module, skew: float = 0.0) -> None:
    """Weights as `RandomWeights` draws them; codes have a scale that gives them the same deviation. `skew`: see
    `skew_routing`."""
    source = RandomWeights(seed=0, norm_scale=1.0, device=next(decoder.parameters()).device)
    for module in decoder.modules():
        own = dict(module.named_parameters(recurse=False))
        has_fp8 = any(parameter.dtype is torch.float8_e4m3fn for parameter in own.values())
        for name, parameter in own.items():
            if name.endswith(SCALES):
                _fill_scale(parameter.data, FP8_SCALE if has_fp8 else INT4_SCALE)
            elif "weight" in name and "idx" not in name and parameter.dtype not in UNQUANTISED:
                _draw_codes(parameter.data)
    for name, parameter in decoder.named_parameters():
        if parameter.dtype in UNQUANTISED and "scale" not in name:
            source.read(name, parameter.data)
            if name.endswith(".A"):  # Mamba2's, which octavo and vLLM's other layers keep as a logarithm of norms' size
                parameter.data.fill_(-math.e)
            if name.endswith(ROUTERS):
                skew_routing(parameter.data, skew)


def _fill_scale(scale: torch.Tensor, value: float) -> None:
    if scale.dtype in UNQUANTISED:
        scale.fill_(value)
    else:
        scale.view(torch.uint8).fill_(E8M0_SCALE)


def _draw_codes(codes: torch.Tensor) -> None:
    """Codes of FP8, or of four bits, several to a number. Their mean is 0."""
    if codes.dtype is torch.float8_e4m3fn:
        codes.copy_((torch.randn(codes.shape, device=codes.device) * FP8_DEVIATION).to(codes.dtype))
    elif codes.dtype in (torch.uint8, torch.int32):
        pairs = codes.view(torch.uint8)
        pairs.random_(1, 16).add_(torch.empty_like(pairs).random_(1, 16), alpha=16)
