"""One description for every decoder-only family: what the Hugging Face config says, in the terms of our decoder."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.errors import NEXT, UnsupportedModel

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}

SLIDING = ("mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3")

PARTLY_ROTATED = ("phi3",)

LAYER_KINDS = {"full_attention", "sliding_attention", "attention"}


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of the first `2 * len(inv_freq)` values of a head. `inv_freq` is float32, radians a position."""

    inv_freq: torch.Tensor
    scaling: float = 1.0

    def cos_sin(self, positions: int) -> torch.Tensor:
        """Table `[positions, rotary_dim]` float32: cosines in the first half, sines in the second."""
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * self.inv_freq[None, :]
        return torch.cat((angles.cos(), angles.sin()), dim=-1).mul_(self.scaling)


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """Attention of one layer, as far as layers may differ. `sliding_window` 0 is full attention; `rope` names one of
    `ropes`."""

    scale: float
    sliding_window: int = 0
    rope: str | None = None


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder-only transformer.

    A block is `h += post_norm(attention(pre_norm(h)))`, then the same with the MLP; either norm may be absent
    (Llama has only the first, OLMo 2 only the second, Gemma 2 both).
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[AttentionLayer, ...]
    ropes: dict[str, Rope]
    max_position: int
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-6
    norm_offset: float = 0.0  # the weight stored is (scale - offset)
    pre_norm: bool = True
    post_norm: bool = False
    qk_norm: Literal["none", "head", "whole"] = "none"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    activation: Activation = "silu"
    gated: bool = True
    position_offset: int | None = None  # learned positions: the table's row of position 0
    tied: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_divisor: float = 1.0
    softcap: float = 0.0  # of attention scores
    logits_softcap: float = 0.0

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


def reject(config: ModelConfig) -> None:
    """Raises `UnsupportedModel` for what the config alone shows; a trial run of the model finds the rest."""
    text, kind = config.get_text_config(), config.model_type
    if config.is_encoder_decoder:
        raise UnsupportedModel(f"{kind!r} is an encoder-decoder model; octavo serves decoder-only models; {NEXT}")
    if strange := sorted(set(getattr(text, "layer_types", None) or []) - LAYER_KINDS):
        raise UnsupportedModel(
            f"{kind!r} has layers of kind {', '.join(strange)}; only full and sliding attention work; {NEXT}"
        )


def decoder_config(config: ModelConfig, max_model_len: int | None = None) -> DecoderConfig | None:
    """The generic decoder's view of `config`, or None if this architecture has to take the transformers route.

    LongRoPE has its long factors if `max_model_len` is more than its original context (`octavo_worker.model.longrope`).
    """
    family = FAMILIES.get(config.model_type)
    return family(config, max_model_len) if family else None


def rope_of(config: ModelConfig, max_model_len: int | None, layer_type: str | None = None) -> Rope:
    """Frequencies by transformers' own rules for the config's `rope_type`. Lengths past `max_position_embeddings`
    never occur (the runner clamps), so dynamic NTK scaling is its unscaled base. Most families' files may name a
    partial rotary factor, too, without using it."""
    parameters = config.rope_parameters[layer_type] if layer_type else config.rope_parameters
    is_whole = parameters["rope_type"] == "default" and config.model_type not in PARTLY_ROTATED
    dim = int(_head_dim(config) * (1.0 if is_whole else parameters.get("partial_rotary_factor", 1.0)))
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    frequencies = 1.0 / parameters["rope_theta"] ** exponents
    match parameters["rope_type"]:
        case "default":
            return Rope(frequencies)
        case "linear":
            return Rope(frequencies / parameters["factor"])
        case "llama3":
            return Rope(_llama3(frequencies, parameters))
        case kind:
            return _rope_of_transformers(kind, config, max_model_len, layer_type)


