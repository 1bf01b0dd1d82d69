"""Weights in 8 and 4 bits out of a checkpoint in 16: the codes of a few lines by hand, and little lost."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PhiConfig, PreTrainedConfig

from octavo_kernels.products.weights import QuantisedWeight, dequantise
from octavo_worker.assembly.loading import load_runner
from octavo_worker.bench.quality import Reference
from octavo_worker.contract.files import model_folder
from octavo_worker.contract.options import ModelOptions, OnlineQuantization
from octavo_worker.model import UnsupportedModel
from octavo_worker.model.checkpoint import rounding
from octavo_worker.model.decoder import Decoder
from octavo_worker.model.layers.linear import Dense
from octavo_worker.model.layers.norm import Input
from octavo_worker.model.layers.quantised import Quantised
from octavo_worker.runner.base import BaseRunner

KINDS: tuple[OnlineQuantization, ...] = ("fp8", "int8", "int4")
LLAMA = LlamaConfig(
    vocab_size=50,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
SCHEMES = {"fp8": "fp8 by fp8", "int8": "int8 by int8", "int4": "int4g128"}


def load(folder: Path | str, **options: object) -> BaseRunner:
    few = {"device": "cpu", "threads": 1, "num_blocks": 9, "dtype": "bfloat16"}
    return load_runner(ModelOptions(model=str(folder), **few | options))  # type: ignore[arg-type]


def layers_of(runner: BaseRunner) -> dict[str, Quantised | Dense]:
    assert isinstance(runner.model, Decoder)
    qkv, out, up, down = runner.model.layers.blocks[0].products().values()
    return {"qkv": qkv, "out": out, "up": up, "down": down}  # type: ignore[dict-item]


def checkpoint(folder: Path, config: PreTrainedConfig) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, trust_remote_code=False).bfloat16().save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def by_hand(weight: torch.Tensor, kind: str, group: int) -> torch.Tensor:
    """Values of a row whose groups are rounded one by one."""
    parts = []
    for part in weight.float().split(group, dim=1):
        low, high = part.amin(1, keepdim=True).clamp(max=0), part.amax(1, keepdim=True).clamp(min=0)
        if kind == "int4":
            scale = ((high - low) / 15).to(weight.dtype).float()
            zero = (-low / scale).round()
            parts.append(((part / scale).round() + zero).clamp(0, 15).sub(zero) * scale)
        else:
            largest = {"int8": 127, "fp8": 448}[kind]
            scale = part.abs().amax(1, keepdim=True) / largest
            codes = part / scale
            parts.append((codes.round() if kind == "int8" else codes.to(torch.float8_e4m3fn).float()) * scale)
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("kind", KINDS)
def test_codes_and_scales_are_those_of_a_few_lines(kind: OnlineQuantization, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(37, 384, generator=torch.Generator().manual_seed(1)).bfloat16()
    weight[3] = weight[4].abs()
    whole = rounding.quantised(weight, kind)
    assert torch.equal(dequantise(whole), by_hand(weight, kind, 128 if kind == "int4" else 384))
    monkeypatch.setattr(rounding, "PIECE", 1000)  # two rows at a time
    pieces = rounding.quantised(weight, kind)
    assert torch.equal(pieces.codes.view(torch.uint8), whole.codes.view(torch.uint8))
    assert torch.equal(pieces.scales, whole.scales)
    assert (pieces.zeros is None) == (kind != "int4")


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_stay_zeros(kind: OnlineQuantization) -> None:
    weight = torch.zeros(2, 128)
    weight[1, 0] = -1e-42  # a group's scale may underflow
    values = dequantise(rounding.quantised(weight, kind))
    assert torch.equal(values[0], torch.zeros(128))
    assert values[1].abs().amax() <= 2e-42


def test_groups_of_four_bits_divide_the_depth() -> None:
    for depth, group in {4096: 128, 192: 64, 96: 32, 40: 8, 6: 2}.items():
        made = rounding.quantised(torch.randn(3, depth), "int4")
        assert made.scheme.group == group
        assert made.scales.shape == (depth // group, 3)
    with pytest.raises(UnsupportedModel, match="--quantization int8"):
        rounding.quantised(torch.randn(3, 7), "int4")


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_are_quantised_and_the_rest_stays(kind: OnlineQuantization, tmp_path: Path) -> None:
    saved = checkpoint(tmp_path, LLAMA)
    runner = load(tmp_path, quantization=kind)
    layers = layers_of(runner)
    at = "model.layers.0."
    stacked = {
        "qkv": torch.cat([saved[f"{at}self_attn.{part}_proj.weight"] for part in "qkv"]),
        "out": saved[f"{at}self_attn.o_proj.weight"],
        "up": torch.cat([saved[f"{at}mlp.{part}_proj.weight"] for part in ("gate", "up")]),
        "down": saved[f"{at}mlp.down_proj.weight"],
    }
    for name, layer in layers.items():
        assert isinstance(layer, Quantised)
        x = torch.eye(layer.weight.depth, dtype=torch.bfloat16)
        expected = by_hand(stacked[name], kind, rounding.scheme_of(kind, layer.weight.depth).group)
        torch.testing.assert_close(layer.apply(Input(x)).T, expected.bfloat16(), rtol=1e-2, atol=1e-4)
    assert isinstance(runner.model, Decoder)
    assert torch.equal(runner.model.layers.head.weight, saved["lm_head.weight"])  # type: ignore[attr-defined]
    assert torch.equal(runner.model.layers.embed, saved["model.embed_tokens.weight"])


def test_transposed_matrices_with_biases(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    saved = checkpoint(tmp_path, config)
    qkv = layers_of(load(tmp_path, quantization="int8"))["qkv"]
    assert isinstance(qkv, Quantised)
    assert qkv.bias is not None
    assert torch.equal(qkv.bias, saved["transformer.h.0.attn.c_attn.bias"])
    assert (qkv.weight.columns, qkv.weight.depth) == (96, 32)


@pytest.mark.parametrize("kind", KINDS)
def test_random_weights_are_quantised_too(kind: OnlineQuantization, tmp_path: Path) -> None:
    LLAMA.save_pretrained(tmp_path)
    runner = load(tmp_path, quantization=kind, load_format="dummy")
    assert all(isinstance(layer, Quantised) for layer in layers_of(runner).values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_names_the_scheme(kind: OnlineQuantization) -> None:
    runner = load("demo", quantization=kind)
    assert runner.quantization == SCHEMES[kind]
    assert runner.numerics == load("demo").numerics + f" weights {SCHEMES[kind]}"


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference.of(ModelOptions(model=str(model_folder("demo")), device="cpu"), None, 1024, 128)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "most"), [("fp8", 1e-3), ("int8", 1e-3), ("int4", 1e-2)])
def test_little_is_lost(kind: OnlineQuantization, most: float, reference: Reference) -> None:
    options = ModelOptions(model=str(model_folder("demo")), device="cpu", quantization=kind)
    divergence, _ = reference.beside(options)
    assert 0 < divergence.nats / divergence.tokens < most
    assert divergence.same_top / divergence.tokens > 0.9


def test_a_zero_point_off_by_one_is_seen_at_once(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    quantised = rounding.quantised

    def off_by_one(weight: torch.Tensor, kind: OnlineQuantization) -> QuantisedWeight:
        made = quantised(weight, kind)
        assert made.zeros is not None
        made.zeros.add_(1)
        return made

    monkeypatch.setattr("octavo_worker.model.checkpoint.formats.online.quantised", off_by_one)
    options = ModelOptions(model=str(model_folder("demo")), device="cpu", quantization="int4")
    divergence, _ = reference.beside(options)
    assert divergence.nats / divergence.tokens > 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_makes_the_same_codes(kind: OnlineQuantization) -> None:
    weight = torch.randn(300, 384, generator=torch.Generator().manual_seed(1)).bfloat16()
    ours, theirs = rounding.quantised(weight, kind), rounding.quantised(weight.cuda(), kind)
    assert torch.equal(theirs.codes.view(torch.uint8).cpu(), ours.codes.view(torch.uint8))
    assert torch.equal(theirs.scales.cpu(), ours.scales)


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "most"), [("fp8", 1e-3), ("int8", 1e-3), ("int4", 1e-2)])
def test_little_is_lost_on_a_gpu(kind: OnlineQuantization, most: float) -> None:
    options = ModelOptions(model=str(model_folder("demo")), device="cuda")
    reference = Reference.of(options, None, 1024, 128)
    divergence, _ = reference.beside(msgspec.structs.replace(options, quantization=kind))
    assert 0 < divergence.nats / divergence.tokens < most


def test_what_cannot_be_quantised_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path / "quantised", LLAMA)
    config = json.loads((tmp_path / "quantised/config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    (tmp_path / "quantised/config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="quantised"):
        load(tmp_path / "quantised", quantization="int8")
    other = PhiConfig(**LLAMA.to_dict() | {"model_type": "phi"})
    other.save_pretrained(tmp_path / "routed")
    with pytest.raises(UnsupportedModel, match=r"own decoder, not 'phi'; leave it out"):
        load(tmp_path / "routed", quantization="int8", load_format="dummy")
