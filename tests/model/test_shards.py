"""Ranks that each hold a part of a model compute the model, in every form of weights; what cannot be cut is refused."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path
from threading import Thread, current_thread
from typing import Any

import msgspec
import pytest
import torch
from rank_threads import logits_alone, logits_on_ranks, ranks_of
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MiniMaxM2Config,
    Olmo2Config,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedConfig,
)

from octavo_kernels.features import Feature
from octavo_kernels.products.weights import Codes, QuantisedWeight, Scheme, dequantise
from octavo_worker.assembly import devices
from octavo_worker.assembly.devices import check_ranks
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import SequenceStep
from octavo_worker.model.causal_model import CausalModel
from octavo_worker.model.checkpoint.formats import Reader
from octavo_worker.model.checkpoint.formats.cuts import cut_weight
from octavo_worker.model.checkpoint.source import Cut
from octavo_worker.model.errors import ModelError, UnsupportedModel
from octavo_worker.model.families import decoder_config
from octavo_worker.ranks.rank import vocabulary_of
from octavo_worker.runner.cuda.memory import gathered_bytes

DATA = Path(__file__).parent / "data" / "quantised"
FOLDERS = sorted(path.parent for path in DATA.glob("*/config.json"))
SMALL: dict[str, Any] = {
    "vocab_size": 211, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": None,
}  # fmt: skip
REFUSED = {
    "ct-fp8-block": "down_proj has groups of 128 columns, which 2 ranks would cut at column 104 of 208; give fewer",
    "ct-w4a16-actorder-group": "o_proj has its columns in an order of their own .act-order",
    "ct-w4a16-actorder-group-asym": "o_proj has its columns in an order of their own .act-order",
    "gptq-4-desc-act": "o_proj has its columns in an order of their own .act-order",
}
CLOSE = 1e-5
TURNED = 0.15
"""Where rows of x become codes: each rank's part of a row has a scale of its own, a finer one than the whole row."""


def steps(vocab: int) -> list[SequenceStep]:
    rng = random.Random(vocab)
    return [
        SequenceStep([rng.randrange(vocab) for _ in range(37)], 0, [1, 2, 3]),
        SequenceStep([rng.randrange(vocab) for _ in range(5)], 0, [4]),
    ]


def options(folder: Path, **more: Any) -> ModelOptions:
    return ModelOptions(**{"model": str(folder), "device": "cpu", "dtype": "float32", "max_running": 8, **more})


def saved(folder: Path, config: PreTrainedConfig) -> Path:
    config.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_form_of_weights(folder: Path) -> None:
    asked = options(folder)
    if folder.name in REFUSED:
        with pytest.raises(UnsupportedModel, match=REFUSED[folder.name]):
            logits_on_ranks(asked, 2, steps(64))
        return
    alone = logits_alone(asked, steps(64))
    first, second = logits_on_ranks(asked, 2, steps(64))
    assert torch.equal(first, second)
    error = (first - alone).abs()
    assert error.max() < (TURNED if "w8a8" in folder.name else CLOSE)
    assert error.max() > 0, "nothing was summed"


WITH_GROUPS = ["gptq-4", "gptq-4-asym", "gptq-4-asym-v2", "gptq-4-channel", "gptq-8", "gptq-dynamic"]
"""Their `g_idx` names the group of each column. What is cut by columns is read whole, as it may have another order."""


@pytest.mark.parametrize("folder", [f for f in FOLDERS if f.name not in REFUSED], ids=lambda folder: folder.name)
def test_a_rank_reads_its_part(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """About half of the codes and scales, unless elements of some tensor lie on both sides of a border."""
    read: dict[Thread, int] = defaultdict(int)
    raw = Reader.raw

    def counted(reader: Reader, *args: Any) -> torch.Tensor:
        tensor = raw(reader, *args)
        read[current_thread()] += tensor.nbytes
        return tensor

    monkeypatch.setattr(Reader, "raw", counted)
    load_model(options(folder))
    (whole,) = read.values()
    read.clear()
    logits_on_ranks(options(folder), 2, steps(64))
    assert len(read) == 2
    for each in read.values():
        assert (each < 0.55 * whole) == (folder.name not in WITH_GROUPS), each / whole


DUMMIES: dict[str, tuple[PreTrainedConfig, int, dict[str, Any]]] = {
    "llama": (LlamaConfig(**SMALL), 2, {}),
    "biases": (LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True), 4, {}),
    "copies of KV heads": (LlamaConfig(**SMALL), 4, {}),
    "one KV head": (LlamaConfig(**{**SMALL, "num_key_value_heads": 1}), 2, {}),
    "tied": (LlamaConfig(**SMALL, tie_word_embeddings=True), 2, {}),
    "fused": (Phi3Config(**SMALL), 2, {}),
    "online int8": (LlamaConfig(**SMALL), 2, {"quantization": "int8"}),
    "online fp8": (LlamaConfig(**SMALL), 2, {"quantization": "fp8"}),
    "online int4": (LlamaConfig(**{**SMALL, "intermediate_size": 256}), 2, {"quantization": "int4"}),
}


