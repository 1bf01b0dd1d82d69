"""Shared parts of the scripts that make quantised checkpoints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).parents[3] / "support"))
from quantised_base import CONFIG, weights

KEPT = {"config.json", "model.safetensors", "quantize_config.json"}


def write_base(folder: Path, config: dict[str, Any]) -> None:
    """The tiny Llama in bfloat16 as transformers saves it."""
    model = LlamaForCausalLM(LlamaConfig(**config)).to(torch.bfloat16)
    state = weights(config)
    model.load_state_dict({**state, "lm_head.weight": state["model.embed_tokens.weight"]})
    model.save_pretrained(folder)


def tokenizer() -> PreTrainedTokenizerFast:
    """Text plays no part, but the tools ask for a tokenizer."""
    vocabulary = {f"t{i}": i for i in range(CONFIG["vocab_size"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="t0"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t0", eos_token="t1")


def calibration(config: dict[str, Any]) -> list[list[int]]:
    """64 rows of 64 token ids, some tokens more often than others."""
    random = np.random.RandomState(7)
    return np.minimum(random.geometric(0.05, (64, 64)) - 1, config["vocab_size"] - 1).tolist()


def keep(folder: Path) -> None:
    """Drops what no loader reads, and makes config.json the same in every run."""
    for path in folder.iterdir():
        if path.name not in KEPT:
            path.unlink()
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.pop("_name_or_path", None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def save_expected(output: Path, name: str, dense: dict[str, torch.Tensor]) -> None:
    """Keeps the first two and the last two rows of every matrix, as the format's own tool dequantises them."""
    folder = output / "expected"
    folder.mkdir(exist_ok=True)
    rows = {key: torch.cat((matrix[:2], matrix[-2:])).contiguous() for key, matrix in dense.items()}
    save_file(rows, folder / f"{name}.safetensors")
