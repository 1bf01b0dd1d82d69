"""Random weights for vLLM. The processes of its ranks import this by name, as a function of the main script does not
travel to all of them."""

from __future__ import annotations

import math

import torch

from octavo_worker.bench.experts import skew_routing
from octavo_worker.model.checkpoint.source import RandomWeights

ROUTERS = ("mlp.gate.weight", "mixer.gate.weight", "router.layer.weight", "router.proj.weight", "mlp.router.weight")


def draw_weights(decoder: torch.nn.Module, skew: float = 0.0) -> None:
    """`skew`: see `skew_routing`."""
    source = RandomWeights(seed=0, norm_scale=1.0, device=next(decoder.parameters()).device)
    for name, parameter in decoder.named_parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16, torch.float32) and "scale" not in name:
            source.read(name, parameter.data)
            if name.endswith(".A"):  # Mamba2's, which octavo and vLLM's other layers keep as a logarithm of norms' size
                parameter.data.fill_(-math.e)
            if name.endswith(ROUTERS):
                skew_routing(parameter.data, skew)
        elif not parameter.dtype.is_floating_point:  # codes, several to a number
            parameter.data.view(torch.uint8).random_(0, 256)
        elif parameter.dtype is torch.float8_e4m3fn:
            parameter.data.copy_((torch.randn(parameter.shape, device=parameter.device) * 64).to(parameter.dtype))
