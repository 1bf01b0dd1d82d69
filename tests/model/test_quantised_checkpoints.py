"""Whole models with quantised weights: parts that differ, heads, tensors of no use, and memory while they load."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packers
import pytest
import torch
from quantised_checkpoint import logits, write
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, PhiConfig, PreTrainedConfig, Qwen2Config

from octavo_kernels.products.weights import Codes, Scheme, dequantise
from octavo_worker.assembly.loading import load_runner
from octavo_worker.assembly.models import load_model
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model import UnsupportedModel
from octavo_worker.model.checkpoint.source import RandomWeights
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.errors import CheckpointError
from octavo_worker.model.layers.linear import Dense
from octavo_worker.model.layers.parts import Parts
from octavo_worker.model.layers.quantised import Quantised

SMALL: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA = LlamaConfig(**SMALL)
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]

Packer = Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]


def as_gptq(bits: int = 4, order: int | None = None) -> Packer:
    """Rounds a weight to codes; `order` is the seed of one in which its columns are grouped."""

    def pack(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        groups = torch.arange(weight.shape[1]) // 32
        if order is not None:
            groups = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(order))]
        count, most = int(groups.max()) + 1, (1 << bits) - 1
        low = torch.stack([weight[:, groups == group].amin(1) for group in range(count)], dim=1)
        high = torch.stack([weight[:, groups == group].amax(1) for group in range(count)], dim=1)
        scales = ((high - low) / most).half()
        zeros = (-low / scales.float()).round().clamp(0, most).long()
        q = (weight / scales.float()[:, groups] + zeros[:, groups]).round().clamp(0, most).long()
        return packers.gptq(q, zeros, scales, groups, bits, 1), (q - zeros[:, groups]) * scales.float()[:, groups]

    return pack


def quantise(
    folder: Path, config: PreTrainedConfig, packers_: dict[str, Packer], stated: dict[str, Any], **more: Tensor
) -> torch.nn.Module:
    """Writes a random model into `folder`, of which those matrices whose names end with a key are packed by its packer.
    Returns the model with the values that the packed ones stand for."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False).float().eval()
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            torch.nn.init.normal_(parameter)
    tensors, values = {}, {}
    for name, tensor in model.state_dict().items():
        pack = next((each for ending, each in packers_.items() if name.endswith(f"{ending}.weight")), None)
        if pack is None:
            tensors[name] = tensor
            continue
        module = name.removesuffix(".weight")
        packed, values[name] = pack(module, tensor)
        tensors |= {f"{module}.{ending}": each for ending, each in packed.items()}
    if config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    model.load_state_dict(values, strict=False)
    write(folder, {name: tensor.clone() for name, tensor in (tensors | more).items()}, {})
    config.save_pretrained(folder)
    state(folder, quantization_config=stated)
    return model


