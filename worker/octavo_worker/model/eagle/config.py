"""Fields of an EAGLE-3 head's config.json beyond those of the layer it consists of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_worker.model.checkpoint.names import Names
from octavo_worker.model.config import DecoderConfig
from octavo_worker.model.errors import UnsupportedModel

ARCHITECTURES = ("LlamaForCausalLMEagle3", "LlamaForCausalLM")
TRAINERS = "eagle_config"  # where some training programs write what concerns the head alone


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """`layer` is a decoder of one layer, of the target's vocabulary. The head guesses one of `draft_vocab_size` tokens,
    from the hidden states that enter the target's layers `taps`, in ascending order."""

    layer: DecoderConfig
    draft_vocab_size: int
    taps: tuple[int, ...]


def head_config(values: Mapping[str, Any], layer: DecoderConfig | None, target: DecoderConfig) -> HeadConfig:
    """From the `values` of config.json, of which `layer` is the decoder's view: of one layer, however many the file
    says there are. Raises `UnsupportedModel` for a head that is not EAGLE-3's, or not one for this target."""
    architecture = next(iter(values.get("architectures") or ()), "none")
    if architecture not in ARCHITECTURES or layer is None or layer.names != Names():
        raise UnsupportedModel(f"architecture {architecture}; EAGLE-3 heads are {' or '.join(ARCHITECTURES)}.")
    if layer.hidden_size != target.hidden_size:
        raise UnsupportedModel(
            f"its hidden size is {layer.hidden_size}, the target's {target.hidden_size}; give the head of this target."
        )
    if layer.vocab_size != target.vocab_size:
        raise UnsupportedModel(
            f"its vocabulary has {layer.vocab_size} tokens, the target's {target.vocab_size}; give the head of this "
            "target."
        )
    draft_vocab_size = values.get("draft_vocab_size") or layer.vocab_size
    if not 0 < draft_vocab_size <= layer.vocab_size:
        raise UnsupportedModel(f"draft_vocab_size {draft_vocab_size} is no part of {layer.vocab_size} tokens.")
    one = dataclasses.replace(layer, layers=layer.layers[:1])
    return HeadConfig(one, draft_vocab_size, _taps(values, len(target.layers)))


def _taps(values: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The layers whose input the head reads: 2, the middle one and the last but two, unless the file names others.

    Files count in two ways. Some name the layer whose input is meant, others the one whose output it is, which is one
    less. The lowest state that heads read is what enters layer 2: files that begin with 1 count outputs
    (https://github.com/sgl-project/sglang/pull/25454).
    """
    stated = {**(values.get(TRAINERS) or {}), **values}
    if stated.get("use_aux_hidden_state") is False:
        raise UnsupportedModel("it reads the target's last state alone, as EAGLE-1 does; give one of EAGLE-3.")
    for name in ("norm_before_residual", "norm_before_fc"):
        if stated.get(name):
            raise UnsupportedModel(f"its {name} is true, which is not computed here; give a head without it.")
    named = stated.get("eagle_aux_hidden_state_layer_ids") or (2, layers // 2, layers - 3)
    counts_outputs = named[0] == 1
    taps = tuple(sorted({layer + counts_outputs for layer in named}))
    if len(taps) != len(named) or not 0 <= taps[0] <= taps[-1] < layers:
        raise UnsupportedModel(
            f"it reads the states at layers {', '.join(map(str, named))}, which a target of {layers} layers does not "
            "have; name others as eagle_aux_hidden_state_layer_ids in its config.json, or give the head of this target."
        )
    return taps
