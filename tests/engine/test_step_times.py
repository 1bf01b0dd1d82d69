"""Times of the engine: waiting for a step, and idling between two."""

from __future__ import annotations

import pytest
from clocks import Clock
from engine_driver import Driver, make_request
from fake_runner import FakeRunner

from octavo_worker.contract.messages import EngineStats
from octavo_worker.contract.step import Done, StepPlan
from octavo_worker.engine import pipeline


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The pipeline's."""
    clock = Clock(tick=0.001)
    monkeypatch.setattr(pipeline, "time", clock)
    return clock


class Slow(FakeRunner):
    """Results take 0.2 s."""

    asynchronous = True
    clock: Clock

    def launch(self, plan: StepPlan):
        done, clock = super().launch(plan), self.clock

        class Waiting(Done):
            def result(self):
                clock.now += 0.2
                return done.result()

        return Waiting(done.outcome)


def test_times_tell_waiting_from_idling(clock: Clock):
    driver = Driver.create(61, 4, device=Slow)
    driver.runner.clock = clock
    driver.add(make_request("a", range(5), max_tokens=3))
    driver.run()
    stats = EngineStats()
    driver.pipeline.times.report(stats)
    assert stats.wait_s == pytest.approx(3 * 0.201)
    assert 0 < stats.idle_s < 0.1
    assert min(stats.plan_s, stats.launch_s, stats.commit_s) > 0


class Waited(FakeRunner):
    """A device that had nothing to do for a hundred seconds before each step."""

    asynchronous = True

    def launch(self, plan: StepPlan):
        done = super().launch(plan)
        done.outcome.gap_s = 100.0
        return done


def test_a_device_that_waits_for_a_step_launched_ahead_is_idle(clock: Clock):
    driver = Driver.create(61, 4, device=Waited)
    driver.add(make_request("a", range(5), max_tokens=3))
    driver.run()
    stats = EngineStats()
    driver.pipeline.times.report(stats)
    assert driver.scheduler.stats().steps == 3  # before the first there was nothing to wait for
    assert 200 < stats.idle_s < 201
