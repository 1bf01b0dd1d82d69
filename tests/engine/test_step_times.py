"""Times of the engine: waiting for a step, and idling between two."""

from __future__ import annotations

import threading
from typing import Any

from engine_driver import Driver, make_request
from fake_runner import FakeRunner

from octavo_worker.contract.messages import EngineStats
from octavo_worker.contract.step import Done, StepPlan


class Held(FakeRunner):
    """Results come when the test says so."""

    asynchronous = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.release = threading.Event()

    def launch(self, plan: StepPlan):
        done, release = super().launch(plan), self.release

        class Waiting(Done):
            def result(self):
                assert release.wait(10)
                return done.result()

        return Waiting(done.outcome)


def test_times_tell_waiting_from_idling():
    driver = Driver.create(61, 4, device=Held)
    driver.add(make_request("a", range(5), max_tokens=3))
    threading.Timer(0.2, driver.runner.release.set).start()
    driver.run()
    stats = EngineStats()
    driver.pipeline.times.report(stats)
    assert stats.wait_s >= 0.15
    assert 0 < stats.idle_s < stats.wait_s
    assert min(stats.plan_s, stats.launch_s, stats.commit_s) > 0


class Waited(FakeRunner):
    """A device that had nothing to do for a hundred seconds before each step."""

    asynchronous = True

    def launch(self, plan: StepPlan):
        done = super().launch(plan)
        done.outcome.gap_s = 100.0
        return done


def test_a_device_that_waits_for_a_step_launched_ahead_is_idle():
    driver = Driver.create(61, 4, device=Waited)
    driver.add(make_request("a", range(5), max_tokens=3))
    driver.run()
    stats = EngineStats()
    driver.pipeline.times.report(stats)
    assert driver.scheduler.stats().steps == 3  # before the first there was nothing to wait for
    assert 200 < stats.idle_s < 201
