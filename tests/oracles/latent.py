"""Tiny members of the families with multi-head latent attention: queries of a low rank and plain ones, groups of
experts, YaRN, rotations of halves and of neighbours."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import DeepseekV2Config, DeepseekV3Config, PreTrainedConfig

from .mixed import GROUPED
from .tiny import COMMON

FOUR_HEADS: dict[str, Any] = {**COMMON, "num_key_value_heads": 4}
ROWS: dict[str, Any] = {
    **FOUR_HEADS, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
}  # fmt: skip
YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "original_max_position_embeddings": 96, "mscale": 1.3,
    "mscale_all_dim": 0.9,
}  # fmt: skip

LATENT: dict[str, PreTrainedConfig] = {
    "deepseek_v2": DeepseekV2Config(
        **ROWS, **{**GROUPED, "n_group": None, "topk_group": None, "norm_topk_prob": False}, q_lora_rank=None,
        first_k_dense_replace=1, rope_parameters=YARN,
    ),
    "deepseek_v2-groups": DeepseekV2Config(
        **ROWS, **GROUPED, q_lora_rank=20, topk_method="group_limited_greedy", attention_bias=True,
        first_k_dense_replace=0, rope_parameters={"rope_type": "default", "rope_theta": 900.0},
    ),
    "deepseek_v3": DeepseekV3Config(**ROWS, **GROUPED, q_lora_rank=20, first_k_dense_replace=1, rope_parameters=YARN),
    "deepseek_v3-halves": DeepseekV3Config(
        **ROWS, **GROUPED, q_lora_rank=None, first_k_dense_replace=2, rope_interleave=False, attention_bias=True,
    ),
}  # fmt: skip
if hasattr(transformers, "Glm4MoeLiteConfig"):
    LATENT["glm4_moe_lite"] = transformers.Glm4MoeLiteConfig(
        **ROWS, **GROUPED, q_lora_rank=20, rope_parameters={"rope_type": "default", "rope_theta": 900.0}
    )
if hasattr(transformers, "YoutuConfig"):
    LATENT["youtu"] = transformers.YoutuConfig(**ROWS, q_lora_rank=20)
if hasattr(transformers, "MiniCPM3Config"):
    LATENT["minicpm3"] = transformers.MiniCPM3Config(**ROWS, q_lora_rank=20, dim_model_base=32)

LATENT_WRAPPED: dict[str, PreTrainedConfig] = {}
if hasattr(transformers, "Kimi_K25Config"):
    LATENT_WRAPPED["kimi_k25"] = transformers.Kimi_K25Config(
        text_config=LATENT["deepseek_v3"].to_dict(),
        vision_config={
            "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
            "pos_emb_height": 4, "pos_emb_width": 4,
        },
        projection_hidden_size=16,
        tie_word_embeddings=False,
    )  # fmt: skip
if hasattr(transformers, "Mistral4Config"):  # transformers has it as the text part of another alone
    LATENT_WRAPPED["mistral3-mistral4"] = transformers.Mistral3Config(
        text_config=transformers.Mistral4Config(
            **ROWS, **GROUPED, q_lora_rank=20, first_k_dense_replace=1,
            rope_parameters={**YARN, "llama_4_scaling_beta": 0.1},
        ),
        vision_config={
            "model_type": "pixtral", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": 2, "head_dim": 8, "image_size": 28, "patch_size": 14,
        },
        vision_feature_layer=-1,
    )  # fmt: skip