def _llama3(frequencies: torch.Tensor, parameters: dict[str, Any]) -> torch.Tensor:
    """Llama 3.1's rule: frequencies of wavelengths above `original / low` are divided by `factor`, those below
    `original / high` are kept, and those between are interpolated."""
    low, high, factor = (parameters[name] for name in ("low_freq_factor", "high_freq_factor", "factor"))
    original = parameters["original_max_position_embeddings"]
    waves = 2 * math.pi / frequencies
    degree = (original / waves - low) / (high - low)
    between = (1 - degree) * frequencies / factor + degree * frequencies
    slow = torch.where(waves > original / low, frequencies / factor, between)
    return torch.where(waves < original / high, frequencies, slow)


def _rope_of_transformers(kind: str, config: ModelConfig, max_model_len: int | None, layer_type: str | None) -> Rope:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # the import takes seconds

    if kind not in ROPE_INIT_FUNCTIONS:
        known = ", ".join(["default", *ROPE_INIT_FUNCTIONS])
        raise UnsupportedModel(f"rope_type {kind!r} is unknown to the installed transformers (it knows {known}).")
    seq_len = (max_model_len or config.max_position_embeddings) if kind == "longrope" else None
    inv_freq, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=seq_len, layer_type=layer_type)
    return Rope(inv_freq.float(), float(scaling))


