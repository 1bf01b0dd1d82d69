"""An oversized sequence whose steps take longer rests while the others decode for as long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from engine_driver import Driver, expected_tokens, make_request
from fake_runner import DelayedRunner, FakeRunner

from octavo_worker.contract.step import Launched, StepPlan, StepResult
from octavo_worker.engine.scheduling.time_share import TimeShare
from octavo_worker.engine.sequence import Sequence


@dataclass
class Timed:
    """A step on its way: time passes while it is waited for."""

    launched: Launched
    pass_time: Callable[[], None]

    def result(self) -> StepResult:
        self.pass_time()
        return self.launched.result()


def driver(far: float, device: type[FakeRunner] = FakeRunner) -> tuple[Driver, list[bool]]:
    """A step takes a second, or `far` seconds if it reads the host. Also the list of whether each decoding step did."""
    now, cold_steps = 0.0, []

    class TimedRunner(device):  # type: ignore[valid-type, misc]
        def launch(self, plan: StepPlan) -> Timed:
            is_cold = any(step.block_table[0] >= self.first_host_block for step in plan.sequences)
            if 0 < plan.num_decodes == len(plan.sequences):
                cold_steps.append(is_cold)

            def pass_time() -> None:
                nonlocal now
                now += far if is_cold else 1.0

            return Timed(super().launch(plan), pass_time)

    host = {"num_host_blocks": 60, "reads_host": True}
    return Driver.create(21, 4, device=TimedRunner, runner=host, timer=lambda: now), cold_steps


def run(engine: Driver, *, priority: int = 1) -> None:
    """An oversized sequence that decodes, then two others beside it."""
    long = make_request("long", range(150), max_tokens=80, priority=priority)
    others = [make_request(name, range(start, start + 5), max_tokens=30) for name, start in (("a", 0), ("b", 50))]
    engine.add(long)
    while len(engine.tokens["long", 0]) < 5:
        engine.step()
    for other in others:
        engine.add(other)
    engine.run()
    for request in (long, *others):
        assert engine.tokens[request.id, 0] == expected_tokens(request, 0)


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_it_takes_half_of_the_time(device: type[FakeRunner]) -> None:
    """For each of its steps the others have nine to themselves; a few more where they wait for blocks."""
    engine, cold_steps = driver(10.0, device)
    run(engine)
    without, end = cold_steps.count(False), len(cold_steps) - cold_steps[::-1].index(False)
    beside = cold_steps[cold_steps.index(False) : end].count(True)
    assert without > 20
    assert 2 <= beside <= without // 9 + 3


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_it_rests_for_nobody_where_the_host_is_as_near(device: type[FakeRunner]) -> None:
    """Once that is known."""
    engine, cold_steps = driver(1.0, device)
    run(engine)
    assert cold_steps.count(False) < 8


def test_it_rests_for_no_lower_class() -> None:
    engine, cold_steps = driver(10.0)
    run(engine, priority=0)
    assert cold_steps.count(False) < 3


def test_samples_rest_as_one() -> None:
    engine, cold_steps = driver(10.0)
    engine.add(make_request("long", range(120), max_tokens=40, n=3))
    while len(engine.tokens["long", 0]) < 5:
        engine.step()
    other = make_request("a", range(5), max_tokens=30)
    engine.add(other)
    engine.run()
    assert engine.tokens["a", 0] == expected_tokens(other, 0)
    assert cold_steps.count(False) > 20
    assert len({len(engine.tokens["long", index]) for index in range(3)}) == 1


def test_one_slow_step_of_the_others_is_forgotten() -> None:
    now = 0.0
    share = TimeShare(lambda: now)
    both = [fake(oversized=True), fake()]
    steps = {True: (StepPlan([], 2), both, both), False: (StepPlan([], 1), both[1:], both)}

    def step(seconds: float, *, oversized: bool) -> None:
        nonlocal now
        slice_ = share.begin(*steps[oversized])
        now += seconds
        share.end(slice_)

    step(500.0, oversized=False)
    rests = 0
    for _ in range(1000):
        rests += share.resting
        step(1.0 if share.resting else 80.0, oversized=not share.resting)
    assert 900 < rests < 990
    step(500.0, oversized=False)
    for _ in range(100):
        step(1.0 if share.resting else 80.0, oversized=not share.resting)
    assert share.resting


def fake(*, oversized: bool = False) -> Sequence:
    return SimpleNamespace(request=SimpleNamespace(oversized=oversized))  # type: ignore[return-value]
