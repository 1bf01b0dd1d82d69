"""Words of a second table in a step's message: behind those of the first, and none in messages of other models."""

from __future__ import annotations

import numpy as np
import torch

from octavo_kernels.step import StepInputs
from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.step import SampleSpec, SequenceStep, StepPlan
from octavo_worker.runner.cuda.packer import PackedStep, Packer
from octavo_worker.runner.cuda.shapes import RaggedShape, StepSizes

ROWS, BLOCKS, BLOCK, TOKENS = 6, 12, 16, 256


class AsItIs:
    """Pads no step."""

    def of(self, step: StepSizes) -> RaggedShape:
        return RaggedShape(0, False, False)


def packed(plan: StepPlan, *, windows: bool) -> PackedStep:
    packer = Packer(rows=ROWS, block_size=BLOCK, vocab_size=9, shapes=AsItIs(), windows=windows)
    return packer.pack(plan, np.zeros(Packer.capacity(ROWS, 1, TOKENS, BLOCKS, windows=windows), np.int32))


def test_messages_of_models_with_one_group_have_no_word_of_another() -> None:
    """A decode, and a prompt of three blocks: the words of such a step, one by one."""
    spec = SampleSpec(EngineSampling(seed=9, max_tokens=9, temperature=0.0, top_p=1.0), 0, [], [])
    decode = SequenceStep([7], 20, [11, 12], [spec], run_id=1, window_table=[0, 92])
    prompt = SequenceStep([5] * 35, 0, [13, 14, 15], run_id=2, row_context=4, window_table=[93, 94, 95])
    alone, both = (packed(StepPlan([decode, prompt], 1), windows=windows) for windows in (False, True))
    sample_at = 6 + 2 * 10 + 36
    at = sample_at + 9
    header = [2, 36, 1, 6, 26, sample_at]
    records = [[5, 21, 0, 1, 0, 2, at, -1, 0, 0], [4, 35, 1, 35, 0, 3, at + 2, -1, 0, 4]]
    sample = [9, 0, 0, 0, 21, 0, 0, int(np.float32(1.0).view(np.int32)), 0]
    words = [*header, *records[0], *records[1], 7, *[5] * 35, *sample]
    assert alone.words.tolist() == [*words, 11, 12, 13, 14, 15]
    assert StepInputs.allocate(ROWS, TOKENS, BLOCKS, torch.device("cpu")).window_addresses() == (0, 0, 0)
    words[6 + 10 + 6] = at + 4
    assert both.words.tolist() == [*words, 11, 12, 0, 92, 13, 14, 15, 93, 94, 95]


def test_the_longest_message_of_two_groups_has_room() -> None:
    each = TOKENS // ROWS
    tables = [1] * BLOCKS, [2] * BLOCKS
    steps = [SequenceStep([7] * each, BLOCK * BLOCKS - each, tables[0], window_table=tables[1]) for _ in range(ROWS)]
    longest = packed(StepPlan(steps, 0), windows=True)
    assert len(longest.words) == 6 + ROWS * (10 + 2 * BLOCKS) + ROWS * each
