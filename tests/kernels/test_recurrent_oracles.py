"""Recurrent layers between their products give what transformers' own layers give, in float32."""

from __future__ import annotations

import pytest
import torch
from recurrent_layers import SLOTS, Part, moves_of
from torch import Tensor, nn
from transformers import BambaConfig, FalconH1Config, Lfm2Config, Mamba2Config, OlmoHybridConfig, Qwen3_5TextConfig
from transformers.models.bamba.modeling_bamba import BambaMixer
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1Mixer
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.olmo_hybrid.modeling_olmo_hybrid import OlmoHybridGatedDeltaNet
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from octavo_kernels import ops
from octavo_kernels.ops import Convolution, GatedNorm, LayerStates

HIDDEN, TOKENS = 32, 90


def randomised(module: nn.Module) -> nn.Module:
    """With weights that matter, norms and biases too."""
    generator = torch.Generator().manual_seed(5)
    for name, weight in module.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data = noise * 0.3 + (1.0 if name.endswith("norm.weight") else 0.0)
    return module.eval()


def compare(module: nn.Module, step, taps: int, channels: int, matrix: tuple[int, ...] | None) -> None:
    """`step(hidden, states, moves)`, in steps of 1 to 60 tokens, against the module with all of them."""
    hidden = torch.randn(TOKENS, HIDDEN)
    columns = torch.full((SLOTS, taps - 1, channels), float("nan"))
    states = LayerStates(None if matrix is None else torch.full((SLOTS, *matrix), float("nan")), columns)
    outputs, at = [], 0
    with torch.no_grad():
        for rows in (1, 2, 60, 1, 26):
            moves = moves_of([Part(rows, 1 if at else 0, 1)])
            outputs.append(step(hidden[at : at + rows], states, moves))
            at += rows
        torch.testing.assert_close(torch.cat(outputs), module(hidden[None])[0], atol=2e-5, rtol=2e-5)


def convolution_of(conv: nn.Conv1d) -> Convolution:
    return Convolution(conv.weight.data[:, 0].T.contiguous(), None if conv.bias is None else conv.bias.data)


@pytest.mark.parametrize("heads", [2, 4])
def test_qwen(heads: int) -> None:
    config = Qwen3_5TextConfig(
        hidden_size=HIDDEN, linear_num_key_heads=2, linear_num_value_heads=heads, linear_key_head_dim=8,
        linear_value_head_dim=16, linear_conv_kernel_dim=4, layer_types=["linear_attention"], num_hidden_layers=1,
    )  # fmt: skip
    layer = randomised(Qwen3_5GatedDeltaNet(config, 0))
    norm = GatedNorm(layer.norm.weight.data.repeat(heads), 16, config.rms_norm_eps)
    taken = convolution_of(layer.conv1d)

    def step(hidden: Tensor, states: LayerStates, moves: ops.Moves) -> Tensor:
        parts = (layer.in_proj_qkv, layer.in_proj_z, layer.in_proj_b, layer.in_proj_a)
        x = torch.cat([part(hidden) for part in parts], dim=-1)
        rates = -layer.A_log.data.exp()
        made = ops.delta_step(x, states, moves, taken, norm, key_heads=2, rates=rates, dt_bias=layer.dt_bias.data)
        return layer.out_proj(made)

    compare(layer, step, 4, 32 + 16 * heads, (heads, 8, 16))


