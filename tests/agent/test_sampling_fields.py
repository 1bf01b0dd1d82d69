"""No sampling parameter is accepted and ignored: each reaches the engine, or a module of the agent named here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.terms.sampling import SamplingFields, SamplingParams
from octavo_worker.agent.sampling import resolve_sampling
from octavo_worker.contract.messages import BeamOptions, EngineSampling

AGENT = Path(__file__).parents[2] / "worker" / "octavo_worker" / "agent"
IN_BEAM = {"beam_width": "width", "length_penalty": "length_penalty", "early_stopping": "early_stopping"}
OF_AGENT = {
    "n": "jobs.py",  # sequences that are delivered
    "best_of": "jobs.py",  # sequences that are generated, by `width`
    "stop": "jobs.py",
    "include_stop_str_in_output": "jobs.py",
    "skip_special_tokens": "jobs.py",
    "thinking_token_budget": "jobs.py",
    "ignore_eos": "sampling.py",  # which end tokens the engine gets
}
"""Parameters of text and of whole jobs, with the module that reads them."""
READ_AS = {"best_of": "width"}
OTHER: dict[str, dict[str, Any]] = {
    "max_tokens": {"max_tokens": 7},
    "min_tokens": {"min_tokens": 3},
    "temperature": {"temperature": 0.3},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.5},
    "min_p": {"min_p": 0.1},
    "repetition_penalty": {"repetition_penalty": 1.2},
    "presence_penalty": {"presence_penalty": 0.4},
    "frequency_penalty": {"frequency_penalty": 0.4},
    "logit_bias": {"logit_bias": {5: 1.0}},
    "stop_token_ids": {"stop_token_ids": (9,)},
    "logprobs": {"logprobs": 2},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "beam_width": {"beam_width": 3},
    "length_penalty": {"beam_width": 3, "length_penalty": 0.5},
    "early_stopping": {"beam_width": 3, "early_stopping": True},
    "ignore_eos": {"ignore_eos": True},
    "seed": {"seed": 7},
}
"""Another value than the default of each parameter that the engine is to notice."""


def resolved(**fields: Any) -> EngineSampling:
    params = SamplingParams(**fields)
    return resolve_sampling(params, seed=1 if params.seed is None else params.seed, eos_token_ids=[2], max_model_len=99)


def test_every_parameter_has_a_reader() -> None:
    engine = {*EngineSampling.__struct_fields__, *IN_BEAM}
    assert set(SamplingParams.model_fields) - engine == set(OF_AGENT)
    assert set(IN_BEAM.values()) == set(BeamOptions.__struct_fields__)
    for name, module in OF_AGENT.items():
        assert f".{READ_AS.get(name, name)}" in (AGENT / module).read_text(), name


def test_the_engine_has_no_parameter_that_cannot_be_asked_for() -> None:
    assert set(EngineSampling.__struct_fields__) - {"beam"} <= set(SamplingParams.model_fields)


@pytest.mark.parametrize(
    "name", sorted(SamplingParams.model_fields.keys() - OF_AGENT.keys() | {"ignore_eos"} - {"seed"})
)
def test_a_parameter_changes_what_the_engine_is_told(name: str) -> None:
    given = OTHER[name]
    rest = {key: value for key, value in given.items() if key != name}
    assert resolved(**given) != resolved(**rest)


def test_keyword_arguments_are_the_fields() -> None:
    assert SamplingFields.__annotations__.keys() == SamplingParams.model_fields.keys()
