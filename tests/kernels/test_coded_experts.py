"""Experts' matrices as a GPU's kernels read their codes: which they take, and in what form."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo_kernels import cuda, ops
from octavo_kernels.experts.coded import as_read, pack_experts
from octavo_kernels.products.coded import CodedWeight, lay_out
from octavo_kernels.products.weights import Activations, Codes, PackedWeight, Scheme

from .coded_weights import FORM_NAMES, FORMS, random_weight

GPU = torch.device("cuda")
LONG = [(Codes.INT8, 128), (Codes.INT8, 64), (Codes.INT8, 32), (Codes.INT8, 1 << 30), (Codes.FP4, 16)]


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "runs_hopper_code", lambda device: True)


@pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)
def test_scales_are_short_where_all_are_numbers_of_bfloat16(form: tuple[Codes, int]) -> None:
    weight = random_weight(*form, 64, 272)
    assert pack_experts(lay_out(weight)).scales.dtype is torch.float32
    weight = replace(weight, scales=weight.scales.bfloat16().float())
    packed = pack_experts(lay_out(weight))
    assert packed.scales.dtype is (torch.float32 if form in LONG else torch.bfloat16)
    assert torch.equal(packed.scales.float(), lay_out(weight).scales)


def test_huge_scales_are_not_short() -> None:
    weight = random_weight(Codes.FP4, 32, 64, 256)
    for most, dtype in ((2.0**31, torch.bfloat16), (2.0**32, torch.float32)):
        weight.scales.fill_(1.0)[-1, -1] = most
        assert pack_experts(lay_out(weight)).scales.dtype is dtype


def test_experts_meet_rows_as_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    weight, by = random_weight(Codes.FP8, 128, 64, 256), Scheme(Codes.FP8, 128, Activations.FP8, 128)
    packed = pack_experts(PackedWeight(by, 64, 256, weight.codes, weight.scales))
    assert isinstance(packed, CodedWeight)
    assert packed.scheme == as_read(by) == Scheme(Codes.FP8, 128)
    assert torch.equal(packed.codes, lay_out(weight).codes)


@pytest.mark.usefixtures("hopper")
def test_experts_of_whole_strips_are_taken() -> None:
    scheme = Scheme(Codes.INT4, 128)
    assert ops.takes_experts(scheme, 48, 256, GPU)
    assert ops.takes_experts(scheme, 96, 256, GPU, halves=2)
    assert not ops.takes_experts(scheme, 48, 256, GPU, halves=2)
    assert not ops.takes_experts(scheme, 40, 256, GPU)
    assert not ops.takes_experts(scheme, 48, 260, GPU)
    assert not ops.takes_experts(Scheme(Codes.INT4, 48), 48, 256, GPU)
    assert ops.takes_experts(Scheme(Codes.FP8, 256, Activations.FP8), 48, 256, GPU)
    assert not ops.takes_experts(scheme, 48, 256, torch.device("cpu"))


def test_no_other_chip_takes_codes_of_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "runs_hopper_code", lambda device: False)
    assert not ops.takes_experts(Scheme(Codes.INT4, 128), 48, 256, GPU)
