"""Routing, products of several experts and their sum: against five lines of torch, and row by row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.ops import Assignments, Product, Routing, Score
from octavo_kernels.products.weights import Activations, Codes, PackedWeight, QuantisedWeight, Scheme
from octavo_worker.model.checkpoint.rounding import quantised

ROWS = 60
ROUTINGS = [
    Routing(8, 2),
    Routing(64, 8, normalised=True),
    Routing(60, 4, scale=0.5),
    Routing(64, 6, "sigmoid", 8, 4, 2, normalised=True, eps=1e-20, scale=2.5),
    Routing(32, 6, "softmax", 4, 2, 1),
    Routing(128, 8, "sigmoid", normalised=True),
    Routing(32, 4, "chosen softmax"),
    Routing(16, 3, normalised=True, least=0.9),
    Routing(16, 16, normalised=True),
]


def reference(logits: Tensor, routing: Routing, correction: Tensor | None) -> tuple[Tensor, Tensor]:
    """Experts of each row, ascending, and their weights: a stable sort keeps the lowest of equals in front."""
    scores = {"softmax": logits.softmax(-1), "sigmoid": logits.sigmoid(), "chosen softmax": logits}[routing.score]
    keys = scores if correction is None else scores + correction
    keys = keys.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    grouped = keys.unflatten(1, (routing.groups, -1))
    best = grouped.sort(dim=-1, descending=True).values[..., : routing.group_best].sum(-1)
    kept = best.sort(dim=-1, descending=True, stable=True).indices[:, : routing.top_groups]
    left = torch.ones(best.shape, dtype=torch.bool).scatter(1, kept, False)
    keys = grouped.masked_fill(left[..., None], -torch.inf).flatten(1)
    chosen = keys.sort(dim=-1, descending=True, stable=True).indices[:, : routing.chosen].sort(-1).values
    weights = scores.gather(1, chosen)
    weights = weights.softmax(-1) if routing.score == "chosen softmax" else weights
    if routing.normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + routing.eps).clamp(min=routing.least)
    return chosen, weights * routing.scale


def experts_of(taken: Assignments) -> Tensor:
    """The expert of each of a row's places."""
    return torch.bucketize(taken.places, taken.starts[1:], right=True)


def logits_for(routing: Routing) -> Tensor:
    """Random ones, many of which are equal in some rows."""
    logits = torch.randn(ROWS, routing.experts, generator=torch.Generator().manual_seed(routing.experts))
    logits[::3] = (logits[::3] * 2).round() / 2
    logits[4] = 0
    return logits


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_routing(routing: Routing, corrected: bool) -> None:
    logits = logits_for(routing)
    correction = torch.randn(routing.experts, generator=torch.Generator().manual_seed(9)) if corrected else None
    taken = ops.route(logits, routing, correction)
    chosen, weights = reference(logits, routing, correction)
    assert torch.equal(experts_of(taken), chosen)
    torch.testing.assert_close(taken.weights, weights, rtol=1e-5, atol=1e-7)
    assert torch.equal(
        taken.sources[taken.places.long()], torch.arange(ROWS, dtype=torch.int32)[:, None].expand(chosen.shape)
    )
    assert all(
        torch.equal(part, part.sort().values)
        for part in taken.sources.tensor_split(taken.starts[1:-1].long())
    )  # fmt: skip


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "chosen softmax"])
def test_of_equal_scores_the_lowest_expert_is_taken(score: Score) -> None:
    logits = torch.zeros(3, 16)
    logits[1, 5::2] = 1.0
    logits[2, 15] = 1.0
    assert experts_of(ops.route(logits, Routing(16, 3, score))).tolist() == [[0, 1, 2], [5, 7, 9], [0, 1, 15]]
    grouped = Routing(16, 3, "sigmoid", 4, 2, 2)
    assert experts_of(ops.route(logits, grouped)).tolist() == [[0, 1, 2], [5, 7, 9], [0, 1, 15]]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_logits_that_are_no_numbers_choose_experts_all_the_same(routing: Routing) -> None:
    logits = torch.randn(5, routing.experts)
    logits[0] = torch.nan
    logits[1, 3] = torch.nan
    logits[2] = torch.inf
    logits[3] = -torch.inf
    logits[4, ::2] = torch.inf
    chosen = experts_of(ops.route(logits, routing))
    assert (chosen.diff(dim=1) > 0).all()
    assert ((chosen >= 0) & (chosen < routing.experts)).all()


