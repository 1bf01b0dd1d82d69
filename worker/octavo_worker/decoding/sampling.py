"""From a job's sampling parameters to those of the engine."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.models import SamplingParams
from octavo_worker.messages import BeamOptions, EngineSampling

COLDEST = 1e-30
"""Temperatures below it mean 0: logits divided by them would be infinite."""


def resolve_sampling(
    params: SamplingParams, *, seed: int, eos_token_ids: Iterable[int], max_model_len: int
) -> EngineSampling:
    """Fill in every default: the job's seed, the model's end-of-sequence ids, and the context as the longest output.

    `best_of` is decided by the log-probabilities of the chosen tokens, so it asks for them.
    """
    logprobs = params.logprobs
    if params.is_held_back and params.beam_width is None and logprobs is None:
        logprobs = 0
    beam = None
    if params.beam_width is not None:
        beam = BeamOptions(params.beam_width, params.length_penalty, params.early_stopping)
    stop_ids = set(params.stop_token_ids)
    if not params.ignore_eos:
        stop_ids.update(eos_token_ids)
    return EngineSampling(
        seed=seed,
        max_tokens=max_model_len if params.max_tokens is None else params.max_tokens,
        min_tokens=params.min_tokens,
        temperature=0.0 if beam is not None or params.temperature < COLDEST else params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias),
        stop_token_ids=sorted(stop_ids),
        logprobs=logprobs,
        prompt_logprobs=params.prompt_logprobs,
        beam=beam,
    )
