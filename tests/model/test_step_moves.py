"""Moves of states in a step's message: what the device unpacks is what `StateMoves` makes of the plan."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo_kernels.step import StepInputs, unpack_step
from octavo_worker.contract.state import StateMove, StateMoves
from octavo_worker.contract.step import SequenceStep, StepPlan
from octavo_worker.runner.cuda.packer import PackedStep, Packer
from octavo_worker.runner.cuda.shapes import RaggedShape, StepSizes

ROWS, BLOCKS, BLOCK, TOKENS = 8, 4, 16, 200


class AsItIs:
    """Pads no step."""

    def of(self, step: StepSizes) -> RaggedShape:
        return RaggedShape(0, False, False)


@st.composite
def sequences(draw: st.DrawFn) -> SequenceStep:
    """One of up to 20 tokens, which keeps the state behind any of them."""
    tokens, slots = draw(st.integers(1, 20)), st.integers(0, 2**31 - 1)
    after = draw(st.lists(st.integers(1, tokens), unique=True).map(sorted))
    keeps = tuple((place, draw(slots)) for place in after)
    state = draw(st.none() | st.builds(StateMove, slots, slots, st.just(keeps)))
    return SequenceStep([7] * tokens, 0, [1, 2], state=state)


def packed(steps: list[SequenceStep], *, states: bool = True) -> PackedStep:
    packer = Packer(rows=ROWS, block_size=BLOCK, vocab_size=9, shapes=AsItIs(), states=states)
    return packer.pack(
        StepPlan(steps, 0), np.zeros(Packer.capacity(ROWS, ROWS, TOKENS, BLOCKS, states=states), np.int32)
    )


def unpacked(step: PackedStep, sequences: int, device: str = "cpu") -> StepInputs:
    inputs = StepInputs.allocate(ROWS, TOKENS, BLOCKS, torch.device(device), states=True)
    assert inputs.moves is not None
    for words in (inputs.moves.read, inputs.moves.write, inputs.moves.keep_start):
        words.fill_(-7)  # of a step before
    tables = torch.zeros((ROWS, BLOCKS), dtype=torch.int32, device=device)
    message = torch.from_numpy(step.words.copy()).to(device)
    unpack_step(message, tables, torch.zeros(ROWS, dtype=torch.int64, device=device), inputs, sequences, BLOCK)
    return inputs


def assert_moves(steps: list[SequenceStep], inputs: StepInputs, rows: int) -> None:
    assert inputs.moves is not None
    moves = inputs.moves.of(inputs.query_start[: rows + 1])
    wanted = StateMoves.of([step.state for step in steps], rows)
    for name in ("read", "write", "keep_start"):
        assert getattr(moves, name).tolist() == getattr(wanted, name).tolist(), name
    kept = len(wanted.keep_slot)
    assert moves.keep_after[:kept].tolist() == wanted.keep_after.tolist()
    assert moves.keep_slot[:kept].tolist() == wanted.keep_slot.tolist()
    lengths = [len(step.tokens) for step in steps] + [1] * (rows - len(steps))
    assert moves.query_start.tolist() == [0, *accumulate(lengths)]


@given(st.lists(sequences(), min_size=1, max_size=ROWS), st.integers(0, ROWS))
def test_moves_arrive_and_padding_has_none(steps: list[SequenceStep], padding: int) -> None:
    rows = min(ROWS, len(steps) + padding)
    assert_moves(steps, unpacked(packed(steps), rows), rows)


def test_an_empty_message_moves_nothing() -> None:
    """Graphs are captured with one."""
    inputs = StepInputs.allocate(ROWS, TOKENS, BLOCKS, torch.device("cpu"), states=True)
    none = torch.zeros(100, dtype=torch.int32)
    unpack_step(none, torch.zeros((ROWS, BLOCKS), dtype=torch.int32), torch.zeros(ROWS).long(), inputs, 3, BLOCK)
    assert_moves([], inputs, 3)


def test_a_state_may_be_kept_behind_every_token() -> None:
    each = TOKENS // ROWS
    keeps = tuple((after, 5) for after in range(1, each + 1))
    steps = [SequenceStep([7] * each, 0, [1, 2], state=StateMove(1, 2, keeps))] * ROWS
    assert_moves(steps, unpacked(packed(steps), ROWS), ROWS)


def test_messages_of_models_without_states_are_as_long_as_ever() -> None:
    steps = [SequenceStep([7] * 3, 0, [1])] * 2
    plain, moved = packed(steps, states=False), packed(steps)
    assert len(moved.words) == len(plain.words) + 2 * 4
    assert StepInputs.allocate(ROWS, TOKENS, BLOCKS, torch.device("cpu")).move_addresses() == (0,) * 5


def test_a_step_reads_what_it_swaps_in_where_states_alone_are_swapped() -> None:
    read = SequenceStep([7], 3, [1], state=StateMove(4, 4))
    plan = StepPlan([read], 1, state_in=[(90, 4)])
    assert plan.uses_swapped_in
    assert StepPlan([], 0, state_in=[(90, 4)], state_out=[(4, 91)]).uses_swapped_in
    assert not StepPlan([read], 1, state_in=[(90, 5)], state_out=[(6, 91)]).uses_swapped_in


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(4))
def test_the_kernel_reads_moves_as_the_cpu_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(20):
        steps = []
        for _ in range(rng.integers(1, ROWS + 1)):
            tokens = int(rng.integers(1, 21))
            after = sorted(rng.choice(np.arange(1, tokens + 1), rng.integers(0, tokens + 1), replace=False).tolist())
            keeps = tuple((place, int(rng.integers(1, 99))) for place in after)
            steps.append(SequenceStep([7] * tokens, 0, [1, 2], state=StateMove(3, 4, keeps)))
        rows = int(rng.integers(len(steps), ROWS + 1))
        assert_moves(steps, unpacked(packed(steps), rows, "cuda"), rows)
