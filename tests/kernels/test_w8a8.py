"""Products of codes with codes on CUDA, as far as it needs no GPU: which weights they are for, what operands are."""

import pytest
import torch

from octavo_kernels import ops
from octavo_kernels.products.choice import Form
from octavo_kernels.products.w8a8 import CodedRows, form_of
from octavo_kernels.products.weights import DTYPES, Activations, Codes, PackedWeight, QuantisedWeight, Scheme

INT8, FP8 = Activations.INT8, Activations.FP8


def packed(scheme: Scheme, depth: int = 256, **tensors: torch.Tensor) -> PackedWeight:
    codes = torch.zeros(16, depth, dtype=torch.int8).view(DTYPES[scheme.codes])
    return PackedWeight(scheme, 16, depth, codes, torch.ones(-(-depth // scheme.group), 16), **tensors)


@pytest.mark.parametrize(
    ("scheme", "form"),
    [
        (Scheme(Codes.INT8, 256, INT8), Form.INT8),
        (Scheme(Codes.INT8, 512, INT8, 256), Form.INT8),
        (Scheme(Codes.FP8, 256, FP8), Form.FP8),
        (Scheme(Codes.FP8, 128, FP8, 128), Form.FP8_BLOCKS),
        (Scheme(Codes.FP8, 128, FP8), None),
        (Scheme(Codes.FP8, 64, FP8, 64), None),
        (Scheme(Codes.INT8, 128, INT8, 128), None),
        (Scheme(Codes.INT8, 256), None),
        (Scheme(Codes.FP8, 256), None),
        (Scheme(Codes.FP8, 256, INT8), None),
    ],
)
def test_forms_by_scheme(scheme: Scheme, form: Form | None) -> None:
    assert form_of(packed(scheme)) is form


def test_zero_points_orders_and_ragged_depths_are_not_for_these_kernels() -> None:
    scheme = Scheme(Codes.INT8, 256, INT8)
    assert form_of(packed(scheme, zeros=torch.zeros(1, 16, dtype=torch.int8))) is None
    assert form_of(packed(scheme, order=torch.arange(256, dtype=torch.int32))) is None
    assert form_of(packed(scheme, depth=248)) is None


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_groups_of_scales_lie_apart_as_a_tensor_map_wants_it(rows: int) -> None:
    """At multiples of 16 bytes, also where there is one group, whose stride means nothing."""
    scales = torch.ones(rows, 1).T
    assert scales.stride(0) == 1
    apart = CodedRows(torch.zeros(rows, 32), scales).operand()[3]
    assert apart % 4 == 0
    assert apart >= rows
    many = torch.ones(3, 64)[:, :rows]
    assert CodedRows(torch.zeros(rows, 32), many).operand()[3] == 64


def test_a_packed_weight_lies_in_one_piece() -> None:
    scheme = Scheme(Codes.FP8, 128, FP8, 128)
    codes = torch.zeros(256, 16, dtype=torch.uint8).T.view(DTYPES[Codes.FP8])
    weight = ops.pack(QuantisedWeight(scheme, codes, torch.ones(16, 2).T))
    assert weight.codes.is_contiguous()
    assert weight.scales.is_contiguous()
