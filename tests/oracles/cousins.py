"""Tiny members of the families that differ from an older one by a field or two: each shows every kind of layer that its
family's default config has, with windows shorter than the prompts."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import (
    ArceeConfig,
    Cohere2Config,
    CohereConfig,
    CwmConfig,
    Ernie4_5Config,
    Exaone4Config,
    Glm4Config,
    GlmConfig,
    GraniteMoeHybridConfig,
    GraniteSWAConfig,
    HeliumConfig,
    HunYuanDenseV1Config,
    HyperCLOVAXConfig,
    Jais2Config,
    Ministral3Config,
    MinistralConfig,
    NemotronConfig,
    Olmo3Config,
    OlmoConfig,
    PreTrainedConfig,
    SeedOssConfig,
    SmolLM3Config,
    Starcoder2Config,
)

from .tiny import COMMON, VOCAB

FOUR: dict[str, Any] = {**COMMON, "num_hidden_layers": 4}
GROWING = {
    "rope_type": "yarn",
    "rope_theta": 900.0,
    "factor": 16.0,
    "original_max_position_embeddings": 24,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}
STRETCHED = {"rope_type": "dynamic", "rope_theta": 900.0, "factor": 1.0, "alpha": 50.0}
YARN = {"rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "original_max_position_embeddings": 96}
MULTIPLIED: dict[str, float] = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 1.5,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.2,
}

COUSINS: dict[str, PreTrainedConfig] = {
    "arcee": ArceeConfig(**COMMON, head_dim=24),
    "cohere": CohereConfig(**COMMON, logit_scale=0.3, attention_bias=True, tie_word_embeddings=False),
    "cohere2": Cohere2Config(**FOUR, sliding_window=24, logit_scale=12.0),
    "cwm": CwmConfig(
        **{**FOUR, "bos_token_id": 0, "eos_token_id": [VOCAB]},  # it takes none for its own
        head_dim=16,
        sliding_window=24,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 96,
        },
    ),
    "ernie4_5": Ernie4_5Config(**COMMON, head_dim=24),
    "ernie4_5-bias": Ernie4_5Config(**COMMON, head_dim=16, use_bias=True, tie_word_embeddings=False),
    "exaone4": Exaone4Config(**FOUR, sliding_window=24, head_dim=24),
    "exaone4-full": Exaone4Config(**COMMON, sliding_window=None, layer_types=["full_attention"] * 3),
    "glm": GlmConfig(**COMMON, head_dim=16, attention_bias=True),
    "glm4": Glm4Config(**COMMON, head_dim=16),
    "granite_swa": GraniteSWAConfig(**FOUR, **MULTIPLIED, sliding_window=24),
    "granite_swa-bases": GraniteSWAConfig(
        **FOUR, **MULTIPLIED, sliding_window=24, layer_rope_theta=[0, 900.0, 900.0, 5000.0]
    ),
    "granite-dense": GraniteMoeHybridConfig(
        **COMMON,
        **MULTIPLIED,
        num_local_experts=0,
        shared_intermediate_size=72,
        layer_types=["full_attention"] * 3,
        position_embedding_type="rope",
    ),
    "granite-dense-unrotated": GraniteMoeHybridConfig(
        **COMMON,
        **MULTIPLIED,
        num_local_experts=0,
        shared_intermediate_size=72,
        layer_types=["full_attention"] * 3,
    ),
    "helium": HeliumConfig(**COMMON, head_dim=16, attention_bias=True),
    "hunyuan": HunYuanDenseV1Config(**COMMON, head_dim=24),
    "hunyuan-stretched": HunYuanDenseV1Config(**COMMON, head_dim=16, rope_parameters=STRETCHED, attention_bias=True),
    "hyperclovax": HyperCLOVAXConfig(**COMMON, **MULTIPLIED, head_dim=24),
    "hyperclovax-before": HyperCLOVAXConfig(**COMMON, **MULTIPLIED, use_post_norm=False),
    "jais2": Jais2Config(**COMMON),
    "ministral": MinistralConfig(
        **FOUR, sliding_window=24, layer_types=["sliding_attention", "full_attention"] * 2, head_dim=24
    ),
    "ministral3": Ministral3Config(**COMMON, head_dim=24, rope_parameters=GROWING),
    "nemotron": NemotronConfig(**COMMON, head_dim=16),
    "olmo": OlmoConfig(**COMMON),
    "olmo-clipped": OlmoConfig(**COMMON, clip_qkv=0.8),
    "olmo3": Olmo3Config(
        **FOUR,
        sliding_window=24,
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 900.0}, "full_attention": YARN},
    ),
    "seed_oss": SeedOssConfig(**COMMON, head_dim=24, attention_out_bias=True, mlp_bias=True),
    "smollm3": SmolLM3Config(**FOUR),
    "smollm3-sliding": SmolLM3Config(
        **FOUR, use_sliding_window=True, sliding_window=24, no_rope_layer_interval=2, tie_word_embeddings=False
    ),
    "starcoder2": Starcoder2Config(**COMMON, sliding_window=24),
    "starcoder2-full": Starcoder2Config(**COMMON, use_bias=False, tie_word_embeddings=False),
}

# Families that the oldest transformers which is supported, 5.17, does not have yet.
RECENT: dict[str, tuple[str, dict[str, Any]]] = {
    "exaone": ("ExaoneConfig", {"head_dim": 24}),
    "internlm3": ("InternLM3Config", {"head_dim": 24, "attention_bias": True, "mlp_bias": True}),
    "iquestcoder": ("IQuestCoderConfig", {"head_dim": 24}),
}
COUSINS |= {
    name: getattr(transformers, config)(**COMMON, **fields)
    for name, (config, fields) in RECENT.items()
    if hasattr(transformers, config)
}
