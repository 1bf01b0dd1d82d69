"""A step of one decode that computes several rows: its next token and drafts."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

from engine_driver import Driver
from fake_runner import value_of

from octavo_worker.contract.step import SequenceStep, StepPlan
from octavo_worker.engine.drafts import count_accepted
from octavo_worker.engine.sequence import Sequence
from octavo_worker.memory.block_pool import OutOfBlocks


def verify(driver: Driver, sequence: Sequence, drafts: Tokens[int]) -> int:
    """Computes the next token of a decode and its drafts in one step, as far as there are blocks. Returns how many
    drafts were accepted."""
    kv, runner, start = driver.scheduler.kv, driver.runner, sequence.computed
    step = kv.begin_step()
    kv.offload([sequence], 1 + len(drafts) // runner.block_size, step)
    fitting = 0
    try:
        for position in range(start, start + 1 + len(drafts)):
            kv.make_writable(sequence, position, step)
            fitting += 1
    except OutOfBlocks:
        drafts = drafts[: max(0, fitting - 1)]
    if not fitting:
        runner.launch(StepPlan((), 0, swap_out=tuple(step.blocks.swap_out))).result()
        kv.settle(step)
        return 0
    sequence.computed += 1 + len(drafts)
    kv.publish(sequence)
    rows = range(1 + len(drafts))
    tokens = (*sequence.slice(start, start + 1), *drafts)
    table, specs = sequence.table.blocks, sequence.samples * len(rows)
    plan = StepPlan(
        (SequenceStep(tokens, start, table, specs, tuple(rows), sequence.run_id),),
        1,
        tuple(step.blocks.copies),
        tuple(step.blocks.swap_out),
    )
    value = value_of(plan, runner.block_size)
    (answer,) = runner.launch(plan).result().sequences
    drawn = [sampled.token for sampled in answer.samples]
    accepted = count_accepted(drafts, drawn)
    for token in drawn[: accepted + 1]:
        sequence.output.append(token)
        driver.tokens[sequence.request.id, sequence.indices[0]].append(token)
    kv.settle(step)
    kv.rewind(sequence, len(drafts) - accepted)
    kv.publish(sequence)
    assert value_of(plan, runner.block_size) == value, "a plan changed after its launch"
    assert len(sequence.table.blocks) == -(-sequence.computed // runner.block_size)
    driver.scheduler.check_integrity()
    return accepted
