"""Text parts of models that read images or sound: served from the folder as transformers saves it, with the answers of
the text model, and with nothing of the towers read."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForMultimodalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
from transformers.utils import logging

from octavo_worker.assembly.inspection import inspect
from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.files import end_ids
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import ModelRunner
from octavo_worker.model.checkpoint.source import Checkpoint
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.errors import CheckpointError, UnsupportedModel
from octavo_worker.model.families import WRAPPERS, decoder_config

from .drive import Engine, request
from .hybrid import HYBRID_WRAPPED
from .test_families import CLOSE, CLOSE_RECURRENT, precise
from .wrapped import WRAPPED
from .zoo import VOCAB, widen

FILE = "model.safetensors"
KIMI_LAYERS = ("language_model.model.blocks.", "language_model.model.layers.")


def prompt(length: int = 120) -> list[int]:
    rng = random.Random(length)
    return [rng.randrange(VOCAB) for _ in range(length)]


def saved(name: str, folder: Path) -> PreTrainedModel:
    logging.disable_progress_bar()
    torch.manual_seed(sum(map(ord, name)))
    made = AutoModelForMultimodalLM.from_config(WRAPPED[name], attn_implementation="eager", trust_remote_code=False)
    model: PreTrainedModel = made.float().eval()
    widen(model, 1.0)
    model.save_pretrained(folder)
    if name == "kimi_k25":  # transformers names text layers as it does those of the tower, and published files do not
        rewritten(folder, lambda stored: {key.replace(*KIMI_LAYERS): tensor for key, tensor in stored.items()})
    return model


def load(folder: Path, **more: Any) -> ModelRunner:
    fixed = {"device": "cpu", "dtype": "float32", "num_blocks": 65, "threads": 1}
    return load_runner(ModelOptions(model=str(folder), **fixed | more))  # type: ignore[arg-type]


def logprobs(runner: ModelRunner) -> list[float]:
    asked = request("a", prompt(), max_tokens=1, prompt_logprobs=0)
    found = Engine(runner, token_budget=50).run([asked]).prompt_logprobs["a"]
    assert found is not None
    return [each.logprob for each in found[1:] if each is not None]


def expected(name: str, model: PreTrainedModel) -> list[float]:
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt()])).logits[0]
    if name == "aya_vision":  # its class leaves out what the text model's own does
        logits = logits * model.config.text_config.logit_scale
    taken = torch.tensor(prompt())[1:, None]
    result: list[float] = logits[:-1].log_softmax(-1).gather(1, taken)[:, 0].tolist()
    return result


def rewritten(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(change(load_file(folder / FILE)), folder / FILE)


@pytest.mark.parametrize("name", WRAPPED)
def test_a_folder_answers_as_its_text_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = saved(name, tmp_path)
    read: list[str] = []
    plain = Checkpoint.read

    def noted(self: Checkpoint, name: str, *more: Any, **others: Any) -> None:
        read.append(name)
        plain(self, name, *more, **others)

    monkeypatch.setattr(Checkpoint, "read", noted)
    runner = load(tmp_path)
    assert isinstance(runner.model, Decoder)
    close = CLOSE
    if name in HYBRID_WRAPPED:
        model, close = precise(model), 2 * CLOSE_RECURRENT
    assert logprobs(runner) == pytest.approx(expected(name, model), abs=close)
    towers = WRAPPERS[WRAPPED[name].model_type].towers
    assert not [one for one in read if any(f"{tower}." in one for tower in towers)]


def newer(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Names as transformers has them inside."""
    renamed = {}
    for name, tensor in tensors.items():
        text = name.removeprefix("language_model.")
        inner = text.replace("model.", "model.language_model.", 1) if text != name else f"model.{name}"
        renamed[text if text.startswith("lm_head") else inner] = tensor
    return renamed


