"""Tiny models that read images or sound besides text, as transformers saves them: their text parts are families."""

from __future__ import annotations

from typing import Any

from transformers import (
    AyaVisionConfig,
    Cohere2Config,
    DeepseekVLConfig,
    Exaone4_5_Config,
    Exaone4Config,
    Gemma3Config,
    Gemma3TextConfig,
    Glm4vConfig,
    Glm4vMoeConfig,
    Idefics3Config,
    InternVLConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaNextConfig,
    Ministral3Config,
    Mistral3Config,
    MistralConfig,
    PreTrainedConfig,
    Qwen2_5_VLConfig,
    Qwen2AudioConfig,
    Qwen2Config,
    Qwen2VLConfig,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
    SmolVLMConfig,
    VoxtralConfig,
)

from .cousins import FOUR, GROWING
from .gemmas import GEMMAS4_WRAPPED
from .hybrid import HYBRID_WRAPPED
from .latent import LATENT_WRAPPED
from .tiny import COMMON

TOWER: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
CLIP = TOWER | {"model_type": "clip_vision_model", "projection_dim": 16}
SIGLIP = TOWER | {"model_type": "siglip_vision_model"}
PIXTRAL = TOWER | {"model_type": "pixtral", "head_dim": 8}
SPATIAL: dict[str, Any] = {"depth": 1, "num_heads": 2, "patch_size": 14, "in_channels": 3, "spatial_merge_size": 2}
SOUND: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "num_mel_bins": 16,
    "max_source_positions": 20,
}
ROTATED = {"rope_type": "default", "rope_theta": 900.0, "mrope_section": [2, 3, 3]}
PARTLY = {**ROTATED, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}

LLAMA = LlamaConfig(**COMMON).to_dict()
WRAPPED: dict[str, PreTrainedConfig] = {
    **HYBRID_WRAPPED,
    "aya_vision": AyaVisionConfig(
        text_config=Cohere2Config(**FOUR, sliding_window=24, logit_scale=12.0), vision_config=SIGLIP
    ),
    "deepseek_vl": DeepseekVLConfig(text_config=LLAMA, vision_config=SIGLIP),
    "exaone4_5": Exaone4_5_Config(
        text_config=Exaone4Config(**FOUR, sliding_window=24).to_dict(),
        vision_config={**SPATIAL, "hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 64},
    ),
    "gemma3": Gemma3Config(
        text_config=Gemma3TextConfig(**COMMON, head_dim=16, sliding_window=24, sliding_window_pattern=2),
        vision_config=SIGLIP,
        mm_tokens_per_image=4,
    ),
    "glm4v": Glm4vConfig(
        text_config={
            **COMMON,
            "rope_parameters": {**ROTATED, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]},
        },
        vision_config={**SPATIAL, "hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 64, "image_size": 28},
    ),
    "glm4v_moe": Glm4vMoeConfig(
        text_config={
            **COMMON,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.7,
            "rope_parameters": PARTLY,
        },
        vision_config={**SPATIAL, "hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 64, "image_size": 28},
    ),
    "idefics3": Idefics3Config(text_config=LLAMA, vision_config=TOWER, scale_factor=1),
    "internvl": InternVLConfig(
        text_config=Qwen2Config(**COMMON),
        vision_config=TOWER | {"model_type": "internvl_vision", "image_size": [28, 28], "patch_size": [14, 14]},
    ),
    "llava": LlavaConfig(text_config=LLAMA, vision_config=CLIP, vision_feature_layer=-1),
    "llava-mistral": LlavaConfig(
        text_config=MistralConfig(**COMMON, sliding_window=24), vision_config=CLIP, vision_feature_layer=-1
    ),
    "llava_next": LlavaNextConfig(
        text_config=LLAMA, vision_config=CLIP, vision_feature_layer=-1, image_grid_pinpoints=[[28, 28]]
    ),
    "mistral3": Mistral3Config(
        text_config=MistralConfig(**COMMON, head_dim=24, sliding_window=None, tie_word_embeddings=False),
        vision_config=PIXTRAL,
        tie_word_embeddings=True,
    ),
    "ministral3": Mistral3Config(
        text_config=Ministral3Config(**COMMON, head_dim=24, rope_parameters=GROWING),
        vision_config=PIXTRAL,
        tie_word_embeddings=False,
    ),
    "qwen2_audio": Qwen2AudioConfig(text_config=Qwen2Config(**COMMON), audio_config=SOUND),
    "qwen2_vl": Qwen2VLConfig(
        text_config={**COMMON, "rope_parameters": ROTATED},
        vision_config={**SPATIAL, "embed_dim": 16, "hidden_size": 64, "mlp_ratio": 2},
    ),
    "qwen2_5_vl": Qwen2_5_VLConfig(
        text_config={
            **COMMON,
            "rope_parameters": ROTATED,
            "use_sliding_window": True,
            "sliding_window": 24,
            "max_window_layers": 1,
        },
        vision_config={
            **SPATIAL,
            "hidden_size": 16,
            "intermediate_size": 24,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [0],
        },
        tie_word_embeddings=True,
    ),
    "qwen3_vl": Qwen3VLConfig(
        text_config={**COMMON, "head_dim": 24, "rope_parameters": {**ROTATED, "mrope_section": [4, 4, 4]}},
        vision_config={
            **SPATIAL,
            "hidden_size": 16,
            "intermediate_size": 24,
            "out_hidden_size": 64,
            "num_position_embeddings": 4,
            "deepstack_visual_indexes": [0],
        },
    ),
    "qwen3_vl_moe": Qwen3VLMoeConfig(
        text_config={
            **COMMON,
            "head_dim": 24,
            "rope_parameters": {**ROTATED, "mrope_section": [4, 4, 4]},
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "mlp_only_layers": [1],
        },
        vision_config={
            **SPATIAL,
            "hidden_size": 16,
            "intermediate_size": 24,
            "out_hidden_size": 64,
            "num_position_embeddings": 4,
            "deepstack_visual_indexes": [0],
        },
    ),
    **GEMMAS4_WRAPPED,
    **LATENT_WRAPPED,
    "smolvlm": SmolVLMConfig(text_config=LLAMA, vision_config=TOWER, scale_factor=1),
    "voxtral": VoxtralConfig(text_config=LLAMA, audio_config={**SOUND, "intermediate_size": 64}),
}
