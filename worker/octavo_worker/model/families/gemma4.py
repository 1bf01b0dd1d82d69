"""Gemma 4: layers of two widths, some of which read what an earlier one keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from octavo_kernels.ops import Routing
from octavo_worker.model.checkpoint.names import ExpertNames
from octavo_worker.model.config import DenseMlp, LayerInputs, MixtureMlp
from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.errors import UnsupportedModel
from octavo_worker.model.families.family import Differences, Family, Rotation
from octavo_worker.model.families.kin import GEMMA2
from octavo_worker.model.rope import rope_of


def _first_shared(config: ModelConfig) -> int:
    """The first of the layers that keep nothing of their own."""
    return int(config.num_hidden_layers - config.num_kv_shared_layers)


def _first(config: ModelConfig) -> ModelConfig:
    """The config as its first layer sees it."""
    first: ModelConfig = config.per_layer_config[0]
    return first


def _attention(config: ModelConfig) -> list[dict[str, Any]]:
    """Layers that keep nothing read what the last one of their kind before them keeps."""
    kinds, first = config.layer_types, _first_shared(config)
    found = list[dict[str, Any]]()
    for index, kind in enumerate(kinds):
        own, is_full = config.per_layer_config[index], kind == "full_attention"
        shares = None if index < first else max(i for i in range(first) if kinds[i] == kind)
        found.append(
            {
                "kv_heads": own.num_key_value_heads,
                "head_dim": own.head_dim,
                "values_are_keys": is_full and config.attention_k_eq_v and shares is None,
                "shares": shares,
            }
        )
    return found


def _differences(config: ModelConfig) -> Differences:
    if config.use_bidirectional_attention == "all":
        raise UnsupportedModel("this Gemma attends in both directions (an encoder); octavo serves causal models only.")
    width = getattr(config, "hidden_size_per_layer_input", 0)
    return {
        "scale": 1.0,
        "embedding_multiplier": config.hidden_size**0.5,
        "logits_softcap": config.final_logit_softcapping or 0.0,
        "attention": _attention(config),
        "layer_inputs": LayerInputs(config.vocab_size_per_layer_input, width) if width else None,
    }


def _rotation(config: ModelConfig, max_model_len: int | None) -> Rotation:
    """Layers of each kind have a width and frequencies of their own."""
    kinds = config.layer_types
    ropes = {kind: rope_of(config.per_layer_config[kind], max_model_len, kind) for kind in sorted(set(kinds))}
    return ropes, kinds


def _mlps(config: ModelConfig) -> Sequence[DenseMlp | MixtureMlp]:
    """Layers that keep nothing may have MLPs of twice the width."""
    width, first = config.intermediate_size, _first_shared(config)
    widths = [
        width * (2 if config.use_double_wide_mlp and index >= first else 1) for index in range(config.num_hidden_layers)
    ]
    if not getattr(config, "enable_moe_block", False):
        return [DenseMlp(each) for each in widths]
    routing = Routing(config.num_experts, config.top_k_experts, normalised=True)
    return [MixtureMlp(config.moe_intermediate_size, routing, beside=each) for each in widths]


def _is_whole(config: ModelConfig) -> bool:
    """False where a layer has none to read from, a token no input of layers, or transformers no config by layer."""
    if not hasattr(config, "per_layer_config"):
        return False
    kinds, rows = config.layer_types, getattr(config, "vocab_size_per_layer_input", config.vocab_size)
    return set(kinds) == set(kinds[: _first_shared(config)]) and rows >= config.vocab_size


EXPERTS = ExpertNames(router="router.proj", each="experts.{}.", stacked=("experts.gate_up_proj", "experts.down_proj"))
GEMMA4 = Family(
    names=replace(GEMMA2, experts=(EXPERTS,)),
    heads=_first,
    norms="both",
    slides=True,
    rotation=_rotation,
    mlps=_mlps,
    fields={"qk_norm": "head", "v_norm": True, "layer_scalars": True},
    differences=_differences,
    as_described=_is_whole,
)
GEMMAS4: dict[str, Family] = {"gemma4_text": GEMMA4, "gemma4_unified_text": GEMMA4}
