"""Checkpoints as they lie about: names with other prefixes, tied tables stored once, shards, indices and byte order
marks, on either route."""

from __future__ import annotations

import codecs
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, StableLmConfig
from transformers.utils import logging

from octavo.terms.conversation import Message
from octavo.terms.models import JobRequest
from octavo_worker.agent.prompts.tokens import Prompts
from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.files import model_folder, tensor_files
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model import CheckpointError, UnsupportedModel
from octavo_worker.model.decoder import Decoder

SMALL: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
FAMILIES = pytest.mark.parametrize("family", [LlamaConfig, StableLmConfig], ids=["decoder", "transformers"])
EMBED, HEAD, UP = "model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.up_proj.weight"


def saved(folder: Path, family: type[PreTrainedConfig], **differences: Any) -> dict[str, torch.Tensor]:
    """The tensors of a new checkpoint, of which none is tied to another."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = family(**SMALL, **differences)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def rows(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The embedding and the head that a runner has."""
    model = load_runner(ModelOptions(model=str(folder), device="cpu", dtype="float32", num_blocks=5, threads=1)).model
    if isinstance(model, Decoder):
        return model.layers.embed, model.layers.head.weight
    return model.model.get_input_embeddings().weight, model.model.get_output_embeddings().weight


def restore(folder: Path, tensors: dict[str, torch.Tensor], name: str = "model.safetensors") -> None:
    save_file({key: tensor.clone() for key, tensor in tensors.items()}, folder / name, metadata={"format": "pt"})


@FAMILIES
@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_tied_table_may_be_stored_as_the_head_alone(tmp_path: Path, family: Any, prefix: str) -> None:
    tensors = saved(tmp_path, family, tie_word_embeddings=True)
    table = tensors.pop(EMBED)
    named = {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()}
    restore(tmp_path, named | {HEAD: table})
    embed, head = rows(tmp_path)
    assert torch.equal(embed, table)
    assert embed.data_ptr() == head.data_ptr()


@FAMILIES
def test_names_without_the_models_own_prefix_load(tmp_path: Path, family: Any) -> None:
    tensors = saved(tmp_path, family)
    restore(tmp_path, {name.removeprefix("model."): tensor for name, tensor in tensors.items()})
    embed, head = rows(tmp_path)
    assert torch.equal(embed, tensors[EMBED])
    assert torch.equal(head, tensors[HEAD])


def test_a_head_is_no_embedding_where_they_are_not_tied(tmp_path: Path) -> None:
    tensors = saved(tmp_path, LlamaConfig)
    del tensors[EMBED]
    restore(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=r"'model\.embed_tokens\.weight' is missing"):
        rows(tmp_path)


@pytest.mark.parametrize("prefix", ["language_model.", "transformer.", "base_model.model."])
def test_names_of_a_larger_model_are_refused_with_the_name_that_was_found(tmp_path: Path, prefix: str) -> None:
    tensors = saved(tmp_path, LlamaConfig)
    restore(tmp_path, {prefix + name: tensor for name, tensor in tensors.items()})
    with pytest.raises(CheckpointError, match=f"'{prefix}model.norm.weight' where 'model.norm.weight' is expected"):
        rows(tmp_path)


@FAMILIES
def test_a_tensor_in_two_shards_is_refused_unless_an_index_chooses(tmp_path: Path, family: Any) -> None:
    tensors = saved(tmp_path, family)
    (tmp_path / "model.safetensors").unlink()
    restore(tmp_path, tensors, "a.safetensors")
    restore(tmp_path, {UP: tensors[UP] + 1, EMBED: tensors[EMBED] + 1}, "b.safetensors")
    with pytest.raises(CheckpointError, match=r"is in a\.safetensors and in b\.safetensors"):
        rows(tmp_path)
    places = dict.fromkeys(tensors, "a.safetensors") | {EMBED: "b.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert torch.equal(rows(tmp_path)[0], tensors[EMBED] + 1)


@FAMILIES
def test_a_whole_file_goes_before_an_index_of_others(tmp_path: Path, family: Any) -> None:
    """As in transformers: the index is left over."""
    tensors = saved(tmp_path, family)
    restore(tmp_path, {name: tensor + 1 for name, tensor in tensors.items()}, "old.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "old.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert tensor_files(tmp_path) == [tmp_path / "model.safetensors"]
    assert torch.equal(rows(tmp_path)[0], tensors[EMBED])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "index.json is no JSON .*; download it again"),
        ("[]", "index.json is no JSON object; download it again"),
        ('{"metadata": {}}', "index.json has no weight_map"),
        ('{"weight_map": {"lm_head.weight": 1}}', "index.json has no weight_map"),
        ('{"weight_map": {"lm_head.weight": "gone.safetensors"}}', "names files that are not there: gone.safetensors"),
        ('{"weight_map": {"lost": "a.safetensors"}}', "names 'lost' in a.safetensors, which has no such tensor"),
    ],
)
@FAMILIES
def test_a_bad_index_is_told_by_what_is_wrong(tmp_path: Path, family: Any, content: str, sentence: str) -> None:
    saved(tmp_path, family)
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match=sentence):
        rows(tmp_path)


@FAMILIES
@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16"])
def test_configs_and_indices_may_have_a_byte_order_mark(tmp_path: Path, family: Any, mark: str) -> None:
    tensors = saved(tmp_path, family)
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "a.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for path in tmp_path.glob("*.json"):
        path.write_bytes(path.read_text(encoding="utf-8").encode(mark))
    assert torch.equal(rows(tmp_path)[0], tensors[EMBED])


@FAMILIES
def test_a_config_that_is_no_json_is_told_once(tmp_path: Path, family: Any) -> None:
    saved(tmp_path, family)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedModel, match=r"^\S*config.json is no JSON .*; download it again\.$"):
        rows(tmp_path)


def test_a_tokenizers_files_may_have_a_byte_order_mark(tmp_path: Path) -> None:
    """Editors write one; it is no part of a template."""
    plain = model_folder("demo")
    marked = shutil.copytree(plain, tmp_path / "marked")
    config = json.loads((plain / "tokenizer_config.json").read_text())
    template = config.pop("chat_template", None) or (plain / "chat_template.jinja").read_text()
    (marked / "chat_template.jinja").write_text(template)
    (marked / "tokenizer_config.json").write_text(json.dumps(config))
    for path in [*marked.glob("*.json"), marked / "chat_template.jinja"]:
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    request = JobRequest(model="demo", messages=(Message(role="user", content="Who goes there?"),))
    ours, theirs = Prompts(marked), Prompts(plain)
    assert ours.encode(request).ids == theirs.encode(request).ids
    assert ours.end_ids == theirs.end_ids
