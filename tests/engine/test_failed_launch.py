"""A step that fails while it is packed: nothing is launched behind it, and it costs one request."""

from __future__ import annotations

from typing import Any

import pytest
from engine_driver import Driver, assert_complete, make_request, prompt
from fake_runner import DelayedRunner

from octavo_worker.contract.step import Done, StepError, StepPlan

POISON = 990


class Packing(DelayedRunner):
    """Fails at once for a token that it cannot pack, and tells in which order it launches and lands."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.story: list[str] = []

    def launch(self, plan: StepPlan) -> Any:
        place = next((i for i, step in enumerate(plan.sequences) if POISON in step.tokens), None)
        self.story.append("launch" if place is None else "failure")
        return super().launch(plan) if place is None else Done(StepError(place, "a token that cannot be packed"))

    def land(self, flight: Any) -> Any:
        self.story.append("land")
        return super().land(flight)


@pytest.mark.parametrize("memory", [{}, {"state_slots": 20}], ids=["keys", "states"])
def test_nothing_is_launched_behind_a_step_that_failed_at_once(memory: dict[str, int]) -> None:
    driver = Driver.create(100, 8, device=Packing, runner=memory)
    requests = [make_request(str(i), prompt(20, 40 * i), max_tokens=12) for i in range(3)]
    for request in requests:
        driver.add(request)
    for _ in range(4):
        driver.step()
    driver.add(make_request("bad", [*prompt(30, 7), POISON], max_tokens=12))
    driver.run()
    runner = driver.runner
    assert isinstance(runner, Packing)
    place = runner.story.index("failure")
    before = runner.story[:place]
    assert before.count("launch") - before.count("land") == 1, "no step was in flight"
    assert runner.story[place : place + 3] == ["failure", "land", "launch"]
    assert list(driver.failed) == ["bad"]
    assert driver.failed["bad"].code == "step_failed"
    assert_complete(driver, *requests)
    runner.close()
