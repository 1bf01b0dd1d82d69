"""Mixtures of experts from checkpoints of every form: stacked and alone, either way round, quantised and cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from matrix_forms import FORMS
from quantised_checkpoint import logits, write
from safetensors.torch import save_file
from small_mixtures import (
    DOWN,
    EACH,
    EXPERTS,
    IDS,
    QWEN3,
    SMALL,
    UP,
    WIDTH,
    assert_ranks_sum_up,
    loaded,
    mixture,
    pack_experts,
    saved,
    stack,
)
from transformers import (
    Cohere2MoeConfig,
    Ernie4_5_MoeConfig,
    Glm4MoeConfig,
    GptOssConfig,
    LlamaConfig,
    OlmoeConfig,
    PreTrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from octavo_kernels.products.weights import Activations, Codes, PackedWeight, QuantisedWeight, Scheme
from octavo_worker.assembly.choices import has_decoder
from octavo_worker.assembly.inspection import Outline, Stretch, as_read, inspect
from octavo_worker.contract.options import ModelOptions, OnlineQuantization
from octavo_worker.model.checkpoint.mixtures import for_gpu, in_16_bits, without_bias
from octavo_worker.model.checkpoint.rounding import quantised
from octavo_worker.model.config import MixtureMlp
from octavo_worker.model.errors import CheckpointError, UnsupportedModel
from octavo_worker.model.families import FAMILIES, decoder_config
from octavo_worker.model.layers.linear import Dense, Products
from octavo_worker.model.layers.mixture import EXPERTS_DOWN, ExpertMlp
from octavo_worker.model.layers.quantised import CodedExperts, Quantised, form_of

GPU = torch.device("cuda")


@pytest.mark.parametrize("ending", ["", ".weight"])
def test_stacked_experts_are_those_that_stand_alone(ending: str, tmp_path: Path) -> None:
    """Both dimensions of the first are 128: the family says which is which."""
    tensors = saved(tmp_path)
    expected = logits(tmp_path, IDS)
    up, down = stack(tensors)
    save_file(tensors | {f"{UP}{ending}": up, f"{DOWN}{ending}": down}, tmp_path / "model.safetensors")
    assert torch.equal(logits(tmp_path, IDS), expected)


def test_the_shape_says_which_way_round_stacked_experts_are(tmp_path: Path) -> None:
    tensors = saved(tmp_path, config := Qwen3MoeConfig(**QWEN3.to_dict() | {"moe_intermediate_size": 32}))
    expected = logits(tmp_path, IDS)
    assert config.moe_intermediate_size * 2 != config.hidden_size
    up, down = stack(tensors)
    save_file(tensors | {UP: up.mT.contiguous(), DOWN: down.mT.contiguous()}, tmp_path / "model.safetensors")
    assert torch.equal(logits(tmp_path, IDS), expected)


def test_experts_of_another_shape_are_refused_by_name(tmp_path: Path) -> None:
    tensors = saved(tmp_path)
    tensors[EACH.format(2, "down")] = tensors[EACH.format(2, "down")][:, 1:].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"experts\.2\.down_proj\.weight' has shape"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    "lost", [EACH.format(5, "up"), "model.layers.0.mlp.gate.weight", "model.layers.1.mlp.up_proj.weight"]
)
def test_a_missing_tensor_is_named(lost: str, tmp_path: Path) -> None:
    tensors = saved(tmp_path)
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"'{lost}' is missing"):
        loaded(tmp_path)


@pytest.mark.parametrize("name", [EACH.format(EXPERTS, "up"), "model.layers.0.mlp.shared_expert.up_proj.weight"])
def test_a_surplus_tensor_is_refused(name: str, tmp_path: Path) -> None:
    tensors = saved(tmp_path) | {name: torch.zeros(4, 4)}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="no place for: " + name):
        loaded(tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_on_a_gpu_experts_are_what_their_codes_stand_for(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 16 bits where its kernels do not read these codes."""
    monkeypatch.setattr("octavo_kernels.ops.pack", as_a_gpu_without_kernels)
    pack_experts(tmp_path, form)
    plain = saved(tmp_path / "plain").items()
    values = {name: FORMS[form][1](tensor)[1] if ".experts." in name else tensor for name, tensor in plain}
    described = decoder_config(QWEN3)
    assert described is not None
    made = mixture(tmp_path, described, None, torch.bfloat16)
    for linear, wanted in zip((made.up, made.down), stack(values), strict=True):
        copied = in_16_bits(linear, "experts")
        assert copied.forms == {FORMS[form][2]}
        assert torch.equal(copied.weight, wanted.flatten(0, 1).bfloat16())
    gpu, coded = torch.device("cuda"), Outline((Stretch(12, 64, Scheme(Codes.INT4, 32)),), torch.bfloat16)
    assert as_read(coded, EXPERTS_DOWN, gpu) == Outline((Stretch(12, 64, None),), torch.bfloat16)
    assert as_read(coded, EXPERTS_DOWN, torch.device("cpu")) == as_read(coded, "out", gpu) == coded


