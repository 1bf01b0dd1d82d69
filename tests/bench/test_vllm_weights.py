"""Random weights that `benchmarks/gpu_engine.py` gives vLLM: whatever their codes, they deviate as octavo's do."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from octavo_kernels.products.weights import Codes, values

FILE = Path(__file__).parents[2] / "benchmarks" / "peers" / "vllm_weights.py"


@pytest.fixture(scope="module")
def vllm_weights() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vllm_weights", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Experts(torch.nn.Module):
    """Codes of 64 rows of 256 and their scales, as vLLM's layers hold them."""

    def __init__(self, codes: Tensor, scale: Tensor, suffix: str) -> None:
        super().__init__()
        for name, value in (("w13_weight", codes), (f"w13_weight_{suffix}", scale)):
            setattr(self, name, torch.nn.Parameter(value, requires_grad=False))
        self.w13_weight_g_idx = torch.nn.Parameter(torch.arange(256, dtype=torch.int32), requires_grad=False)


@pytest.mark.parametrize(
    ("codes", "scale", "suffix", "kind"),
    [
        (torch.zeros(64, 256, dtype=torch.float8_e4m3fn), torch.zeros(1, 2), "scale_inv", Codes.FP8),
        (torch.zeros(64, 32, dtype=torch.int32), torch.zeros(64, 2, dtype=torch.bfloat16), "scale", Codes.INT4),
        (torch.zeros(64, 128, dtype=torch.uint8), torch.zeros(64, 8, dtype=torch.uint8), "scale", Codes.FP4),
    ],
    ids=["fp8", "int4", "mxfp4"],
)
def test_codes_have_the_deviation_of_other_weights(
    vllm_weights: ModuleType, codes: Tensor, scale: Tensor, suffix: str, kind: Codes
) -> None:
    layer = Experts(codes, scale, suffix)
    vllm_weights.draw_weights(torch.nn.ModuleList([torch.nn.Linear(4, 4), layer]))
    scale = getattr(layer, f"w13_weight_{suffix}")
    factor = 2.0 ** (int(scale[0, 0]) - 127) if scale.dtype is torch.uint8 else float(scale[0, 0])
    made = layer.w13_weight
    found = factor * values(made if kind is Codes.FP8 else made.view(torch.uint8), kind)
    assert found.std().item() == pytest.approx(0.02, rel=0.2)
    assert abs(found.mean().item()) < 0.002
    assert torch.equal(layer.w13_weight_g_idx, torch.arange(256, dtype=torch.int32))