@pytest.mark.parametrize("negative", [False, True])
def test_olmo(negative: bool) -> None:
    config = OlmoHybridConfig(
        hidden_size=HIDDEN, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8,
        linear_value_head_dim=16, linear_allow_neg_eigval=negative, num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    layer = randomised(OlmoHybridGatedDeltaNet(config, 0))
    norm = GatedNorm(layer.o_norm.weight.data.repeat(2), 16, 1e-5)
    taken = convolution_of(layer.conv1d)

    def step(hidden: Tensor, states: LayerStates, moves: ops.Moves) -> Tensor:
        parts = (layer.q_proj, layer.k_proj, layer.v_proj, layer.g_proj, layer.b_proj, layer.a_proj)
        x = torch.cat([part(hidden) for part in parts], dim=-1)
        made = ops.delta_step(
            x, states, moves, taken, norm, key_heads=2, rates=-layer.A_log.data.exp(), dt_bias=layer.dt_bias.data,
            beta_scale=2.0 if negative else 1.0,
        )  # fmt: skip
        return layer.o_proj(made)

    compare(layer, step, 4, 64, (2, 8, 16))


def mamba(layer: nn.Module, norm: GatedNorm, groups: int, factors: Tensor | float = 1.0) -> None:
    taken = convolution_of(layer.conv1d)
    limit = tuple(getattr(layer, "time_step_limit", (0.0, float("inf"))))

    def step(hidden: Tensor, states: LayerStates, moves: ops.Moves) -> Tensor:
        made = ops.ssm_step(
            layer.in_proj(hidden) * factors, states, moves, taken, norm, groups=groups, rates=-layer.A_log.data.exp(),
            dt_bias=layer.dt_bias.data, skip=layer.D.data, dt_limit=limit,
        )  # fmt: skip
        return layer.out_proj(made)

    compare(layer, step, 4, layer.conv_dim, (layer.num_heads, layer.ssm_state_size, layer.head_dim))


@pytest.mark.parametrize("limit", [(0.0, float("inf")), (0.2, 1.0)])
@pytest.mark.parametrize("groups", [1, 2])
def test_mamba2(groups: int, limit: tuple[float, float]) -> None:
    config = Mamba2Config(
        hidden_size=HIDDEN, num_heads=4, head_dim=16, state_size=8, n_groups=groups, conv_kernel=4, chunk_size=16,
        time_step_limit=limit, num_hidden_layers=1,
    )  # fmt: skip
    layer = randomised(Mamba2Mixer(config, 0))
    mamba(layer, GatedNorm(layer.norm.weight.data, 64 // groups, config.layer_norm_epsilon, gate_first=True), groups)


def test_bamba() -> None:
    config = BambaConfig(
        hidden_size=HIDDEN, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=2, mamba_chunk_size=16,
        num_hidden_layers=1, attn_layer_indices=[],
    )  # fmt: skip
    layer = randomised(BambaMixer(config, 0))
    mamba(layer, GatedNorm(layer.norm.weight.data, layer.norm.group_size, config.rms_norm_eps, gate_first=True), 2)


@pytest.mark.parametrize("kind", ["before", "behind", "none"])
def test_falcon(kind: str) -> None:
    config = FalconH1Config(
        hidden_size=HIDDEN, mamba_n_heads=4, mamba_d_head=16, mamba_d_ssm=64, mamba_d_state=8, mamba_n_groups=2,
        mamba_chunk_size=16, mamba_rms_norm=kind != "none", mamba_norm_before_gate=kind == "before",
        num_hidden_layers=1,
    )  # fmt: skip
    layer = randomised(FalconH1Mixer(config, 0))
    layer.register_buffer("mup_vector", torch.rand(layer.in_proj.out_features) + 0.5)
    weight = None if kind == "none" else layer.norm.weight.data
    mamba(layer, GatedNorm(weight, 32, config.rms_norm_eps, kind != "before"), 2, layer.mup_vector)


@pytest.mark.parametrize("bias", [False, True])
def test_lfm(bias: bool) -> None:
    config = Lfm2Config(hidden_size=HIDDEN, conv_L_cache=3, conv_bias=bias, num_hidden_layers=1, layer_types=["conv"])
    layer = randomised(Lfm2ShortConv(config, 0))
    taken = convolution_of(layer.conv)

    def step(hidden: Tensor, states: LayerStates, moves: ops.Moves) -> Tensor:
        return layer.out_proj(ops.conv_step(layer.in_proj(hidden), states, moves, taken))

    compare(layer, step, 3, HIDDEN, None)
