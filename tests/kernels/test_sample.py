import numpy as np
import pytest
import torch
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from octavo_kernels import _cpu, ops, reference


def draw(logits, seeds=0, indices=0, positions=0, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    samples = ops.pack_samples(
        len(logits), seeds=seeds, indices=indices, positions=positions, temperature=temperature, top_k=top_k,
        top_p=top_p, min_p=min_p,
    )  # fmt: skip
    return ops.sample(logits, samples)


def test_philox_known_answers():
    """Vectors published with Random123 (kat_vectors, philox4x32 10)."""
    ones, digits = 0xFFFFFFFF, [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    cases = [
        (0, [0] * 4, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (2**64 - 1, [ones] * 4, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (0x299F31D0A4093822, digits, [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
    ]
    for key, counter, expected in cases:
        assert reference.philox(key, np.array([counter], dtype=np.uint32)).tolist() == [expected]


@pytest.mark.parametrize("vocab", [1, 5, 64, 1003, 5000])
def test_agrees_with_the_reference(level, vocab):
    generator = torch.Generator().manual_seed(vocab)
    rows = 24
    logits = torch.randn(rows, vocab, generator=generator) * 3
    seeds = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator)
    indices, positions = torch.arange(rows) % 3, torch.arange(rows) * 1000
    temperature = torch.tensor([1.0, 0.6, 1.7, 0.0]).repeat(6)
    top_k = torch.tensor([0, 0, 10, 10, 1, vocab]).repeat(4)
    top_p = torch.tensor([1.0, 0.9, 0.5]).repeat(8)
    min_p = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.1]).repeat(5)[:rows]
    got = draw(logits, seeds, indices, positions, temperature, top_k, top_p, min_p)
    columns = (seeds, indices, positions, temperature, top_k, top_p, min_p)
    expected = [reference.sample(logits[r].double(), *(c[r].item() for c in columns)) for r in range(rows)]
    assert got.tolist() == expected


def test_every_level_draws_the_same_tokens():
    logits = torch.randn(64, 3001) * 2
    options = {"seeds": torch.arange(64), "temperature": 0.8, "top_p": 0.95, "top_k": 200, "min_p": 0.01}
    before, drawn = _cpu.level(), []
    for level in _cpu.levels():
        _cpu.set_level(level)
        drawn.append((draw(logits, **options), draw(logits, seeds=torch.arange(64))))
    _cpu.set_level(before)
    assert len(drawn) == len(_cpu.levels())
    for filtered, free in drawn[1:]:
        assert torch.equal(filtered, drawn[0][0])
        assert torch.equal(free, drawn[0][1])


def allowed_by_transformers(scaled, top_k, top_p, min_p):
    warpers = []
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    scores = scaled[None].clone()
    for warper in warpers:
        scores = warper(None, scores)
    return scores[0].softmax(-1)


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.7, 0.0), (0, 1.0, 0.1), (12, 0.8, 0.0), (12, 0.9, 0.15), (0, 0.0001, 0.0)],
)
def test_distribution(level, top_k, top_p, min_p):
    """Drawn with 20,000 seeds from 37 tokens: the filters keep what transformers keeps, in the right proportions."""
    n = 20_000
    logits = torch.randn(1, 37, generator=torch.Generator().manual_seed(5)) * 2
    expected = allowed_by_transformers(logits[0] / 0.9, top_k, top_p, min_p)
    options = {"temperature": 0.9, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    got = draw(logits.expand(n, -1), seeds=torch.arange(n), positions=7, **options)
    counts = torch.bincount(got, minlength=37)
    assert not counts[expected == 0].any()
    if (expected > 0).sum() == 1:
        return
    # Pearson's chi-square; tokens expected fewer than five times share a cell.
    common = expected * n >= 5
    observed = torch.cat((counts[common], counts[~common].sum()[None])).double()
    wanted = torch.cat((expected[common], expected[~common].sum()[None])).double() * n
    observed, wanted = observed[wanted > 1e-6], wanted[wanted > 1e-6]
    statistic = ((observed - wanted).square() / wanted).sum()
    freedom = torch.tensor(len(wanted) - 1, dtype=torch.float64)
    assert torch.special.gammaincc(freedom / 2, statistic / 2) > 1e-4


def test_noise_depends_on_seed_index_and_position_only(level):
    logits = torch.randn(1, 5000).expand(200, -1)
    base = draw(logits, seeds=torch.arange(200))
    assert torch.equal(base, torch.cat([draw(logits[:1], seeds=i) for i in range(200)]))
    assert (base != draw(logits, seeds=torch.arange(200) + 2**32)).float().mean() > 0.9
    assert (base != draw(logits, seeds=torch.arange(200), indices=1)).float().mean() > 0.9
    assert (base != draw(logits, seeds=torch.arange(200), positions=1)).float().mean() > 0.9


def test_ties_go_to_the_lowest_id_and_stay_in_the_filters(level):
    logits = torch.zeros(1, 300)
    logits[0, [250, 17, 99]] = 4.0
    assert draw(logits, temperature=0.0).tolist() == [17]
    many = logits.expand(300, -1)
    for options in ({"top_k": 2}, {"top_p": 0.01}, {"min_p": 0.9}):
        assert set(draw(many, seeds=torch.arange(300), **options).tolist()) == {250, 17, 99}


def test_forbidden_tokens_are_never_drawn(level):
    logits = torch.randn(500, 40)
    logits[:, ::2] = float("-inf")
    for options in ({}, {"top_k": 30}, {"top_p": 0.99}, {"min_p": 0.001}, {"temperature": 0.0}, {"temperature": 100.0}):
        assert (draw(logits, seeds=torch.arange(500), **options) % 2 == 1).all()
    assert draw(torch.full((1, 40), float("-inf"))).tolist() == [-1]


@pytest.mark.parametrize("vocab", [1, 7, 1003, 50257])
def test_a_row_without_a_number_gives_no_token(level, vocab):
    rows = torch.full((3, vocab), float("nan"))
    rows[1, ::2], rows[2] = float("-inf"), 0.0
    for options in (
        {},
        {"top_k": 30},
        {"top_p": 0.9},
        {"min_p": 0.1},
        {"top_k": 5, "top_p": 0.5},
        {"temperature": 0.0},
    ):
        first, second, number = draw(rows, **options).tolist()
        assert (first, second) == (-1, -1)
        assert 0 <= number < vocab
    chosen, _, _ = ops.logprobs(rows[:1], torch.tensor([-1]))
    assert chosen.isnan().all()


def test_extreme_logits(level):
    logits = torch.tensor([[1e30, 0.0, -1e30], [-1e30, -1e30, -1e-3], [5.0, float("nan"), 1.0]])
    for options in ({}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}, {"temperature": 1e-4}):
        assert draw(logits[:2], **options).tolist() == [0, 2]
    assert draw(logits, temperature=0.0).tolist() == [0, 2, 0]


@pytest.mark.parametrize("vocab", [1, 7, 1003, 50257])
def test_logprobs(level, vocab):
    logits = torch.randn(3, vocab) * 4
    tokens = torch.randint(vocab, (3,))
    top_n = min(20, vocab)
    chosen, ids, values = ops.logprobs(logits, tokens, top_n)
    expected = logits.double().log_softmax(-1)
    torch.testing.assert_close(chosen.double(), expected.gather(1, tokens[:, None])[:, 0], atol=2e-6, rtol=1e-6)
    top = expected.topk(top_n)
    assert torch.equal(ids, top.indices)
    torch.testing.assert_close(values.double(), top.values, atol=2e-6, rtol=1e-6)


def test_logprobs_of_ties_and_forbidden_tokens(level):
    logits = torch.tensor([[1.0, 3.0, float("-inf"), 3.0, 1.0]])
    chosen, ids, values = ops.logprobs(logits, torch.tensor([2]), 5)
    assert chosen.tolist() == [float("-inf")]
    assert ids.tolist() == [[1, 3, 0, 4, 2]]
    assert values[0, 4] == float("-inf")
