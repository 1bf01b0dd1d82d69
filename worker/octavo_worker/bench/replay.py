"""A trace of requests replayed in time against the engine: latencies under the load of a real service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo_worker.bench.report import percentile
from octavo_worker.bench.traces import Clipped, TracedRequest
from octavo_worker.memory.cost import Decision

if TYPE_CHECKING:
    from octavo_worker.bench.engine import Timing  # brings the engine: not for `octavo --help`

RULES = (
    "Requests arrive when they did in the trace, divided by speed; each runs to its full output length, end of "
    "sequence ignored. Outputs are cut to half of the context, prompts to what the output leaves, keeping their "
    "beginnings. Blocks with the same id in the trace are the same tokens, everything else is random."
)

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def arrivals_of(trace: list[TracedRequest], speed: float) -> list[float]:
    """Seconds after the start at which requests arrive. Raises ValueError for a trace without times, or out of
    order."""
    times = [request.at for request in trace]
    known = [at for at in times if at is not None]
    if len(known) < len(times):
        raise ValueError("the trace has no arrival times: it cannot be replayed in time")
    if known != sorted(known):
        raise ValueError("the arrival times of the trace are not in order")
    return [(at - known[0]) / speed for at in known]


def figures(timing: Timing, trace: list[TracedRequest], clipped: Clipped) -> dict[str, Any]:
    """One row: times in milliseconds, shares between 0 and 1."""
    stats, seconds = timing.stats, max(timing.seconds, 1e-9)
    prompt = sum(request.prompt for request in trace)
    return {
        "requests": len(trace),
        "seconds": round(timing.seconds, 2),
        "output_tokens_per_s": round(timing.generated / seconds, 1),
        "total_tokens_per_s": round((timing.generated + prompt) / seconds, 1),
        **_spread("ttft", timing.first_token),
        **_spread("per_token", timing.per_token),
        "between_tokens_p99_ms": _ms(timing.between_tokens, 0.99),
        **_spread("queued", timing.queued),
        "prefix_hit_share": round(stats.cached_tokens / max(1, stats.prompt_tokens), 4),
        "preemptions": {decision.value: getattr(stats, decision.value) for decision in Decision},
        "recomputed_tokens": stats.recomputed_tokens,
        "restored_tokens": stats.restored_tokens,
        "steps": stats.steps,
        "decodes_per_step": round(stats.decoded_tokens / max(1, stats.steps), 1),
        "prompt_tokens_per_step": round(stats.prefilled_tokens / max(1, stats.steps), 1),
        "idle_share": round(timing.idle / max(timing.seconds - timing.empty, 1e-9), 4),
        "empty_share": round(timing.empty / seconds, 4),
        "clipped_requests": clipped.requests,
        "kept_prompt_share": round(clipped.kept_prompt_tokens / max(1, clipped.prompt_tokens), 4),
    }


def _spread(name: str, values: list[float]) -> dict[str, float | None]:
    return {f"{name}_{label}_ms": _ms(values, q) for label, q in _QUANTILES.items()}


def _ms(values: list[float], q: float) -> float | None:
    return round(1e3 * percentile(values, q), 2) if values else None
