"""The name of a worker's arithmetic tells whose code computes a model, so that one that moves is no equal of before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from transformers import LlamaConfig, PhiConfig, PreTrainedConfig

from octavo_worker.assembly.models import load_model
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.causal_model import CacheConfig
from octavo_worker.model.numerics import DECODER, numerics
from octavo_worker.runner.paged import PagedRunner

SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def named(folder: Path, config: PreTrainedConfig, *, decoders: bool = True) -> str:
    config.save_pretrained(folder)
    options = ModelOptions(model=str(folder), device="cpu", dtype="float32", load_format="dummy", threads=1)
    model, context = load_model(options, decoders=decoders)
    return PagedRunner(model, CacheConfig(9, 16), context).numerics


def test_the_own_decoder_is_named_with_its_revision(tmp_path: Path) -> None:
    assert f" {DECODER} float32 float32" in named(tmp_path, LlamaConfig(**SMALL))


@pytest.mark.parametrize(("kind", "decoders"), [(PhiConfig, True), (LlamaConfig, False)])
def test_transformers_code_is_named_with_its_version(
    kind: type[PreTrainedConfig], decoders: bool, tmp_path: Path
) -> None:
    assert f" transformers-{transformers.__version__}-" in named(tmp_path, kind(**SMALL), decoders=decoders)


def test_workers_of_two_routes_or_revisions_are_not_equal() -> None:
    def of(route: str) -> str:
        return numerics(torch.device("cpu"), torch.float32, torch.float32, route=route)

    assert len({of("decoder-1"), of("decoder-2"), of("transformers-5.24.0-1"), of("transformers-5.24.1-1")}) == 4


def test_prompts_by_chunks_are_no_equal_of_a_walk() -> None:
    def of(chunks: bool) -> str:
        return numerics(torch.device("cpu"), torch.bfloat16, torch.bfloat16, route=DECODER, states=True, chunks=chunks)

    assert of(True) == f"{of(False)} chunks"


def test_prompts_that_may_be_expanded_are_no_equal_of_absorbed_ones() -> None:
    def of(expanded: bool) -> str:
        return numerics(torch.device("cpu"), torch.bfloat16, torch.bfloat16, route=DECODER, expanded=expanded)

    assert of(True) == f"{of(False)} expanded prompts"