def _head_dim(config: ModelConfig) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _activation(name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise UnsupportedModel(f"activation {name!r} has no kernel; supported: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def _gate(name: str) -> Activation:
    activation = _activation(name)
    if activation == "relu":
        raise UnsupportedModel("a gated MLP with relu has no kernel; supported gates: silu, gelu, gelu_tanh.")
    return activation


def _windows(config: ModelConfig) -> list[int]:
    """Sliding window of each layer; a config without `layer_types` slides in every layer. Other families' files may
    name a window, too, without using it."""
    window = (getattr(config, "sliding_window", None) or 0) if config.model_type in SLIDING else 0
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else 0 for kind in types]


def _llama_like(config: ModelConfig, max_model_len: int | None, **differences: Any) -> DecoderConfig:
    """Pre-norm RMS blocks with rotary embeddings and a gated MLP; `differences` override what a family changes."""
    head_dim = _head_dim(config)
    scale = differences.pop("scale", head_dim**-0.5)
    described: dict[str, Any] = {
        "family": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads,
        "head_dim": head_dim,
        "layers": tuple(AttentionLayer(scale, window, "rope") for window in _windows(config)),
        "ropes": differences.pop("ropes", None) or {"rope": rope_of(config, max_model_len)},
        "max_position": config.max_position_embeddings,
        "norm_eps": config.rms_norm_eps,
        "qkv_bias": getattr(config, "attention_bias", False),
        "out_bias": getattr(config, "attention_bias", False),
        "mlp_bias": getattr(config, "mlp_bias", False),
        "activation": _gate(getattr(config, "hidden_act", None) or config.hidden_activation),
        "tied": config.tie_word_embeddings,
    }
    return DecoderConfig(**(described | differences))


def _qwen2(config: ModelConfig, max_model_len: int | None) -> DecoderConfig:
    return _llama_like(config, max_model_len, qkv_bias=True, out_bias=False)


def _qwen3(config: ModelConfig, max_model_len: int | None) -> DecoderConfig:
    return _llama_like(config, max_model_len, qk_norm="head")


def _phi3(config: ModelConfig, max_model_len: int | None) -> DecoderConfig:
    return _llama_like(config, max_model_len, family="phi3", qkv_bias=False, out_bias=False)


def _olmo2(config: ModelConfig, max_model_len: int | None) -> DecoderConfig:
    return _llama_like(config, max_model_len, pre_norm=False, post_norm=True, qk_norm="whole")


def _granite(config: ModelConfig, max_model_len: int | None) -> DecoderConfig:
    return _llama_like(
        config,
        max_model_len,
        scale=config.attention_multiplier,
        embedding_multiplier=config.embedding_multiplier,
        residual_multiplier=config.residual_multiplier,
        logits_divisor=config.logits_scaling,
    )


def _gemma(config: ModelConfig, max_model_len: int | None, **differences: Any) -> DecoderConfig:
    if getattr(config, "use_bidirectional_attention", False):
        raise UnsupportedModel("this Gemma attends in both directions (an encoder); octavo serves causal models only.")
    return _llama_like(
        config, max_model_len, norm_offset=1.0, embedding_multiplier=config.hidden_size**0.5, **differences
    )


def _gemma2(config: ModelConfig, max_model_len: int | None) -> DecoderConfig:
    return _post_normed_gemma(config, max_model_len, softcap=config.attn_logit_softcapping or 0.0)


def _post_normed_gemma(config: ModelConfig, max_model_len: int | None, **differences: Any) -> DecoderConfig:
    return _gemma(
        config,
        max_model_len,
        family="gemma2",
        post_norm=True,
        scale=config.query_pre_attn_scalar**-0.5,
        logits_softcap=config.final_logit_softcapping or 0.0,
        **differences,
    )


def _gemma3(config: ModelConfig, max_model_len: int | None) -> DecoderConfig:
    """As in transformers, without the cap of scores that its config may state."""
    scale = config.query_pre_attn_scalar**-0.5
    kinds = zip(config.layer_types, _windows(config), strict=True)
    return _post_normed_gemma(
        config,
        max_model_len,
        qk_norm="head",
        ropes={kind: rope_of(config, max_model_len, kind) for kind in sorted(set(config.layer_types))},
        layers=tuple(AttentionLayer(scale, window, kind) for kind, window in kinds),
    )


def _gpt2(config: ModelConfig, max_model_len: int | None) -> DecoderConfig | None:
    if config.add_cross_attention:
        return None
    head_dim = config.n_embd // config.n_head
    scale = head_dim**-0.5 if config.scale_attn_weights else 1.0
    depths = [i + 1 if config.scale_attn_by_inverse_layer_idx else 1 for i in range(config.n_layer)]
    return DecoderConfig(
        family="gpt2",
        vocab_size=config.vocab_size,
        hidden_size=config.n_embd,
        intermediate_size=config.n_inner or 4 * config.n_embd,
        num_heads=config.n_head,
        num_kv_heads=config.n_head,
        head_dim=head_dim,
        layers=tuple(AttentionLayer(scale / depth) for depth in depths),
        ropes={},
        max_position=config.n_positions,
        norm="layer",
        norm_eps=config.layer_norm_epsilon,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        activation=_activation(config.activation_function),
        gated=False,
        position_offset=0,
        tied=config.tie_word_embeddings,
    )


def _opt(config: ModelConfig, max_model_len: int | None) -> DecoderConfig | None:
    """The 350m variant (norm after the residual, projected embeddings) takes the transformers route."""
    projected = config.word_embed_proj_dim != config.hidden_size
    standard = config.do_layer_norm_before and config.layer_norm_elementwise_affine
    if projected or not standard or config._remove_final_layer_norm:
        return None
    head_dim = config.hidden_size // config.num_attention_heads
    return DecoderConfig(
        family="opt",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.ffn_dim,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_attention_heads,
        head_dim=head_dim,
        layers=tuple(AttentionLayer(head_dim**-0.5) for _ in range(config.num_hidden_layers)),
        ropes={},
        max_position=config.max_position_embeddings,
        norm="layer",
        norm_eps=1e-5,
        qkv_bias=config.enable_bias,
        out_bias=config.enable_bias,
        mlp_bias=config.enable_bias,
        activation=_activation(config.activation_function),
        gated=False,
        position_offset=2,
        tied=config.tie_word_embeddings,
    )


FAMILIES: dict[str, Callable[[ModelConfig, int | None], DecoderConfig | None]] = {
    "llama": _llama_like,
    "mistral": _llama_like,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "granite": _granite,
    "gpt2": _gpt2,
    "opt": _opt,
}
