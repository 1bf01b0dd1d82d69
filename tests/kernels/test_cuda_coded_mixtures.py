"""Mixtures whose experts' matrices are codes, on a GPU: products and sums against float64, alone as in a batch, in
graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo_kernels import ops, reference
from octavo_kernels.experts import gpu
from octavo_kernels.experts.gpu import Ungated
from octavo_kernels.operands import RmsNorm
from octavo_kernels.ops import Assignments, Experts, Gate, Routing, Taken
from octavo_kernels.products.coded import CodedWeight
from octavo_kernels.products.weights import Codes, dequantise

from .coded_weights import FORM_NAMES, FORMS, ROW, random_weight
from .test_cuda_mixtures import ROUNDING, AnyMixture, assert_replayed_with_other_routing, counters
from .test_experts import experts_of

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

HALF = [torch.bfloat16, torch.float16]
SIZES = {  # experts, chosen, hidden, width
    "qwen3": (128, 8, 2048, 768),
    "gpt-oss": (32, 4, 2880, 2880),
    "uneven": (60, 4, 144, 80),
    "many": (300, 10, 1040, 64),
}
SHORT = [(Codes.INT4, group) for group in (32, 64, 128, 256, ROW)] + [
    (Codes.FP4, 32),
    (Codes.FP8, 128),
    (Codes.FP8, ROW),
]
BOTH = [(Codes.INT4, 128), (Codes.FP4, 32)]
ROWS = [1, 2, 3, 4, 9, 33, 65, 200, 1000]


class Mixture(AnyMixture):
    """Random matrices of codes, and the rows' experts in float64."""

    def __init__(
        self,
        size: tuple[int, ...],
        form: tuple[Codes, int],
        dtype: torch.dtype = torch.bfloat16,
        *,
        zeros: bool = False,
        order: bool = False,
        biased: bool = False,
        uniform: bool = False,
        short: bool = True,
        kind: Gate | Ungated = "silu",
    ) -> None:
        """`short`: scales are numbers of bfloat16."""
        self.experts, self.chosen, hidden, width = size
        self.kind, self.uniform, halves = kind, uniform, 1 if kind == "relu2" else 2
        self.routing = Routing(self.experts, self.chosen, normalised=True)
        torch.manual_seed(hidden)
        shapes = (self.experts * halves * width, hidden), (self.experts * hidden, width)
        weights = [random_weight(*form, *shape, zeros=zeros, order=order, device="cuda") for shape in shapes]
        for weight in weights if short else ():
            weight.scales.copy_(weight.scales.bfloat16())
        self.exact = [dequantise(weight) for weight in weights]
        biases = [torch.randn(w.columns, device="cuda").to(dtype) if biased else None for w in weights]
        packed = [ops.pack_experts(ops.pack(weight)) for weight in weights]
        self.up, self.down = (Experts(w, b) for w, b in zip(packed, biases, strict=True))
        self.router = torch.randn(self.experts, hidden, device="cuda") / hidden**0.5
        self.norm = RmsNorm((torch.rand(hidden, device="cuda") + 0.5).to(dtype))
        self.counters, self.hidden, self.dtype = counters(), hidden, dtype

    def expected(self, rows: Tensor, taken: Taken) -> Tensor:
        rounded, taken = isinstance(taken, Assignments), ops.listed(taken)
        chosen = experts_of(Assignments(*(t.cpu() for t in taken))).cuda()
        total = torch.zeros(len(rows), self.hidden, dtype=torch.float64, device="cuda")
        for e in chosen.unique().tolist():
            which, place = (chosen == e).nonzero(as_tuple=True)
            made = reference.linear(rows[which].double(), *self.part(0, e, rounded)).to(self.dtype).double()
            inner = self.activated(made).to(self.dtype).double()
            term = reference.linear(inner, *self.part(1, e, rounded)).to(self.dtype).double()
            total.index_add_(0, which, taken.weights[which, place].double()[:, None] * term)
        return total

    def part(self, which: int, expert: int, rounded: bool) -> tuple[Tensor, Tensor | None]:
        """An expert's matrix, rounded to the type of x as tiles of many rows have it, and its bias."""
        exact, bias = self.exact[which], (self.up, self.down)[which].bias
        rows = len(exact) // self.experts
        part = slice(expert * rows, (expert + 1) * rows)
        own = exact[part].to(self.dtype) if rounded else exact[part]
        return own.double(), None if bias is None else bias[part].double()


def coded(weight: object) -> CodedWeight:
    assert isinstance(weight, CodedWeight)
    return weight


def assert_as_expected(mixture: Mixture, count: int) -> None:
    x, residual = mixture.rows(count), mixture.rows(count)
    found = mixture.route(x)
    wanted = mixture.expected(found.rows, found.taken) + residual.double()
    got = mixture.apply(x, residual)
    bound = 3 * ROUNDING[mixture.dtype] * wanted.norm(dim=1, keepdim=True)
    off = (got.double() - wanted).abs()
    assert (off.norm(dim=1, keepdim=True) <= bound).all()
    assert (off <= bound / 4).all()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=FORM_NAMES)
def test_every_form_of_codes(form: tuple[Codes, int], dtype: torch.dtype) -> None:
    for zeros in {False, form[0] in (Codes.INT4, Codes.INT8)}:
        for short in (False, True):
            mixture = Mixture((20, 3, 1040, 144), form, dtype, zeros=zeros, biased=zeros, short=short)
            assert (mixture.up.weight.scales.dtype is torch.bfloat16) == (short and form in SHORT)
            for count in (1, 3, 8, 40, 500):
                assert_as_expected(mixture, count)


