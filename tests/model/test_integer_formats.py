"""Weights of GPTQ, AWQ and pack-quantized, written value by value: what is read are the same codes and scales."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import packers
import pytest
import torch
from quantised_checkpoint import assert_is, read_weight, write
from torch import Tensor

from octavo_kernels.products.weights import Activations, Codes, Scheme
from octavo_worker.model.errors import CheckpointError

ROWS, DEPTH, GROUP = 24, 96, 32


def drawn(bits: int, groups: int, symmetric: bool, dtype: torch.dtype = torch.float16) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, zero points, among them the least and the greatest, and scales."""
    generator = torch.Generator().manual_seed(bits + groups)
    q = torch.randint(0, 1 << bits, (ROWS, DEPTH), generator=generator)
    zeros = torch.randint(0, 1 << bits, (ROWS, groups), generator=generator)
    zeros[3], zeros[4] = 0, (1 << bits) - 1
    scales = (torch.rand(ROWS, groups, generator=generator) + 0.5).to(dtype)
    return q, torch.full_like(zeros, 1 << (bits - 1)) if symmetric else zeros, scales


def in_order() -> Tensor:
    return torch.arange(DEPTH) // GROUP


def shuffled() -> Tensor:
    return in_order()[torch.randperm(DEPTH, generator=torch.Generator().manual_seed(1))]


def gptq_config(**differences: Any) -> dict[str, Any]:
    stated = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
    return {"quantization_config": stated | differences}


def under(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"layer.{ending}": tensor for ending, tensor in tensors.items()}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_gptq(tmp_path: Path, bits: int, symmetric: bool, version: int) -> None:
    q, zeros, scales = drawn(bits, 3, symmetric)
    config = gptq_config(bits=bits, sym=symmetric, checkpoint_format="gptq" if version == 1 else "gptq_v2")
    write(tmp_path, under(packers.gptq(q, zeros, scales, in_order(), bits, version)), config)
    weight = read_weight(tmp_path, "layer", ROWS, DEPTH)
    assert weight.scheme == Scheme(Codes.INT4 if bits == 4 else Codes.INT8, GROUP)
    assert (weight.zeros is None) == symmetric
    assert_is(weight, q, zeros, scales, in_order())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_with_columns_in_another_order(tmp_path: Path, bits: int, symmetric: bool) -> None:
    q, zeros, scales = drawn(bits, 3, symmetric)
    write(tmp_path, under(packers.gptq(q, zeros, scales, shuffled(), bits, 1)), gptq_config(bits=bits, desc_act=True))
    assert_is(read_weight(tmp_path, "layer", ROWS, DEPTH), q, zeros, scales, shuffled())


def test_gptq_with_one_group_and_without_an_index(tmp_path: Path) -> None:
    q, zeros, scales = drawn(4, 1, False)
    write(tmp_path, under(packers.gptq(q, zeros, scales, None, 4, 1)), gptq_config(group_size=-1, desc_act=True))
    weight = read_weight(tmp_path, "layer", ROWS, DEPTH)
    assert weight.scheme.group == DEPTH
    assert_is(weight, q, zeros, scales, torch.zeros(DEPTH, dtype=torch.long))


def test_gptq_with_a_shorter_last_group(tmp_path: Path) -> None:
    q, zeros, scales = drawn(4, 2, False)
    groups = torch.arange(DEPTH) // 64
    write(tmp_path, under(packers.gptq(q, zeros, scales, groups, 4, 1)), gptq_config(group_size=64))
    assert_is(read_weight(tmp_path, "layer", ROWS, DEPTH), q, zeros, scales, groups)


def test_gptq_states_other_bits_and_groups_for_some_matrices(tmp_path: Path) -> None:
    dynamic = {r"+:.*other$": {"bits": 4}, r".*\.second": {"bits": 8, "group_size": 48}, r"-:.*": {}}
    q, zeros, scales = drawn(8, 2, False)
    groups = torch.arange(DEPTH) // 48
    tensors = packers.gptq(q, zeros, scales, groups, 8, 1)
    write(tmp_path, {f"layer.second.{e}": tensor for e, tensor in tensors.items()}, gptq_config(dynamic=dynamic))
    weight = read_weight(tmp_path, "layer.second", ROWS, DEPTH)
    assert weight.scheme == Scheme(Codes.INT8, 48)
    assert_is(weight, q, zeros, scales, groups)


def test_a_matrix_that_dynamic_leaves_alone_is_not_quantised(tmp_path: Path) -> None:
    q, zeros, scales = drawn(4, 3, False)
    tensors = under(packers.gptq(q, zeros, scales, None, 4, 1))
    write(tmp_path, tensors, gptq_config(dynamic={"-:lay.*": {}}))
    with pytest.raises(CheckpointError, match=r"'layer\.qweight' is quantised, but 'dynamic' says '-:lay"):
        read_weight(tmp_path, "layer", ROWS, DEPTH)


def test_columns_out_of_order_contradict_a_config_without_desc_act(tmp_path: Path) -> None:
    q, zeros, scales = drawn(4, 3, True)
    write(tmp_path, under(packers.gptq(q, zeros, scales, shuffled(), 4, 1)), gptq_config())
    with pytest.raises(CheckpointError, match=r"'layer\.g_idx' is not sorted, but .* no desc_act"):
        read_weight(tmp_path, "layer", ROWS, DEPTH)


