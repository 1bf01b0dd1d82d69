"""A build of the plain kernels on a GPU: what is theirs runs in the tests of each operation, this is what they lack."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from octavo_kernels import cuda, ops, reference
from octavo_kernels.operands import RmsNorm
from octavo_kernels.plan import AttentionPlan
from octavo_kernels.product import Product
from octavo_kernels.weights import Activations, Codes, dequantise
from octavo_worker.assembly.loading import load_runner
from octavo_worker.contract.options import ModelOptions
from octavo_worker.model.errors import ModelError

from .coded_weights import random_weight
from .plain_build import ABSENT, OPERATIONS

pytestmark = [pytest.mark.gpu, pytest.mark.plain]

CUDA = torch.device("cuda", 0)


def test_the_module_has_these_operations_and_no_others() -> None:
    assert all(hasattr(cuda.compiled, name) for name in OPERATIONS)
    assert not any(hasattr(cuda.compiled, name) for name in ABSENT)
    assert not hasattr(cuda.compiled, "MappedPool")


def test_no_chip_is_taken_for_a_hopper() -> None:
    chip = cuda.chip(CUDA)
    assert (chip.major, chip.hopper) == (0, False)
    assert chip.multiprocessors == torch.cuda.get_device_properties(CUDA).multi_processor_count
    assert not cuda.runs_hopper_code(CUDA)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_products_norms_and_gates_in_a_row(dtype: torch.dtype, rows: int) -> None:
    x, weight = torch.randn(rows, 512, device=CUDA).to(dtype), (torch.randn(768, 512, device=CUDA) / 23).to(dtype)
    norm, residual = RmsNorm(torch.rand(512, device=CUDA).to(dtype)), torch.randn(rows, 768, device=CUDA).to(dtype)
    normed = ops.rms_norm(x, norm.weight, norm.eps)
    got = ops.linear(Product(x, weight, residual=residual, norm=norm))
    expected = reference.linear(normed.double(), weight.double(), None, residual.double())
    torch.testing.assert_close(got.double(), expected, atol=2e-2, rtol=2e-2)
    gated = ops.gated_linear(Product(x, weight, norm=norm), "silu")
    wide = reference.act_and_mul(ops.linear(Product(normed, weight)).double(), "silu")
    torch.testing.assert_close(gated.double(), wide, atol=1e-2, rtol=2e-2)


@pytest.mark.parametrize(("kind", "group"), [(Codes.INT4, 128), (Codes.INT8, 512), (Codes.FP8, 128)])
def test_quantised_weights_are_dequantised(kind: Codes, group: int) -> None:
    weight = random_weight(kind, group, 96, 512, device="cuda")
    if kind is Codes.INT8:
        weight = replace(weight, scheme=weight.scheme._replace(activations=Activations.INT8))
    packed, x = ops.pack(weight), torch.randn(5, 512, device=CUDA).bfloat16()
    matrix = dequantise(packed).bfloat16()
    torch.testing.assert_close(ops.linear(Product(x, packed)), x @ matrix.T, atol=2e-2, rtol=2e-2)


def test_groups_are_refused() -> None:
    q, out = (torch.zeros(1, 4, 64, dtype=torch.bfloat16, device=CUDA) for _ in range(2))
    cache = ops.empty_cache(2, 1, 2, 16, 64, torch.bfloat16, CUDA)
    table, lengths, queries = (torch.tensor(x, dtype=torch.int32, device=CUDA) for x in ([[1]], [1], [0, 1]))
    plan = AttentionPlan(
        sequences=1, tokens=1, chunks=1, heads=4, kv_heads=2, head_dim=64, max_queries=1, shared_prefixes=True
    )
    plan.update(lengths, queries)
    with pytest.raises(ValueError, match=r"^plan has shared prefixes"):
        ops.paged_attention(q, cache[:, 0], table, lengths, queries, out, 1.0, plan=plan)


def test_an_engine_groups_nothing_and_is_not_deterministic() -> None:
    options = ModelOptions(model="demo", device="cuda", num_blocks=65, max_running=8)
    assert load_runner(options).shared_reading is None
    with pytest.raises(ModelError, match="--deterministic needs a Hopper GPU"):
        load_runner(ModelOptions(model="demo", device="cuda", num_blocks=65, max_running=8, deterministic=True))
