"""An expert that all rows take within the launches of a few rows' experts, on a GPU: against float64, alone as in a
batch, in graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.experts import gpu
from octavo_kernels.ops import Experts, Routed, RouterProduct, SharedProduct

from .test_cuda_mixtures import ROUNDING, Mixture, assert_replayed_with_other_routing

pytestmark = [pytest.mark.gpu, pytest.mark.beyond_plain]

SIZES = {  # experts, chosen, hidden, width; width of the shared expert, activation, whether rows have factors of it
    "GLM-4.7-Flash": ((64, 4, 2048, 1536), 1536, "silu", False),
    "Granite-4-H-Small": ((72, 10, 4096, 768), 1536, "silu", False),
    "Nemotron-3-Nano": ((128, 6, 2688, 1856), 3712, "relu2", False),
    "Qwen3.5-35B-A3B": ((256, 8, 2048, 512), 512, "silu", True),
    "uneven": ((60, 4, 136, 72), 520, "silu", True),
    "a rank's": ((20, 3, 2112, 40), 24, "relu2", True),
}


class SharedMixture(Mixture):
    """A mixture with a shared expert, within the launches of a few rows or, if `apart`, an operand of the sums."""

    def __init__(self, name: str, dtype: torch.dtype = torch.bfloat16) -> None:
        size, self.width, kind, has_gates = SIZES[name]
        super().__init__(size, dtype, kind=kind)
        halves = 1 if kind == "relu2" else 2
        self.shared_up = torch.randn(halves * self.width, self.hidden).to(dtype).cuda() / self.hidden**0.5
        self.shared_down = torch.randn(self.hidden, self.width).to(dtype).cuda() / self.width**0.5
        self.gate = torch.randn(1, self.hidden, device="cuda") / self.hidden**0.5 if has_gates else None

    def route(self, x: Tensor, slots: Tensor | None = None) -> Routed:
        return ops.route_rows(
            RouterProduct(x, self.router, self.routing, self.counters, norm=self.norm, gate=self.gate, slots=slots)
        )

    def output(self, rows: Tensor) -> Tensor:
        """Rows of the shared expert, of sums in float64 that are rounded once."""
        product = (rows.double() @ self.shared_up.double().T).to(self.dtype).double()
        activated = self.activated(product).to(self.dtype).double()
        return (activated @ self.shared_down.double().T).to(self.dtype)

    def apply(
        self, x: Tensor, residual: Tensor | None = None, slots: Tensor | None = None, *, apart: bool = False,
        factor: float = 1.0,
    ) -> Tensor:  # fmt: skip
        found = self.route(x, slots)
        shared = self.output(found.rows) if apart else None
        room = x.new_empty(len(x), self.width)
        first, second = SharedProduct(Experts(self.shared_up), room), SharedProduct(Experts(self.shared_down), room)
        inner = ops.experts_up(found.rows, self.up, found.taken, self.kind, shared=None if apart else first)
        return ops.experts_down(
            inner, self.down, found.taken, shared=second if shared is None else shared, gates=found.gates,
            factor=factor, residual=residual,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_within_the_launches_it_is_what_it_is_apart(name: str, dtype: torch.dtype) -> None:
    """But for the order of sums in its products, and so in what is rounded."""
    mixture = SharedMixture(name, dtype)
    for rows in (1, 2, gpu.FEW_ROWS):
        x, residual = mixture.rows(rows), mixture.rows(rows)
        found = mixture.route(x)
        gates = 1.0 if found.gates is None else found.gates.double()[:, None]
        wanted = mixture.expected(found.rows, found.taken) + gates * mixture.output(found.rows).double()
        for apart in (False, True):
            got = mixture.apply(x, residual, apart=apart, factor=0.22)
            off = (got.double() - 0.22 * wanted - residual.double()).norm(dim=1)
            assert (off <= 3 * ROUNDING[dtype] * (wanted.norm(dim=1) + residual.double().norm(dim=1))).all()


@pytest.mark.parametrize("name", ["Nemotron-3-Nano", "a rank's"])
def test_of_whole_numbers_bits_are_those_of_any_order_of_sums(name: str) -> None:
    """Squares are whole numbers, too."""
    mixture = SharedMixture(name)
    for m in (mixture.shared_up, mixture.shared_down):
        m.copy_(torch.randint(-2, 3, m.shape, device="cuda") * (torch.rand(m.shape, device="cuda") < 0.02))
    x = torch.randint(-2, 3, (gpu.FEW_ROWS, mixture.hidden), device="cuda").to(mixture.dtype)
    mixture.norm = None
    for rows in (1, gpu.FEW_ROWS):
        got, wanted = (mixture.apply(x[:rows], x[:rows], apart=apart) for apart in (False, True))
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", SIZES)
def test_each_row_is_as_if_it_were_alone(name: str) -> None:
    mixture = SharedMixture(name)
    x = mixture.rows(gpu.FEW_ROWS)
    together = mixture.apply(x)
    for some in (slice(0, 1), slice(gpu.FEW_ROWS - 1, gpu.FEW_ROWS), slice(1, gpu.FEW_ROWS)):
        assert torch.equal(mixture.apply(x[some]), together[some])
    slots = torch.tensor([0, -1, 0], device="cuda")
    x[1] = torch.nan
    assert torch.equal(mixture.apply(x, slots=slots)[::2], together[::2])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", ["GLM-4.7-Flash", "Qwen3.5-35B-A3B", "uneven"])
def test_a_graph_is_replayed_with_other_routing(name: str, count: int) -> None:
    assert_replayed_with_other_routing(SharedMixture(name), count)


@pytest.mark.parametrize("count", [3, 40])
def test_a_factor_is_of_the_sum_and_not_of_the_residual(count: int) -> None:
    """A power of two changes no bits of a sum but its exponent."""
    mixture = SharedMixture("uneven")
    x = mixture.rows(count)
    plain = mixture.apply(x, apart=True)
    assert torch.equal(mixture.apply(x, torch.zeros_like(x), apart=True, factor=0.25), plain / 4)
    got, residual = mixture.apply(x, 8 * x, apart=True, factor=0.25), (8 * x).double()
    torch.testing.assert_close(got.double(), residual + plain.double() / 4, atol=2**-6, rtol=2**-7)


def test_what_does_not_fit_is_refused() -> None:
    mixture = SharedMixture("uneven")
    x = mixture.rows(3)
    found, lists = mixture.route(x), mixture.route(mixture.rows(gpu.FEW_ROWS + 1))
    shared = SharedProduct(Experts(mixture.shared_up), x.new_empty(3, mixture.width))
    with pytest.raises(ValueError, match="shared products are for logits"):
        ops.experts_up(lists.rows, mixture.up, lists.taken, "silu", shared=shared)
    with pytest.raises(ValueError, match=r"shared\.rows must have shape"):
        ops.experts_up(x, mixture.up, found.taken, "silu", shared=shared._replace(rows=shared.rows[:2]))
    with pytest.raises(ValueError, match=r"shared\.expert\.weight must have shape"):
        ops.experts_up(x, mixture.up, found.taken, "silu", shared=shared._replace(rows=shared.rows[:, 8:]))
