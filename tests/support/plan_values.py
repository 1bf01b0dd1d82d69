"""All that a plan says, as a value to compare."""

from __future__ import annotations

from typing import Any

from octavo_worker.contract.step import SequenceStep, StepPlan


def value_of(plan: StepPlan, block_size: int) -> list[Any]:
    """All that a plan says, copied."""
    swaps = [list(plan.swap_in), list(plan.swap_out), list(plan.copies), list(plan.groups), list(plan.prefix_lens)]
    states = [list(plan.state_in), list(plan.state_out), [step.state for step in plan.sequences]]
    windows = [list(plan.windows.swap_in), list(plan.windows.swap_out), list(plan.windows.copies)]
    return [plan.num_decodes, *swaps, *states, *windows, *(_value_of(step, block_size) for step in plan.sequences)]


def _value_of(step: SequenceStep, block_size: int) -> list[Any]:
    fields = [step.start, step.run_id, step.follows, step.prompt_logprobs, list(step.tokens), list(step.targets)]
    blocks = list(step.block_table[: -(-step.end // block_size)])
    windows = list(step.window_table[: -(-step.end // block_size)])
    samples = [(step.sample_row(i), list(s.prompt), step.output_at(i)) for i, s in enumerate(step.samples)]
    return [*fields, list(step.rows), blocks, windows, samples]
