"""The order of the class batch beside the order of arrival: steps, preemptions and modelled time.

    python benchmarks/lab/batch_order.py [--out benchmarks/results/batch_order.json]

The scheduler is the real one, the model is a cost model: a step of a 13B Llama on an H200, by weights, rows, tokens of
context and tokens of prompts. For `mixed256` in the order of arrival it gives 45.2 s, 1,757 steps and 44 preemptions;
measured were 44.7 s, 1,712 and 43. `max_tokens` equals the output, or exceeds it, as in a service that cannot know the
length of an answer. The outputs are always the same.
"""

from __future__ import annotations

import argparse
import random
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octavo_worker.bench.report import report, write
from octavo_worker.bench.workloads import Work, workload
from octavo_worker.contract.messages import BATCH, NORMAL, AddRequest, EngineSampling, SequenceInput
from octavo_worker.contract.step import Sampled, SampleRow, SequenceResult, StepPlan, StepResult
from octavo_worker.engine.config import SchedulerConfig
from octavo_worker.engine.scheduler import Scheduler
from octavo_worker.memory.cost import CostModel, PreemptionPolicy

POOL_TOKENS, BLOCK = 116_208, 16
TOKEN_BYTES = 819_200  # keys and values
STEP_S, ROW_S, CONTEXT_S, PROMPT_S = 6.0e-3, 20e-6, TOKEN_BYTES / 4.25e12, 1 / 24.5e3
LINK = 45e9  # bytes/s between device and host
STOP, OTHER = 7, 5  # tokens


class Engine:
    """A scheduler whose steps, one ahead, are answered after the time they would take."""

    def __init__(self, swap_gib: float) -> None:
        self.now = 0.0
        block_bytes = BLOCK * TOKEN_BYTES
        self.scheduler = Scheduler(
            SchedulerConfig(
                num_blocks=POOL_TOKENS // BLOCK + 1,
                block_size=BLOCK,
                max_model_len=9216,
                vocab_size=32_000,
                token_budget=8192,
                num_host_blocks=int(swap_gib * 2**30 / block_bytes),
                policy=PreemptionPolicy(costs=CostModel(block_bytes, LINK, 1 / PROMPT_S)),
                clock=lambda: self.now,
                timer=lambda: self.now,
            )
        )

    def run(self, work: list[Work], limits: list[int], priority: int) -> Iterator[StepPlan]:
        """Every step when it is over. An output ends by a stop token at its length, which is below its limit."""
        ends = [len(w.prompt) + w.max_tokens - 1 for w in work]  # by seed
        for seed, (w, limit) in enumerate(zip(work, limits, strict=True)):
            sampling = EngineSampling(seed=seed, max_tokens=limit, stop_token_ids=[STOP])
            self.scheduler.add(
                AddRequest(str(seed), array("I", w.prompt), [SequenceInput(0)], sampling, priority=priority)
            )

        def token(row: SampleRow) -> Sampled:
            return Sampled(STOP if row.position >= ends[row.params.seed] else OTHER)

        under_way: deque[StepPlan] = deque()
        while self.scheduler.has_requests or under_way:
            plan = self.scheduler.plan() if self.scheduler.can_plan else None
            if plan is not None:
                under_way.append(plan)
            if plan is None or len(under_way) > 1:
                step = under_way.popleft()
                self.now += seconds(step)
                samples = [
                    SequenceResult([token(s.sample_row(number)) for number in range(len(s.samples))])
                    for s in step.sequences
                ]
                self.scheduler.commit(step, StepResult(samples))
                self.scheduler.take_output()
                yield step


def seconds(step: StepPlan) -> float:
    """What it takes; its swaps go on beside it."""
    context = sum(s.start + 1 for s in step.sequences[: step.num_decodes])
    prompts = sum(len(s.tokens) for s in step.sequences[step.num_decodes :])
    computing = STEP_S + ROW_S * step.num_decodes + CONTEXT_S * context + PROMPT_S * prompts
    return max(computing, (len(step.swap_out) + len(step.swap_in)) * BLOCK * TOKEN_BYTES / LINK)


def measure(name: str, limits: str, swap_gib: float, priority: int) -> dict[str, Any]:
    work = workload("gpu", name, 30_000)
    engine = Engine(swap_gib)
    few = sum(step.num_decodes < 64 for step in engine.run(work, limits_of(limits, work), priority))
    stats = engine.scheduler.stats()
    row = {
        "workload": name,
        "limits": limits,
        "swap_gib": swap_gib,
        "class": "batch" if priority == BATCH else "normal",
        "seconds": round(engine.now, 2),
        "steps": stats.steps,
        "steps_below_64_rows": few,
        "preemptions": stats.preemptions,
        "recomputed_tokens": stats.recomputed_tokens,
    }
    print(" | ".join(map(str, row.values())), flush=True)
    return row


def limits_of(kind: str, work: list[Work]) -> list[int]:
    """Highest token counts that are asked for, none below the output's."""
    rng = random.Random(5)
    if kind == "exact":
        return [w.max_tokens for w in work]
    if kind == "powers of two":
        return [1 << (w.max_tokens - 1).bit_length() for w in work]
    if kind == "one to four times":
        return [int(w.max_tokens * rng.uniform(1, 4)) for w in work]
    return [2048] * len(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the report as JSON")
    arguments = parser.parse_args()
    cases = [("mixed256", kind) for kind in ("exact", "powers of two", "one to four times", "all equal")]
    rows = [
        measure(name, limits, swap, priority)
        for name, limits in [*cases, ("batch256", "exact")]
        for swap in (0, 24, 64)
        for priority in (NORMAL, BATCH)
    ]
    if arguments.out is not None:
        write(report("batch_order", rows, pool_tokens=POOL_TOKENS), arguments.out)


if __name__ == "__main__":
    main()
