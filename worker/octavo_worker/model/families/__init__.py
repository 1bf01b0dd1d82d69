"""Families of the own decoder, a row each: the only list of them."""

from __future__ import annotations

from dataclasses import replace

from octavo_worker.model.config import DecoderConfig
from octavo_worker.model.config_file import ModelConfig
from octavo_worker.model.errors import NEXT, UnsupportedModel
from octavo_worker.model.families.family import Family
from octavo_worker.model.families.gemma4 import GEMMAS4
from octavo_worker.model.families.hybrids import HYBRIDS
from octavo_worker.model.families.kin import GEMMAS, GRANITES, OLMOS
from octavo_worker.model.families.latent import LATENT
from octavo_worker.model.families.layer_normed import LAYER_NORMED
from octavo_worker.model.families.llama import LLAMAS
from octavo_worker.model.families.mixtures import MIXTURES
from octavo_worker.model.families.refused import NOT_COMPUTED
from octavo_worker.model.families.wrappers import BOTH_DIRECTIONS, WRAPPERS, is_tied

__all__ = ["FAMILIES", "STATED", "WRAPPERS", "decoder_config", "family_of", "reject"]

FAMILIES: dict[str, Family] = {
    **LLAMAS,
    **OLMOS,
    **GEMMAS,
    **GEMMAS4,
    **GRANITES,
    **LAYER_NORMED,
    **MIXTURES,
    **HYBRIDS,
    **LATENT,
}
"""By the `model_type` of their config.json, or of its text part."""

LAYER_KINDS = {"full_attention", "sliding_attention", "attention"}
RECURRENT_KINDS = {"linear_attention", "conv", "hybrid", "mlp", "moe"}
"""Kinds of layers of families with recurrent ones, beside these."""


STATED = {name: family.stated for name, family in FAMILIES.items() if family.stated is not None}
"""Families whose files can be read without transformers."""


def reject(config: ModelConfig) -> None:
    """Raises `UnsupportedModel` for what the config alone shows; a trial run of the model finds the rest."""
    text, kind = config.get_text_config(), config.model_type
    if config.is_encoder_decoder:
        raise UnsupportedModel(f"{kind!r} is an encoder-decoder model; octavo serves decoder-only models; {NEXT}")
    if kind in BOTH_DIRECTIONS:
        raise UnsupportedModel(f"{kind!r} reads prompts in both directions; octavo serves causal models only; {NEXT}")
    if kind in NOT_COMPUTED:
        raise UnsupportedModel(f"{kind!r} computes {NOT_COMPUTED[kind]}, which octavo does not; {NEXT}")
    family = family_of(config)
    known = LAYER_KINDS if family is None or family.recurrent is None else LAYER_KINDS | RECURRENT_KINDS
    if strange := sorted(set(getattr(text, "layer_types", None) or []) - known):
        raise UnsupportedModel(
            f"{kind!r} has layers of kind {', '.join(strange)}; octavo does not compute these; {NEXT}"
        )


def family_of(config: ModelConfig) -> Family | None:
    """The family of a model, or of its text part."""
    return FAMILIES.get(_text_of(config).model_type)


def _text_of(config: ModelConfig) -> ModelConfig:
    return config.get_text_config(decoder=True) if config.model_type in WRAPPERS else config


def decoder_config(config: ModelConfig, max_model_len: int | None = None) -> DecoderConfig | None:
    """The generic decoder's view of `config`, or None if this architecture has to take the transformers route.

    LongRoPE has its long factors if `max_model_len` is more than its original context (`octavo_worker.model.longrope`).
    """
    wrapper, text, family = WRAPPERS.get(config.model_type), _text_of(config), family_of(config)
    described = None if family is None else family.describe(text, max_model_len)
    if described is None or wrapper is None:
        return described
    return replace(described, names=wrapper.names(described.names), tied=is_tied(config, text))
