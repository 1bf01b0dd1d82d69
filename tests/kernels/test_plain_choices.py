"""Choices of Python with the plain kernels, and with a torch for AMD: nothing that is not there."""

from __future__ import annotations

import importlib
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from octavo_kernels import cuda, ops
from octavo_kernels.cache import pools
from octavo_kernels.chips import Chip
from octavo_kernels.features import Feature, features
from octavo_kernels.products import choice, coded_cuda, dense_cuda, naming
from octavo_kernels.products.choice import Alignment, Ending, Form
from octavo_kernels.products.product import Product
from octavo_kernels.products.weights import Activations, Codes, Scheme

from .plain_build import ABSENT

CUDA = torch.device("cuda", 0)
PLAIN = Chip(0, 304, 65536, False)  # as the module describes every chip to a build of the plain kernels
SHAPES = [(64, 64), (6144, 4096), (4096, 14336), (33000, 1024)]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The module as AMD's build has it, which nothing can launch here."""
    module = SimpleNamespace(built_for="AMD", tensor_cores=False, chip=lambda: PLAIN)
    monkeypatch.setattr(cuda, "compiled", module)
    monkeypatch.setattr(cuda, "chip", lambda device: PLAIN)
    return module


@pytest.mark.parametrize("ending", Ending)
@pytest.mark.parametrize("form", [Form.DENSE_16, Form.DENSE_32])
def test_products_are_torchs(form: Form, ending: Ending) -> None:
    for rows, shape, normed, alignment in product((1, 2, 16, 40, 500), SHAPES, (False, True), Alignment):
        launch = choice.choose(rows, *shape, form, ending, PLAIN, normed, alignment)
        assert launch is None or launch.kernel < 0


@pytest.mark.parametrize("form", [Form.INT8, Form.FP8, Form.FP8_BLOCKS])
def test_products_of_codes_go_by_way_of_a_matrix(form: Form) -> None:
    for rows, shape, normed, uniform in product((1, 2, 300), SHAPES, (False, True), (False, True)):
        assert choice.choose_w8a8(rows, *shape, form, PLAIN, normed, uniform) is None


def test_weights_of_codes_stay_as_they_are(plain: SimpleNamespace) -> None:
    assert not coded_cuda.knows(Scheme(Codes.INT4, 128), 4096, CUDA)
    way = naming.way_of(6144, 4096, torch.bfloat16, CUDA, Scheme(Codes.INT8, 4096, Activations.INT8))
    assert way.dequantises


@pytest.mark.parametrize("operation", sorted(ABSENT - {"decode_step"}))
def test_what_is_absent_is_refused_by_its_name(plain: SimpleNamespace, operation: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"^{operation} is not among the plain kernels for AMD"):
        cuda.run(operation, CUDA)


def test_what_has_another_way_takes_it(plain: SimpleNamespace) -> None:
    assert not cuda.decode_step(CUDA, (), ())
    assert not cuda.reads_prefixes_once(torch.bfloat16, torch.bfloat16, 128)
    assert not cuda.runs_hopper_code(CUDA)
    cuda.mapping_granularity.cache_clear()
    assert not pools.reads_host(CUDA)
    cuda.mapping_granularity.cache_clear()
    with pytest.raises(RuntimeError, match=r"^uniform products need a Hopper GPU"):
        dense_cuda.linear_uniform(Product(torch.zeros(1, 8), torch.zeros(8, 8)), torch.zeros(1, 8))


@pytest.mark.parametrize("built_for", ["AMD", "NVIDIA"])
@pytest.mark.parametrize("hip", ["7.0.51831", None])
def test_a_module_for_other_gpus_than_torchs_is_none(
    built_for: str, hip: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = SimpleNamespace(built_for=built_for)
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert cuda._module() is (module if (built_for == "AMD") == (hip is not None) else None)


def test_the_module_tells_what_it_has(plain: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are for GPUs on which they were tried."""
    assert features(CUDA) == {Feature.GRAPHS}
    plain.adjust = plain.logprobs = plain.Exchange = None
    monkeypatch.setattr(torch.version, "hip", "7.0.51831")
    assert features(CUDA) == {Feature.ADJUSTMENTS, Feature.MASKS, Feature.LOGPROBS, Feature.RANKS}
    monkeypatch.setattr(cuda, "runs_hopper_code", lambda device: True)
    assert Feature.UNIFORM in features(CUDA)
    assert cuda.build_name() == "the plain kernels for AMD"


def test_amds_libraries_are_left_as_torch_chooses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their thresholds are those of an NVIDIA GPU."""
    asked: list[object] = []
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", lambda *name: asked.append(name))
    x, weight, out = torch.ones(2, 4096).bfloat16(), torch.ones(4104, 4096).bfloat16(), torch.empty(2, 4104).bfloat16()
    assert choice.library(2, 4104, 4096, Form.DENSE_16).kernel is choice.Kernel.CUBLASLT
    monkeypatch.setattr(torch.version, "hip", "7.0.51831")
    dense_cuda.library_linear(Product(x, weight), out)
    assert asked == []
    assert (out == 4096).all()
    assert naming.way_of(64, 64, torch.float32, torch.device("cpu"), None).kernel == ops.cpu_level()


def test_a_product_is_named_after_amds_library(plain: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0.51831")
    assert naming.way_of(6144, 4096, torch.bfloat16, CUDA, None).kernel == "hipBLAS"
