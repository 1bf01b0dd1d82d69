"""A plan is a value: it says the same for ever, whatever becomes of its sequences, and may travel."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from engine_driver import Driver, make_request
from fake_runner import DelayedRunner, value_of
from workloads import run_workload

from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.step import SampleSpec, SequenceStep, StepPlan
from octavo_worker.memory.cost import PreemptionPolicy


class Keeping(DelayedRunner):
    """Keeps all plans, and what they said when they were launched."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.values: list[tuple[StepPlan, list[Any]]] = []

    def launch(self, plan: StepPlan) -> Any:
        self.values.append((plan, value_of(plan, self.block_size)))
        return super().launch(plan)


@pytest.mark.parametrize(
    "memory", [{}, {"host_blocks": 60}, {"window": 20}, {"host_blocks": 150, "reads_host": True}], ids=str
)
def test_plans_say_the_same_when_all_is_over(memory: dict[str, Any]) -> None:
    """Sequences grew, forked, were preempted, swapped and spilled meanwhile, slid on and ended."""
    policy = PreemptionPolicy("swap" if "host_blocks" in memory else "recompute")
    driver = run_workload(3, usable_blocks=14, block_size=8, policy=policy, device=Keeping, **memory)
    runner = driver.runner
    assert isinstance(runner, Keeping)
    assert len(runner.values) > 100
    for plan, value in runner.values:
        assert value_of(plan, runner.block_size) == value
        travelled = pickle.loads(pickle.dumps(plan))
        assert value_of(travelled, runner.block_size) == value


def test_a_plan_cannot_be_changed() -> None:
    driver = Driver.create(30)
    driver.add(make_request("a", range(10)))
    plan = driver.scheduler.plan()
    assert plan is not None
    for value, name in [(plan, "copies"), (plan.sequences[0], "start"), (plan.sequences[0].samples[0], "index")]:
        with pytest.raises(AttributeError, match="immutable"):
            setattr(value, name, 1)


def penalised(**options: Any) -> SampleSpec:
    params = EngineSampling(seed=1, max_tokens=9, presence_penalty=1.0)
    return SampleSpec(params, 0, prompt=[1, 2, 3], output=[4, 5, 6, 7, 8], **options)


def test_each_row_has_the_output_before_it() -> None:
    """Whatever the sequence has by now: tokens of the step are its own, known or drafted."""
    step = SequenceStep((6, 60, 61), 5, [1], [penalised()] * 2, (0, 2))
    assert [step.sample_row(i).position for i in range(2)] == [6, 8]
    assert [list(step.sample_row(i).output) for i in range(2)] == [[4, 5, 6], [4, 5, 6, 60, 61]]


def test_an_unknown_token_is_in_no_output() -> None:
    step = SequenceStep((-1, 60), 5, [1], [penalised()] * 2, (0, 1), follows=3)
    assert [list(step.sample_row(i).output) for i in range(2)] == [[4, 5], [4, 5, 60]]


def test_a_chunk_that_ends_a_prompt_has_the_output_that_it_computes_again() -> None:
    step = SequenceStep((2, 3, 4, 5), 1, [1], [penalised()])
    row = step.sample_row(0)
    assert (row.position, list(row.output)) == (5, [4, 5])


def test_ids_are_forbidden_up_to_a_position() -> None:
    step = SequenceStep((6, 60), 5, [1], [penalised(forbidden=(7,), allowed_from=7)] * 2, (0, 1))
    assert [step.sample_row(i).forbidden for i in range(2)] == [(7,), ()]
