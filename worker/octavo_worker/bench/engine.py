"""The engine alone: scheduler and runner in one process, no agent, no queue."""

from __future__ import annotations

import gc
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from octavo_worker.bench.ceilings import Ceilings, measure_ceilings
from octavo_worker.bench.experts import expert_bytes, experts_hit, skew_routing
from octavo_worker.bench.floors import Costs, floor_seconds
from octavo_worker.bench.report import percentile
from octavo_worker.bench.workloads import Work
from octavo_worker.contract.messages import NORMAL, AddRequest, EngineSampling, EngineStats, SequenceInput, StepOutput
from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.engine.process import scheduler_for
from octavo_worker.engine.step_log import StepLog
from octavo_worker.model.decoder import Decoder
from octavo_worker.runner.cuda.runner import CudaRunner
from octavo_worker.runner.paged import PagedRunner


@dataclass
class Timing:
    """Figures of one run of a workload. Times in seconds since the first request was added.

    `queued` are the times from a request's arrival until it was given memory, `per_token` the mean times between its
    tokens of those with several. `empty` are the seconds without any request, `idle` those with requests but without a
    step under way.
    """

    seconds: float = 0.0
    generated: int = 0
    empty: float = 0.0
    idle: float = 0.0
    stats: EngineStats = field(default_factory=EngineStats)
    first_token: list[float] = field(default_factory=list)
    between_tokens: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)
    queued: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Percentiles in milliseconds; the share of the time in which no step was under way."""
        return {
            "ttft_p50_ms": round(1e3 * percentile(self.first_token, 0.5), 2),
            "ttft_p99_ms": round(1e3 * percentile(self.first_token, 0.99), 2),
            "itl_p50_ms": round(1e3 * percentile(self.between_tokens, 0.5), 2),
            "itl_p99_ms": round(1e3 * percentile(self.between_tokens, 0.99), 2),
            "idle_share": round(self.idle / self.seconds, 4) if self.seconds else 0.0,
        }


class _Progress:
    """Takes the engine's outputs into a `Timing`. `due` is when each request was to arrive."""

    def __init__(self, due: dict[str, float]) -> None:
        self.timing = Timing()
        self._due = due
        self._late: dict[str, float] = {}  # seconds that a request arrived later, because a step was in the way
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._count: dict[str, int] = {}

    def arrived(self, request_id: str, now: float) -> None:
        self._late[request_id] = now - self._due[request_id]

    def take(self, output: StepOutput, now: float) -> None:
        if output.failed:
            raise RuntimeError(f"a benchmark request failed: {output.failed[0].message}")
        timing = self.timing
        timing.generated += len(output.tokens)
        for started in output.started:
            timing.queued.append(self._late[started.id] + started.queued_s)
        for token in output.tokens:
            if token.id in self._last:
                timing.between_tokens.append(now - self._last[token.id])
                self._count[token.id] += 1
            else:
                timing.first_token.append(now - self._due[token.id])
                self._first[token.id], self._count[token.id] = now, 1
            self._last[token.id] = now
            if token.finish_reason is not None and self._count[token.id] > 1:
                timing.per_token.append((now - self._first[token.id]) / (self._count[token.id] - 1))


