"""gpt-oss as it is released, with experts in MXFP4."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from released_gpt_oss import CONFIG, VOCAB, released
from safetensors.torch import load_file, save_file
from torch import Tensor

from octavo_worker.assembly.inspection import inspect
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import SequenceStep
from octavo_worker.model.batch import ragged_batch
from octavo_worker.model.causal_model import CacheConfig
from octavo_worker.model.checkpoint.formats import Reader, format_of
from octavo_worker.model.checkpoint.mixtures import MixtureReader
from octavo_worker.model.checkpoint.source import Checkpoint, Cut
from octavo_worker.model.config import MixtureMlp
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.errors import CheckpointError
from octavo_worker.model.families import decoder_config
from octavo_worker.model.layers.linear import Products
from octavo_worker.model.layers.mixture import ExpertMlp
from octavo_worker.model.layers.norm import Input
from octavo_worker.model.shards import Shards
from octavo_worker.ranks.rank import Rank
from octavo_worker.runner.base import BaseRunner

LENGTH = 90


def loaded(folder: Path, **more: Any) -> Decoder:
    model, _ = load_model(ModelOptions(**{"model": str(folder), "dtype": "float32", "device": "cpu"} | more))
    assert isinstance(model, Decoder)
    return model


def test_log_probabilities_are_those_of_transformers(tmp_path: Path) -> None:
    """With sinks, a window shorter than the prompt in every other layer, and YaRN without truncation."""
    oracle, model = released(tmp_path), loaded(tmp_path)
    assert {layer.attention.sliding_window for layer in model.config.layers} == {0, 24}
    assert model.config.sinks
    assert CONFIG.rope_parameters["rope_type"] == "yarn"
    assert not CONFIG.rope_parameters["truncate"]
    ids = [random.Random(2).randrange(VOCAB) for _ in range(LENGTH)]
    BaseRunner(model, CacheConfig(9, 16), LENGTH, LENGTH)
    batch = ragged_batch([SequenceStep(ids, 0, [1, 2, 3, 4, 5, 6])], 16, VOCAB)
    with torch.inference_mode():
        ours = model.logits(model.forward(batch, None)).log_softmax(-1)
        wanted = oracle(torch.tensor([ids])).logits[0].log_softmax(-1)
    assert (ours - wanted).abs().max() < 1e-5


def test_experts_are_in_four_bits_and_all_else_is_not(tmp_path: Path) -> None:
    released(tmp_path)
    mlp = loaded(tmp_path).layers.blocks[0].mlp
    assert isinstance(mlp, ExpertMlp)
    assert mlp.mixture.up.forms == mlp.mixture.down.forms == {"fp4g32"}
    found = {product.name: product.form for product in inspect(options(tmp_path)).products or []}
    assert found["experts: gate, up"].startswith("fp4 (e2m1), groups of 32")
    assert found["qkv"] == "float32"


def options(folder: Path) -> ModelOptions:
    return ModelOptions(model=str(folder), device="cpu", dtype="float32")


def test_random_weights_have_the_form(tmp_path: Path) -> None:
    released(tmp_path)
    assert loaded(tmp_path, load_format="dummy").forms == {"fp4g32"}


@pytest.mark.parametrize("lost", ["gate_up_proj_scales", "down_proj_blocks", "gate_up_proj_bias"])
def test_a_missing_tensor_is_named(lost: str, tmp_path: Path) -> None:
    released(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"model.layers.1.mlp.experts.{lost}"]
    save_file(tensors, tmp_path / "model.safetensors")
    module, _, ending = lost.rpartition("_")
    with pytest.raises(CheckpointError, match=rf"experts\.{module}\.{ending}' is missing"):
        loaded(tmp_path)


def test_the_parts_of_ranks_sum_up_to_the_whole(tmp_path: Path) -> None:
    released(tmp_path)
    described = decoder_config(CONFIG)
    assert described is not None
    mlp = described.layers[0].mlp
    assert isinstance(mlp, MixtureMlp)

    def made(rank: Rank | None, x: Tensor) -> Tensor:
        reader = Reader(Checkpoint.open(tmp_path), torch.float32, torch.device("cpu"), Products())
        shards = None if rank is None else Shards(described, rank)
        return (
            MixtureReader(described, reader, format_of(tmp_path), shards).read("model.layers.0.", mlp).apply(Input(x))
        )

    x = torch.randn(9, CONFIG.hidden_size, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(made(Rank(0, 2), x) + made(Rank(1, 2), x), made(None, x), rtol=0, atol=2e-5)


class Recorded(Checkpoint):
    """Remembers how many bytes of which codes were asked for."""

    asked: ClassVar[list[int]] = []

    def read(self, name: str, target: Tensor, transposed: bool = False, cut: Cut | None = None) -> None:
        if name.endswith("blocks"):
            self.asked.append(target.numel())
        super().read(name, target, transposed, cut)


@pytest.mark.parametrize("experts", ["split", "whole"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_all_codes_of_a_rank_are_read_at_once_and_no_others(ranks: int, experts: str, tmp_path: Path) -> None:
    """A read for each expert takes as long as its bytes do from memory."""
    released(tmp_path)
    described = decoder_config(CONFIG)
    assert described is not None
    mlp = described.layers[0].mlp
    assert isinstance(mlp, MixtureMlp)
    tensors = load_file(tmp_path / "model.safetensors")
    blocks = [tensors[f"model.layers.0.mlp.experts.{name}_proj_blocks"] for name in ("gate_up", "down")]
    for index in range(ranks):
        Recorded.asked.clear()
        reader = Reader(Recorded.open(tmp_path), torch.float32, torch.device("cpu"), Products())
        shards = Shards(described, Rank(index, ranks), experts) if ranks > 1 else None
        MixtureReader(described, reader, format_of(tmp_path), shards).read("model.layers.0.", mlp)
        assert Recorded.asked == [stack.numel() // ranks for stack in blocks]