def test_a_logit_that_is_no_number_comes_last() -> None:
    logits = torch.tensor([[torch.nan, -3.0, -2.0, -4.0]])
    assert experts_of(ops.route(logits, Routing(4, 3, "sigmoid"))).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_row_is_routed_as_if_it_were_alone(routing: Routing) -> None:
    logits = logits_for(routing)
    together = ops.route(logits, routing)
    for row in range(ROWS):
        alone = ops.route(logits[row : row + 1], routing)
        assert torch.equal(alone.weights[0], together.weights[row])
        assert torch.equal(experts_of(alone)[0], experts_of(together)[row])


def test_no_rows_have_empty_lists() -> None:
    taken = ops.route(torch.empty(0, 8), Routing(8, 2))
    assert taken.starts.tolist() == [0] * 9
    parts = ops.grouped_linear(torch.empty(0, 32), torch.randn(8 * 64, 32), taken.starts)
    assert ops.combine(parts, taken, torch.empty(0, 64)).shape == (0, 64)


@pytest.mark.parametrize("rows", [1, 2, 8, 33, 100])
def test_a_sigmoid_does_not_depend_on_its_place(rows: int) -> None:
    values = torch.randn(257, generator=torch.Generator().manual_seed(1)) * 9
    expected = ops.sigmoid(values.clone())
    torch.testing.assert_close(expected, values.sigmoid())
    assert torch.equal(ops.sigmoid(values[-rows:].clone()), expected[-rows:])


WEIGHTS: dict[str, object] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int4": "int4",
    "int8": "int8",
    "fp8": "fp8",
    "fp4": Scheme(Codes.FP4, 32),
    "int8g32 by int8": Scheme(Codes.INT8, 32, Activations.INT8),
    "int4g32": Scheme(Codes.INT4, 32),
}
EXPERTS, COLUMNS, DEPTH = 7, 128, 96


