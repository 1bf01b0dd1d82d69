"""Each adjustment of the logits, by its definition, on the rows that ask for it and no others."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import torch

from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.step import SampleRow
from octavo_worker.runner.sampler import adjust_rows, sample, score


def spec(
    *, prompt: Sequence[int] = (), output: Sequence[int] = (), forbidden: Sequence[int] = (), **params: object
) -> SampleRow:
    sampling = EngineSampling(**{"seed": 1, "max_tokens": 9, "temperature": 0.0, **params})  # type: ignore[arg-type]
    return SampleRow(sampling, 0, len(prompt) + len(output), prompt, output, forbidden)


def adjusted(logits: list[float], asked: SampleRow) -> list[float]:
    row = torch.tensor([logits])
    adjust_rows(row, [asked])
    return row[0].tolist()


def test_repetition_penalty_counts_prompt_and_output_once_each() -> None:
    got = adjusted([2.0, -2.0, 3.0, 4.0], spec(prompt=[0, 0, 1], output=[2, 2], repetition_penalty=2.0))
    assert got == [1.0, -4.0, 1.5, 4.0]


def test_presence_and_frequency_look_at_the_output_only() -> None:
    asked = spec(prompt=[3], output=[0, 1, 1], presence_penalty=0.5, frequency_penalty=0.25)
    assert adjusted([1.0, 1.0, 1.0, 1.0], asked) == pytest.approx([0.25, 0.0, 1.0, 1.0])


def test_bias_is_added_before_penalties() -> None:
    got = adjusted([0.0, 1.0], spec(prompt=[0], logit_bias={0: 4.0}, repetition_penalty=2.0))
    assert got == [2.0, 1.0]


def test_forbidden_tokens_cannot_be_chosen_whatever_their_bias() -> None:
    asked = spec(forbidden=[1], logit_bias={1: 100.0})
    assert sample(torch.tensor([[0.0, 5.0, 1.0]]), [asked]).result()[0].token == 2


def test_rows_do_not_leak_into_each_other() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    tokens = [s.token for s in sample(logits, [spec(logit_bias={0: 9.0}), spec()]).result()]
    assert tokens == [0, 2]


def test_greedy_takes_the_lowest_id_among_equals_beside_sampled_rows_too() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, 0.0, 50.0]])
    assert sample(logits.clone(), [spec(), spec()]).result()[0].token == 1
    assert [s.token for s in sample(logits, [spec(), spec(temperature=0.5)]).result()] == [1, 2]


def test_logprobs_are_raw_and_only_where_asked() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    first, second = sample(logits.clone(), [spec(), spec(logprobs=2, logit_bias={1: 50.0})]).result()
    expected = logits.log_softmax(-1)[1].tolist()
    assert first.logprob is None
    assert second.token == 1
    assert second.logprob is not None
    assert second.logprob.logprob == pytest.approx(expected[1])
    assert second.logprob.top == [(0, pytest.approx(expected[0])), (2, pytest.approx(expected[2]))]


def test_more_top_logprobs_than_tokens_gives_all_tokens() -> None:
    (answer,) = score(torch.zeros(1, 3), torch.tensor([0]), [20]).result()
    assert len(answer.top) == 3


@pytest.mark.parametrize("last", [3, 4, 9])
def test_a_token_that_only_the_device_knows_is_penalised_like_any_other(last: int) -> None:
    options = {"repetition_penalty": 1.7, "presence_penalty": 0.4, "frequency_penalty": 0.3}
    row = torch.linspace(-2, 3, 12)[None]
    known, ahead = row.clone(), row.clone()
    adjust_rows(known, [spec(prompt=[1, 3], output=[4, 4, 5, last], **options)])
    adjust_rows(ahead, [spec(prompt=[1, 3], output=[4, 4, 5], **options)], torch.tensor([last]))
    assert torch.equal(known, ahead)
    assert not torch.allclose(known, row)


@pytest.mark.parametrize("others", [1, 5, 40])
def test_candidates_of_a_row_with_many_equals_do_not_depend_on_the_batch(others: int) -> None:
    logits = torch.randn(2, 500, generator=torch.Generator().manual_seed(3)).round()
    logits[0, 7] = -torch.inf
    rows = [msgspec.structs.replace(spec(), candidates=count) for count in (6, others)]
    alone = sample(logits[:1].clone(), rows[:1]).result()[0].candidates
    beside = sample(logits.clone(), rows).result()[0].candidates
    assert beside == alone
    ids = sorted(range(500), key=lambda token: (-logits[0, token].item(), token))[:6]
    assert [token for token, _ in alone] == ids
