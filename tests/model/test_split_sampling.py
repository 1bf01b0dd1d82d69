"""Rows whose logits lie on several ranks give what whole rows give: tokens, log-probabilities, candidates."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_threads import on_ranks
from tiers import examples

from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.step import Sampled, SampleRow
from octavo_worker.ranks.cpu_group import CpuGroup
from octavo_worker.ranks.rank import vocabulary_of
from octavo_worker.runner.parallel import filters
from octavo_worker.runner.parallel.sampling import SplitRows
from octavo_worker.runner.sampler import WholeRows

VOCABULARIES = [70, 211, 1003, 5000]


@st.composite
def sample_rows(draw: st.DrawFn, vocab: int, *, masked: bool) -> SampleRow:
    token = st.integers(0, vocab - 1)
    some = st.lists(token, max_size=8)
    candidates = draw(st.sampled_from([0, 0, 0, 0, 6]))
    params = EngineSampling(
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        max_tokens=9,
        temperature=draw(st.sampled_from([0.0, 0.3, 0.9, 1.0, 1.7])),
        top_k=draw(st.sampled_from([0, 0, 1, 5, 63, 400, 9999])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.0, 1e-6, 0.3, 0.9, 0.999999])),
        min_p=draw(st.sampled_from([0.0, 0.0, 1e-4, 0.2, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 0.7, 1.5])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.1])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, -0.4])),
        logit_bias=draw(st.dictionaries(token, st.sampled_from([-3.0, 0.5, 100.0]), max_size=4)),
        logprobs=draw(st.sampled_from([None, None, None, 0, 4])) if not candidates else None,
    )
    return SampleRow(
        params,
        index=draw(st.integers(0, 5)),
        position=draw(st.integers(1, 1 << 20)),
        prompt=draw(some),
        output=draw(some),
        forbidden=draw(some),
        candidates=candidates,
        masked=masked and draw(st.booleans()),
    )


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, list[SampleRow], torch.Tensor | None]:
    vocab, masked = draw(st.sampled_from(VOCABULARIES)), draw(st.booleans())
    rows = draw(st.lists(sample_rows(vocab, masked=masked), min_size=1, max_size=6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    logits = torch.randn(len(rows), vocab, generator=generator) * draw(st.sampled_from([0.1, 1.0, 8.0]))
    if draw(st.booleans()):
        logits = logits.round()  # many equals
    if draw(st.booleans()):
        dead = draw(st.integers(0, vocab))
        logits[draw(st.integers(0, len(rows) - 1)), :dead] = draw(st.sampled_from([-torch.inf, torch.nan]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    allowed = None
    if any(row.masked for row in rows):
        allowed = torch.randint(-(2**31), 2**31 - 1, (len(rows), -(-vocab // 32)), generator=generator).int()
    return logits.to(dtype), rows, allowed


def of_ranks(
    ranks: int, logits: torch.Tensor, rows: list[SampleRow], allowed: torch.Tensor | None
) -> list[list[Sampled]]:
    def work(group: CpuGroup) -> list[Sampled]:
        ids = vocabulary_of(logits.shape[1], group.rank)
        part = logits[:, ids.start : ids.stop].clone()
        return SplitRows(group, logits.shape[1]).sample(part, rows, allowed).result()

    return on_ranks(ranks, work)


def plain(answers: list[Sampled], rows: list[SampleRow]) -> str:
    """A NaN among log-probabilities is equal to itself here; where candidates are asked for, the token is moot."""
    pairs = zip(answers, rows, strict=True)
    return repr([(0 if row.candidates else each.token, each.logprob, each.candidates) for each, row in pairs])


def test_of_equal_logits_the_lowest_id_is_chosen_whatever_rank_has_it() -> None:
    rows = [SampleRow(EngineSampling(seed=1, max_tokens=9, temperature=0.0), index=0, position=1)] * 2
    logits = torch.zeros(2, 70)
    logits[0, [5, 69]] = logits[1, [40, 69]] = 3.0
    for answers in of_ranks(2, logits, rows, None):
        assert [answer.token for answer in answers] == [5, 40]


@given(batch=batches(), ranks=st.sampled_from([2, 3]))
@settings(max_examples=examples(200, quick=80))
def test_every_rank_chooses_what_one_process_chooses(
    batch: tuple[torch.Tensor, list[SampleRow], torch.Tensor | None], ranks: int
) -> None:
    logits, rows, allowed = batch
    expected = WholeRows(logits.shape[1]).sample(logits.clone(), rows, allowed).result()
    for found in of_ranks(ranks, logits, rows, allowed):
        assert plain(found, rows) == plain(expected, rows)


@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.9999])
def test_rows_whose_mass_is_spread_over_thousands_of_tokens(top_p: float) -> None:
    """More than are listed at first, of both ranks."""
    logits = torch.randn(16, 20_000) * 0.01
    rows = [SampleRow(EngineSampling(seed, 9, top_p=top_p), 0, seed) for seed in range(16)]
    assert top_p * 20_000 > 2 * filters.FIRST_LISTED
    expected = WholeRows(20_000).sample(logits.clone(), rows).result()
    assert of_ranks(2, logits, rows, None) == [expected] * 2
    tokens = [each.token for each in expected]
    assert min(tokens) < 10_000 < max(tokens)


def test_a_list_that_one_rank_has_cut_short_settles_nothing_below_its_end() -> None:
    """The first rank has more large values than it lists, so that the other's reach the share too soon."""
    large, vocab = 4 * filters.FIRST_LISTED, 40 * filters.FIRST_LISTED
    logits = torch.randn(64, vocab) * 1e-3
    logits[:, :large] += 1.0
    listed = filters.FIRST_LISTED * (1 + math.exp(-1))
    share = (filters.FIRST_LISTED + listed) / 2 / (large + (vocab - large) * math.exp(-1))
    rows = [SampleRow(EngineSampling(seed, 9, top_p=share), 0, seed) for seed in range(64)]
    expected = WholeRows(vocab).sample(logits.clone(), rows).result()
    assert of_ranks(2, logits, rows, None) == [expected] * 2


def test_scores_of_prompts_are_those_of_one_process() -> None:
    logits, targets = torch.randn(9, 211).bfloat16(), torch.arange(9) * 23

    def work(group: CpuGroup) -> str:
        ids = vocabulary_of(211, group.rank)
        return repr(SplitRows(group, 211).score(logits[:, ids.start : ids.stop], targets, [3] * 9).result())

    assert on_ranks(2, work) == [repr(WholeRows(211).score(logits, targets, [3] * 9).result())] * 2
