"""Tiny models that the formats' own tools quantised: their weights, and answers beside transformers'."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import quantised_reference as oracle
import torch
from quantised_checkpoint import logits, read_weight, unpacked
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from octavo_kernels import reference
from octavo_kernels.weights import Activations, Codes, QuantisedWeight, Scheme, dequantise

DATA = Path(__file__).parent / "data" / "quantised"
FOLDERS = sorted(path.parent for path in DATA.glob("*/config.json"))


def matrices(folder: Path) -> Iterator[tuple[str, oracle.Parts]]:
    config = oracle.quantisation_config(folder)
    for name, tensors in oracle.modules(folder).items():
        if oracle.is_quantised(tensors):
            yield name, oracle.read(tensors, config)


def assert_is(weight: QuantisedWeight, parts: oracle.Parts) -> None:
    codes, order = parts.codes[:, parts.order], parts.order
    middle = 128 if weight.scheme.codes is Codes.INT8 and codes.min() >= 0 else 0  # which the format adds
    stored = unpacked(weight.codes) if weight.scheme.codes in (Codes.INT4, Codes.FP4) else weight.codes
    stored = stored.view(torch.uint8) if weight.scheme.codes is Codes.FP8 else stored
    assert torch.equal(stored.long() + middle, codes.long())
    assert torch.equal(weight.scales, parts.scales.T)
    if weight.zeros is not None:
        assert parts.zeros is not None
        assert torch.equal(weight.zeros.long() + middle, parts.zeros.long().T)
    assert torch.equal(torch.arange(len(order)) if weight.order is None else weight.order.long(), order)
    assert torch.equal(dequantise(weight), parts.values)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_matrix_is_what_the_reference_reads(folder: Path) -> None:
    names = 0
    for name, parts in matrices(folder):
        weight = read_weight(folder, name, *parts.codes.shape)
        assert_is(weight, parts)
        names += 1
    assert names >= 6


class Turned(nn.Module):
    """A linear layer whose input is turned into codes, a scale a token or a group of columns of a token, and back."""

    def __init__(self, linear: nn.Linear, scheme: Scheme) -> None:
        super().__init__()
        self.linear, self.scheme = linear, scheme

    def forward(self, x: Tensor) -> Tensor:
        depth = x.shape[-1]
        group = self.scheme.activation_group or depth
        dtype = torch.int8 if self.scheme.activations is Activations.INT8 else torch.float8_e4m3fn
        groups = nn.functional.pad(x.float(), (0, -depth % group)).unflatten(-1, (-1, group))
        codes, scales = reference.quantise(groups, dtype)
        return self.linear((codes.float() * scales).flatten(-2)[..., :depth].to(x.dtype))


def dequantised(folder: Path) -> nn.Module:
    """transformers' model with the values that the reference reads, float32."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False).float().eval()
    lacking = model.load_state_dict(oracle.dense(folder), strict=False)
    assert not lacking.unexpected_keys
    assert set(lacking.missing_keys) <= {"lm_head.weight"}  # tied
    for name, parts in matrices(folder):
        scheme = read_weight(folder, name, *parts.codes.shape).scheme
        if scheme.activations is Activations.INT8:  # a CPU takes those of FP8 as given
            above, _, last = name.rpartition(".")
            setattr(model.get_submodule(above), last, Turned(model.get_submodule(name), scheme))
    return model


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_answers_are_those_of_the_dequantised_model(folder: Path) -> None:
    """In float32 but for activations on the edge between two codes, which a rounding elsewhere tips over."""
    model = dequantised(folder)
    ids = torch.randint(0, model.config.vocab_size, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        wanted = model(torch.tensor([ids])).logits[0]
    turned = any(isinstance(module, Turned) for module in model.modules())
    exact = (logits(folder, ids) - wanted).abs()
    assert exact.median() < 1e-5
    assert exact.max() < (0.05 if turned else 1e-5)
    rounded = (logits(folder, ids, "bfloat16") - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
    assert rounded < (0.05 if turned else 0.01)
