"""Log of single steps: their work and their times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from octavo_worker.contract.step import StepPlan

_ENGINE, _STEPS = 1, 2


@dataclass(slots=True)
class StepRecord:
    """Work and times of a step. Times of one clock in seconds: its planning began, it was planned, its launch returned,
    the engine began to wait for it, its result was there, the result was taken in. `ahead`: it was launched before the
    end of the step before it. Then sequences that decoded, drafts that they verified, chunks of prompts and their
    tokens, blocks swapped and copied."""

    began: float = 0.0
    planned: float = 0.0
    left: float = 0.0
    waited: float = 0.0
    landed: float = 0.0
    committed: float = 0.0
    ahead: bool = False
    decodes: int = 0
    drafts: int = 0
    chunks: int = 0
    prefilled: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    copied: int = 0

    def count(self, plan: StepPlan) -> None:
        """Note what the step does."""
        self.decodes = plan.num_decodes
        self.drafts = sum(len(step.drafts) for step in plan.sequences[: plan.num_decodes])
        self.chunks = len(plan.sequences) - plan.num_decodes
        self.prefilled = sum(len(step.tokens) for step in plan.sequences[plan.num_decodes :])
        self.swapped_out, self.swapped_in, self.copied = len(plan.swap_out), len(plan.swap_in), len(plan.copies)


@dataclass(slots=True)
class StepLog:
    """The first `limit` steps (None: all) that landed since it was made."""

    limit: int | None = None
    steps: list[StepRecord] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return self.limit is not None and len(self.steps) >= self.limit

    def add(self, step: StepRecord) -> None:
        if not self.is_full:
            self.steps.append(step)


def chrome_trace(log: StepLog) -> dict[str, Any]:
    """The log in the Trace Event Format, for Perfetto or chrome://tracing.

    One track shows what the engine's thread does, the other the steps themselves: a step begins with its launch, or
    with the end of the one before it where it was launched ahead. Counters show what each batch was made of.
    """
    events = [_name("process_name", 0, "octavo engine"), _name("thread_name", _ENGINE, "engine")]
    events.append(_name("thread_name", _STEPS, "steps"))
    origin = log.steps[0].began if log.steps else 0.0
    before = origin
    for number, step in enumerate(log.steps):
        arguments = {
            "decodes": step.decodes,
            "drafts": step.drafts,
            "prompt chunks": step.chunks,
            "prompt tokens": step.prefilled,
            "blocks swapped out": step.swapped_out,
            "blocks swapped in": step.swapped_in,
            "blocks copied": step.copied,
        }
        phases = {
            "plan": (step.began, step.planned),
            "launch": (step.planned, step.left),
            "wait": (step.waited, step.landed),
            "commit": (step.landed, step.committed),
        }
        events += [_span(name, _ENGINE, *times, origin, {"step": number}) for name, times in phases.items()]
        started = max(step.planned, before)
        events.append(_span(f"step {number}", _STEPS, started, step.landed, origin, arguments))
        batch = {"decodes": step.decodes, "prompt tokens": step.prefilled}
        events.append({"ph": "C", "name": "batch", "pid": 1, "ts": _us(started - origin), "args": batch})
        before = step.landed
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _name(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": thread, "args": {"name": name}}


def _span(name: str, thread: int, began: float, ended: float, origin: float, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": _us(began - origin),
        "dur": _us(ended - began),
        "args": args,
    }


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 1)