def state(folder: Path, **values: object) -> None:
    """Changes the folder's config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def assert_answers_alike(folder: Path, model: torch.nn.Module) -> None:
    with torch.inference_mode():
        wanted = model(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(logits(folder, IDS), wanted, rtol=0, atol=1e-5)


def decoder(folder: Path) -> Decoder:
    model, _ = load_model(ModelOptions(model=str(folder), dtype="float32", device="cpu"))
    assert isinstance(model, Decoder)
    return model


PROJ = "_proj"


def test_parts_of_one_form_become_one_weight(tmp_path: Path) -> None:
    model = quantise(tmp_path, LLAMA, {PROJ: as_gptq(order=1)}, GPTQ)
    (block,) = decoder(tmp_path).layers.blocks
    assert all(isinstance(linear, Quantised) for linear in block.products().values())
    assert_answers_alike(tmp_path, model)


def test_parts_in_other_bits_stay_apart(tmp_path: Path) -> None:
    forms = {"k_proj": as_gptq(8), "up_proj": as_gptq(8, order=2), PROJ: as_gptq(order=1)}
    stated = GPTQ | {"dynamic": {r"+:.*\.(k|up)_proj": {"bits": 8}}}
    model = quantise(tmp_path, LLAMA, forms, stated)
    loaded = decoder(tmp_path)
    (block,) = loaded.layers.blocks
    assert isinstance(block.attention.qkv, Parts)
    assert isinstance(block.mlp.up, Parts)
    assert loaded.forms == {"int4g32", "int4", "int8g32"}
    assert_answers_alike(tmp_path, model)


def test_parts_whose_columns_have_another_order_stay_apart(tmp_path: Path) -> None:
    model = quantise(tmp_path, LLAMA, {"v_proj": as_gptq(order=7), PROJ: as_gptq(order=1)}, GPTQ)
    (block,) = decoder(tmp_path).layers.blocks
    assert isinstance(block.attention.qkv, Parts)
    assert isinstance(block.mlp.up, Quantised)
    assert_answers_alike(tmp_path, model)


def test_a_part_that_is_not_quantised_stays_apart(tmp_path: Path) -> None:
    forms = {f"{name}_proj": as_gptq() for name in ("q", "k", "gate", "o")}
    model = quantise(tmp_path, LLAMA, forms, GPTQ)
    (block,) = decoder(tmp_path).layers.blocks
    assert isinstance(block.attention.qkv, Parts)
    assert [type(part) for part in block.attention.qkv.parts] == [Quantised, Quantised, Dense]
    assert isinstance(block.mlp.up, Parts)
    assert isinstance(block.mlp.down, Dense)
    assert_answers_alike(tmp_path, model)


def test_biases_are_added_to_quantised_parts_together_and_apart(tmp_path: Path) -> None:
    config = Qwen2Config(**SMALL)
    for order in (1, 2):
        model = quantise(tmp_path, config, {"v_proj": as_gptq(order=order), PROJ: as_gptq(order=1)}, GPTQ)
        assert_answers_alike(tmp_path, model)


def test_matrices_that_a_family_stores_in_one_piece_are_quantised_in_one_piece(tmp_path: Path) -> None:
    model = quantise(tmp_path, Phi3Config(**SMALL), {PROJ: as_gptq(order=1)}, GPTQ)
    assert_answers_alike(tmp_path, model)


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_is_quantised_where_the_headers_say_so(tmp_path: Path, tied: bool) -> None:
    model = quantise(tmp_path, LLAMA, {"lm_head": as_gptq(8)}, GPTQ | {"bits": 8, "lm_head": True})
    state(tmp_path, tie_word_embeddings=tied)
    assert isinstance(decoder(tmp_path).layers.head, Quantised)
    assert_answers_alike(tmp_path, model)


def test_a_tied_head_is_the_embedding_beside_quantised_matrices(tmp_path: Path) -> None:
    model = quantise(tmp_path, LlamaConfig(**SMALL, tie_word_embeddings=True), {PROJ: as_gptq()}, GPTQ)
    head = decoder(tmp_path).layers.head
    assert isinstance(head, Dense)
    assert_answers_alike(tmp_path, model)


ATTENTION = "model.layers.0.self_attn."


def test_biases_of_zeros_that_old_tools_write_are_dropped(tmp_path: Path) -> None:
    model = quantise(tmp_path, LLAMA, {PROJ: as_gptq()}, GPTQ, **{f"{ATTENTION}o_proj.bias": torch.zeros(64)})
    assert_answers_alike(tmp_path, model)


def test_a_bias_that_no_model_of_the_family_has_is_refused(tmp_path: Path) -> None:
    quantise(tmp_path, LLAMA, {PROJ: as_gptq()}, GPTQ, **{f"{ATTENTION}o_proj.bias": torch.ones(64)})
    with pytest.raises(CheckpointError, match=r"o_proj\.bias' is not zero"):
        decoder(tmp_path)


def test_scales_of_the_cache_are_passed_over_with_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ("k_scale", "v_scale", "k_proj.output_scale", "v_proj.output_scale")
    scales = {f"{ATTENTION}{name}": torch.ones(1) for name in names}
    model = quantise(tmp_path, LLAMA, {PROJ: as_gptq()}, GPTQ, **scales)
    with caplog.at_level(logging.INFO):
        assert_answers_alike(tmp_path, model)
    assert [record.message for record in caplog.records if "KV cache" in record.message] == [
        "4 scales of a KV cache in 8 bits are not used: octavo's has a scale a token"
    ]


def test_numerics_name_the_forms(tmp_path: Path) -> None:
    quantise(tmp_path, LLAMA, {"v_proj": as_gptq(8), PROJ: as_gptq()}, GPTQ | {"dynamic": {".*v_proj": {"bits": 8}}})
    runner = load_runner(ModelOptions(model=str(tmp_path), dtype="bfloat16", device="cpu", num_blocks=5))
    assert re.fullmatch(r"cpu \S+ decoder-\d+ bfloat16 bfloat16 weights int4 \+ int4g32 \+ int8g32", runner.numerics)


def test_a_model_of_the_other_route_is_refused_by_name(tmp_path: Path) -> None:
    config = PhiConfig(**SMALL)
    quantise(tmp_path, config, {"q_proj": as_gptq()}, GPTQ)
    with pytest.raises(UnsupportedModel, match=r"'phi' runs on its transformers code, .* no quantised weights"):
        decoder(tmp_path)


INPUTS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
FLOATS = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
GROUPS = {
    "attention": {"targets": ["re:.*self_attn.*"], "weights": FLOATS},
    "mlp": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}, "input_activations": INPUTS},
}
DRAWN = {
    "gptq": (GPTQ | {"lm_head": True}, {"int4g32", "int4"}, Quantised),
    "gptq-dynamic": (GPTQ | {"dynamic": {"+:.*k_proj": {"bits": 8}, "-:.*mlp": {}}}, {"int4g32", "int8g32"}, Dense),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, {"int4g32", "int4"}, Dense),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [32, 32]}, {"fp8g32 by fp8g32", "fp8 by fp8"}, Dense),
    "compressed-tensors": (
        {"quant_method": "compressed-tensors", "config_groups": GROUPS, "ignore": ["lm_head"]},
        {"fp4g32", "fp8 by fp8"},
        Dense,
    ),
}


@pytest.mark.parametrize("case", DRAWN)
def test_random_weights_have_the_forms_that_a_config_states(tmp_path: Path, case: str) -> None:
    stated, forms, head = DRAWN[case]
    LLAMA.save_pretrained(tmp_path)
    state(tmp_path, quantization_config=stated)
    model, _ = load_model(ModelOptions(model=str(tmp_path), load_format="dummy", dtype="float32", device="cpu"))
    assert isinstance(model, Decoder)
    assert model.forms == forms
    assert isinstance(model.layers.head, head)


@pytest.mark.parametrize("codes", Codes)
def test_random_weights_of_every_kind_have_one_distribution_and_depend_on_the_seed_alone(codes: Codes) -> None:
    def drawn(seed: int) -> Tensor:
        source = RandomWeights(seed, 1.0, torch.device("cpu"))
        return dequantise(source.quantised(Scheme(codes, 128), 64, 512))

    assert drawn(1).std().item() == pytest.approx(0.02, rel=0.02)
    assert abs(drawn(1).mean().item()) < 0.0005
    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