CHECKPOINTS: dict[str, PreTrainedConfig] = {
    "biases": LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "stacked": Phi3Config(**SMALL),
    "norms of all heads": Olmo2Config(**SMALL),
    "turned, stacked, biases": GPT2Config(vocab_size=211, n_embd=64, n_layer=2, n_head=4, n_positions=256),
    "no gate": OPTConfig(
        vocab_size=211, hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=256, word_embed_proj_dim=64,
    ),
}  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_in_floating_point(name: str, ranks: int, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(CHECKPOINTS[name], trust_remote_code=False).float()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path)
    alone = logits_alone(options(tmp_path), steps(211))
    for found in logits_on_ranks(options(tmp_path), ranks, steps(211)):
        assert (found - alone).abs().max() < CLOSE * alone.square().mean().sqrt()


def test_norms_of_all_heads_have_room_for_what_ranks_gather(tmp_path: Path) -> None:
    """Each row: a rank's 32 columns of queries and 8 of keys, those of two ranks, and whole queries, in float32."""
    asked, found = options(saved(tmp_path, Olmo2Config(**SMALL)), load_format="dummy"), []

    def look(model: CausalModel) -> None:
        found.append(gathered_bytes(model) / len(model.buffers.hidden))

    logits_on_ranks(asked, 2, steps(211), look)
    assert found == [(40 + 2 * 40 + 64) * 4] * 2
    assert gathered_bytes(load_model(asked)[0]) == 0


@pytest.mark.parametrize("name", DUMMIES)
def test_dummy_weights_are_one_model_for_any_number_of_ranks(name: str, tmp_path: Path) -> None:
    config, ranks, more = DUMMIES[name]
    asked = options(saved(tmp_path, config), load_format="dummy", seed=3, **more)
    alone = logits_alone(asked, steps(211))
    found = logits_on_ranks(asked, ranks, steps(211))
    assert all(torch.equal(each, found[0]) for each in found)
    scale = alone.square().mean().sqrt()
    assert (found[0] - alone).abs().max() < scale * (TURNED if name == "online int8" else CLOSE)


STATED: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32},
    "w4a16": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}}},
    },
    "fp8blocks": {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    },
}  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("form", STATED)
def test_dummy_weights_of_a_quantised_config(form: str, ranks: int, tmp_path: Path) -> None:
    """Codes are drawn as a whole, too."""
    sizes = {"hidden_size": 512, "intermediate_size": 512, "num_key_value_heads": 4}
    folder = saved(tmp_path, LlamaConfig(**SMALL | sizes))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": STATED[form]}))
    asked = options(folder, load_format="dummy")
    alone = logits_alone(asked, steps(211))
    for found in logits_on_ranks(asked, ranks, steps(211)):
        assert (found - alone).abs().max() < CLOSE * alone.square().mean().sqrt()


def test_minimax_m2_in_blocks_of_fp8(tmp_path: Path) -> None:
    """Parts of experts are whole blocks on two ranks, and would not be on four, where each has two experts instead."""
    config = MiniMaxM2Config(
        **{**SMALL, "hidden_size": 256, "intermediate_size": 256}, head_dim=64, num_local_experts=8,
        num_experts_per_tok=2, rope_parameters={"rope_theta": 900.0, "partial_rotary_factor": 0.5},
    )  # fmt: skip
    folder = saved(tmp_path, config)
    stated = json.loads((folder / "config.json").read_text()) | {"quantization_config": STATED["fp8blocks"]}
    (folder / "config.json").write_text(json.dumps(stated))
    asked = options(folder, load_format="dummy")
    alone = logits_alone(asked, steps(211))
    with pytest.raises(UnsupportedModel, match=r"would cut at column 64 of 256; give fewer .*--experts whole"):
        logits_on_ranks(asked, 4, steps(211))
    for ranks, experts in ((2, "auto"), (4, "whole")):
        for found in logits_on_ranks(msgspec.structs.replace(asked, experts=experts), ranks, steps(211)):
            assert (found - alone).abs().max() < CLOSE * alone.square().mean().sqrt()