@pytest.mark.parametrize("form", BOTH, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_sizes_of_models(size: str, form: tuple[Codes, int]) -> None:
    mixture = Mixture(SIZES[size], form, biased=size == "gpt-oss")
    for count in ROWS:
        assert_as_expected(mixture, count)


@pytest.mark.parametrize("form", [*BOTH, (Codes.FP8, 128)], ids=str)
@pytest.mark.parametrize("size", [(128, 6, 2688, 1856), (60, 4, 144, 80)], ids=str)
def test_mixtures_without_a_gate(size: tuple[int, ...], form: tuple[Codes, int]) -> None:
    """Nemotron-3-Nano's, and one of an odd number of strips."""
    mixture = Mixture(size, form, biased=size[0] == 60, kind="relu2")
    for count in ROWS:
        assert_as_expected(mixture, count)


@pytest.mark.parametrize("count", [2, 30, 400])
def test_columns_in_another_order(count: int) -> None:
    assert_as_expected(Mixture((8, 2, 256, 128), (Codes.INT4, 64), zeros=True, order=True), count)


@pytest.mark.parametrize("form", [*BOTH, (Codes.FP8, 128)], ids=str)
def test_codes_have_lists_from_some_rows_on(form: tuple[Codes, int]) -> None:
    mixture = Mixture(SIZES["qwen3"], form)
    listed = [isinstance(mixture.route(mixture.rows(rows)).taken, Assignments) for rows in range(1, 6)]
    assert listed == [rows > gpu.CODED_FEW_ROWS[form[0]] for rows in range(1, 6)]


@pytest.mark.parametrize("rows", range(1, 9))
def test_a_few_rows_by_the_kernels_for_a_few(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that these take; each row is as if it were alone."""
    monkeypatch.setattr(gpu, "CODED_FEW_ROWS", dict.fromkeys(Codes, 8))
    for form in BOTH:
        mixture = Mixture(SIZES["qwen3"], form)
        assert_as_expected(mixture, rows)
        x = mixture.rows(rows)
        together = mixture.apply(x)
        for row in range(rows):
            assert torch.equal(mixture.apply(x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("form", [*BOTH, (Codes.FP8, 128)], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_every_row_is_as_if_it_were_alone_if_uniform(size: str, form: tuple[Codes, int]) -> None:
    mixture = Mixture(SIZES[size], form, uniform=True)
    x = mixture.rows(3000)
    together = mixture.apply(x)
    for some in (slice(0, 1), slice(2999, 3000), slice(5, 69), slice(100, 900)):
        assert torch.equal(mixture.apply(x[some]), together[some])


@pytest.mark.parametrize("clamped", [None, 1.5])
@pytest.mark.parametrize("count", [2, 70])
def test_the_clamped_gate_of_gpt_oss(count: int, clamped: float | None) -> None:
    mixture = Mixture((8, 2, 288, 96), (Codes.FP4, 32), biased=True)
    x = 3 * mixture.rows(count)
    found = mixture.route(x)
    got, taken = ops.experts_up(found.rows, mixture.up, found.taken, "gelu_quick", clamped), ops.listed(found.taken)
    for e in range(8):
        begin, end = (int(at) for at in taken.starts[e : e + 2])
        rows = found.rows[taken.sources[begin:end].long()]
        made = reference.linear(rows.double(), *mixture.part(0, e, count > mixture.up.few)).to(x.dtype).double()
        if clamped is not None:
            gate, up = made.chunk(2, dim=1)
            up = (up.clamp(-clamped, clamped) + 1).to(x.dtype).double()
            made = torch.cat((gate.clamp(max=clamped), up), dim=1)
        wanted = reference.act_and_mul(made, "gelu_quick")
        torch.testing.assert_close(got[begin:end].double(), wanted, atol=0.06, rtol=0.03)


@pytest.mark.parametrize("count", [3, 40, 300])
def test_rows_feel_nothing_of_each_other_or_of_padding(count: int) -> None:
    mixture = Mixture(SIZES["uneven"], (Codes.INT4, 32))
    x, slots = mixture.rows(count), torch.arange(count, device="cuda")
    slots[1::2] = -1
    expected = mixture.apply(x, slots=slots)
    assert not expected[1::2].any()
    x[1::2] = float("nan")
    assert torch.equal(mixture.apply(x, slots=slots)[::2], expected[::2])
    slots[::2] = -1
    assert not mixture.apply(x, slots=slots).any()


@pytest.mark.parametrize("count", [1, 3, 8, 64, 500])
@pytest.mark.parametrize("uniform", [False, True])
def test_a_graph_is_replayed_with_other_routing(count: int, uniform: bool) -> None:
    mixture = Mixture(SIZES["qwen3"], (Codes.FP4, 32), uniform=uniform)
    assert_replayed_with_other_routing(mixture, count)


def test_what_does_not_fit_is_refused() -> None:
    mixture = Mixture(SIZES["uneven"], (Codes.INT4, 32))
    x = mixture.rows(3)
    taken = mixture.route(x).taken
    with pytest.raises(ValueError, match="x must have 144 columns, not 64"):
        ops.experts_up(x[:, :64], mixture.up, taken, "silu")
    for columns, message in ((61 * 32, "weight must have rows for 60 experts alike"), (60 * 48, "no GPU kernel")):
        weight = coded(ops.pack(random_weight(Codes.INT4, 32, columns, 144, device="cuda")))
        with pytest.raises(ValueError, match=message):
            ops.experts_up(x, Experts(weight), taken, "silu")
