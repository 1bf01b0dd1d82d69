"""Small models with random weights, on disk as workers serve them, with the bundled model's tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import octavo_worker

BUNDLED = Path(octavo_worker.__file__).parent / "bundled" / "demo"
SERVED: dict[str, Any] = {
    "vocab_size": 2048, "max_position_embeddings": 1024, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None,
}  # fmt: skip
"""Fields of a configuration that the tokenizer and the tests' prompts want."""
SIZES: dict[str, Any] = {
    **SERVED,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 900.0, "partial_rotary_factor": 0.5},
    "tie_word_embeddings": False,
}
FOR_KERNELS: dict[str, Any] = {
    "hidden_size": 128, "head_dim": 64, "intermediate_size": 256, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}  # fmt: skip
"""The smallest heads that a GPU's kernels take."""


def with_tokenizer(folder: Path) -> dict[str, object]:
    """Adds what text needs to a model there. Returns the flags of a worker that serves it as `demo`."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUNDLED / name, folder / name)
    return {"model": str(folder), "served_name": "demo"}


def write_hybrid(folder: Path, device: object) -> dict[str, object]:
    """Writes a Qwen3.5 in 16 bits there that workers with this device can compute. Returns the flags of a worker that
    serves it as `demo`."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(5)
    config = Qwen3_5TextConfig(**SIZES | (FOR_KERNELS if device == "cuda" else {}))
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, weight.shape[-1] ** -0.5)
    model.to(torch.bfloat16).save_pretrained(folder)
    return with_tokenizer(folder)
