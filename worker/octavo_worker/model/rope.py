"""Rotary embeddings: the frequencies of each `rope_type`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of the first `2 * len(inv_freq)` values of a head. `inv_freq` is float32, radians a position."""

    inv_freq: torch.Tensor
    scaling: float = 1.0

    def cos_sin(self, positions: int) -> torch.Tensor:
        """Table `[positions, rotary_dim]` float32: cosines in the first half, sines in the second."""
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * self.inv_freq[None, :]
        return torch.cat((angles.cos(), angles.sin()), dim=-1).mul_(self.scaling)


def head_dim_of(config: ModelConfig) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def rope_of(
    config: ModelConfig,
    max_model_len: int | None,
    layer_type: str | None = None,
    *,
    partly: bool = False,
    theta: float | None = None,
) -> Rope:
    """Frequencies by transformers' own rules for the config's `rope_type`, with another `theta` if one is given.
    Lengths past `max_position_embeddings` never occur (the runner clamps), so dynamic NTK scaling is its unscaled base.
    `partly`: the family rotates a part of each head by default, too. Most families' files may name a partial rotary
    factor without using it. Raises `UnsupportedModel`."""
    parameters = config.rope_parameters[layer_type] if layer_type else config.rope_parameters
    if theta is not None:
        parameters = {**parameters, "rope_theta": theta}
    is_whole = parameters["rope_type"] == "default" and not partly
    dim = int(head_dim_of(config) * (1.0 if is_whole else parameters.get("partial_rotary_factor", 1.0)))
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
            if theta is not None:
                raise UnsupportedModel(f"rope_type {kind!r} with another base for each layer is not computed.")
            return _rope_of_transformers(kind, config, max_model_len, layer_type)


def stretched_rope(config: ModelConfig) -> Rope:
    """The base grows by a fixed `alpha`, as in Hunyuan's files, which call that dynamic."""
    parameters, dim = config.rope_parameters, head_dim_of(config)
    base = parameters["rope_theta"] * parameters["alpha"] ** (dim / (dim - 2))
    return Rope(1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))


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
