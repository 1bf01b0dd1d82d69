"""The bundled model with a chat template for tools and thoughts, and with control tokens for them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from chat_templates import DEMO, HERMES
from safetensors.torch import load_file, save_file

_EMBEDDINGS = "model.embed_tokens.weight"
_LIKE = {"<|im_start|>": "<|user|>", "<|im_end|>": "<|end|>"}
_LIKE |= dict.fromkeys(("<tool_call>", "</tool_call>", "<think>", "</think>"), "\n")


def write_tool_model(folder: Path) -> Path:
    """A model's folder. A control token is as likely as one that the model has learned: it opens thoughts and calls,
    and ends them, about as often as lines."""
    HERMES.write(folder)
    tokenizer = HERMES.tokenizer()
    tensors = load_file(DEMO / "model.safetensors")
    known = tensors[_EMBEDDINGS]
    rows = torch.zeros(tokenizer.get_vocab_size(), known.shape[1], dtype=known.dtype)
    rows[: len(known)] = known
    for token, like in _LIKE.items():
        (row,) = tokenizer.encode(like, add_special_tokens=False).ids
        rows[tokenizer.token_to_id(token)] = known[row]
    save_file(tensors | {_EMBEDDINGS: rows}, folder / "model.safetensors", {"format": "pt"})
    ends = json.loads((folder / "config.json").read_text())["eos_token_id"]
    config = json.loads((DEMO / "config.json").read_text())
    config |= {"vocab_size": len(rows), "eos_token_id": ends}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
