"""The kernel that is named is the one that is chosen."""

from __future__ import annotations

import pytest
import torch

from octavo_kernels import choice, cuda, ops
from octavo_kernels.chips import Chip
from octavo_kernels.choice import Ending, Form, Kernel
from octavo_kernels.naming import way_of
from octavo_kernels.weights import Activations, Codes, Scheme

H100 = Chip(9, 132, 232448, True)
OLD = Chip(8, 108, 166912, False)


def test_on_a_cpu_the_instruction_set_says_it() -> None:
    assert way_of(64, 32, torch.bfloat16, torch.device("cpu"), None) == (ops.cpu_level(), False)


@pytest.mark.parametrize(("chip", "name"), [(H100, "row"), (OLD, "cuBLASLt")])
def test_on_a_gpu_the_choice_for_one_row(chip: Chip, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "chip", lambda device: chip)
    way = way_of(6144, 4096, torch.bfloat16, torch.device("cuda"), None)
    assert (way.kernel, way.dequantises) == (name, False)
    launch = choice.choose(1, 6144, 4096, Form.DENSE_16, Ending.PLAIN, chip)
    assert launch is not None
    assert launch.kernel is {"row": Kernel.ROW, "cuBLASLt": Kernel.CUBLASLT}[name]


def test_a_gate_that_no_launch_takes_along_is_a_product_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "chip", lambda device: OLD)
    assert way_of(64, 32, torch.float32, torch.device("cuda"), None, gated=True).kernel == "cuBLAS"


INT4, INT8 = Scheme(Codes.INT4, 128), Scheme(Codes.INT8, 4096, Activations.INT8)


def test_a_cpu_reads_codes() -> None:
    assert way_of(64, 128, torch.bfloat16, torch.device("cpu"), INT4) == (ops.cpu_level(), False)


@pytest.mark.parametrize(
    ("scheme", "depth", "way"),
    [
        (INT4, 4096, ("coded few", False)),
        (INT8, 4096, ("w8a8 row", False)),
        (Scheme(Codes.INT4, 96), 9600, ("row", True)),
        (INT8, 4104, ("row", True)),
    ],
)
def test_codes_that_no_kernel_reads_are_dequantised_for_another(
    monkeypatch: pytest.MonkeyPatch, scheme: Scheme, depth: int, way: tuple[str, bool]
) -> None:
    monkeypatch.setattr(cuda, "chip", lambda device: H100)
    monkeypatch.setattr(cuda, "available", lambda: True)
    assert way_of(6144, depth, torch.bfloat16, torch.device("cuda"), scheme) == way
