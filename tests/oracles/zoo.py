"""Tiny random models of many architectures: no download, seconds to build, answers by transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    ApertusConfig,
    AutoModelForCausalLM,
    DbrxConfig,
    Gemma2Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    OlmoHybridConfig,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from .cousins import COUSINS
from .gemmas import GEMMAS4
from .hybrid import HYBRID, mend_convolutions
from .latent import LATENT
from .mixed import MIXED
from .tiny import COMMON, CONTEXT, VOCAB

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 96,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "original_max_position_embeddings": 96}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 900.0, "factor": 3.0}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 900.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
    "original_max_position_embeddings": CONTEXT,
    "factor": 4.0,
    "partial_rotary_factor": 0.5,
}

GENERIC: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True),
    "llama-rope3": LlamaConfig(**COMMON, rope_parameters=LLAMA3_ROPE, head_dim=24),
    "llama-yarn": LlamaConfig(**COMMON, rope_parameters=YARN_ROPE, tie_word_embeddings=True),
    "llama-linear": LlamaConfig(**COMMON, rope_parameters=LINEAR_ROPE),
    "mistral": MistralConfig(**COMMON, sliding_window=24),
    "qwen2": Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=40, max_window_layers=1),
    "qwen3": Qwen3Config(**COMMON, head_dim=24),
    "gemma": GemmaConfig(**COMMON, head_dim=24),
    "gemma2": Gemma2Config(**COMMON, head_dim=16, sliding_window=24, query_pre_attn_scalar=24),
    "gemma3": Gemma3TextConfig(
        **COMMON,
        head_dim=16,
        sliding_window=24,
        sliding_window_pattern=2,
        final_logit_softcapping=9.0,
        attn_logit_softcapping=0.1,  # which transformers does not use
    ),
    "phi3": Phi3Config(**COMMON, sliding_window=60),
    "phi3-longrope": Phi3Config(**COMMON, rope_parameters=LONG_ROPE),
    "olmo2": Olmo2Config(**COMMON),
    "granite": GraniteConfig(
        **COMMON, embedding_multiplier=3.0, logits_scaling=0.5, residual_multiplier=0.7, attention_multiplier=0.2
    ),
    "opt": OPTConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        ffn_dim=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
        pad_token_id=None,
        eos_token_id=None,
    ),
    "gpt2": GPT2Config(
        vocab_size=VOCAB,
        n_embd=64,
        n_layer=3,
        n_head=4,
        n_positions=CONTEXT,
        scale_attn_by_inverse_layer_idx=True,
        bos_token_id=None,
        eos_token_id=None,
    ),
}
ROUTED: dict[str, PreTrainedConfig] = {
    "gpt_neox": GPTNeoXConfig(**{**COMMON, "num_key_value_heads": 4}),
    "apertus": ApertusConfig(**COMMON, rope_parameters={"rope_type": "default", "rope_theta": 900.0}),
    "phi": PhiConfig(**COMMON),
    "gemma3n_text": Gemma3nTextConfig(
        **{**COMMON, "num_hidden_layers": 6, "intermediate_size": 80},
        head_dim=16,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention"] * 3,
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB,
        laurel_rank=8,
        activation_sparsity_pattern=[0.9, 0.9, 0.0, 0.0, 0.0, 0.0],
    ),
    "dbrx": DbrxConfig(
        d_model=64,
        n_heads=4,
        n_layers=3,
        max_seq_len=CONTEXT,
        vocab_size=VOCAB,
        attn_config={"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 900.0},
        ffn_config={"ffn_hidden_size": 80, "moe_num_experts": 4, "moe_top_k": 2},
        eos_token_id=None,
    ),
}
OWN = GENERIC | COUSINS | MIXED | GEMMAS4 | HYBRID | LATENT
"""On octavo's own decoder; those with mixtures or recurrent layers on a CPU only."""
ALL = OWN | ROUTED


ROUTED_ON_CUDA: dict[str, PreTrainedConfig] = {
    "gpt_neox": GPTNeoXConfig(**{**COMMON, "hidden_size": 128, "num_key_value_heads": 4}),
}
"""With heads that the CUDA kernels take."""


def build(name: str, config: PreTrainedConfig | None = None, width: float = 2.5) -> PreTrainedModel:
    """The model as transformers runs it: float32, eager attention.

    Matrices are drawn wide enough that the next token depends on the context and the best logit stands clear of the
    second; norms and biases are moved off their neutral values, so that a forgotten one shows. A smaller `width` leaves
    rounding errors as they are, where attention that looks at one token alone makes them larger.
    """
    torch.manual_seed(sum(map(ord, name)))
    made = AutoModelForCausalLM.from_config(config or ALL[name], attn_implementation="eager", trust_remote_code=False)
    model = made.float().eval()
    widen(model, width)
    model.generation_config.eos_token_id = None
    return model


def widen(model: PreTrainedModel, width: float) -> None:
    """Draws all weights anew. Where scores have no scale, the norm of queries has it in its weights."""
    is_unscaled = model.config.get_text_config().model_type.startswith("gemma4")
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                fan_in = parameter.shape[0] if "c_" in key else parameter.shape[-1]
                tied = getattr(model.config, "tie_word_embeddings", False) and key.endswith(
                    ("embed_tokens.weight", "wte.weight")
                )
                parameter.normal_(0.0, (0.2 if tied else width) / fan_in**0.5)  # tied: or a token predicts itself
            else:
                parameter.add_(torch.randn_like(parameter) * 0.2)
                if key.endswith("q_norm.weight") and is_unscaled:
                    parameter.mul_(0.3)
        for key, buffer in model.named_buffers():
            if key.endswith("correction_bias"):
                buffer.add_(torch.randn_like(buffer) * 0.2)
            if key.endswith("layer_scalar"):
                buffer.mul_(0.7 + 0.6 * torch.rand_like(buffer))


def save(name: str, folder: Path, config: PreTrainedConfig | None = None, width: float = 2.5) -> PreTrainedModel:
    model = build(name, config, width)
    model.save_pretrained(folder)
    if isinstance(model.config, OlmoHybridConfig):
        mend_convolutions(folder, model.config)
    return model


def precise(oracle: PreTrainedModel) -> PreTrainedModel:
    """The same model in float64, which products of grouped experts do not take."""
    oracle.config._experts_implementation = "eager"
    return oracle.double()
