"""EAGLE-3 heads for tests: with random weights, and one that knows what its target says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

ROPE = 10_000.0


def random_tensors(
    config: Mapping[str, Any], *, taps: int = 3, at: str = "midlayer.", seed: int = 0
) -> dict[str, Tensor]:
    """All tensors of a head with this config.json, its own embedding included."""
    rng = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = dim * config["num_attention_heads"], dim * config["num_key_value_heads"]
    vocab, known = config["vocab_size"], config["draft_vocab_size"]

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng) * shape[-1] ** -0.5

    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    tensors = {f"{at}{name}.weight": 1 + 0.1 * torch.randn(hidden, generator=rng) for name in norms}
    tensors |= {
        "embed_tokens.weight": drawn(vocab, hidden) * hidden**0.5,
        "fc.weight": drawn(hidden, taps * hidden),
        f"{at}self_attn.q_proj.weight": drawn(q, 2 * hidden),
        f"{at}self_attn.k_proj.weight": drawn(kv, 2 * hidden),
        f"{at}self_attn.v_proj.weight": drawn(kv, 2 * hidden),
        f"{at}self_attn.o_proj.weight": drawn(hidden, q),
        f"{at}mlp.gate_proj.weight": drawn(inner, hidden),
        f"{at}mlp.up_proj.weight": drawn(inner, hidden),
        f"{at}mlp.down_proj.weight": drawn(hidden, inner),
        "norm.weight": 1 + 0.1 * torch.randn(hidden, generator=rng),
        "lm_head.weight": drawn(known, hidden) * 3,
    }
    if known < vocab:
        ids = torch.randperm(vocab, generator=rng)[:known].sort().values
        tensors["d2t"] = ids - torch.arange(known)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def head_values(target: Mapping[str, Any], **differences: Any) -> dict[str, Any]:
    """The config.json of a head for a target with that one."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **{name: target[name] for name in names},
        "num_hidden_layers": 1,
        "draft_vocab_size": target["vocab_size"],
        "max_position_embeddings": 64,  # what it was trained with: less than is computed
        "rms_norm_eps": 1e-6,
        "rope_theta": ROPE,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        **differences,
    }


def write_head(folder: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(values)))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def random_head(folder: Path, target: Path, *, taps: int = 3, seed: int = 0, **differences: Any) -> Path:
    values = head_values(json.loads((target / "config.json").read_text()), **differences)
    return write_head(folder, values, random_tensors(values, taps=taps, seed=seed))


HALF, DIM, HEADS, VOCAB = 64, 64, 4, 120
HIDDEN = 2 * HALF
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 16,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": DIM,
    "rms_norm_eps": 1e-9,
    "rope_theta": ROPE,
    "attention_bias": True,
}
UNIT = 2**-0.5
"""The root mean square of an embedding, which fills one half of a state. The norm in front makes it 1."""


def knowing_pair(folder: Path, known: int = VOCAB) -> tuple[Path, Path]:
    """A target whose next token depends on the last two, and a head that says the same, of the tokens below `known`.

    The target's first layer attends to the token before, whatever is said, and moves its embedding to the second half;
    its other layers do nothing. So a state is (this token, the one before), of root mean square 1, which a norm leaves
    as it is. The head's first heads attend to their own place, where they subtract the features and add the embedding.
    Another attends to the place before, as the target does. What comes out is the target's state of the next token.
    """
    state = _knowing_target(folder / "target")
    values = head_values(
        SIZES, **SIZES, draft_vocab_size=known, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2]}
    )
    head = _blank(random_tensors(values, taps=2))
    head["embed_tokens.weight"] = state["model.embed_tokens.weight"]
    head["fc.weight"] = torch.eye(HIDDEN).repeat(1, 2) / 2
    at = "midlayer.self_attn."
    head |= {f"{at}v_proj.bias": torch.zeros(HEADS * DIM), f"{at}o_proj.bias": torch.zeros(HIDDEN)}
    own = HIDDEN // DIM
    _attend(head, at, [0] * own + [1] * (HEADS - own))
    value, out = head[f"{at}v_proj.weight"], head[f"{at}o_proj.weight"]
    value[:HALF, :HALF] = UNIT * torch.eye(HALF)
    value[:HIDDEN, HIDDEN:] = -torch.eye(HIDDEN)
    value[HIDDEN : HIDDEN + HALF, :HALF] = UNIT * torch.eye(HALF)
    out[:, :HIDDEN] = torch.eye(HIDDEN)
    out[HALF:, HIDDEN : HIDDEN + HALF] = torch.eye(HALF)
    head["lm_head.weight"] = state["lm_head.weight"][:known]
    if known < VOCAB:
        head |= {"d2t": torch.zeros(known, dtype=torch.int64), "t2d": torch.arange(VOCAB) < known}
    return folder / "target", write_head(folder / "head", values, head)


def _knowing_target(folder: Path) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(5)
    unset = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    model = LlamaForCausalLM(LlamaConfig(**SIZES, **unset, num_hidden_layers=4, max_position_embeddings=384))
    state = _blank(model.state_dict())
    embed = torch.randn(VOCAB, HALF, generator=rng)
    state["model.embed_tokens.weight"][:, :HALF] = torch.nn.functional.normalize(embed, dim=1) * HALF**0.5
    state["lm_head.weight"] = torch.randn(VOCAB, HIDDEN, generator=rng) * 0.3
    first = "model.layers.0.self_attn."
    _attend(state, first, [1] * HEADS)
    state[f"{first}v_proj.weight"][:HALF, :HALF] = UNIT * torch.eye(HALF)
    state[f"{first}o_proj.weight"][HALF:, :HALF] = torch.eye(HALF)
    model.load_state_dict(state)
    model.save_pretrained(folder)
    return state


def _blank(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the same shapes: norms that scale by one, all else zero."""
    return {name: torch.full_like(tensor, float("norm" in name)) for name, tensor in tensors.items()}


def _attend(state: dict[str, Tensor], at: str, distances: list[int]) -> None:
    """Biases with which each head attends to the token so far behind its own: rotated, queries and keys are equal
    there."""
    angles = ROPE ** (-torch.arange(0, DIM, 2) / DIM)
    keys = torch.cat((torch.ones(DIM // 2), torch.zeros(DIM // 2)))
    queries = [400 * torch.cat(((angles * d).cos(), -(angles * d).sin())) for d in distances]
    state[f"{at}q_proj.bias"] = torch.cat(queries)
    state[f"{at}k_proj.bias"] = keys.repeat(len(distances))
