"""A small mixture of experts: its checkpoint in every form, and its first layer, whole or as ranks have it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matrix_forms import FORMS
from quantised_checkpoint import logits, write
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    Qwen3MoeConfig,
)

from octavo_worker.assembly.models import load_model
from octavo_worker.contract.options import ExpertsOfRanks, ModelOptions
from octavo_worker.model.checkpoint.formats import Reader, format_of
from octavo_worker.model.checkpoint.mixtures import MixtureReader
from octavo_worker.model.checkpoint.source import Checkpoint
from octavo_worker.model.config import DecoderConfig, MixtureMlp
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.families import decoder_config
from octavo_worker.model.layers.linear import Products
from octavo_worker.model.layers.mixture import Mixture
from octavo_worker.model.layers.norm import Input
from octavo_worker.model.shards import Shards
from octavo_worker.ranks.rank import Rank

EXPERTS, WIDTH = 6, 64
SMALL: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
QWEN3 = Qwen3MoeConfig(
    **SMALL, intermediate_size=96, moe_intermediate_size=WIDTH, num_experts=EXPERTS, num_experts_per_tok=3,
    norm_topk_prob=True, mlp_only_layers=[1], head_dim=16,
)  # fmt: skip
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
EACH = "model.layers.0.mlp.experts.{}.{}_proj.weight"
UP, DOWN = "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"


def saved(folder: Path, config: PreTrainedConfig = QWEN3) -> dict[str, Tensor]:
    """Tensors of a random model, which is in the folder as transformers saves it."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def stack(tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Takes the experts out: `[experts, 2 * width, hidden]`, gates first, and `[experts, hidden, width]`."""
    gates, ups, downs = (
        torch.stack([tensors.pop(EACH.format(expert, part)) for expert in range(EXPERTS)])
        for part in ("gate", "up", "down")
    )
    return torch.cat((gates, ups), dim=1), downs


def loaded(folder: Path, **more: Any) -> Decoder:
    model, _ = load_model(ModelOptions(**{"model": str(folder), "dtype": "float32", "device": "cpu"} | more))
    assert isinstance(model, Decoder)
    return model


def pack_experts(folder: Path, form: str, *, of: Callable[[int], str] | None = None) -> Tensor:
    """Packs a saved model's experts, each in a form of its own if `of` says so. Returns the logits of the values that
    they stand for."""
    tensors = saved(folder)
    packed, values = {}, {}
    for name, tensor in tensors.items():
        if ".experts." not in name:
            packed[name] = values[name] = tensor
            continue
        expert = int(name.split(".experts.")[1].partition(".")[0])
        made, values[name] = FORMS[of(expert) if of else form][1](tensor)
        packed |= {f"{name.removesuffix('.weight')}.{ending}": part for ending, part in made.items()}
    save_file({name: tensor.contiguous() for name, tensor in values.items()}, folder / "model.safetensors")
    expected = logits(folder, IDS)
    write(folder, packed, json.loads((folder / "config.json").read_text()) | {"quantization_config": FORMS[form][0]})
    return expected


def mixture(
    folder: Path, described: DecoderConfig, shards: Shards | None, dtype: torch.dtype = torch.float32
) -> Mixture:
    """The first layer's, or a rank's part of it."""
    reader = Reader(Checkpoint.open(folder), dtype, torch.device("cpu"), Products())
    mlp = described.layers[0].mlp
    assert isinstance(mlp, MixtureMlp)
    return MixtureReader(described, reader, format_of(folder), shards).read("model.layers.0.", mlp)


def assert_ranks_sum_up(
    folder: Path,
    config: PreTrainedConfig,
    experts: ExpertsOfRanks = "split",
    *,
    transposed: bool = False,
    ranks: int = 2,
) -> None:
    described = decoder_config(config)
    assert described is not None
    if transposed:
        names = replace(described.names.experts[0], transposed=True)
        described = replace(described, names=replace(described.names, experts=(names,)))
    x = Input(torch.randn(9, 128, generator=torch.Generator().manual_seed(2)))
    all_shards = [Shards(described, Rank(index, ranks), experts) for index in range(ranks)]
    parts = [mixture(folder, described, shards) for shards in all_shards]
    whole = mixture(folder, described, None)
    torch.testing.assert_close(sum(part.apply(x) for part in parts), whole.apply(x), rtol=0, atol=2e-5)
    assert sum(part.up.nbytes for part in parts) == whole.up.nbytes
