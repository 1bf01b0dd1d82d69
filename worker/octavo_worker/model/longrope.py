"""LongRoPE, whose frequencies depend on the length of a sequence: which of the two kinds a worker takes, for all.

transformers takes the long factors for a sequence from the moment at which it is longer than the original context, and
computes its whole cache again then. Here one choice holds for every sequence of a worker, as in vLLM: a cached key
cannot be rotated again, and is shared with sequences of other lengths.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from octavo_worker.contract.options import LongRope
from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.errors import ModelError


def original_length(config: ModelConfig) -> int | None:
    """The context that the short factors were made for; None: the model has no LongRoPE."""
    parameters: dict[str, Any] = getattr(config.get_text_config(), "rope_parameters", None) or {}
    layered = [value for value in parameters.values() if isinstance(value, dict)]
    kinds = [kind for kind in layered or [parameters] if kind.get("rope_type") == "longrope"]
    return int(kinds[0]["original_max_position_embeddings"]) if kinds else None


def takes_long_factors(choice: LongRope, original: int, asked: int | None, wanted_len: int) -> bool:
    """True if a worker takes the long factors. `wanted_len` is the context to serve, of which `asked` was asked for.
    Raises `ModelError` for "short" with a longer context."""
    if choice == "short" and (asked or 0) > original:
        raise ModelError(
            f"--longrope short holds for {original} tokens, fewer than --max-model-len {asked}: give one of the two."
        )
    return choice == "long" or (choice == "auto" and wanted_len > original)


def fix_factors(model: nn.Module, original: int, *, long: bool) -> None:
    """Take the choice away from the rotary embeddings of transformers' modules."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    make = ROPE_INIT_FUNCTIONS["longrope"]
    for module in model.modules():
        kinds: Any = getattr(module, "rope_type", None)
        layers = [layer for layer, kind in kinds.items() if kind == "longrope"] if isinstance(kinds, dict) else [None]
        for layer in layers if isinstance(kinds, dict) or kinds == "longrope" else []:
            held = module.get_buffer("inv_freq" if layer is None else f"{layer}_inv_freq")
            made, _ = make(module.config, torch.device("cpu"), seq_len=original + int(long), layer_type=layer)
            held.copy_(made)
        if layers and isinstance(kinds, dict):
            module.rope_type = {**kinds, **dict.fromkeys(layers, "fixed")}  # type: ignore[assignment]
        elif kinds == "longrope":
            module.rope_type = "fixed"  # type: ignore[assignment]