class EngineBench:
    """One loaded model; every run gets a fresh scheduler, so no prefix survives from the run before."""

    def __init__(self, runner: PagedRunner | CudaRunner, options: ModelOptions, temperature: float = 0.0) -> None:
        self._runner = runner
        self._options = options
        self._temperature = temperature
        gc.collect()
        gc.freeze()  # as an engine's process does: a collection that walks all of the model costs a run 70 ms

    @property
    def vocab_size(self) -> int:
        return self._runner.vocab_size

    @property
    def numerics(self) -> str:
        """The device and the types that it computes in."""
        return self._runner.numerics

    @cached_property
    def ceilings(self) -> Ceilings | None:
        """Ceilings of a GPU, measured when first asked for. A CPU has none to speak of: its caches hold small
        models."""
        model = self._runner.model
        return measure_ceilings(model.device, model.dtype) if model.device.type == "cuda" else None

    def floor(self, work: list[Work]) -> float | None:
        """The least seconds in which this GPU could do the work, or as many as there are ranks their parts of it; None
        on a CPU, for models of the transformers route, and for products in 8 bits, whose rate is another."""
        model, weight_bytes = self._runner.model, self.weight_bytes
        if self.ceilings is None or not isinstance(model, Decoder) or any(" by " in form for form in model.forms):
            return None
        assert weight_bytes is not None
        ranks, itemsize = self._options.tensor_parallel, self._runner.kv_cache.dtype.itemsize
        costs = Costs.of(model.config, weight_bytes, itemsize, ranks, expert_bytes(model))
        return floor_seconds(costs, work, self.ceilings)

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of weights on each rank, of which a step reads all but experts; None for models of the transformers
        route."""
        model = self._runner.model
        return sum(linear.nbytes for linear in model.layers.linears) if isinstance(model, Decoder) else None

    @property
    def experts_hit(self) -> dict[int, float]:
        """Experts that so many rows hit, on average over layers; empty for models without."""
        model = self._runner.model
        return experts_hit(model) if isinstance(model, Decoder) else {}

    def skew_routing(self, skew: float) -> None:
        """Makes rows prefer a layer's first experts, of a model with random weights."""
        model = self._runner.model
        for mixture in model.mixtures if isinstance(model, Decoder) else ():
            skew_routing(mixture.router.logits.weight, skew)

    @property
    def max_model_len(self) -> int:
        return self._runner.max_model_len

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return (self._runner.num_blocks - 1) * self._runner.block_size

    @property
    def token_budget(self) -> int:
        return self._runner.token_budget

    def run(
        self,
        work: list[Work],
        *,
        arrivals: Sequence[float] = (),
        priority: int = NORMAL,
        kv_tokens: int | None = None,
        log: StepLog | None = None,
    ) -> Timing:
        """Generate everything, ignoring end of sequence. Request i arrives `arrivals[i]` seconds after the start, in
        this order; without arrivals all do at once. All are of the class `priority`. Of the KV cache only `kv_tokens`
        are used. Every step is recorded in `log`."""
        blocks = None if kv_tokens is None else blocks_for(kv_tokens, self._runner.block_size)
        scheduler = scheduler_for(self._runner, self._options, num_blocks=blocks)
        pipeline = Pipeline(self._runner, scheduler, ahead=self._options.overlap)
        pipeline.log = log
        requests = [_request(index, w, self._temperature, priority) for index, w in enumerate(work)]
        coming = deque(zip(arrivals or [0.0] * len(work), requests, strict=True))
        progress = _Progress({request.id: due for due, request in coming})
        timing, started = progress.timing, time.perf_counter()
        while coming or scheduler.has_requests or not pipeline.is_empty:
            now = time.perf_counter() - started
            while coming and coming[0][0] <= now:
                request = coming.popleft()[1]
                progress.arrived(request.id, now)
                scheduler.add(request)
            if pipeline.advance():
                progress.take(scheduler.take_output(), time.perf_counter() - started)
            else:
                time.sleep(max(0.0, coming[0][0] - now))
                timing.empty += time.perf_counter() - started - now
        timing.seconds = time.perf_counter() - started
        timing.idle = pipeline.times.idle
        timing.stats = scheduler.stats()
        pipeline.times.report(timing.stats)
        return timing


def blocks_for(kv_tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens, and the one that is never used."""
    return -(-kv_tokens // block_size) + 1


def _request(index: int, work: Work, temperature: float, priority: int) -> AddRequest:
    sampling = EngineSampling(seed=index, max_tokens=work.max_tokens, temperature=temperature)
    sequences = [SequenceInput(0)]
    prompt = array("I", work.prompt)
    return AddRequest(id=str(index), prompt=prompt, sequences=sequences, sampling=sampling, priority=priority)
