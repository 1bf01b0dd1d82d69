"""Sampling parameters as the engine gets them, and the token-level rules that end a sequence."""

from __future__ import annotations

import pytest

from octavo.terms.sampling import SamplingParams
from octavo_worker.agent.sampling import resolve_sampling
from octavo_worker.contract.messages import EngineSampling
from octavo_worker.engine.stop import StopRules


def test_every_parameter_reaches_the_engine():
    params = SamplingParams(
        max_tokens=9, min_tokens=2, temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=1.1,
        presence_penalty=0.2, frequency_penalty=0.3, logit_bias={4: -2.0}, stop_token_ids=(8,), logprobs=1,
        prompt_logprobs=2,
    )  # fmt: skip
    resolved = resolve_sampling(params, seed=11, eos_token_ids=[2, 8], max_model_len=100)
    assert resolved == EngineSampling(
        seed=11, max_tokens=9, min_tokens=2, temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=1.1,
        presence_penalty=0.2, frequency_penalty=0.3, logit_bias={4: -2.0}, stop_token_ids=[2, 8], logprobs=1,
        prompt_logprobs=2,
    )  # fmt: skip


def test_no_max_tokens_means_the_context_and_ignore_eos_keeps_the_jobs_own_stops():
    params = SamplingParams(max_tokens=None, ignore_eos=True, stop_token_ids=(5,))
    resolved = resolve_sampling(params, seed=1, eos_token_ids=[2], max_model_len=100)
    assert resolved.max_tokens == 100
    assert resolved.stop_token_ids == [5]


@pytest.mark.parametrize(
    ("token", "count", "reason"),
    [(1, 1, None), (7, 3, None), (7, 4, "stop"), (1, 10, "length"), (7, 10, "stop"), (900, 4, None)],
)
def test_ends_of_a_sequence(token, count, reason):
    sampling = EngineSampling(seed=0, max_tokens=50, min_tokens=3, stop_token_ids=[7, 900])
    rules = StopRules.of(sampling, prompt_len=90, max_model_len=100, vocab_size=100)
    assert rules.finish_reason(token, count) == reason
    assert rules.forbidden(2) == (7,)
    assert rules.forbidden(3) == ()


@pytest.mark.parametrize(("asked", "resolved"), [(0.0, 0.0), (1e-45, 0.0), (1e-38, 0.0), (1e-30, 1e-30), (0.7, 0.7)])
def test_temperatures_that_would_make_logits_infinite_are_zero(asked: float, resolved: float) -> None:
    params = SamplingParams(temperature=asked)
    assert resolve_sampling(params, seed=1, eos_token_ids=[], max_model_len=9).temperature == resolved


@pytest.mark.parametrize(("fields", "logprobs"), [({"best_of": 3}, 0), ({"best_of": 3, "logprobs": 2}, 2), ({}, None)])
def test_the_best_of_several_is_chosen_by_log_probabilities(fields, logprobs):
    resolved = resolve_sampling(SamplingParams(**fields), seed=1, eos_token_ids=[2], max_model_len=100)
    assert resolved.logprobs == logprobs
