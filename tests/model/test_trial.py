"""A model on transformers' code is tried without its weights, whatever their size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_configs import tiny
from transformers import AutoModelForCausalLM, BloomConfig, MixtralConfig, PhiConfig

from octavo_worker.assembly.inspection import inspect
from octavo_worker.assembly.loading import load_runner
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.errors import CheckpointError, ModelError, UnsupportedModel
from octavo_worker.model.outline import Outlining, outlined
from octavo_worker.model.trial import tried


def options(folder: Path, **more: Any) -> ModelOptions:
    return ModelOptions(**{"model": str(folder), "device": "cpu", "threads": 1, "num_blocks": 9} | more)


def refusals(folder: Path, **more: Any) -> str:
    """The one that a load and the doctor have in common."""
    with pytest.raises(ModelError) as loaded:
        load_runner(options(folder, **more))
    with pytest.raises(type(loaded.value)) as inspected:
        inspect(options(folder, **more))
    assert str(inspected.value) == str(loaded.value)
    return str(loaded.value)


def test_the_outline_of_a_large_model_takes_no_memory() -> None:
    """50 billion parameters."""
    config = MixtralConfig(hidden_size=8192, intermediate_size=16384, num_hidden_layers=16, num_local_experts=8)
    before = psutil.Process().memory_info().rss
    model = outlined(config, Outlining(), dtype=torch.bfloat16)
    assert sum(parameter.numel() for parameter in model.parameters()) > 50e9
    trial = tried(config, torch.bfloat16)
    assert psutil.Process().memory_info().rss - before < 1 << 30
    assert [spec and spec.heads for spec in trial.cache] == [32] * 16


def test_positions_that_a_model_counts_by_itself_show_in_its_outline() -> None:
    config = tiny("bart", hidden_size=512)
    assert config is not None
    with pytest.raises(UnsupportedModel, match="counts positions by itself"):
        tried(config, torch.float32)


def test_weights_are_not_read_before_a_refusal(tmp_path: Path) -> None:
    BloomConfig(hidden_size=32, n_layer=1, n_head=4).save_pretrained(tmp_path)
    assert "called transformers' attention interface for 0 of 1 layers" in refusals(tmp_path, max_model_len=64)


@pytest.mark.parametrize("damage", ["missing", "shape", "joined", "surplus"])
def test_tensors_that_do_not_fit_are_refused_in_the_worker_s_words(damage: str, tmp_path: Path) -> None:
    config = tiny("phimoe")
    assert config is not None
    AutoModelForCausalLM.from_config(config, trust_remote_code=False).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    norm, expert = "model.layers.0.input_layernorm.weight", "model.layers.0.block_sparse_moe.experts.0.w1.weight"
    assert tensors.keys() >= {norm, expert}
    match damage:
        case "missing":
            del tensors[norm]
        case "shape":
            tensors[norm] = tensors[norm][1:].clone()
        case "joined":
            tensors[expert] = tensors[expert][1:].clone()
        case "surplus":
            tensors["model.other.weight"] = torch.zeros(3)
    save_file(tensors, file)
    if damage == "surplus":  # as transformers has it
        load_runner(options(tmp_path))
        assert inspect(options(tmp_path)).products is None
        return
    wanted = "cannot be joined" if damage == "joined" else norm
    assert wanted in refusals(tmp_path)


@pytest.mark.parametrize("kind", ["llama", "ernie4_5"])
@pytest.mark.parametrize(("head", "reason"), [(20, "multiple of 8 up to 512, not 20"), (520, "not 520")])
def test_heads_without_a_kernel(kind: str, head: int, reason: str, tmp_path: Path) -> None:
    config = tiny(kind, head_dim=head)
    assert config is not None
    config.save_pretrained(tmp_path)
    assert reason in refusals(tmp_path, load_format="dummy")


def test_heads_that_do_not_share_evenly(tmp_path: Path) -> None:
    config = tiny("llama", num_key_value_heads=3)
    assert config is not None
    config.save_pretrained(tmp_path)
    assert "4 query heads cannot share 3 heads" in refusals(tmp_path, load_format="dummy")


def test_yarn_beyond_the_context_that_the_config_states(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 128}
    config = tiny("qwen2", rope_parameters=yarn)
    assert config is not None
    config.save_pretrained(tmp_path)
    step = "its YaRN reaches 512 tokens: set max_position_embeddings in config.json to 512"
    assert step in refusals(tmp_path, load_format="dummy", max_model_len=512)
    assert step in inspect(options(tmp_path, load_format="dummy")).advice
    load_model(options(tmp_path, load_format="dummy"))
    assert f"serving 128 tokens; {step}" in caplog.text
    caplog.clear()
    stated = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stated | {"max_position_embeddings": 512}))
    assert load_model(options(tmp_path, load_format="dummy"))[1] == 512
    assert inspect(options(tmp_path, load_format="dummy")).advice == ""
    assert caplog.text == ""


def test_a_context_below_one_is_none(tmp_path: Path) -> None:
    PhiConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=40,
        max_position_embeddings=-1,
    ).save_pretrained(tmp_path)  # fmt: skip
    assert "names no longest context; give --max-model-len" in refusals(tmp_path, load_format="dummy")


def test_a_missing_file_is_refused_alike(tmp_path: Path) -> None:
    config = tiny("phi")
    assert config is not None
    config.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors weights"):
        inspect(options(tmp_path))
    assert "holds no .safetensors weights" in refusals(tmp_path)