def random_weight(scheme: Scheme) -> QuantisedWeight:
    high, groups = EXPERTS * COLUMNS, DEPTH // scheme.group
    packed = scheme.codes in (Codes.INT4, Codes.FP4)
    codes = torch.randint(0, 256, (high, DEPTH // 2 if packed else DEPTH), dtype=torch.uint8)
    return QuantisedWeight(scheme, codes if packed else codes.view(torch.int8), torch.rand(groups, high) / 50)


def part_of(weight: QuantisedWeight, expert: int) -> QuantisedWeight:
    rows = slice(expert * COLUMNS, (expert + 1) * COLUMNS)
    zeros = None if weight.zeros is None else weight.zeros[:, rows].clone()
    codes = weight.codes.view(torch.uint8)[rows].clone().view(weight.codes.dtype)
    return QuantisedWeight(weight.scheme, codes, weight.scales[:, rows].clone(), zeros)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_products_of_several_experts_are_those_of_each_alone(kind: str, biased: bool) -> None:
    torch.manual_seed(3)
    how = WEIGHTS[kind]
    dtype = how if isinstance(how, torch.dtype) else torch.bfloat16
    bias = torch.randn(EXPERTS * COLUMNS).to(dtype) if biased else None
    dense = torch.randn(EXPERTS * COLUMNS, DEPTH).to(dtype)
    whole: Tensor | PackedWeight = dense
    parts: list[Tensor | PackedWeight] = list(dense.split(COLUMNS))
    if not isinstance(how, torch.dtype):
        made = random_weight(how) if isinstance(how, Scheme) else quantised(dense, how)  # type: ignore[arg-type]
        parts = [ops.pack(part_of(made, expert)) for expert in range(EXPERTS)]
        whole = ops.pack(made)
    starts = torch.tensor([0, 1, 1, 3, 40, 57, 57, 140], dtype=torch.int32)
    x = torch.randn(140, DEPTH).to(dtype)
    found = ops.grouped_linear(x, whole, starts, bias)
    for expert, part in enumerate(parts):
        begin, end = starts[expert : expert + 2].tolist()
        own = None if bias is None else bias.split(COLUMNS)[expert]
        assert torch.equal(found[begin:end], ops.linear(Product(x[begin:end], part, own)))
        if begin < end:
            assert torch.equal(found[end - 1 : end], ops.linear(Product(x[end - 1 : end], part, own)))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_changes_no_bit(threads: int) -> None:
    torch.manual_seed(4)
    x, weight = torch.randn(90, DEPTH), torch.randn(EXPERTS * COLUMNS, DEPTH)
    taken = ops.route(torch.randn(30, EXPERTS), Routing(EXPERTS, 3))
    before = ops.num_threads()
    expected = ops.grouped_linear(x, weight, taken.starts)
    ops.set_num_threads(threads)
    try:
        assert torch.equal(ops.grouped_linear(x, weight, taken.starts), expected)
    finally:
        ops.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_sum_is_that_of_ascending_experts_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    taken = ops.route(torch.randn(20, 16), Routing(16, 5))
    parts, shared, residual = (torch.randn(rows, 70).to(dtype) for rows in (100, 20, 20))
    gates = torch.rand(20)
    total = torch.zeros(20, 70)
    for place in range(5):
        total = total + taken.weights[:, place, None] * parts[taken.places[:, place].long()].float()
    found = ops.combine(parts, taken, torch.empty(20, 70, dtype=dtype))
    assert torch.equal(found, total.to(dtype))
    whole = total + gates[:, None] * shared.float() + residual.float()
    options = {"shared": shared, "gates": gates, "residual": residual}
    smaller = 0.22 * (whole.double() - residual.double()) + residual.double()
    found = ops.combine(parts, taken, torch.empty(20, 70, dtype=dtype), **options, factor=0.22)
    torch.testing.assert_close(found, smaller.to(dtype))
    assert torch.equal(ops.combine(parts, taken, residual, **options), whole.to(dtype))


def test_every_row_of_a_mixture_is_its_own() -> None:
    """Alone, with others, with all rows at one expert, and with one row each."""
    torch.manual_seed(6)
    up, down = torch.randn(16 * 64, 48), torch.randn(16 * 48, 32)
    x = torch.randn(300, 48)

    def mixture(rows: Tensor, logits: Tensor) -> Tensor:
        taken = ops.route(logits, Routing(16, 2, normalised=True))
        inner = ops.act_and_mul(ops.grouped_linear(rows.index_select(0, taken.sources), up, taken.starts), "silu")
        return ops.combine(ops.grouped_linear(inner, down, taken.starts), taken, torch.empty_like(rows))

    for logits in (
        torch.randn(300, 16),
        torch.arange(16.0).expand(300, 16).contiguous(),
        torch.eye(16).repeat(19, 1)[:300],
    ):
        together = mixture(x, logits)
        for rows in (slice(0, 1), slice(299, 300), slice(7, 9), slice(100, 164), slice(0, 299)):
            assert torch.equal(mixture(x[rows], logits[rows]), together[rows])


@pytest.mark.parametrize(
    ("routing", "reason"),
    [
        (Routing(8, 9), "9 cannot be chosen of 8"),
        (Routing(8, 0), "0 cannot be chosen"),
        (Routing(8, 5, "sigmoid", 4, 2, 2), "5 cannot be chosen of 4"),
        (Routing(8, 2, "sigmoid", 3, 1), "1 of 3 even groups"),
        (Routing(8, 2, "sigmoid", 4, 5), "5 of 4 even groups"),
        (Routing(8, 2, "sigmoid", 4, 2, 3), "no 3 best"),
        (Routing(8, 2, "tanh"), "score must be one of"),  # type: ignore[arg-type]
    ],
)
def test_routings_that_make_no_sense_are_refused(routing: Routing, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ops.route(torch.zeros(2, 8), routing)


def test_operands_that_do_not_fit_are_refused() -> None:
    taken = ops.route(torch.zeros(2, 8), Routing(8, 2))
    with pytest.raises(TypeError, match="logits must be"):
        ops.route(torch.zeros(2, 8, dtype=torch.bfloat16), Routing(8, 2))
    with pytest.raises(ValueError, match="correction must have shape"):
        ops.route(torch.zeros(2, 8), Routing(8, 2), torch.zeros(7))
    with pytest.raises(ValueError, match="8 experts alike, not 20"):
        ops.grouped_linear(torch.zeros(4, 16), torch.zeros(20, 16), taken.starts)
    narrow = ops.pack(quantised(torch.zeros(8 * 32, 64), "int8"))
    with pytest.raises(ValueError, match="whole panels of 64"):
        ops.grouped_linear(torch.zeros(4, 64), narrow, taken.starts)
    with pytest.raises(ValueError, match="parts must have 4 rows, not 5"):
        ops.combine(torch.zeros(5, 16), taken, torch.zeros(2, 16))
    with pytest.raises(ValueError, match="factor is for a sum with a residual"):
        ops.combine(torch.zeros(4, 16), taken, torch.zeros(2, 16), factor=0.5)
