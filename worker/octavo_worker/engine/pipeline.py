"""Steps on their way through the runner: launched in order, at most one ahead, landed in order."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from octavo_worker.contract.step import Launched, ModelRunner, StepError, StepPlan
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.engine.step_log import StepLog, StepRecord
from octavo_worker.messages import EngineStats


@dataclass(slots=True)
class StepTimes:
    """Seconds since the start: planning steps, launching them, waiting for their results, taking those in; and those
    in which nothing was computed although there were requests: no step was under way, or the one before had ended when
    the next was launched. Tokens that the steps computed: one a decoding sequence, and those of prompts."""

    plan: float = 0.0
    launch: float = 0.0
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


@dataclass(slots=True)
class UnderWay:
    """A launched step, whether `ahead` of the end of the one before: when its planning began, its launch began and
    ended, and its tokens of prompts."""

    plan: StepPlan
    launched: Launched
    ahead: bool
    began: float
    planned: float
    left: float
    prefilled: int


class Pipeline:
    """Takes a scheduler's plans through a runner.

    With `ahead` the next step is planned and launched before the result of the one under way is waited for: the device
    goes from one to the other while results are taken in, new requests arrive and outputs leave. That needs a runner
    that computes asynchronously; with others it is left off, because it would only delay results. Steps are recorded
    in `log` while there is one.
    """

    def __init__(self, runner: ModelRunner, scheduler: Scheduler, *, ahead: bool = True) -> None:
        self.times = StepTimes()
        self._runner = runner
        self._scheduler = scheduler
        self._ahead = ahead and runner.asynchronous
        self.log: StepLog | None = None
        self._under_way: deque[UnderWay] = deque()
        self._idle_since: float | None = None

    @property
    def is_empty(self) -> bool:
        return not self._under_way

    def advance(self) -> bool:
        """Launch a step and land one, as far as there are any. False when nothing is left to do.

        A `StepError` costs the request that is to blame; after any other error nothing can be trusted any more.
        """
        launched = self._launch()
        if not launched and self.is_empty:
            if self._scheduler.has_requests:
                raise RuntimeError("requests are left, but no step could be planned for them")
            self._idle_since = None
            return False
        if not launched or len(self._under_way) > self._ahead:
            self._land()
        return True

    def _launch(self) -> bool:
        if not self._scheduler.can_plan:
            return False
        began = time.perf_counter()
        plan = self._scheduler.plan()
        planned = time.perf_counter()
        self.times.plan += planned - began
        if plan is None:
            return False
        ahead = not self.is_empty
        if not ahead:
            self.times.idle += planned - (self._idle_since or began)
        prefilled = sum(len(step.tokens) for step in plan.sequences[plan.num_decodes :])
        launched = self._runner.launch(plan)
        left = time.perf_counter()
        self._under_way.append(UnderWay(plan, launched, ahead, began, planned, left, prefilled))
        self.times.launch += left - planned
        self.times.decoded += plan.num_decodes
        self.times.prefilled += prefilled
        return True

    def _land(self) -> None:
        began = time.perf_counter()
        step = self._under_way.popleft()
        try:
            result = step.launched.result()
        except StepError as error:
            self._drain()
            self._scheduler.abandon(step.plan, culprit=error.sequence, message=str(error))
            return
        landed = time.perf_counter()
        self.times.wait += landed - began
        if step.ahead:
            self.times.idle += result.gap_s
        if self.is_empty:
            self._idle_since = landed
        self._scheduler.commit(step.plan, result)
        committed = time.perf_counter()
        self.times.commit += committed - landed
        if self.log is not None:
            self.log.add(_record(step, began, landed, committed))

    def _drain(self) -> None:
        """Wait for what was launched after a step that failed: it is of no use, but its copies must be over."""
        while self._under_way:
            with suppress(StepError):
                self._under_way.popleft().launched.result()


def _record(step: UnderWay, waited: float, landed: float, committed: float) -> StepRecord:
    plan = step.plan
    return StepRecord(
        began=step.began,
        planned=step.planned,
        left=step.left,
        waited=waited,
        landed=landed,
        committed=committed,
        decodes=plan.num_decodes,
        chunks=len(plan.sequences) - plan.num_decodes,
        prefilled=step.prefilled,
        swapped_out=len(plan.swap_out),
        swapped_in=len(plan.swap_in),
        copied=len(plan.copies),
    )
