"""Families are what transformers computes: log-probabilities of every member, and every kind of layer has a member."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING

from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.config import AttentionLayer, Branches, Layer
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.families import FAMILIES, WRAPPERS, decoder_config

from .drive import Engine, request
from .hybrid import HYBRID
from .tiny import CONTEXT
from .wrapped import WRAPPED
from .zoo import OWN, VOCAB, precise, save

ROOT = Path(__file__).parents[2]
CLOSE = 1e-5
CLOSE_RECURRENT = 1e-4
"""To float64: in float32 transformers' chunks round otherwise than one token after another, each by about that."""
LENGTH = 200


def prompt(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(LENGTH)]


@pytest.mark.parametrize("name", OWN)
def test_log_probabilities_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """A prompt in chunks, and its answer."""
    oracle, close = precise(save(name, tmp_path, width=1.0)), CLOSE_RECURRENT if name in HYBRID else CLOSE
    sizes = {"num_blocks": 65, "max_model_len": CONTEXT}
    options = ModelOptions(model=str(tmp_path), device="cpu", dtype="float32", threads=1, **sizes)
    runner = load_runner(options)
    assert isinstance(runner.model, Decoder)
    asked = request("a", prompt(3), max_tokens=12, prompt_logprobs=0, logprobs=0)
    answers = Engine(runner, token_budget=70).run([asked])
    said = answers.tokens["a"][0]
    with torch.inference_mode():
        logits = oracle(torch.tensor([[*asked.prompt, *said]])).logits[0, :-1].log_softmax(-1)
    taken = torch.tensor([*asked.prompt, *said])[1:, None]
    found = [each.logprob for each in [*answers.prompt_logprobs["a"][1:], *answers.logprobs["a"][0]]]
    assert found == pytest.approx(logits.gather(1, taken)[:, 0].tolist(), abs=close)


@pytest.mark.parametrize("name", ["smollm3", "exaone4", "cohere2", "granite_swa-bases", "gemma3"])
def test_a_trial_step_takes_a_layer_of_each_kind(name: str, tmp_path: Path) -> None:
    """Or a kernel would run for the first time in a request."""
    save(name, tmp_path)
    options = ModelOptions(model=str(tmp_path), device="cpu", dtype="float32", num_blocks=9, threads=1)
    model = load_runner(options).model
    assert isinstance(model, Decoder)
    whole = {(shape(layer), layer.attention.rope) for layer in model.config.layers}
    with model.shortened():
        taken = [block.attention.layer for block in model._blocks]
    assert {(layer.sliding_window > 0, layer.rope) for layer in taken} == {(kind[0], rope) for kind, rope in whole}
    assert len(taken) == len(whole) + 1


def shape(layer: Layer) -> tuple[bool, bool, str, str, str]:
    """Differences from other layers of its model."""
    mixer = layer.attention
    attention = mixer.attention if isinstance(mixer, Branches) else mixer
    slides = isinstance(attention, AttentionLayer) and attention.sliding_window > 0
    is_rotated = isinstance(attention, AttentionLayer) and attention.rope is not None
    return slides, not is_rotated, layer.norms, type(layer.mlp).__name__, type(mixer).__name__


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_a_member_with_every_layer_of_its_default_config(family: str) -> None:
    everyone = [*OWN.values(), *WRAPPED.values()]
    kinds = [config.get_text_config(decoder=True).model_type for config in everyone]
    members = [decoder_config(config) for config, kind in zip(everyone, kinds, strict=True) if kind == family]
    layers = [layer for member in members if member is not None for layer in member.layers]
    default = FAMILIES[family].describe(CONFIG_MAPPING[family](), None)
    if default is not None:  # some describe another route by default
        assert {shape(layer) for layer in default.layers} <= {shape(layer) for layer in layers}
    assert layers
    attentions = [each for member in members if member is not None for each in member.attention_layers]
    assert all(each.sliding_window < LENGTH / 2 for each in attentions if each is not None)


def test_every_member_is_of_a_family() -> None:
    text = {config.get_text_config(decoder=True).model_type for config in WRAPPED.values()}
    assert {config.model_type for config in OWN.values()} | text == FAMILIES.keys()


def listed(document: str, beginning: str) -> list[str]:
    """Names in code spans of the paragraph that begins so, without those of fields."""
    text = (ROOT / document).read_text()
    paragraph = text[text.index(beginning) :].partition("\n\n")[0]
    return [name for name in re.findall(r"`([^`]+)`", paragraph) if name != "model_type"]


def test_the_lists_of_the_documentation_are_those_of_the_code() -> None:
    assert listed("docs/engine.md", "**On octavo's own decoder**") == sorted(FAMILIES)
    assert listed("docs/engine.md", "**Text parts**") == sorted(WRAPPERS)
    readme = (ROOT / "README.md").read_text()
    assert f"[{len(FAMILIES)} families](docs/engine.md#models), and the text parts of {len(WRAPPERS)} " in readme
