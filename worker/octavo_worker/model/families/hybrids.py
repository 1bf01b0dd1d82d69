"""Families with recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo_worker.model.checkpoint.names import Names, RecurrentNames
from octavo_worker.model.config import ConvLayer, DeltaLayer, OutputGate, RecurrentLayer
from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.families.family import Family, rotates_partly

LFM2 = Names(
    final_norm="embedding_norm",
    attn_norm="operator_norm",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    out="self_attn.out_proj",
    mlp_norm="ffn_norm",
    up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
    recurrent=RecurrentNames((("conv.in_proj", 3),), "conv.conv", "conv.out_proj"),
)


def _short_convolutions(config: ModelConfig) -> Sequence[RecurrentLayer | None]:
    layer = ConvLayer(config.hidden_size, config.conv_L_cache, config.conv_bias)
    return [layer if kind == "conv" else None for kind in config.layer_types]


def _lfm2_width(config: ModelConfig) -> int:
    """The width that a config states may be that of an MLP without a gate."""
    if not config.block_auto_adjust_ff_dim:
        return int(config.intermediate_size)
    width = int(2 * config.intermediate_size / 3)
    if config.block_ffn_dim_multiplier is None:
        return width
    step = int(config.block_multiple_of)
    return -(-int(config.block_ffn_dim_multiplier * width) // step) * step


QWEN3_5 = Names(
    towers=("mtp",),
    recurrent=RecurrentNames(
        (
            ("linear_attn.in_proj_qkv", 3),
            ("linear_attn.in_proj_z", 1),
            ("linear_attn.in_proj_b", 1),
            ("linear_attn.in_proj_a", 1),
        ),
        convolution="linear_attn.conv1d",
        out="linear_attn.out_proj",
        rates="linear_attn.A_log",
        dt_bias="linear_attn.dt_bias",
        norm="linear_attn.norm",
    ),
)
QWEN: dict[str, Any] = {
    "norm_offset": 1.0,
    "qk_norm": "head",
    "output_gate": OutputGate("sigmoid", in_queries=True),
    "mlp_bias": False,
}


def _delta_rule(config: ModelConfig) -> Sequence[RecurrentLayer | None]:
    layer = DeltaLayer(
        key_heads=config.linear_num_key_heads,
        heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        taps=config.linear_conv_kernel_dim,
        norm_eps=config.rms_norm_eps,
    )
    return [layer if kind == "linear_attention" else None for kind in config.layer_types]


HYBRIDS: dict[str, Family] = {
    "lfm2": Family(
        names=LFM2,
        recurrent=_short_convolutions,
        width=_lfm2_width,
        norm_eps="norm_eps",
        fields={"qk_norm": "head", "activation": "silu"},
    ),
    "qwen3_5_text": Family(names=QWEN3_5, recurrent=_delta_rule, rotation=rotates_partly, fields=QWEN),
}
