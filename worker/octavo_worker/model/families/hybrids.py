"""Families with recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from octavo_kernels.ops import Routing
from octavo_worker.model.checkpoint.names import Names, RecurrentNames
from octavo_worker.model.config import (
    AttentionLayer,
    ConvLayer,
    DeltaLayer,
    DenseMlp,
    MixerLayer,
    MixtureMlp,
    OutputGate,
    RecurrentLayer,
    SsmLayer,
)
from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.families.expert_names import GRANITE, GRANITE_RENAMED, LFM2_EXPERTS, QWEN2
from octavo_worker.model.families.family import (
    Differences,
    Family,
    Rotation,
    rotates_alike,
    rotates_nowhere,
    rotates_partly,
    width_of,
)
from octavo_worker.model.families.kin import multiplied, rotates_if_said
from octavo_worker.model.families.mixtures import follows_first, granite, is_sparse_step, mixed, qwen2

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


def _where(
    kind: str, kinds: Sequence[str], layer: RecurrentLayer, attentions: Sequence[AttentionLayer]
) -> Sequence[MixerLayer]:
    """`layer` in the layers of that kind, attention in all others."""
    return [layer if each == kind else attention for each, attention in zip(kinds, attentions, strict=True)]


def _short_convolutions(config: ModelConfig, attentions: Sequence[AttentionLayer]) -> Sequence[MixerLayer]:
    layer = ConvLayer(config.hidden_size, config.conv_L_cache, config.conv_bias)
    return _where("conv", config.layer_types, layer, attentions)


def _lfm2_width(config: ModelConfig) -> int:
    """The width that a config states may be that of an MLP without a gate."""
    if not config.block_auto_adjust_ff_dim:
        return int(config.intermediate_size)
    width = int(2 * config.intermediate_size / 3)
    if config.block_ffn_dim_multiplier is None:
        return width
    step = int(config.block_multiple_of)
    return -(-int(config.block_ffn_dim_multiplier * width) // step) * step


DELTA_RULE = RecurrentNames(
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
)
MAMBA2 = RecurrentNames(
    (("mamba.in_proj", 5),),
    convolution="mamba.conv1d",
    out="mamba.out_proj",
    rates="mamba.A_log",
    dt_bias="mamba.dt_bias",
    skip="mamba.D",
    norm="mamba.norm",
)
QWEN3_5 = Names(towers=("mtp",), recurrent=DELTA_RULE)
QWEN: dict[str, Any] = {
    "norm_offset": 1.0,
    "qk_norm": "head",
    "output_gate": OutputGate("sigmoid", in_queries=True),
    "mlp_bias": False,
}


def _delta_layer(config: ModelConfig) -> DeltaLayer:
    return DeltaLayer(
        key_heads=config.linear_num_key_heads,
        heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        taps=config.linear_conv_kernel_dim,
        norm_eps=config.rms_norm_eps,
    )


def _delta_rule(config: ModelConfig, attentions: Sequence[AttentionLayer]) -> Sequence[MixerLayer]:
    return _where("linear_attention", config.layer_types, _delta_layer(config), attentions)


QWEN3_NEXT = replace(
    QWEN3_5,
    experts=(QWEN2,),
    recurrent=replace(
        DELTA_RULE, inputs=(("linear_attn.in_proj_qkvz", 4), ("linear_attn.in_proj_ba", 2)), by_key_head=True
    ),
)
OLMO = Names(
    post_attn_norm="post_attention_layernorm",
    post_mlp_norm="post_feedforward_layernorm",
    renamed=(("input_layernorm", "attention_layer_norm"), ("post_attention_layernorm", "feedforward_layer_norm")),
    recurrent=replace(
        DELTA_RULE,
        inputs=tuple((f"linear_attn.{part}_proj", 1) for part in ("q", "k", "v", "g", "b", "a")),
        out="linear_attn.o_proj",
        norm="linear_attn.o_norm",
        pieces=tuple(f"linear_attn.{part}_conv1d" for part in ("q", "k", "v")),
    ),
)


def _qwen3_5_mixture(config: ModelConfig) -> MixtureMlp:
    routing = Routing(config.num_experts, config.num_experts_per_tok, normalised=True)
    return MixtureMlp(config.moe_intermediate_size, routing, config.shared_expert_intermediate_size, shared_gated=True)


def _lfm2_mixture(config: ModelConfig) -> MixtureMlp:
    routing = Routing(
        config.num_experts,
        config.num_experts_per_tok,
        "sigmoid",
        normalised=config.norm_topk_prob,
        eps=1e-6,
        scale=config.routed_scaling_factor,
    )
    return MixtureMlp(config.moe_intermediate_size, routing, corrected=config.use_expert_bias)


def _mamba2(config: ModelConfig) -> SsmLayer:
    """As the hybrids of Bamba's kind name its sizes."""
    return SsmLayer(
        heads=config.mamba_n_heads,
        head_dim=config.mamba_d_head,
        groups=config.mamba_n_groups,
        state_size=config.mamba_d_state,
        taps=config.mamba_d_conv,
        norm_eps=config.rms_norm_eps,
        norm_groups=config.mamba_n_groups,
        biased=config.mamba_conv_bias,
        dt_limit=tuple(config.time_step_limit),
    )


