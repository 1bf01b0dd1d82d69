"""Families with multi-head latent attention."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from octavo_kernels.ops import Routing
from octavo_worker.model.config import AttentionLayer, LatentLayer, MixtureMlp, Temperature
from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.families.family import Differences, Family, rotates_partly
from octavo_worker.model.families.mixtures import deepseek, follows_dense, is_listed, mixed

NORM_EPS = 1e-6  # of the latents' norms, whatever the config says of others


def _latent(config: ModelConfig, attention: AttentionLayer) -> LatentLayer:
    """As in DeepSeek."""
    assert attention.rope is not None
    return LatentLayer(
        scale=attention.scale,
        rope=attention.rope,
        heads=config.num_attention_heads,
        rank=config.kv_lora_rank,
        plain=config.qk_nope_head_dim,
        rotated=config.qk_rope_head_dim,
        value_dim=config.v_head_dim,
        query_rank=config.q_lora_rank,
        interleaved=bool(getattr(config, "rope_interleave", True)),
        biased=config.attention_bias,
        norm_eps=NORM_EPS,
    )


def _values(config: ModelConfig) -> Differences:
    """Scores are divided by the root of a whole query's width; YaRN's factor counts twice, for queries and keys."""
    return {"scale": (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5 * _stretch(config) ** 2}


def _stretch(config: ModelConfig) -> float:
    """YaRN's factor of all values of a head (arXiv 2309.00071), where the config asks for it."""
    parameters: dict[str, Any] = config.rope_parameters
    amount, factor = parameters.get("mscale_all_dim") or 0.0, parameters.get("factor", 1.0)
    if parameters["rope_type"] == "default" or factor <= 1:
        return 1.0
    return float(0.1 * amount * math.log(factor) + 1.0)


def _with_extra_layers(config: ModelConfig) -> Differences:
    return {**_values(config), "extra_layers": getattr(config, "num_nextn_predict_layers", None) or 0}


def _minicpm3(config: ModelConfig) -> Differences:
    return {
        **_values(config),
        "embedding_multiplier": config.scale_emb,
        "residual_multiplier": config.scale_depth / config.num_hidden_layers**0.5,
        "logits_divisor": config.logits_scaling,
    }


def _mistral4(config: ModelConfig) -> Differences:
    beta, original = (
        config.rope_parameters.get(name) for name in ("llama_4_scaling_beta", "original_max_position_embeddings")
    )
    return {**_values(config), "temperature": Temperature(beta, original) if beta else None}


def _minicpm3_latent(config: ModelConfig, attention: AttentionLayer) -> LatentLayer:
    return replace(_latent(config, attention), interleaved=False)


def _deepseek_v2(config: ModelConfig) -> MixtureMlp:
    """By softmax; a group's score is that of its best expert."""
    grouped = config.topk_method == "group_limited_greedy"
    groups, top = (config.n_group, config.topk_group) if grouped else (1, 1)
    routing = Routing(
        config.n_routed_experts, config.num_experts_per_tok, groups=groups, top_groups=top,
        scale=config.routed_scaling_factor,
    )  # fmt: skip
    width = config.moe_intermediate_size
    return MixtureMlp(width, routing, shared=width * (config.n_shared_experts or 0))


def _is_greedy(config: ModelConfig) -> bool:
    """And experts have no bias, and a token takes a stated number of them."""
    is_stated = config.num_experts_per_tok is not None
    return is_stated and config.topk_method in ("greedy", "group_limited_greedy") and not config.mlp_bias


def _softmax(config: ModelConfig) -> MixtureMlp:
    """DeepSeek-V3's groups, by softmax and without a correction."""
    mixture = deepseek(config)
    return replace(mixture, routing=mixture.routing._replace(score="softmax"), corrected=False)


LATENT: dict[str, Family] = {
    "deepseek_v2": Family(
        latent=_latent,
        mlps=mixed(_deepseek_v2, follows_dense),
        differences=_values,
        as_described=_is_greedy,
    ),
    "deepseek_v3": Family(latent=_latent, mlps=mixed(deepseek, follows_dense), differences=_with_extra_layers),
    "glm4_moe_lite": Family(
        latent=_latent, rotation=rotates_partly, mlps=mixed(deepseek, is_listed), differences=_with_extra_layers
    ),
    "youtu": Family(latent=_latent, differences=_values),
    "minicpm3": Family(latent=_minicpm3_latent, differences=_minicpm3),
    "mistral4": Family(
        latent=_latent, rotation=rotates_partly, mlps=mixed(_softmax, follows_dense), differences=_mistral4
    ),
}