@pytest.mark.parametrize("name", ["llava", "gemma3", "voxtral"])
def test_names_of_the_newer_form_are_found_as_well(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    before = logprobs(load(tmp_path))
    rewritten(tmp_path, newer)
    assert any(one.startswith("model.language_model.") for one in load_file(tmp_path / FILE))
    assert logprobs(load(tmp_path)) == before


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("llava", "language_model.model.layers.1.mlp.up_proj.weight"),
        ("llava", "language_model.lm_head.weight"),
        ("qwen2_vl", "model.layers.2.self_attn.k_proj.bias"),
        ("qwen3_vl", "model.language_model.layers.0.self_attn.q_norm.weight"),
        ("smolvlm", "model.text_model.embed_tokens.weight"),
    ],
)
def test_a_missing_tensor_of_the_text_part_is_an_error(name: str, lost: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    rewritten(tmp_path, lambda tensors: {one: tensor for one, tensor in tensors.items() if one != lost})
    with pytest.raises(CheckpointError, match=rf"tensor '\S*{lost.removeprefix('language_model.')}' is missing"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "surplus"),
    [
        ("llava", "language_model.model.layers.3.mlp.up_proj.weight"),
        ("qwen2_vl", "model.layers.0.self_attn.o_proj.bias"),
        ("qwen3_vl", "model.language_model.layers.0.visual.weight"),
        ("gemma3", "audio_tower.weight"),
    ],
)
def test_a_tensor_that_is_none_of_the_towers_is_refused(name: str, surplus: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    rewritten(tmp_path, lambda tensors: {**tensors, surplus: torch.ones(64)})
    with pytest.raises(CheckpointError, match=f"no place for: {surplus}"):
        load(tmp_path)


def test_the_outer_config_says_whether_the_head_is_the_embedding(tmp_path: Path) -> None:
    saved("mistral3", tmp_path)
    assert not any("lm_head" in name for name in load_file(tmp_path / FILE))
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["tie_word_embeddings"], config["text_config"]["tie_word_embeddings"]) == (True, False)
    assert load(tmp_path).numerics
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(CheckpointError, match=r"lm_head\.weight' is missing"):
        load(tmp_path)


def test_the_head_of_a_text_part_is_not_quantised(tmp_path: Path) -> None:
    saved("llava", tmp_path)
    products = inspect(ModelOptions(model=str(tmp_path), device="cpu", quantization="int8")).products
    assert products is not None
    forms = {product.name: product.form.partition(",")[0] for product in products}
    assert forms == {"qkv": "int8", "out": "int8", "gate, up": "int8", "down": "int8", "head": "float32"}
    assert load(tmp_path, quantization="int8").numerics.endswith("weights int8 by int8")


def test_ends_of_a_text_part_are_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": [7, 9]}}))
    assert end_ids(tmp_path) == (7, 9)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 3, "text_config": {"eos_token_id": 7}}))
    assert end_ids(tmp_path) == (3,)


def test_a_model_that_reads_prompts_in_both_directions_is_refused(tmp_path: Path) -> None:
    CONFIG_MAPPING["paligemma"]().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="both directions"):
        load(tmp_path, load_format="dummy")


def test_a_text_part_of_several_residual_streams_is_refused_by_name(tmp_path: Path) -> None:
    CONFIG_MAPPING["gemma3n"]().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"AltUp.*serve another model"):
        load(tmp_path, load_format="dummy")


LACKING = {"aya_vision"}  # whose default config is of a tower that cannot be built
STATED = {"vision_config": {}, "audio_config": {}}
"""Towers that are stated, for wrappers that have none by default."""


@pytest.mark.full(but=4)
@pytest.mark.parametrize("name", sorted(WRAPPERS.keys() - LACKING))
def test_every_tensor_has_its_place(name: str) -> None:
    """By the names of transformers' own class, built without memory."""
    config = CONFIG_MAPPING[name](**STATED if name.startswith("gemma4") else {})
    text = config.get_text_config(decoder=True)
    text.num_hidden_layers = 2
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:2]
    described = decoder_config(config)
    assert described is not None
    kind = getattr(transformers, class_of(name))
    with torch.device("meta"):
        names = list(kind(config).state_dict())
    roots = [root for root in described.names.prefixes if f"{root}{described.names.final_norm}.weight" in names]
    left = [one for one in names if not one.startswith((roots[0], *described.names.heads))]
    assert left
    assert [one for one in left if not described.names.has_no_use(one)] == []
    assert not [one for one in names if one.startswith(roots[0]) and described.names.has_no_use(one)]


def class_of(name: str) -> str:
    """The class that generates."""
    known = MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.get(name)
    wanted = f"{name.replace('_', '')}forconditionalgeneration"
    return known or next(each for each in dir(transformers) if each.lower() == wanted)
