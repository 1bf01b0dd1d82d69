"""Memory while a quantised checkpoint is read, or weights are drawn: the model, and one matrix more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from quantised_checkpoint import write
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig

from octavo_worker.model.checkpoint.build import Split, build_layers
from octavo_worker.model.checkpoint.formats import DrawnFormat, QuantisedFormat, Reader, format_of
from octavo_worker.model.checkpoint.source import Checkpoint, RandomWeights
from octavo_worker.model.decoder import DecoderLayers
from octavo_worker.model.families import decoder_config
from octavo_worker.model.layers.linear import Products
from octavo_worker.model.shards import Shards
from octavo_worker.ranks.group import Group
from octavo_worker.ranks.rank import Rank

CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=512,
    intermediate_size=1536,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=8,
)
SIZES = {"q_proj": (512, 512), "k_proj": (512, 512), "v_proj": (512, 512), "o_proj": (512, 512)}
SIZES |= {"gate_proj": (1536, 512), "up_proj": (1536, 512), "down_proj": (512, 1536)}
LARGEST = 2 * 1536 * 512 * 2  # bytes of gate and up in 16 bits


def ints(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.randint(-100, 100, shape, dtype=dtype)


def gptq(rows: int, depth: int) -> dict[str, Tensor]:
    groups = torch.arange(depth) // 128
    return {
        "qweight": ints(depth // 8, rows),
        "qzeros": ints(depth // 128, rows // 8),
        "scales": torch.rand(depth // 128, rows).half(),
        "g_idx": groups[torch.randperm(depth, generator=torch.Generator().manual_seed(1))].int(),
    }


def awq(rows: int, depth: int) -> dict[str, Tensor]:
    scales = torch.rand(depth // 128, rows).half()
    return {"qweight": ints(depth, rows // 8), "qzeros": ints(depth // 128, rows // 8), "scales": scales}


def packed(rows: int, depth: int) -> dict[str, Tensor]:
    return {
        "weight_packed": ints(rows, depth // 8),
        "weight_scale": torch.rand(rows, depth // 128).half(),
        "weight_shape": torch.tensor([rows, depth]),
    }


def eight_bits(rows: int, depth: int) -> dict[str, Tensor]:
    return {"weight": torch.randn(rows, depth).to(torch.float8_e4m3fn), "weight_scale": torch.rand(1)}


GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
STATED: dict[str, tuple[Any, dict[str, Any]]] = {
    "gptq": (gptq, {"bits": 4, "group_size": 128, "desc_act": True}),
    "awq": (awq, {"bits": 4, "group_size": 128}),
    "compressed-tensors": (packed, {"config_groups": {"group_0": {"targets": ["Linear"], "weights": GROUP}}}),
    "fp8": (eight_bits, {}),
}


@pytest.mark.parametrize("method", STATED)
def test_reading_takes_the_model_and_one_matrix(tmp_path: Path, method: str) -> None:
    make, stated = STATED[method]
    norms = {"model.norm.weight": torch.ones(512)}
    tensors = {"model.embed_tokens.weight": torch.ones(64, 512), "lm_head.weight": torch.ones(64, 512)} | norms
    for layer in range(3):
        at = f"model.layers.{layer}."
        tensors |= {f"{at}{name}.weight": torch.ones(512) for name in ("input_layernorm", "post_attention_layernorm")}
        for name, (rows, depth) in SIZES.items():
            inside = "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            tensors |= {f"{at}{inside}.{name}.{ending}": each for ending, each in make(rows, depth).items()}
    write(tmp_path, tensors, {"quantization_config": {"quant_method": method} | stated})
    described = decoder_config(CONFIG)
    assert described is not None
    reader = Reader(Checkpoint.open(tmp_path), torch.bfloat16, torch.device("cpu"), Products())
    layers = measured(lambda: build_layers(described, reader, format_of(tmp_path)), 3 * 512 * 512 * 10 // 2)
    assert len(layers.blocks) == 3


def measured(build: Callable[[], DecoderLayers], least: int) -> DecoderLayers:
    """The result of `build`, of so many bytes at least. No more was allocated at a time than that and one matrix."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        layers = build()
    held = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    assert held >= least, "what is measured is not all of it"
    assert most - held < LARGEST
    return layers


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
INT4 = {"quant_method": "compressed-tensors", **STATED["compressed-tensors"][1], "format": "pack-quantized"}


@pytest.mark.parametrize("stated", [None, INT4, BLOCKS], ids=["float", "int4", "fp8"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_draws_its_part_and_one_matrix(
    tmp_path: Path, stated: dict[str, Any] | None, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It draws each matrix whole, one after the other: a model that fits several GPUs only is never on one of them."""
    monkeypatch.setattr("octavo_worker.model.checkpoint.source.PIECE", 64)  # small beside a matrix, as usual
    described = decoder_config(CONFIG)
    assert described is not None
    shards = Shards(described, Rank(rank, 2))
    source = RandomWeights(0, 1.0, torch.device("cpu"))
    write(tmp_path, {}, {} if stated is None else {"quantization_config": stated})
    form = format_of(tmp_path)
    assert isinstance(form, QuantisedFormat) == (stated is not None)
    form = DrawnFormat(form.method, source) if isinstance(form, QuantisedFormat) else form
    reader = Reader(source, torch.float32, torch.device("cpu"), Products())
    split = Split(shards, cast(Group, None))  # nothing is computed
    part = sum(rows * depth for rows, depth in SIZES.values()) * 3 // 2
    layers = measured(lambda: build_layers(described, reader, form, split), part // 2 if stated else 4 * part)
    held = sum(linear.nbytes for block in layers.blocks for linear in block.products().values())
    assert part // 2 <= held <= 4 * part, "not its part"
