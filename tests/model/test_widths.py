"""Layers whose MLPs differ in width: what each computes, also where ranks share it, and the memory that all share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP

from octavo_worker.contract.step import SequenceStep
from octavo_worker.model.batch import ragged_batch
from octavo_worker.model.causal_model import CacheConfig
from octavo_worker.model.checkpoint.build import build_layers
from octavo_worker.model.checkpoint.formats import DenseFormat, Reader
from octavo_worker.model.checkpoint.source import Checkpoint
from octavo_worker.model.config import DecoderConfig
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.errors import UnsupportedModel
from octavo_worker.model.families import decoder_config
from octavo_worker.model.layers.linear import Products
from octavo_worker.model.shards import Shards, check_divisible
from octavo_worker.ranks.rank import Rank
from octavo_worker.runner.paged import PagedRunner

WIDTHS = (80, 48, 112)


def config(width: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=90, hidden_size=64, intermediate_size=width, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=None,
    )  # fmt: skip


def described() -> DecoderConfig:
    plain = decoder_config(config(80))
    assert plain is not None
    layers = zip(plain.layers, WIDTHS, strict=True)
    return replace(plain, layers=tuple(replace(x, mlp=replace(x.mlp, width=width)) for x, width in layers))


def test_each_layer_computes_with_its_own_width(tmp_path: Path) -> None:
    torch.manual_seed(1)
    oracle = LlamaForCausalLM(config(80)).eval()
    for layer, width in zip(oracle.model.layers, WIDTHS, strict=True):
        layer.mlp = LlamaMLP(config(width))
    for parameter in oracle.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 1 / parameter.shape[-1] ** 0.5)
    save_file(oracle.state_dict(), tmp_path / "model.safetensors")
    reader = Reader(Checkpoint.open(tmp_path), torch.float32, torch.device("cpu"), Products())
    model = Decoder(described(), build_layers(described(), reader, DenseFormat()), 64, uniform=False)
    runner = PagedRunner(model, CacheConfig(9, 16), 64)
    tokens = torch.randint(90, (40,)).tolist()
    with torch.inference_mode():
        wanted = oracle(torch.tensor([tokens])).logits[0]
        batch = ragged_batch([SequenceStep(tokens, 0, [1, 2, 3])], 16, 90)
        found = model.logits(model.forward(batch, None))
    assert runner.num_blocks == 9
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_ranks_share_each_width() -> None:
    shards = Shards(described(), Rank(1, 2))
    assert [layer.mlp.width for layer in shards.config.layers] == [40, 24, 56]
    assert [len(shards.down(width).depth) for width in WIDTHS] == [40, 24, 56]
    odd = described()
    layers = (*odd.layers[:2], replace(odd.layers[2], mlp=replace(odd.layers[2].mlp, width=49)))
    with pytest.raises(UnsupportedModel, match="49 columns of the MLP"):
        check_divisible(replace(odd, layers=layers), 2)