@pytest.mark.parametrize(
    ("config", "ranks", "sentence"),
    [
        (
            LlamaConfig(**SMALL),
            3,
            "8 attention heads and 2 heads of keys and values cannot be shared out among 3 ranks",
        ),
        (LlamaConfig(**{**SMALL, "intermediate_size": 90}), 4, "90 columns of the MLP cannot be shared out among 4"),
        (
            LlamaConfig(**{**SMALL, "num_key_value_heads": 8, "vocab_size": 60}),
            8,
            "a vocabulary of 60 tokens cannot be",
        ),
        (PhiConfig(**SMALL), 2, "--tensor-parallel covers the models of octavo's own decoder, not 'phi'"),
        (GPTNeoXConfig(hidden_size=64, num_attention_heads=4, intermediate_size=80), 2, "decoder, not 'gpt_neox'"),
    ],
    ids=str,
)
def test_what_cannot_be_cut_is_refused(config: PreTrainedConfig, ranks: int, sentence: str, tmp_path: Path) -> None:
    asked = options(saved(tmp_path, config), load_format="dummy", tensor_parallel=ranks)
    with pytest.raises(UnsupportedModel, match=sentence) as refused:
        load_model(asked)
    assert "leave" in str(refused.value) or "give another --tensor-parallel" in str(refused.value)


def test_gpus_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    described, two = decoder_config(LlamaConfig(**SMALL)), ModelOptions(tensor_parallel=2)
    monkeypatch.setattr(devices, "features", lambda device: frozenset({Feature.RANKS}))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ModelError, match="--tensor-parallel 2 needs as many GPUs, but there are 1; give fewer ranks"):
        check_ranks(two, torch.device("cuda"), described, "llama")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: ("H100", "H200")[index])
    with pytest.raises(ModelError, match="GPUs that are alike, not H100 and H200; name others with --devices"):
        check_ranks(two, torch.device("cuda"), described, "llama")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H100")
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: one < other)
    with pytest.raises(ModelError, match=r"GPUs 1 and 0 do not reach each other's memory .* give --replicas instead"):
        check_ranks(two, torch.device("cuda"), described, "llama")
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: True)
    check_ranks(two, torch.device("cuda"), described, "llama")
    monkeypatch.setattr(devices, "features", lambda device: frozenset())
    with pytest.raises(ModelError, match=r"runs on CPUs and on NVIDIA's GPUs with all .*give --replicas instead"):
        check_ranks(two, torch.device("cuda"), described, "llama")


@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
@pytest.mark.parametrize("size", [512, 997, 50_257, 128_256])
def test_every_token_belongs_to_one_rank(size: int, ranks: int) -> None:
    parts = [vocabulary_of(size, rank) for rank in ranks_of(ranks)]
    assert [token for part in parts for token in part] == list(range(size))
    assert all(part.start % 32 == 0 for part in parts if part)
    assert all(len(part) == len(parts[0]) for part in parts[:-1])


@pytest.mark.parametrize("codes", [Codes.INT4, Codes.FP8])
@pytest.mark.parametrize("group", [16, 64])
def test_a_cut_has_the_values_of_the_whole(codes: Codes, group: int) -> None:
    per_byte = 2 if codes is Codes.INT4 else 1
    stored = torch.randint(0, 120, (24, 64 // per_byte), dtype=torch.uint8)
    zeros = torch.randint(0, 16, (64 // group, 24), dtype=torch.uint8) if codes is Codes.INT4 else None
    kind = torch.uint8 if codes is Codes.INT4 else torch.float8_e4m3fn
    weight = QuantisedWeight(Scheme(codes, group), stored.view(kind), torch.rand(64 // group, 24), zeros)
    rows = [range(2, 5), range(11, 24)]
    for columns in (range(64), range(32), range(32, 64)):
        cut = Cut((24, 64), rows, columns)
        assert torch.equal(dequantise(cut_weight("w", weight, cut)), cut.of(dequantise(weight)))
