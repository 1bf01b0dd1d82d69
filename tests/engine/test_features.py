"""A feature that a device lacks is refused by its name, on arrival, and only that."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from engine_driver import Driver, make_request
from fake_runner import FakeRunner

from octavo.terms.structured import Grammar
from octavo_kernels.features import Feature, features
from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine.process import scheduler_for
from octavo_worker.engine.scheduling.admission import FEATURES, NEEDED

# Fields that every runner can serve: what it samples with at all, what the engine does by itself.
BY_EVERY_RUNNER = {"seed", "temperature", "max_tokens", "stop_token_ids", "beam"}
ASKING: dict[str, Any] = {
    "top_k": 5, "top_p": 0.5, "min_p": 0.1, "min_tokens": 2, "repetition_penalty": 1.1, "presence_penalty": 0.1,
    "frequency_penalty": -0.1, "logit_bias": {3: 1.0}, "logprobs": 0, "prompt_logprobs": 0,
}  # fmt: skip


def test_every_field_of_sampling_says_what_it_needs() -> None:
    assert NEEDED.keys() | BY_EVERY_RUNNER == set(EngineSampling.__struct_fields__)
    assert ASKING.keys() == NEEDED.keys()


def test_features_are_those_of_the_kernels() -> None:
    assert set(Feature) >= FEATURES
    assert features(torch.device("cpu")) >= FEATURES


def lacking(feature: str) -> type[FakeRunner]:
    return type("Lacking", (FakeRunner,), {"features": FEATURES - {feature}})


@pytest.mark.parametrize("param", NEEDED)
def test_a_field_that_the_device_lacks_is_refused(param: str) -> None:
    driver = Driver.create(16, device=lacking(NEEDED[param]))
    driver.add(make_request("plain", [1, 2, 3]))
    driver.add(make_request("asks", [1, 2, 3], **{param: ASKING[param]}))
    driver.run()
    refused = driver.failed["asks"]
    assert (refused.code, refused.param) == ("not_supported", param)
    assert refused.message.startswith(f"{param} needs {NEEDED[param]}, which this worker's kernels do not have")
    assert driver.failed.keys() == {"asks"}


@pytest.mark.parametrize("param", NEEDED)
def test_it_may_lack_what_nothing_asks_for(param: str) -> None:
    driver = Driver.create(16, device=type("Able", (FakeRunner,), {"features": frozenset({NEEDED[param]})}))
    driver.add(make_request("asks", [1, 2, 3], **{param: ASKING[param]}))
    driver.run()
    assert not driver.failed


def test_a_grammar_needs_masks() -> None:
    driver = Driver.create(16, device=lacking("masks"))
    asks = msgspec.structs.replace(make_request("asks", [1, 2, 3]), grammar=Grammar("regex", "a"))
    driver.add(asks, [])
    driver.run()
    assert (driver.failed["asks"].code, driver.failed["asks"].param) == ("not_supported", "grammar")


def test_a_schedulers_features_are_those_of_its_runner() -> None:
    runner = lacking("logprobs")(16)
    assert scheduler_for(runner, ModelOptions(model="fake")).limits.features == FEATURES - {"logprobs"}
