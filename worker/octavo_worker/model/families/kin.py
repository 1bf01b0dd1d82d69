"""Families of one maker: OLMo, Gemma, Granite and HyperCLOVA X."""

from __future__ import annotations

from octavo_worker.model.checkpoint.names import Names
from octavo_worker.model.config_file import ModelConfig, Stated
from octavo_worker.model.errors import UnsupportedModel
from octavo_worker.model.families.family import (
    Differences,
    Family,
    Rotation,
    rotates_alike,
    rotates_by_kind,
    rotates_nowhere,
)
from octavo_worker.model.families.stated import FIELDS, MULTIPLIERS, STATED
from octavo_worker.model.rope import rope_of


def _clipped(config: ModelConfig) -> Differences:
    return {"qkv_clip": config.clip_qkv}


OLMOS: dict[str, Family] = {
    "olmo": Family(
        norm_eps=1e-5, fields={"norm": "layer", "norm_tensors": (), "mlp_bias": False}, differences=_clipped
    ),
    "olmo2": Family(norms="after", fields={"qk_norm": "whole"}, stated=STATED),
    "olmo3": Family(norms="after", slides=True, rotation=rotates_by_kind, fields={"qk_norm": "whole"}),
}


def _causal(config: ModelConfig) -> Differences:
    if getattr(config, "use_bidirectional_attention", False):
        raise UnsupportedModel("this Gemma attends in both directions (an encoder); octavo serves causal models only.")
    return {"embedding_multiplier": config.hidden_size**0.5}


def _post_normed(config: ModelConfig) -> Differences:
    """Gemma 3's config may state a cap of scores, which transformers does not use either."""
    return {
        **_causal(config),
        "scale": config.query_pre_attn_scalar**-0.5,
        "logits_softcap": config.final_logit_softcapping or 0.0,
    }


def _capped(config: ModelConfig) -> Differences:
    return {**_post_normed(config), "softcap": config.attn_logit_softcapping or 0.0}


GEMMA2 = Names(mlp_norm="pre_feedforward_layernorm")
GEMMAS: dict[str, Family] = {
    "gemma": Family(fields={"norm_offset": 1.0}, differences=_causal),
    "gemma2": Family(names=GEMMA2, norms="both", slides=True, fields={"norm_offset": 1.0}, differences=_capped),
    "gemma3_text": Family(
        names=GEMMA2,
        norms="both",
        slides=True,
        rotation=rotates_by_kind,
        fields={"norm_offset": 1.0, "qk_norm": "head"},
        differences=_post_normed,
    ),
}


def multiplied(config: ModelConfig) -> Differences:
    return {
        "scale": config.attention_multiplier,
        "embedding_multiplier": config.embedding_multiplier,
        "residual_multiplier": config.residual_multiplier,
        "logits_divisor": config.logits_scaling,
    }


def _multiplied_logits(config: ModelConfig) -> Differences:
    """HyperCLOVA X multiplies where Granite divides."""
    return {
        **multiplied(config),
        "logits_divisor": 1.0,
        "logits_multiplier": config.logits_scaling,
        "norms": "both" if config.use_post_norm else "before",
    }


def rotates_by_base(config: ModelConfig, max_model_len: int | None) -> Rotation:
    """Each layer has its base; 0: it does not rotate."""
    bases = sorted({base for base in config.layer_rope_theta if base})
    ropes = {f"{base}": rope_of(config, max_model_len, theta=base) for base in bases}
    return ropes, [f"{base}" if base else None for base in config.layer_rope_theta]


def rotates_if_said(config: ModelConfig, max_model_len: int | None) -> Rotation:
    rotates = config.position_embedding_type == "rope"
    return rotates_alike(config, max_model_len) if rotates else rotates_nowhere(config, max_model_len)


GRANITES: dict[str, Family] = {
    "granite": Family(differences=multiplied, stated=Stated(FIELDS | dict.fromkeys(MULTIPLIERS, (int, float)))),
    "granite_swa": Family(slides=True, rotation=rotates_by_base, fields={"sinks": True}, differences=multiplied),
    "hyperclovax": Family(
        names=Names(post_attn_norm="post_norm1", post_mlp_norm="post_norm2"), differences=_multiplied_logits
    ),
}
