"""Llama and the families that differ from it by a field or two."""

from __future__ import annotations

from dataclasses import replace

from octavo_worker.model.checkpoint.names import Names
from octavo_worker.model.config import Temperature
from octavo_worker.model.config_file import ModelConfig, Stated
from octavo_worker.model.families.family import (
    Differences,
    Family,
    Rotation,
    rotates_alike,
    rotates_partly,
    rotates_where,
)
from octavo_worker.model.families.stated import FIELDS, STATED
from octavo_worker.model.rope import stretched_rope


def own_qkv_bias(config: ModelConfig) -> Differences:
    return {"qkv_bias": True, "out_bias": False}


def no_bias(config: ModelConfig) -> Differences:
    return {"qkv_bias": False, "out_bias": False, "mlp_bias": False}


def _one_bias(config: ModelConfig) -> Differences:
    """A single field for all products."""
    bias = bool(config.use_bias)
    return {"qkv_bias": bias, "out_bias": bias, "mlp_bias": bias}


def _out_bias(config: ModelConfig) -> Differences:
    return {"out_bias": config.attention_out_bias}


def _growing_temperature(config: ModelConfig) -> Differences:
    """Files that name no growth of the queries have none."""
    parameters = config.rope_parameters
    beta, original = parameters.get("llama_4_scaling_beta"), parameters.get("original_max_position_embeddings")
    return {**no_bias(config), "temperature": Temperature(beta, original) if beta else None}


def _stretched(config: ModelConfig, max_model_len: int | None) -> Rotation:
    parameters = config.rope_parameters
    if parameters["rope_type"] == "dynamic" and parameters.get("alpha"):
        return {"rope": stretched_rope(config)}, ["rope"] * config.num_hidden_layers
    return rotates_alike(config, max_model_len)


def _has_rope(config: ModelConfig, layer: int) -> bool:
    return bool(config.no_rope_layers[layer])


def slides_if_rotated(config: ModelConfig, layer: int) -> bool:
    return config.sliding_window is None or config.layer_types[layer] == "sliding_attention"


EXAONE = Names(
    prefixes=("transformer.",),
    embed="wte",
    final_norm="ln_f",
    layer="h.{}.",
    attn_norm="ln_1",
    qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
    out="attn.attention.out_proj",
    mlp_norm="ln_2",
    up=("mlp.c_fc_0", "mlp.c_fc_1"),
    down="mlp.c_proj",
    ignored=(".rotary.inv_freq",),
)
"""transformers saves these, too, and calls them as Llama's inside."""

QWEN2 = Family(slides=True, differences=own_qkv_bias, stated=Stated(FIELDS, switched_window=True))
QWEN3 = Family(
    slides=True, fields={"qk_norm": "head"}, stated=Stated(FIELDS | {"head_dim": (int,)}, switched_window=True)
)
GLM4 = Family(
    norms="both",
    rotation=rotates_partly,
    interleaved=True,
    names=Names(
        up=("mlp.gate_up_proj",), post_attn_norm="post_self_attn_layernorm", post_mlp_norm="post_mlp_layernorm"
    ),
    fields={"out_bias": False, "mlp_bias": False},
)
HUNYUAN = Family(
    rotation=_stretched,
    names=Names(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm"),
    fields={"qk_norm": "rotated head", "mlp_bias": False},
)
LLAMAS: dict[str, Family] = {
    "llama": Family(stated=STATED),
    "mistral": Family(slides=True, stated=Stated(FIELDS | {"sliding_window": (int, type(None))})),
    "ministral": Family(slides=True, differences=no_bias),
    "ministral3": Family(slides=True, differences=_growing_temperature),
    "qwen2": QWEN2,
    "qwen2_vl_text": replace(QWEN2, stated=None),
    "qwen2_5_vl_text": replace(QWEN2, stated=None),
    "qwen3": QWEN3,
    "qwen3_vl_text": replace(QWEN3, slides=False, stated=None),
    "phi3": Family(
        slides=True,
        rotation=rotates_partly,
        names=Names(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)),
        differences=no_bias,
    ),
    "smollm3": Family(slides=True, rotation=rotates_where(_has_rope)),
    "exaone": Family(names=EXAONE),
    "exaone4": Family(
        norms="after",
        slides=True,
        rotation=rotates_where(slides_if_rotated),
        fields={"qk_norm": "head"},
        differences=no_bias,
    ),
    "ernie4_5": Family(interleaved=True, differences=_one_bias),
    "helium": Family(interleaved=True, fields={"out_bias": False}),
    "glm": Family(
        rotation=rotates_partly,
        interleaved=True,
        names=Names(up=("mlp.gate_up_proj",)),
        fields={"out_bias": False, "mlp_bias": False},
    ),
    "glm4": GLM4,
    "glm4v_text": replace(GLM4, differences=own_qkv_bias),
    "seed_oss": Family(differences=_out_bias),
    "hunyuan_v1_dense": HUNYUAN,
    "cwm": Family(slides=True, differences=no_bias),
    "arcee": Family(names=Names(up=("mlp.up_proj",)), fields={"gated": False}),
    "internlm3": Family(),
    "iquestcoder": Family(),
}
