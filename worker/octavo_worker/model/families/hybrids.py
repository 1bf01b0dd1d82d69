"""Families with recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from octavo_kernels.ops import Routing
from octavo_worker.model.checkpoint.names import Names, RecurrentNames
from octavo_worker.model.config import AttentionLayer, Branches, DenseMlp, MixerLayer, MixtureMlp, OutputGate
from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.errors import NEXT, UnsupportedModel
from octavo_worker.model.families.expert_names import GRANITE, GRANITE_RENAMED, LFM2_EXPERTS, NEMOTRON, QWEN2
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
from octavo_worker.model.families.mixtures import deepseek, follows_first, granite, is_sparse_step, mixed, qwen2
from octavo_worker.model.recurrent.layers import ConvLayer, DeltaLayer, RecurrentLayer, SsmLayer

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


def within(root: str) -> RecurrentNames:
    """Mamba2's names, behind `root`."""
    return RecurrentNames(
        ((f"{root}in_proj", 5),),
        convolution=f"{root}conv1d",
        out=f"{root}out_proj",
        rates=f"{root}A_log",
        dt_bias=f"{root}dt_bias",
        skip=f"{root}D",
        norm=f"{root}norm",
    )


MAMBA2 = within("mamba.")
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


def _has_kinds(config: ModelConfig) -> bool:
    """The kind of each layer, which transformers' class leaves open."""
    return config.layer_types is not None


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


def _named_as_mamba2(config: ModelConfig, heads: int, head_dim: int, state_size: int) -> SsmLayer:
    """As Mamba2 itself names what its kin take over."""
    return SsmLayer(
        heads=heads,
        head_dim=head_dim,
        groups=config.n_groups,
        state_size=state_size,
        taps=config.conv_kernel,
        norm_eps=config.layer_norm_epsilon,
        norm_groups=config.n_groups,
        biased=config.use_conv_bias,
        dt_limit=tuple(config.time_step_limit),
    )


def _mamba2_everywhere(config: ModelConfig, attentions: Sequence[AttentionLayer]) -> Sequence[MixerLayer]:
    return [_named_as_mamba2(config, config.num_heads, config.head_dim, config.state_size)] * len(attentions)


def _no_mlps(config: ModelConfig) -> Sequence[None]:
    return [None] * config.num_hidden_layers


def _nemotron_mixers(config: ModelConfig, attentions: Sequence[AttentionLayer]) -> Sequence[MixerLayer | None]:
    """Each layer is one sublayer. Time steps have the least that the config states, whatever limit it names."""
    sizes = config.mamba_num_heads, config.mamba_head_dim, config.ssm_state_size
    layer = replace(_named_as_mamba2(config, *sizes), dt_limit=(config.time_step_min, float("inf")))
    mixers = {"linear_attention": layer, "mlp": None, "moe": None}
    kinds = zip(config.layers_block_type, attentions, strict=True)
    return [mixers.get(kind, attention) for kind, attention in kinds]


def _nemotron_mlps(config: ModelConfig) -> Sequence[DenseMlp | MixtureMlp | None]:
    if "moe" in config.layers_block_type and config.moe_latent_size is not None:
        raise UnsupportedModel(
            f"experts of this {config.model_type!r} read and write fewer columns than the model has (moe_latent_size "
            f"{config.moe_latent_size}), which octavo does not compute yet; {NEXT}"
        )
    experts = replace(deepseek(config), shared=config.moe_shared_expert_intermediate_size)
    mlps: dict[str, DenseMlp | MixtureMlp] = {"mlp": DenseMlp(config.intermediate_size), "moe": experts}
    return [mlps.get(kind) for kind in config.layers_block_type]


def _falcon_branches(config: ModelConfig, attentions: Sequence[AttentionLayer]) -> Sequence[MixerLayer]:
    """Factors of what layers read are factors of what they make: of scores twice, of values once."""
    read, made = config.attention_in_multiplier, config.attention_out_multiplier
    layer = replace(
        _mamba2(config),
        norm_groups=config.mamba_n_groups if config.mamba_rms_norm else 0,
        gate_last=config.mamba_norm_before_gate,
        factors=tuple(config.ssm_in_multiplier * factor for factor in config.ssm_multipliers),
    )
    scale = read * read * config.key_multiplier
    return [
        Branches(replace(each, scale=each.scale * scale), layer, read * made, config.ssm_out_multiplier)
        for each in attentions
    ]


def _falcon_values(config: ModelConfig) -> Differences:
    gate, down = config.mlp_multipliers
    return {
        "embedding_multiplier": config.embedding_multiplier,
        "logits_multiplier": config.lm_head_multiplier,
        "gate_multiplier": gate,
        "mlp_multiplier": down,
    }


def _has_no_bias(config: ModelConfig) -> bool:
    """A bias is no product, so that no factor can stand behind it."""
    return not (config.attention_bias or config.mamba_proj_bias or config.mlp_bias or config.projectors_bias)


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
        as_described=_has_kinds,
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
    "mamba2": Family(
        names=Names(
            prefixes=("backbone.", ""),
            embed="embeddings",
            final_norm="norm_f",
            attn_norm="norm",
            recurrent=within("mixer."),
        ),
        rotation=rotates_nowhere,
        recurrent=_mamba2_everywhere,
        mlps=_no_mlps,
        norm_eps="layer_norm_epsilon",
    ),
    "nemotron_h": Family(
        names=Names(
            prefixes=("backbone.", "model.", ""),
            embed="embeddings",
            final_norm="norm_f",
            attn_norm="norm",
            qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
            out="mixer.o_proj",
            up=("mixer.up_proj",),
            down="mixer.down_proj",
            experts=(NEMOTRON,),
            towers=("mtp",),
            recurrent=within("mixer."),
        ),
        rotation=rotates_nowhere,
        recurrent=_nemotron_mixers,
        mlps=_nemotron_mlps,
        norm_eps="layer_norm_epsilon",
        fields={"gated": False, "qkv_bias": False, "out_bias": False},
    ),
    "falcon_h1": Family(
        names=Names(
            final_norm="final_layernorm",
            mlp_norm="pre_ff_layernorm",
            up=("feed_forward.gate_proj", "feed_forward.up_proj"),
            down="feed_forward.down_proj",
            recurrent=MAMBA2,
        ),
        recurrent=_falcon_branches,
        differences=_falcon_values,
        as_described=_has_no_bias,
    ),
}