def test_groups_of_unequal_sizes_are_refused(tmp_path: Path) -> None:
    q, zeros, scales = drawn(4, 3, True)
    groups = torch.zeros(DEPTH, dtype=torch.long)
    write(tmp_path, under(packers.gptq(q, zeros, scales, groups, 4, 1)), gptq_config(desc_act=True))
    with pytest.raises(CheckpointError, match=r"'layer\.g_idx' does not part 96 columns into groups of 32"):
        read_weight(tmp_path, "layer", ROWS, DEPTH)


def test_an_order_that_is_stated_cannot_be_missing(tmp_path: Path) -> None:
    q, zeros, scales = drawn(4, 3, True)
    write(tmp_path, under(packers.gptq(q, zeros, scales, None, 4, 1)), gptq_config(desc_act=True))
    with pytest.raises(CheckpointError, match=r"'layer\.g_idx' is missing"):
        read_weight(tmp_path, "layer", ROWS, DEPTH)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_awq(tmp_path: Path, dtype: torch.dtype, symmetric: bool) -> None:
    q, zeros, scales = drawn(4, 3, symmetric, dtype)
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    write(tmp_path, under(packers.awq(q, zeros, scales)), {"quantization_config": config})
    weight = read_weight(tmp_path, "layer", ROWS, DEPTH)
    assert weight.scheme == Scheme(Codes.INT4, GROUP)
    assert_is(weight, q, zeros, scales, in_order())


def test_awq_of_older_files_is_stated_beside_the_config(tmp_path: Path) -> None:
    q, zeros, scales = drawn(4, 3, False)
    write(tmp_path, under(packers.awq(q, zeros, scales)), {})
    stated = {"w_bit": 4, "q_group_size": GROUP, "version": "GEMM", "zero_point": True}
    (tmp_path / "quant_config.json").write_text(json.dumps(stated))
    assert_is(read_weight(tmp_path, "layer", ROWS, DEPTH), q, zeros, scales, in_order())


def packed_config(bits: int, **weights: Any) -> dict[str, Any]:
    stated = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": True}
    group = {"targets": ["Linear"], "weights": stated | weights, "input_activations": None}
    stated = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group}}
    return {"quantization_config": stated | {"ignore": ["lm_head"]}}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_pack_quantized(tmp_path: Path, bits: int, symmetric: bool, dtype: torch.dtype) -> None:
    q, zeros, scales = drawn(bits, 3, symmetric, dtype)
    tensors = packers.pack_quantized(q, None if symmetric else zeros, scales, None, bits)
    write(tmp_path, under(tensors), packed_config(bits, symmetric=symmetric))
    weight = read_weight(tmp_path, "layer", ROWS, DEPTH)
    assert weight.scheme == Scheme(Codes.INT4 if bits == 4 else Codes.INT8, GROUP, Activations.AS_GIVEN)
    assert_is(weight, q, zeros, scales, in_order())


def test_zero_points_of_a_symmetric_weight_are_read_all_the_same(tmp_path: Path) -> None:
    q, zeros, scales = drawn(4, 3, False)
    write(tmp_path, under(packers.pack_quantized(q, zeros, scales, None, 4)), packed_config(4))
    assert_is(read_weight(tmp_path, "layer", ROWS, DEPTH), q, zeros, scales, in_order())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_pack_quantized_with_columns_in_another_order(tmp_path: Path, bits: int, symmetric: bool) -> None:
    q, zeros, scales = drawn(bits, 3, symmetric)
    tensors = packers.pack_quantized(q, None if symmetric else zeros, scales, shuffled(), bits)
    write(tmp_path, under(tensors), packed_config(bits, symmetric=symmetric, actorder="group"))
    assert_is(read_weight(tmp_path, "layer", ROWS, DEPTH), q, zeros, scales, shuffled())


def test_an_order_that_was_never_filled_in_is_none(tmp_path: Path) -> None:
    q, zeros, scales = drawn(4, 3, True)
    tensors = packers.pack_quantized(q, None, scales, torch.full((DEPTH,), -1), 4)
    write(tmp_path, under(tensors), packed_config(4, actorder="weight"))
    assert_is(read_weight(tmp_path, "layer", ROWS, DEPTH), q, zeros, scales, in_order())


@pytest.mark.parametrize("strategy", ["channel", "group"])
def test_pack_quantized_with_one_scale_a_row(tmp_path: Path, strategy: str) -> None:
    q, zeros, scales = drawn(8, 1, False)
    size = None if strategy == "channel" else -1
    config = packed_config(8, symmetric=False, strategy=strategy, group_size=size)
    write(tmp_path, under(packers.pack_quantized(q, zeros, scales, None, 8)), config)
    weight = read_weight(tmp_path, "layer", ROWS, DEPTH)
    assert weight.scheme.group == DEPTH
    assert_is(weight, q, zeros, scales, torch.zeros(DEPTH, dtype=torch.long))


def test_the_shape_beside_packed_codes_must_be_theirs(tmp_path: Path) -> None:
    q, _, scales = drawn(4, 3, True)
    tensors = packers.pack_quantized(q, None, scales, None, 4) | {"weight_shape": torch.tensor([ROWS, DEPTH + 1])}
    write(tmp_path, under(tensors), packed_config(4))
    with pytest.raises(
        CheckpointError, match=r"'layer\.weight_shape' says \[24, 97\], but config\.json says \[24, 96\]"
    ):
        read_weight(tmp_path, "layer", ROWS, DEPTH)
