"""Sizes of the tiny models."""

from __future__ import annotations

from typing import Any

VOCAB = 211
CONTEXT = 384

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