def _mamba2_layers(config: ModelConfig, attentions: Sequence[AttentionLayer]) -> Sequence[MixerLayer]:
    return _where("linear_attention", config.layers_block_type, _mamba2(config), attentions)


def _granite_mlps(config: ModelConfig) -> Sequence[DenseMlp | MixtureMlp]:
    mlp = granite(config) if config.num_local_experts else DenseMlp(config.shared_intermediate_size)
    return [mlp] * config.num_hidden_layers


def _olmo_values(config: ModelConfig) -> Differences:
    kinds = config.layer_types
    return {"norms": ["after" if kind == "full_attention" else "before" for kind in kinds]}


def _olmo_delta_rule(config: ModelConfig, attentions: Sequence[AttentionLayer]) -> Sequence[MixerLayer]:
    layer = replace(_delta_layer(config), norm_eps=1e-5, negative=config.linear_allow_neg_eigval)
    return _where("linear_attention", config.layer_types, layer, attentions)


def _rotates_if_based(config: ModelConfig, max_model_len: int | None) -> Rotation:
    rotates = (config.rope_parameters or {}).get("rope_theta") is not None
    return rotates_alike(config, max_model_len) if rotates else rotates_nowhere(config, max_model_len)


QWEN_HYBRID = Family(names=QWEN3_5, recurrent=_delta_rule, rotation=rotates_partly, fields=QWEN)
LFM2_HYBRID = Family(
    names=LFM2,
    recurrent=_short_convolutions,
    width=_lfm2_width,
    norm_eps="norm_eps",
    fields={"qk_norm": "head", "activation": "silu"},
)
HYBRIDS: dict[str, Family] = {
    "lfm2": LFM2_HYBRID,
    "lfm2_moe": replace(
        LFM2_HYBRID,
        names=replace(LFM2, experts=(LFM2_EXPERTS,)),
        width=width_of,
        mlps=mixed(_lfm2_mixture, follows_first),
    ),
    "qwen3_5_text": QWEN_HYBRID,
    "qwen3_5_moe_text": replace(QWEN_HYBRID, names=replace(QWEN3_5, experts=(QWEN2,)), mlps=mixed(_qwen3_5_mixture)),
    "qwen3_next": replace(QWEN_HYBRID, names=QWEN3_NEXT, mlps=mixed(qwen2, is_sparse_step)),
    "olmo_hybrid": Family(
        names=OLMO,
        rotation=_rotates_if_based,
        recurrent=_olmo_delta_rule,
        fields={"qk_norm": "whole", "mlp_bias": False},
        differences=_olmo_values,
    ),
    "bamba": Family(
        names=Names(
            final_norm="final_layernorm",
            mlp_norm="pre_ff_layernorm",
            up=("feed_forward.gate_proj", "feed_forward.up_proj"),
            down="feed_forward.down_proj",
            recurrent=MAMBA2,
        ),
        rotation=rotates_partly,
        recurrent=_mamba2_layers,
    ),
    "granitemoehybrid": Family(
        names=Names(
            up=("shared_mlp.input_linear",),
            down="shared_mlp.output_linear",
            experts=(GRANITE, GRANITE_RENAMED),
            recurrent=MAMBA2,
        ),
        rotation=rotates_if_said,
        recurrent=_mamba2_layers,
        mlps=_granite_mlps,
        fields={"mlp_bias": False},
        differences=multiplied,
    ),
}