@pytest.mark.parametrize("form", ["int4", "fp8"])
def test_on_a_gpu_with_kernels_experts_stay_codes(form: OnlineQuantization, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr("octavo_kernels.ops.pack_experts", lambda weight: weight)
    monkeypatch.setattr(
        "octavo_kernels.ops.takes_experts",
        lambda scheme, columns, depth, device, *, halves=1: not taken.append((columns, halves)),
    )
    weight = as_a_gpu_without_kernels(quantised(torch.randn(4 * 32, 64), form))
    made = for_gpu(Quantised(weight, torch.zeros(4 * 32), Products(uniform=True), torch.bfloat16), "a", 32, halves=2)
    assert isinstance(made, CodedExperts)
    assert (made.weight, taken) == (weight, [(32, 2)])
    assert made.forms == {form_of(weight.scheme, 64)}
    assert made.nbytes == weight.nbytes
    assert made.copy_bytes == 0
    assert without_bias(made).experts().bias is None
    read = as_read(Outline((Stretch(4 * 32, 64, weight.scheme, zeros=True),), torch.bfloat16), EXPERTS_DOWN, GPU, 4)
    scheme = weight.scheme._replace(activations=Activations.AS_GIVEN, activation_group=0)
    assert read == Outline((Stretch(4 * 32, 64, scheme, zeros=True),), torch.bfloat16)


def as_a_gpu_without_kernels(weight: QuantisedWeight) -> PackedWeight:
    return PackedWeight(
        weight.scheme, weight.columns, weight.depth, weight.codes, weight.scales, weight.zeros, weight.order
    )


@pytest.mark.full(but=4)
@pytest.mark.parametrize("form", FORMS)
def test_quantised_experts_are_the_values_that_they_stand_for(form: str, tmp_path: Path) -> None:
    expected = pack_experts(tmp_path, form)
    torch.testing.assert_close(logits(tmp_path, IDS), expected, rtol=0, atol=2e-5)
    model = loaded(tmp_path)
    mixture = model.layers.blocks[0].mlp
    assert isinstance(mixture, ExpertMlp)
    assert model.forms == mixture.mixture.forms == {FORMS[form][2]}
    assert isinstance(mixture.mixture.router.logits, Dense)
    assert {product.form.partition(",")[0] for product in inspect(options(tmp_path)).products or []} > {"float32"}


def test_doctor_counts_the_experts_that_one_token_reads(tmp_path: Path) -> None:
    saved(tmp_path)
    found = inspect(options(tmp_path, dtype="bfloat16", quantization="int8"))
    products = {product.name: product for product in found.products or []}
    assert products["router"].form == "float32; 3 of 6 experts by softmax"
    assert products["router"].nbytes == EXPERTS * 128 * 4
    assert products["experts: gate, up"].form == "int8, a scale a row, activations int8; 3 of 6 experts"
    assert products["experts: gate, up"].nbytes == 3 * 2 * WIDTH * (128 + 4)
    assert products["experts: down"].nbytes == 3 * 128 * (WIDTH + 4)
    assert found.nbytes == sum(product.nbytes for product in found.products or [])
    stored = loaded(tmp_path, dtype="bfloat16", quantization="int8").layers.blocks[0].products()
    assert stored["experts: down"].nbytes == 2 * products["experts: down"].nbytes


def options(folder: Path, **more: Any) -> ModelOptions:
    return ModelOptions(**{"model": str(folder), "dtype": "float32", "device": "cpu"} | more)


def test_experts_that_differ_in_form_are_refused_by_name(tmp_path: Path) -> None:
    stated = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}
    pack_experts(tmp_path, "gptq", of=lambda expert: "gptq-8" if expert == 4 else "gptq")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = stated | {"dynamic": {r"+:.*experts\.4\..*": {"bits": 8}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for look in (loaded, lambda folder: inspect(options(folder))):
        with pytest.raises(UnsupportedModel, match=r"layers\.0\.mlp\.experts\.0\.gate_proj and others.* in 16 bits"):
            look(tmp_path)


def test_quantised_experts_that_are_no_whole_panels_are_refused(tmp_path: Path) -> None:
    Qwen3MoeConfig(**QWEN3.to_dict() | {"moe_intermediate_size": 48}).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="96 rows of an expert here are not whole panels of 64"):
        loaded(tmp_path, load_format="dummy", quantization="int8")
    loaded(tmp_path, load_format="dummy")


@pytest.mark.parametrize(("kind", "form"), [("int4", "int4"), ("int8", "int8 by int8"), ("fp8", "fp8 by fp8")])
def test_online_quantisation_takes_experts_and_leaves_routers(kind: str, form: str, tmp_path: Path) -> None:
    saved(tmp_path)
    plain = logits(tmp_path, IDS)
    model = loaded(tmp_path, quantization=kind)
    assert form in model.forms
    mlp = model.layers.blocks[0].mlp
    assert isinstance(mlp, ExpertMlp)
    assert isinstance(mlp.mixture.up, Quantised)
    assert isinstance(mlp.mixture.down, Quantised)
    assert isinstance(mlp.mixture.router.logits, Dense)
    assert mlp.mixture.router.logits.weight.dtype is torch.float32
    assert plain.std() > 0.1


@pytest.mark.full(but=4)
@pytest.mark.parametrize("form", ["", *FORMS])
def test_random_experts_have_the_form_that_a_config_states(form: str, tmp_path: Path) -> None:
    QWEN3.save_pretrained(tmp_path)
    if form:
        config = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": FORMS[form][0]}
        (tmp_path / "config.json").write_text(json.dumps(config))
    model = loaded(tmp_path, load_format="dummy")
    mlp = model.layers.blocks[0].mlp
    assert isinstance(mlp, ExpertMlp)
    assert mlp.mixture.up.forms == ({FORMS[form][2]} if form else set())
    assert isinstance(mlp.mixture.router.logits, Dense)
    assert isinstance(model.config.layers[0].mlp, MixtureMlp)
    inspect(options(tmp_path, load_format="dummy"))


def test_on_a_gpu_a_mixture_takes_transformers_code() -> None:
    assert has_decoder(QWEN3, torch.device("cpu"), torch.bfloat16)
    assert not has_decoder(QWEN3, torch.device("cuda"), torch.float32)
    assert has_decoder(LlamaConfig(), torch.device("cuda"), torch.float32)


@pytest.mark.full(but=4)
@pytest.mark.parametrize("form", ["", "stacked", "turned", *FORMS])
def test_the_parts_of_ranks_sum_up_to_the_whole(form: str, tmp_path: Path) -> None:
    if form in FORMS:
        pack_experts(tmp_path, form)
    elif tensors := saved(tmp_path):
        up, down = stack(tensors)
        stacked = {UP: up, DOWN: down} if form == "stacked" else {UP: up.mT, DOWN: down.mT}
        if form:
            write(tmp_path, tensors | stacked, json.loads((tmp_path / "config.json").read_text()))
    assert_ranks_sum_up(tmp_path, QWEN3, transposed=form == "turned")


@pytest.mark.parametrize(
    "config",
    [
        GptOssConfig(**SMALL, intermediate_size=64, head_dim=16, num_local_experts=4, num_experts_per_tok=2),
        Qwen2MoeConfig(
            **SMALL, intermediate_size=64, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
            shared_expert_intermediate_size=96,
        ),
    ],
    ids=lambda config: config.model_type,
)  # fmt: skip
def test_ranks_share_biases_and_shared_experts(config: PreTrainedConfig, tmp_path: Path) -> None:
    saved(tmp_path, config)
    assert_ranks_sum_up(tmp_path, config)
    assert_ranks_sum_up(tmp_path, config, "whole")


@pytest.mark.parametrize(
    "config",
    [
        OlmoeConfig(clip_qkv=8.0),
        Cohere2MoeConfig(num_shared_experts=2),
        Cohere2MoeConfig(rms_norm_eps=1e-5),
        GptOssConfig(swiglu_alpha=1.5),
        Ernie4_5_MoeConfig(use_bias=True),
    ],
    ids=lambda config: config.model_type,
)
def test_members_that_are_not_described_take_transformers_code(config: PreTrainedConfig) -> None:
    assert config.model_type in FAMILIES
    assert decoder_config(config) is None


def test_layers_behind_the_last_one_are_left_unread(tmp_path: Path) -> None:
    """Layers that predict several tokens are named in the config, or surplus."""
    sizes = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1}
    tensors = saved(tmp_path, Glm4MoeConfig(**SMALL, **sizes, intermediate_size=64, num_mtp_layers=1))
    expected = logits(tmp_path, IDS)
    extra = {"model.layers.2.eh_proj.weight": torch.zeros(3, 3), "model.layers.2.mlp.gate.weight": torch.zeros(4, 4)}
    save_file(tensors | extra, tmp_path / "model.safetensors")
    assert torch.equal(logits(tmp_path, IDS), expected)
    save_file(tensors | {"model.layers.3.eh_proj.weight": torch.zeros(3, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no place for: model\.layers\.3\.eh_proj"):
        loaded(tmp_path)
