"""From a job's sampling parameters to those of the engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo.terms.sampling import SamplingParams
from octavo_worker.contract.messages import BeamOptions, EngineSampling

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
    resolved: dict[str, Any] = {
        "seed": seed,
        "max_tokens": max_model_len if params.max_tokens is None else params.max_tokens,
        "temperature": 0.0 if beam is not None or params.temperature < COLDEST else params.temperature,
        "stop_token_ids": sorted(stop_ids),
        "logprobs": logprobs,
        "beam": beam,
    }
    asked = dict(params) | resolved  # what the engine leaves to the agent drops out
    return EngineSampling(**{name: asked[name] for name in EngineSampling.__struct_fields__})
