"""The tiny Llama that every quantised checkpoint of `tests/model/data/quantised` was made from, from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

CONFIG: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
"""Arguments of transformers' `LlamaConfig`. Depths of 256 and 128 hold two and one groups of 128; the keys' and values'
64 rows are half a block of 128."""

RAGGED: dict[str, Any] = {**CONFIG, "intermediate_size": 208}
"""Blocks of 128 x 128 end amid the rows of gate and up and amid the columns of down."""


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield f"{at}self_attn.q_proj.weight", (queries, hidden)
        yield f"{at}self_attn.k_proj.weight", (keys, hidden)
        yield f"{at}self_attn.v_proj.weight", (keys, hidden)
        yield f"{at}self_attn.o_proj.weight", (hidden, queries)
        yield f"{at}mlp.gate_proj.weight", (inner, hidden)
        yield f"{at}mlp.up_proj.weight", (inner, hidden)
        yield f"{at}mlp.down_proj.weight", (hidden, inner)
        yield f"{at}input_layernorm.weight", (hidden,)
        yield f"{at}post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)


def weights(config: dict[str, Any] | None = None) -> dict[str, Tensor]:
    """A bfloat16 state dict. Rows of a matrix have standard deviations of 0.03 to 0.1 and means that are not 0, one
    weight in 500 is five times as large. Two rows of 16 have weights of one sign only, and so the least or the largest
    zero point. `RandomState` draws the same numbers in every release of numpy (NEP 19)."""
    random = np.random.RandomState(2026)
    state = {}
    for name, shape in shapes(config or CONFIG):
        drawn = random.standard_normal(shape)
        if len(shape) == 1:
            drawn = 1 + 0.1 * drawn
        else:
            drawn *= np.where(random.random_sample(shape) < 0.002, 5.0, 1.0)
            drawn = (drawn + 0.3 * random.standard_normal((shape[0], 1))) * random.uniform(0.03, 0.1, (shape[0], 1))
            if "_proj" in name:
                drawn[5::16], drawn[11::16] = abs(drawn[5::16]), -abs(drawn[11::16])
        state[name] = torch.from_numpy(drawn).to(torch.bfloat16)
    return state
