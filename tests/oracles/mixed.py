"""Tiny members of the families whose MLPs are mixtures of experts: dense layers, shared experts, groups and corrections
as their default configs have them, and a second member for what those leave out."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import (
    AfmoeConfig,
    Cohere2MoeConfig,
    Dots1Config,
    Ernie4_5_MoeConfig,
    ExaoneMoeConfig,
    FlexOlmoConfig,
    Glm4MoeConfig,
    GptOssConfig,
    GraniteMoeConfig,
    GraniteMoeSharedConfig,
    GraniteMoeSWAConfig,
    HunYuanMoEV1Config,
    HYV3Config,
    LagunaConfig,
    MellumConfig,
    MiniMaxM2Config,
    MixtralConfig,
    OlmoeConfig,
    PreTrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
    SolarOpenConfig,
)

from .tiny import COMMON

FOUR: dict[str, Any] = {**COMMON, "num_hidden_layers": 4}
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
LOCAL: dict[str, Any] = {"num_local_experts": 8, "num_experts_per_tok": 3}
GROUPED: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
}
MULTIPLIED: dict[str, float] = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 1.5,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.2,
}

MIXED: dict[str, PreTrainedConfig] = {
    "qwen3_moe": Qwen3MoeConfig(**COMMON, **EXPERTS, head_dim=16),
    "qwen3_moe-some": Qwen3MoeConfig(
        **FOUR, **EXPERTS, head_dim=24, norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[1],
        use_sliding_window=True, sliding_window=24,
    ),
    "mixtral": MixtralConfig(**COMMON, num_local_experts=4),
    "mixtral-sliding": MixtralConfig(**COMMON, num_local_experts=4, sliding_window=24),
    "qwen2_moe": Qwen2MoeConfig(**COMMON, **EXPERTS, shared_expert_intermediate_size=48),
    "qwen2_moe-some": Qwen2MoeConfig(
        **COMMON, **EXPERTS, shared_expert_intermediate_size=48, norm_topk_prob=True, qkv_bias=False,
        mlp_only_layers=[0], use_sliding_window=True, sliding_window=24, max_window_layers=2,
    ),
    "olmoe": OlmoeConfig(**COMMON, num_experts=8, num_experts_per_tok=3),
    "olmoe-normalised": OlmoeConfig(**COMMON, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True),
    "flex_olmo": FlexOlmoConfig(**COMMON, num_experts=7, num_experts_per_tok=5),
    "granitemoe": GraniteMoeConfig(**COMMON, **LOCAL, **MULTIPLIED),
    "granitemoeshared": GraniteMoeSharedConfig(**COMMON, **LOCAL, **MULTIPLIED, shared_intermediate_size=48),
    "granitemoeshared-alone": GraniteMoeSharedConfig(**COMMON, **LOCAL, **MULTIPLIED),
    "granitemoe_swa": GraniteMoeSWAConfig(
        **FOUR, **LOCAL, **MULTIPLIED, sliding_window=24, layer_rope_theta=[0, 900.0, 900.0, 5000.0],
        shared_intermediate_size=48,
    ),
    "granitemoe_swa-rotated": GraniteMoeSWAConfig(**FOUR, **LOCAL, **MULTIPLIED, sliding_window=24),
    "hunyuan_v1_moe": HunYuanMoEV1Config(**COMMON, num_experts=8, moe_topk=3, head_dim=24),
    "hunyuan_v1_moe-listed": HunYuanMoEV1Config(**COMMON, num_experts=8, moe_topk=[1, 3, 2], head_dim=24),
    "ernie4_5_moe": Ernie4_5_MoeConfig(
        **COMMON, moe_num_experts=8, moe_k=3, moe_intermediate_size=32, moe_num_shared_experts=2
    ),
    "ernie4_5_moe-some": Ernie4_5_MoeConfig(
        **FOUR, moe_num_experts=8, moe_k=3, moe_intermediate_size=32, moe_num_shared_experts=1,
        moe_layer_interval=2, moe_norm_min=0.9, tie_word_embeddings=False,
    ),
    "dots1": Dots1Config(**FOUR, **GROUPED, sliding_window=24, max_window_layers=2, first_k_dense_replace=1),
    "glm4_moe": Glm4MoeConfig(**COMMON, **GROUPED, first_k_dense_replace=1),
    "glm4_moe-normed": Glm4MoeConfig(**COMMON, **GROUPED, use_qk_norm=True, attention_bias=True),
    "afmoe": AfmoeConfig(
        **FOUR, **EXPERTS, head_dim=24, sliding_window=24, num_shared_experts=2, route_scale=1.7, mup_enabled=True
    ),
    "afmoe-mixed": AfmoeConfig(
        **FOUR, **EXPERTS, head_dim=16, sliding_window=24, global_attn_every_n_layers=2, num_dense_layers=0
    ),
    "laguna": LagunaConfig(
        **COMMON, **EXPERTS, head_dim=16, sliding_window=24, shared_expert_intermediate_size=48,
        moe_routed_scaling_factor=1.7, layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    "laguna-heads": LagunaConfig(
        **FOUR, **EXPERTS, head_dim=16, sliding_window=24, shared_expert_intermediate_size=48, gating="per-element",
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        num_attention_heads_per_layer=[4, 6, 6, 4], mlp_layer_types=["dense", "sparse", "dense", "sparse"],
    ),
    "mellum": MellumConfig(
        **COMMON, **EXPERTS, head_dim=24, sliding_window=24, mlp_layer_types=["dense", "sparse", "sparse"],
        layer_types=["full_attention", "full_attention", "sliding_attention"],
    ),
    "solar_open": SolarOpenConfig(**COMMON, **GROUPED, head_dim=16),
    "minimax_m2": MiniMaxM2Config(
        **COMMON, **LOCAL, head_dim=16, rope_parameters={"rope_theta": 900.0, "partial_rotary_factor": 0.5}
    ),
    "hy_v3": HYV3Config(
        **COMMON, **EXPERTS, head_dim=24, num_shared_experts=1, mlp_layer_types=["dense", "sparse", "sparse"]
    ),
    "exaone_moe": ExaoneMoeConfig(
        **FOUR, **EXPERTS, n_group=2, topk_group=1, num_shared_experts=2, sliding_window=24, head_dim=16
    ),
    "cohere2_moe": Cohere2MoeConfig(
        **FOUR, num_experts=8, num_experts_per_tok=3, head_dim=16, logit_scale=12.0, sliding_window=24,
        first_k_dense_replace=1, prefix_dense_intermediate_size=48,
    ),
    "cohere2_moe-shared": Cohere2MoeConfig(
        **FOUR, num_experts=8, num_experts_per_tok=3, head_dim=16, logit_scale=12.0, sliding_window=24,
        expert_selection_fn="sigmoid", num_shared_experts=2, shared_expert_combination_strategy="sum",
    ),
    "gpt_oss": GptOssConfig(**COMMON, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=24),
}  # fmt: skip
if hasattr(GptOssConfig(), "swiglu_limit"):  # transformers 5.17 clamps at 7 whatever is stated
    MIXED["gpt_oss-clamped"] = GptOssConfig(
        **COMMON,
        head_dim=16,
        **LOCAL,
        sliding_window=24,
        swiglu_limit=0.7,
        rope_parameters={"rope_type": "default", "rope_theta": 900.0},
    )
if hasattr(transformers, "SarvamMoEConfig"):  # not in 5.17, the oldest that is supported
    MIXED |= {
        "sarvam_moe": transformers.SarvamMoEConfig(**COMMON, **GROUPED, head_dim=16, first_k_dense_replace=1),
        "sarvam_moe-plain": transformers.SarvamMoEConfig(
            **COMMON, **GROUPED, head_dim=16, use_qk_norm=False, attention_bias=False, tie_word_embeddings=True
        ),
    }
