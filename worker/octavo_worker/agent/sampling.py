"""From a job's sampling parameters, and its model's, to those of the engine."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from octavo.terms.sampling import NEUTRAL, SamplingDefaults, SamplingParams
from octavo_worker.contract.files import GENERATION_CONFIG, read_json
from octavo_worker.contract.messages import BeamOptions, EngineSampling

log = logging.getLogger(__name__)

COLDEST = 1e-30
"""Temperatures below it mean 0: logits divided by them would be infinite."""


def sampling_defaults(folder: Path) -> SamplingDefaults:
    """The sampling parameters of a model's generation_config.json. `do_sample: false` is a temperature of 0. What is no
    value of a parameter is left out, and the log says so. Raises `DamagedFile`."""
    stated = read_json(folder / GENERATION_CONFIG)
    if stated.get("top_k") == -1:  # another way to say off
        del stated["top_k"]
    found: dict[str, Any] = {}
    for name, neutral in NEUTRAL.items():
        if (value := stated.get(name)) is None or value == neutral:
            continue
        try:
            found |= SamplingDefaults.model_validate({name: value}, strict=True).given()
        except ValidationError:
            log.warning("%s of %s is no value that octavo knows: left out", name, folder / GENERATION_CONFIG)
    if stated.get("do_sample") is False:
        found["temperature"] = 0.0
    return SamplingDefaults(**found)


def resolve_sampling(
    params: SamplingParams,
    *,
    seed: int,
    eos_token_ids: Iterable[int],
    max_model_len: int,
    defaults: SamplingDefaults | None = None,
) -> EngineSampling:
    """Fill in every default: the model's `defaults`, the job's seed, the model's end-of-sequence ids, and the context
    as the longest output. This is the one place where a parameter that was not given gets its value.

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
    chosen = _chosen(params, defaults or SamplingDefaults())
    temperature = chosen["temperature"]
    resolved: dict[str, Any] = {
        **chosen,
        "seed": seed,
        "max_tokens": max_model_len if params.max_tokens is None else params.max_tokens,
        "temperature": 0.0 if beam is not None or temperature < COLDEST else temperature,
        "stop_token_ids": sorted(stop_ids),
        "logprobs": logprobs,
        "beam": beam,
    }
    asked = dict(params) | resolved  # what the engine leaves to the agent drops out
    return EngineSampling(**{name: asked[name] for name in EngineSampling.__struct_fields__})


def _chosen(params: SamplingParams, defaults: SamplingDefaults) -> Mapping[str, float | int]:
    """A beam search takes no filters, hence none of its model's."""
    of_model = defaults.given()
    if params.beam_width is not None:
        of_model = {name: value for name, value in of_model.items() if name == "repetition_penalty"}
    asked = {name: getattr(params, name) for name in NEUTRAL}
    return {**NEUTRAL, **of_model, **{name: value for name, value in asked.items() if value is not None}}
