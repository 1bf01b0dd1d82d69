"""An expert that all rows take within the launches of a few rows' experts, run on the CPU as in test_emulated_experts.

Whole numbers have exact products in any order: of them bits are those of launches of the shared expert's own.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import Assignments, Experts, RouterLogits, Routing, SharedProduct

from .emulated import aligned
from .emulated_experts import EmulatedExperts
from .test_emulated_experts import assert_close, expected_down, expected_up

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(0)]

SIZES = [  # experts, chosen, rows, hidden, width, that of the shared expert
    (5, 2, 1, 64, 24, 24),
    (4, 2, 3, 72, 40, 136),  # three of the experts' pieces; no whole units of hidden
    (6, 3, 2, 136, 520, 72),  # less than a piece; no whole units without a gate
    (3, 1, 8, 1032, 72, 1032),  # two pieces of x; the ring goes round
]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> EmulatedExperts:
    return EmulatedExperts(tmp_path_factory.mktemp("shared_expert"))


class Case:
    """A mixture in whole numbers, of which few are not zero."""

    def __init__(self, size: tuple[int, ...], kind: str = "silu", *, biased: bool = False) -> None:
        self.experts, chosen, self.count, hidden, width, shared = size
        self.kind, halves = kind, 1 if kind == "relu2" else 2
        torch.manual_seed(hidden)
        self.routing = Routing(self.experts, chosen, normalised=True)
        self.found = RouterLogits(torch.randn(self.count, self.experts), self.routing)
        self.x, self.residual = self.whole(self.count, hidden), self.whole(self.count, hidden)
        self.up, self.down = self.whole(self.experts * halves * width, hidden), self.whole(self.experts * hidden, width)
        self.shared_up, self.shared_down = (
            Experts(aligned(self.whole(*shape)), self.whole(shape[0]) if biased else None)
            for shape in ((halves * shared, hidden), (hidden, shared))
        )
        self.width = shared

    @staticmethod
    def whole(*shape: int) -> Tensor:
        return (torch.randint(-2, 3, shape) * (torch.rand(shape) < 0.2)).bfloat16()

    def products(self, rows: int) -> tuple[SharedProduct, SharedProduct]:
        room = aligned(torch.full((rows, self.width), float("nan"), dtype=self.x.dtype))
        return SharedProduct(self.shared_up, room), SharedProduct(self.shared_down, room)


def of_all(rows: int) -> Assignments:
    """Rows that all take the one expert there is, with the weight 1."""
    return ops.route(torch.zeros(rows, 1), Routing(1, 1))


def alone(emulated: EmulatedExperts, case: Case) -> tuple[Tensor, Tensor]:
    """The shared expert in launches of its own: activated rows, and its output."""
    (up, up_bias), (down, down_bias) = case.shared_up, case.shared_down
    taken = of_all(case.count)
    activated = emulated.up(case.x, up, taken, case.kind, many=False, bias=up_bias)
    return activated, emulated.down(activated, down, taken, many=False, bias=down_bias)


@pytest.mark.parametrize("kind", ["silu", "relu2"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bits_are_those_of_launches_of_its_own(emulated, size, kind):
    case = Case(size, kind, biased=size[2] == 3)
    emulated.set_up(3, size[2])
    activated, output = alone(emulated, case)
    first, second = case.products(case.count)
    clamped = None if kind == "relu2" else 0.5
    inner = emulated.up(case.x, case.up, case.found, kind, many=False, clamped=clamped, shared=first)
    assert torch.equal(inner, emulated.up(case.x, case.up, case.found, kind, many=False, clamped=clamped))
    assert torch.equal(first.rows, activated)
    gates = torch.rand(case.count)
    for more in ({}, {"gates": gates, "residual": case.residual}, {"factor": 0.22, "residual": case.residual}):
        got = emulated.down(inner, case.down, case.found, many=False, shared=second, **more)
        assert torch.equal(got, emulated.down(inner, case.down, case.found, many=False, shared=output, **more))


@pytest.mark.parametrize("kind", ["silu", "relu2"])
def test_it_is_the_product_of_all_rows(emulated, kind):
    case = Case((6, 2, 3, 136, 40, 200), kind)
    shared_up, shared_down = (aligned(torch.randn_like(m.weight) / 12) for m in (case.shared_up, case.shared_down))
    case.shared_up, case.shared_down = Experts(shared_up), Experts(shared_down)
    emulated.set_up(2, 7)
    first, second = case.products(3)
    inner = emulated.up(case.x, case.up, case.found, kind, many=False, shared=first)
    assert_close(first.rows, expected_up(case.x, shared_up, of_all(3), kind), case.x.dtype)
    gates, taken = torch.rand(3), ops.route(case.found.logits, case.routing)
    got = emulated.down(inner, case.down, case.found, many=False, shared=second, gates=gates)
    output = expected_down(first.rows, shared_down, of_all(3))
    wanted = expected_down(inner, case.down, taken, shared=output, gates=gates)
    assert_close(got, wanted, case.x.dtype)


@pytest.mark.parametrize("owned", [range(2), range(2, 6), range(6, 6)], ids=str)
def test_a_rank_adds_its_part_whichever_experts_it_has(emulated, owned):
    case = Case((6, 2, 3, 64, 24, 40))
    emulated.set_up(3, 4)
    _, output = alone(emulated, case)
    own = case.found._replace(owned=owned)
    up, down = (m[owned.start * (len(m) // 6) : owned.stop * (len(m) // 6)] for m in (case.up, case.down))
    if not owned:  # matrices of one that no row takes
        own, up, down = case.found._replace(owned=range(6, 7)), case.up[:48], case.down[:64]
    first, second = case.products(3)
    inner = emulated.up(case.x, up, own, many=False, shared=first)
    got = emulated.down(inner, down, own, many=False, shared=second)
    assert torch.equal(got, emulated.down(inner, down, own, many=False, shared=output))


def test_rows_feel_nothing_of_each_other_or_of_padding(emulated):
    case = Case(SIZES[1])
    emulated.set_up(3, 9)
    x = torch.randn_like(case.x) / 4

    def mixture(x: Tensor, found: RouterLogits) -> Tensor:
        first, second = case.products(len(x))
        inner = emulated.up(x, case.up, found, many=False, shared=first)
        return emulated.down(inner, case.down, found, many=False, shared=second)

    together = mixture(x, case.found)
    for row in range(3):
        one = slice(row, row + 1)
        assert torch.equal(mixture(x[one], case.found._replace(logits=case.found.logits[one])), together[one])
    x[1] = torch.nan
    padded = mixture(x, case.found._replace(slots=torch.tensor([0, -1, 2])))
    assert torch.equal(padded[::2], together[::2])


def test_what_the_kernels_do_not_take_they_refuse(emulated):
    case = Case(SIZES[0])
    emulated.set_up(2, 1)
    first, second = case.products(1)
    inner = emulated.up(case.x, case.up, case.found, many=False)
    odd = case.shared_up._replace(weight=case.shared_up.weight[1:])
    for up in (first._replace(expert=odd), first._replace(expert=Experts(aligned(odd.weight[1:, :56])))):
        with pytest.raises(ValueError, match="up_few"):
            emulated.up(case.x, case.up, case.found, many=False, shared=up)
    weight = case.shared_down.weight
    for matrix in (aligned(weight[:, :20]), weight[:-1]):
        with pytest.raises(ValueError, match="down_few"):
            emulated.down(inner, case.down, case.found, many=False, shared=second._replace(expert=Experts(matrix)))
