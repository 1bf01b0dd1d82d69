"""Steps go through the runner: launched in order, at most one ahead, landed in order."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from octavo_worker.contract.messages import EngineStats
from octavo_worker.contract.step import Done, Masks, ModelRunner, StepError, StepResult
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.engine.step_in_flight import StepInFlight
from octavo_worker.engine.step_log import StepLog


@dataclass(slots=True)
class StepTimes:
    """Seconds since the start: planning steps, launching them, filling masks and choosing by them, waiting for results,
    taking those in; and those in which nothing was computed although there were requests: no step was in flight, or the
    one before had ended when the next was launched. Decodes that the steps computed, and tokens of prompts."""

    plan: float = 0.0
    launch: float = 0.0
    choose: float = 0.0
    wait: float = 0.0
    commit: float = 0.0
    idle: float = 0.0
    decoded: int = 0
    prefilled: int = 0

    def report(self, stats: EngineStats) -> None:
        stats.plan_s, stats.launch_s = self.plan, self.launch
        stats.wait_s, stats.commit_s = self.wait, self.commit
        stats.idle_s = self.idle
        stats.decoded_tokens, stats.prefilled_tokens = self.decoded, self.prefilled


class Pipeline:
    """Takes a scheduler's plans through a runner.

    With `ahead` the next step is planned and launched before the result of the one in flight is waited for: the device
    goes from one to the other while results are taken in, new requests arrive and outputs leave. A step that could not
    be planned ahead is launched as soon as the one before it is taken in. That needs a runner that computes
    asynchronously; with others it is left off, because it would only delay results. Steps that landed are kept in `log`
    while there is one.
    """

    def __init__(self, runner: ModelRunner, scheduler: Scheduler, *, ahead: bool = True) -> None:
        self.times = StepTimes()
        self._runner = runner
        self._scheduler = scheduler
        self._ahead = ahead and runner.asynchronous
        self.log: StepLog | None = None
        self._in_flight = scheduler.in_flight
        self._idle_since: float | None = None

    @property
    def is_empty(self) -> bool:
        return not self._in_flight

    def advance(self) -> bool:
        """Launch a step and land one, as far as there are any. False when nothing is left to do.

        A `StepError` costs the request that is to blame; after any other error nothing can be trusted any more. Raises
        RuntimeError where requests are left for which no step can be planned.
        """
        launched = self._launch()
        if launched and len(self._in_flight) == 1:
            self._choose()
        if not launched and self.is_empty:
            if self._scheduler.has_requests:
                raise RuntimeError("requests are left, but no step could be planned for them")
            self._idle_since = None
            return False
        if not launched or len(self._in_flight) > self._ahead:
            self._land()
            if self._ahead and self.is_empty and self._launch():  # results leave while it runs
                self._choose()
        return True

    def _launch(self) -> bool:
        if not self._scheduler.can_plan or self._has_failed() or self._scheduler.waits_for_drafts():
            return False
        ahead, began = not self.is_empty, time.perf_counter()
        plan = self._scheduler.plan()
        planned = time.perf_counter()
        self.times.plan += planned - began
        if plan is None:
            return False
        if not ahead:
            self.times.idle += planned - (self._idle_since or began)
        step = self._in_flight[-1]
        record = step.record
        record.count(plan)
        step.launched = self._runner.launch(plan)
        left = time.perf_counter()
        record.ahead, record.began, record.planned, record.left = ahead, began, planned, left
        self.times.launch += left - planned
        self.times.decoded += record.decodes
        self.times.prefilled += record.prefilled
        return True

    def _has_failed(self) -> bool:
        """True if the step launched last was over at once with an error. Nothing is launched behind it: it would go on
        from memory that this one was to write."""
        last = self._in_flight[-1].launched if self._in_flight else None
        return isinstance(last, Done) and isinstance(last.outcome, StepError)

    def _choose(self) -> None:
        """All before the step launched last is known: gives its masked samples their masks."""
        step = self._in_flight[-1]
        if step.plan.has_masked:
            assert step.launched is not None
            began = time.perf_counter()
            step.launched.choose(self._scheduler.masks(step))
            self.times.choose += time.perf_counter() - began

    def _land(self) -> None:
        began = time.perf_counter()
        step = self._in_flight[0]
        try:
            result = _result(step)
        except StepError as error:
            self._drain()
            self._scheduler.abandon(step.plan, culprit=error.sequence, message=str(error))
            return
        landed = time.perf_counter()
        self.times.wait += landed - began
        if step.record.ahead:
            self.times.idle += result.gap_s
        self._scheduler.commit(step.plan, result)
        if self.is_empty:
            self._idle_since = landed
        committed = time.perf_counter()
        self.times.commit += committed - landed
        step.record.waited, step.record.landed, step.record.committed = began, landed, committed
        if self.log is not None:
            self.log.add(step.record)
        if not self.is_empty:
            self._choose()

    def _drain(self) -> None:
        """Wait for what was launched after a step that failed: it is of no use, but its copies must be over."""
        for step in list(self._in_flight)[1:]:
            assert step.launched is not None
            if step.plan.has_masked:
                step.launched.choose(Masks.none())
            with suppress(StepError):
                _result(step)


def _result(step: StepInFlight) -> StepResult:
    assert step.launched is not None
    return step.launched.result()
