"""A config.json read without transformers says what transformers reads out of it, or is left to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from octavo_worker.assembly.choices import choose_dtype, context_length
from octavo_worker.bench.shapes import SHAPES
from octavo_worker.contract.files import model_folder
from octavo_worker.model.config_file import FileConfig
from octavo_worker.model.config_file import read_file as read_of
from octavo_worker.model.families import STATED, decoder_config, reject

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}
SAVED: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, dtype="bfloat16"),
    "llama-3.1": LlamaConfig(**SMALL, rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3}),
    "llama-linear": LlamaConfig(**SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 7e3, "factor": 3}),
    "mistral": MistralConfig(**SMALL, sliding_window=24),
    "mistral-full": MistralConfig(**SMALL, sliding_window=None, head_dim=24),
    "qwen2": Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=40, max_window_layers=1),
    "qwen2-full": Qwen2Config(**SMALL, use_sliding_window=False, sliding_window=40),
    "qwen3": Qwen3Config(**SMALL, head_dim=24, attention_bias=True),
    "olmo2": Olmo2Config(**SMALL),
    "granite": GraniteConfig(**SMALL, embedding_multiplier=3, logits_scaling=0.5, attention_multiplier=0.2),
}
PUBLISHED = SMALL | {"rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False}
HUB: dict[str, dict[str, Any]] = {
    "llama-3.1": PUBLISHED
    | {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": {**LLAMA3, "rope_type": "llama3"}}
    | {"torch_dtype": "bfloat16", "eos_token_id": [1, 2], "pretraining_tp": 1},
    "llama-old": PUBLISHED
    | {"model_type": "llama", "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama-2": PUBLISHED | {"model_type": "llama", "rope_theta": 1e4, "rope_scaling": None, "torch_dtype": "float16"},
    "mistral": PUBLISHED | {"model_type": "mistral", "rope_theta": 1e4, "sliding_window": 64, "head_dim": None},
    "qwen2.5": PUBLISHED
    | {"model_type": "qwen2", "rope_theta": 1e6, "sliding_window": 64, "use_sliding_window": False}
    | {"max_window_layers": 2, "torch_dtype": "bfloat16"},
    "qwen3": PUBLISHED
    | {"model_type": "qwen3", "rope_theta": 1000000, "sliding_window": None, "head_dim": 32, "attention_bias": False},
    **{name: shape for name, shape in SHAPES.items() if shape["model_type"] in STATED},
}
"""As they stand on the hub, in the words of earlier versions of transformers."""


def read_file(folder: Path) -> FileConfig | None:
    return read_of(folder, STATED)


def assert_read_alike(folder: Path) -> None:
    ours, theirs = read_file(folder), AutoConfig.from_pretrained(folder, trust_remote_code=False)
    assert ours is not None
    for config in (ours, theirs):
        reject(config)
    mine, wanted = decoder_config(ours), decoder_config(theirs)
    assert mine is not None
    assert wanted is not None
    assert replace(mine, ropes={}) == replace(wanted, ropes={})
    assert mine.ropes.keys() == wanted.ropes.keys()
    for name, rope in mine.ropes.items():
        assert torch.equal(rope.inv_freq, wanted.ropes[name].inv_freq)
        assert rope.scaling == wanted.ropes[name].scaling
    assert choose_dtype("auto", ours) is choose_dtype("auto", theirs)
    assert context_length(None, ours) == context_length(None, theirs)


def written(folder: Path, values: object) -> Path:
    (folder / "config.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize("name", SAVED)
def test_what_transformers_saves_is_read_as_transformers_reads_it(tmp_path: Path, name: str) -> None:
    SAVED[name].save_pretrained(tmp_path)
    assert_read_alike(tmp_path)


@pytest.mark.parametrize("name", HUB)
def test_files_of_the_hub_are_read_as_transformers_reads_them(tmp_path: Path, name: str) -> None:
    assert_read_alike(written(tmp_path, HUB[name]))


QUANTISED: dict[str, dict[str, Any]] = {
    "gptq": {"bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    "awq": {"bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
    "fp8": {"activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "compressed-tensors": {"format": "pack-quantized", "config_groups": {}, "ignore": ["lm_head"]},
}


@pytest.mark.parametrize("method", QUANTISED)
def test_quantised_weights_leave_the_rest_of_a_config_alone(tmp_path: Path, method: str) -> None:
    stated = {"quant_method": method} | QUANTISED[method]
    assert_read_alike(written(tmp_path, HUB["llama-3.1"] | {"quantization_config": stated}))


def test_the_bundled_model_is_read_as_transformers_reads_it() -> None:
    assert_read_alike(model_folder("demo"))


def test_every_family_is_compared() -> None:
    assert {config.model_type for config in SAVED.values()} == STATED.keys()


@pytest.mark.parametrize("name", SAVED)
def test_what_a_file_leaves_out_is_left_to_transformers(tmp_path: Path, name: str) -> None:
    values = SAVED[name].to_dict()
    assert read_file(written(tmp_path, values)) is not None
    for key in STATED[values["model_type"]].fields:
        assert read_file(written(tmp_path, {k: v for k, v in values.items() if k != key})) is None, key
        assert read_file(written(tmp_path, values | {key: [1]})) is None, key


@pytest.mark.parametrize(
    "differences",
    [
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0}},
        {"rope_parameters": {"rope_type": "default"}},
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}, "rope_theta": 1e4}},
        {"partial_rotary_factor": 0.5},
        {"hidden_size": 66},
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_transformers(tmp_path: Path, differences: dict[str, Any]) -> None:
    values = SAVED["llama"].to_dict()
    assert read_file(written(tmp_path, values | differences)) is None


def test_other_families_and_broken_files_are_left_to_transformers(tmp_path: Path) -> None:
    assert read_file(tmp_path) is None
    assert read_file(written(tmp_path, Gemma2Config(**SMALL).to_dict())) is None
    assert read_file(written(tmp_path, [1])) is None
    assert read_file(written(tmp_path, {})) is None
    (tmp_path / "config.json").write_bytes(b"\xff{")
    assert read_file(tmp_path) is None
