"""Families whose norms take the mean off: GPT-2, OPT, StarCoder 2, Nemotron, Cohere, Jais 2."""

from __future__ import annotations

from octavo_worker.model.checkpoint.names import Names
from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.families.family import (
    Differences,
    Family,
    rotates_alike,
    rotates_nowhere,
    rotates_partly,
    rotates_where,
)

PLAIN = {"norm": "layer", "norm_tensors": ("weight", "bias"), "gated": False}
BIASED = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
SCALED = {"norm": "layer", "norm_tensors": ("weight",), "mlp_bias": False}


def _gpt2(config: ModelConfig) -> Differences:
    scale = (config.n_embd // config.n_head) ** -0.5 if config.scale_attn_weights else 1.0
    depths = [i + 1 if config.scale_attn_by_inverse_layer_idx else 1 for i in range(config.n_layer)]
    return {"scales": [scale / depth for depth in depths]}


def _gpt2_width(config: ModelConfig) -> int:
    return int(config.n_inner or 4 * config.n_embd)


def _has_no_cross_attention(config: ModelConfig) -> bool:
    return not config.add_cross_attention


def _opt_width(config: ModelConfig) -> int:
    return int(config.ffn_dim)


def _opt_biases(config: ModelConfig) -> Differences:
    return dict.fromkeys(BIASED, config.enable_bias)


def _is_common_opt(config: ModelConfig) -> bool:
    """True but for the 350m variant: norm after the residual, projected embeddings."""
    projected = config.word_embed_proj_dim != config.hidden_size
    standard = config.do_layer_norm_before and config.layer_norm_elementwise_affine
    return bool(standard and not projected and not config._remove_final_layer_norm)


def _one_bias(config: ModelConfig) -> Differences:
    return dict.fromkeys(BIASED, config.use_bias)


def _scaled_logits(config: ModelConfig) -> Differences:
    return {"logits_multiplier": config.logit_scale}


def _has_no_head_norms(config: ModelConfig) -> bool:
    return not config.use_qk_norm


def _slides(config: ModelConfig, layer: int) -> bool:
    return config.layer_types[layer] == "sliding_attention" and config.sliding_window is not None


COHERE2 = Family(
    norms="parallel",
    slides=True,
    rotation=rotates_where(_slides),
    interleaved=True,
    norm_eps="layer_norm_eps",
    fields=SCALED,
    differences=_scaled_logits,
)
LAYER_NORMED: dict[str, Family] = {
    "gpt2": Family(
        names=Names(
            prefixes=("transformer.", ""),
            embed="wte",
            positions="wpe",
            final_norm="ln_f",
            layer="h.{}.",
            attn_norm="ln_1",
            qkv=("attn.c_attn",),
            out="attn.c_proj",
            mlp_norm="ln_2",
            up=("mlp.c_fc",),
            down="mlp.c_proj",
            transposed=True,
            ignored=(".attn.bias", ".attn.masked_bias"),
        ),
        rotation=rotates_nowhere,
        width=_gpt2_width,
        norm_eps="layer_norm_epsilon",
        fields={**PLAIN, **BIASED, "position_offset": 0},
        differences=_gpt2,
        as_described=_has_no_cross_attention,
    ),
    "opt": Family(
        names=Names(
            prefixes=("model.decoder.", "decoder."),
            final_norm="final_layer_norm",
            attn_norm="self_attn_layer_norm",
            out="self_attn.out_proj",
            mlp_norm="final_layer_norm",
            up=("fc1",),
            down="fc2",
        ),
        rotation=rotates_nowhere,
        width=_opt_width,
        norm_eps=1e-5,
        fields={**PLAIN, "position_offset": 2},
        differences=_opt_biases,
        as_described=_is_common_opt,
    ),
    "starcoder2": Family(
        names=Names(up=("mlp.c_fc",), down="mlp.c_proj"),
        slides=True,
        norm_eps="norm_epsilon",
        fields=PLAIN,
        differences=_one_bias,
    ),
    "nemotron": Family(
        names=Names(up=("mlp.up_proj",)),
        rotation=rotates_partly,
        norm_eps="norm_eps",
        fields={**PLAIN, "norm_offset": 1.0},
    ),
    "jais2": Family(names=Names(up=("mlp.up_proj",)), norm_eps="layer_norm_eps", fields=PLAIN),
    "cohere": Family(
        norms="parallel",
        rotation=rotates_alike,
        interleaved=True,
        norm_eps="layer_norm_eps",
        fields=SCALED,
        differences=_scaled_logits,
        as_described=_has_no_head_norms,
    ),
    "cohere2": COHERE2,
}
