"""Families of the own decoder, a row each: the only list of them."""

from __future__ import annotations

from octavo_worker.model.config import DecoderConfig
from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.errors import NEXT, UnsupportedModel
from octavo_worker.model.families.family import Family
from octavo_worker.model.families.kin import GEMMAS, GRANITES, OLMOS
from octavo_worker.model.families.layer_normed import LAYER_NORMED
from octavo_worker.model.families.llama import LLAMAS

__all__ = ["FAMILIES", "STATED", "decoder_config", "reject"]

FAMILIES: dict[str, Family] = {**LLAMAS, **OLMOS, **GEMMAS, **GRANITES, **LAYER_NORMED}
"""By the `model_type` of their config.json."""

LAYER_KINDS = {"full_attention", "sliding_attention", "attention"}


STATED = {name: family.stated for name, family in FAMILIES.items() if family.stated is not None}
"""Families whose files can be read without transformers."""


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
    return family.describe(config, max_model_len) if family else None
