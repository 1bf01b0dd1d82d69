"""Checkpoints as transformers writes them arrive unchanged in the fused tensors; wrong ones are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Phi3Config, PreTrainedConfig
from transformers.utils import logging

from octavo_worker.model.checkpoint.build import build_layers
from octavo_worker.model.checkpoint.formats import DenseFormat, Reader
from octavo_worker.model.checkpoint.source import Checkpoint, Cut, RandomWeights, WeightSource
from octavo_worker.model.decoder import DecoderLayers
from octavo_worker.model.errors import CheckpointError
from octavo_worker.model.families import decoder_config
from octavo_worker.model.layers.linear import Products

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
}
LLAMA = LlamaConfig(**SMALL)
GPT2 = GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)


def checkpoint(folder: Path, config: PreTrainedConfig, shard_size: str = "5GB") -> dict[str, torch.Tensor]:
    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False).float()
    model.save_pretrained(folder, max_shard_size=shard_size)
    return dict(model.state_dict())


def load(folder: Path, config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> DecoderLayers:
    return built(config, Checkpoint.open(folder), dtype)


def built(config: PreTrainedConfig, source: WeightSource, dtype: torch.dtype = torch.float32) -> DecoderLayers:
    described = decoder_config(config)
    assert described is not None
    return build_layers(described, Reader(source, dtype, torch.device("cpu"), Products()), DenseFormat())


def test_separate_projections_are_stacked(tmp_path: Path) -> None:
    saved = checkpoint(tmp_path, LLAMA)
    block = load(tmp_path, LLAMA).blocks[1]
    at = "model.layers.1."
    qkv = torch.cat([saved[f"{at}self_attn.{p}_proj.weight"] for p in "qkv"])
    up = torch.cat([saved[f"{at}mlp.{p}_proj.weight"] for p in ("gate", "up")])
    assert torch.equal(block.attention.qkv.weight, qkv)
    assert torch.equal(block.mlp.up.weight, up)
    assert torch.equal(block.attention.out.weight, saved[f"{at}self_attn.o_proj.weight"])


def test_fused_projections_are_taken_as_they_are(tmp_path: Path) -> None:
    config = Phi3Config(**SMALL)
    saved = checkpoint(tmp_path, config)
    block = load(tmp_path, config).blocks[0]
    assert torch.equal(block.attention.qkv.weight, saved["model.layers.0.self_attn.qkv_proj.weight"])
    assert torch.equal(block.mlp.up.weight, saved["model.layers.0.mlp.gate_up_proj.weight"])


def test_conv1d_matrices_are_transposed(tmp_path: Path) -> None:
    saved = checkpoint(tmp_path, GPT2)
    block = load(tmp_path, GPT2).blocks[0]
    assert torch.equal(block.attention.qkv.weight, saved["transformer.h.0.attn.c_attn.weight"].T)
    assert torch.equal(block.attention.qkv.bias, saved["transformer.h.0.attn.c_attn.bias"])


def test_gpt2_checkpoints_without_prefix_load_too(tmp_path: Path) -> None:
    checkpoint(tmp_path, GPT2)
    file = tmp_path / "model.safetensors"
    save_file({name.removeprefix("transformer."): t for name, t in load_file(file).items()}, file)
    assert load(tmp_path, GPT2).positions is not None


def test_shards_give_the_same_weights_as_one_file(tmp_path: Path) -> None:
    checkpoint(tmp_path / "one", LLAMA)
    checkpoint(tmp_path / "many", LLAMA, shard_size="10KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    one, many = load(tmp_path / "one", LLAMA), load(tmp_path / "many", LLAMA)
    assert torch.equal(one.head.weight, many.head.weight)
    for a, b in zip(one.blocks, many.blocks, strict=True):
        assert torch.equal(a.attention.qkv.weight, b.attention.qkv.weight)
        assert torch.equal(a.mlp.down.weight, b.mlp.down.weight)


def test_tied_head_is_the_embedding_itself(tmp_path: Path) -> None:
    config = LlamaConfig(**SMALL, tie_word_embeddings=True)
    checkpoint(tmp_path, config)
    weights = load(tmp_path, config)
    assert weights.head.weight is weights.embed


def test_tied_checkpoint_may_store_the_head_twice(tmp_path: Path) -> None:
    config = LlamaConfig(**SMALL, tie_word_embeddings=True)
    saved = checkpoint(tmp_path, config)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {"lm_head.weight": saved["model.embed_tokens.weight"].clone()}, file)
    weights = load(tmp_path, config)
    assert weights.head.weight is weights.embed


def test_a_head_that_differs_counts_whatever_the_config_says(tmp_path: Path) -> None:
    config = LlamaConfig(**SMALL, tie_word_embeddings=True)
    saved = checkpoint(tmp_path, config)
    file = tmp_path / "model.safetensors"
    head = saved["model.embed_tokens.weight"] + 1
    save_file(load_file(file) | {"lm_head.weight": head}, file)
    assert torch.equal(load(tmp_path, config).head.weight, head)


def test_other_files_beside_the_model_are_left_alone(tmp_path: Path) -> None:
    checkpoint(tmp_path, LLAMA)
    save_file({"lora.weight": torch.zeros(2)}, tmp_path / "adapter_model.safetensors")
    load(tmp_path, LLAMA)


def test_weights_are_converted_to_the_dtype_asked_for(tmp_path: Path) -> None:
    saved = checkpoint(tmp_path, LLAMA)
    weights = load(tmp_path, LLAMA, torch.bfloat16)
    assert torch.equal(weights.embed, saved["model.embed_tokens.weight"].bfloat16())


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    checkpoint(tmp_path, LLAMA)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' is missing"):
        load(tmp_path, LLAMA)


def test_unexpected_tensor_is_named(tmp_path: Path) -> None:
    checkpoint(tmp_path, LLAMA)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {"model.layers.2.mlp.up_proj.weight": torch.zeros(3)}, file)
    with pytest.raises(CheckpointError, match=r"no place for: model\.layers\.2\.mlp\.up_proj\.weight"):
        load(tmp_path, LLAMA)


def test_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    checkpoint(tmp_path, LLAMA)
    with pytest.raises(CheckpointError, match=r"'model\.embed_tokens\.weight' has shape \(50, 32\).*\(51, 32\)"):
        load(tmp_path, LlamaConfig(**{**SMALL, "vocab_size": 51}))


def test_missing_shard_is_named(tmp_path: Path) -> None:
    checkpoint(tmp_path, LLAMA, shard_size="10KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    gone = index["weight_map"]["lm_head.weight"]
    (tmp_path / gone).unlink()
    with pytest.raises(CheckpointError, match=gone):
        load(tmp_path, LLAMA)


def test_pickled_weights_are_refused_with_the_way_to_convert(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match="save_pretrained"):
        Checkpoint.open(tmp_path)


def test_empty_folder_points_to_dummy_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--load-format dummy"):
        Checkpoint.open(tmp_path)


def test_a_head_is_compared_with_the_embedding_once_both_have_been_read(tmp_path: Path) -> None:
    """A streamed checkpoint's reads end with `finish`."""

    class Late(Checkpoint):
        def read(self, name: str, target: torch.Tensor, transposed: bool = False, cut: Cut | None = None) -> None:
            target.zero_()
            reads.append((name, target, transposed))

        def finish(self, has_no_use: Callable[[str], bool]) -> None:
            for read in reads:
                super().read(*read)
            super().finish(has_no_use)

    reads: list[tuple[str, torch.Tensor, bool]] = []
    config = LlamaConfig(**SMALL, tie_word_embeddings=True)
    saved = checkpoint(tmp_path, config)
    file = tmp_path / "model.safetensors"
    head = saved["model.embed_tokens.weight"] + 1
    save_file(load_file(file) | {"lm_head.weight": head}, file)
    assert torch.equal(built(config, Late.open(tmp_path)).head.weight, head)


def test_dummy_weights_depend_on_the_seed_alone() -> None:
    def head(seed: int) -> torch.Tensor:
        return built(LLAMA, RandomWeights(seed, 1.0, torch.device("cpu"))).head.weight

    assert torch.equal(head(1), head(1))
    assert not torch.equal(head(1), head(2))
