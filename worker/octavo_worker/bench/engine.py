"""The engine alone: scheduler and runner in one process, no agent, no queue."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from octavo_worker.bench.report import percentile
from octavo_worker.bench.workloads import Work
from octavo_worker.engine.options import ModelOptions
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.engine.plan import ModelRunner
from octavo_worker.engine.process import scheduler_for
from octavo_worker.messages import AddRequest, EngineSampling, SequenceInput, StepOutput


@dataclass
class Timing:
    """What one run of a workload showed. Times in seconds since the first request was added."""

    seconds: float = 0.0
    generated: int = 0
    steps: int = 0
    preemptions: int = 0
    idle: float = 0.0  # seconds without a step under way
    first_token: list[float] = field(default_factory=list)
    between_tokens: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Percentiles in milliseconds; the share of the time in which no step was under way."""
        return {
            "ttft_p50_ms": round(1e3 * percentile(self.first_token, 0.5), 2),
            "ttft_p99_ms": round(1e3 * percentile(self.first_token, 0.99), 2),
            "itl_p50_ms": round(1e3 * percentile(self.between_tokens, 0.5), 2),
            "itl_p99_ms": round(1e3 * percentile(self.between_tokens, 0.99), 2),
            "idle_share": round(self.idle / self.seconds, 4) if self.seconds else 0.0,
        }


class EngineBench:
    """One loaded model; every run gets a fresh scheduler, so no prefix survives from the run before."""

    def __init__(self, runner: ModelRunner, options: ModelOptions, temperature: float = 0.0) -> None:
        self._runner = runner
        self._options = options
        self._temperature = temperature

    @property
    def vocab_size(self) -> int:
        return self._runner.vocab_size

    @property
    def token_budget(self) -> int:
        return self._runner.token_budget

    def run(self, work: list[Work], *, interval_s: float = 0.0) -> Timing:
        """Generate everything, ignoring end of sequence. Requests arrive `interval_s` apart."""
        scheduler = scheduler_for(self._runner, self._options)
        pipeline = Pipeline(self._runner, scheduler, ahead=self._options.overlap)
        timing, started, last = Timing(), time.perf_counter(), {}
        arrivals = [(index * interval_s, _request(index, w, self._temperature)) for index, w in enumerate(work)]
        arrived = dict.fromkeys((request.id for _, request in arrivals), 0.0)
        while arrivals or scheduler.has_requests or not pipeline.is_empty:
            now = time.perf_counter() - started
            while arrivals and arrivals[0][0] <= now:
                due, request = arrivals.pop(0)
                arrived[request.id] = due
                scheduler.add(request)
            if not scheduler.has_requests and pipeline.is_empty:
                time.sleep(max(0.0, arrivals[0][0] - now))
                continue
            pipeline.advance()
            self._take(scheduler.take_output(), timing, started, arrived, last)
        timing.seconds = time.perf_counter() - started
        timing.idle = pipeline.times.idle
        timing.steps = scheduler.stats().steps
        timing.preemptions = scheduler.stats().preemptions
        return timing

    def _take(
        self, output: StepOutput, timing: Timing, started: float, arrived: dict[str, float], last: dict[str, float]
    ) -> None:
        if output.failed:
            raise RuntimeError(f"a benchmark request failed: {output.failed[0].message}")
        now = time.perf_counter() - started
        timing.generated += len(output.tokens)
        for token in output.tokens:
            if token.id in last:
                timing.between_tokens.append(now - last[token.id])
            else:
                timing.first_token.append(now - arrived[token.id])
            last[token.id] = now


def _request(index: int, work: Work, temperature: float) -> AddRequest:
    sampling = EngineSampling(seed=index, max_tokens=work.max_tokens, temperature=temperature)
    return AddRequest(id=str(index), prompt=work.prompt, sequences=[SequenceInput(0)], sampling=sampling)
