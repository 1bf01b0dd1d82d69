"""Packed steps arrive at the other ranks as they were sent, and those compute them in order, each with its masks."""

from __future__ import annotations

import os
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from octavo_worker.assembly.follower import compute_packed
from octavo_worker.contract.messages import EngineSampling
from octavo_worker.contract.step import Masks, SampleRow
from octavo_worker.contract.windows import BlockMoves
from octavo_worker.ranks.board import Board
from octavo_worker.ranks.memory import RankMemory
from octavo_worker.ranks.rank import Rank
from octavo_worker.runner.base import PromptScores
from octavo_worker.runner.cuda.packer import PackedStep, SpecialRow
from octavo_worker.runner.cuda.shapes import DecodeShape, PromptShape, RaggedShape, StepSizes
from octavo_worker.runner.parallel.packed_steps import decode_packed, encode_packed
from octavo_worker.runner.parallel.steps import encode_masks

INTS = st.integers(-(2**31), 2**31 - 1)
COUNTS = st.integers(0, 2**20)
PAIRS = st.lists(st.tuples(COUNTS, COUNTS), max_size=5)
TOKENS = st.lists(COUNTS, max_size=6)
SHAPES = st.one_of(
    st.none(),
    st.builds(DecodeShape, COUNTS, st.booleans()),
    st.builds(PromptShape, COUNTS, COUNTS, COUNTS, st.booleans()),
    st.builds(RaggedShape, COUNTS, st.booleans(), st.booleans()),
)
PARAMS = st.builds(
    EngineSampling,
    seed=st.integers(-(2**63), 2**63 - 1),
    max_tokens=COUNTS,
    temperature=st.floats(0, 9, allow_nan=False),
    repetition_penalty=st.floats(0.5, 2),
    logit_bias=st.dictionaries(COUNTS, st.floats(-9, 9), max_size=3),
    logprobs=st.one_of(st.none(), COUNTS),
)
ROWS = st.builds(
    SampleRow, PARAMS, COUNTS, COUNTS, TOKENS.map(lambda t: array("I", t)), TOKENS, TOKENS, COUNTS, st.booleans()
)


def words(dtype: Any) -> st.SearchStrategy[np.ndarray]:
    values = st.booleans() if dtype is np.bool_ else INTS
    return st.lists(values, max_size=9).map(lambda some: np.array(some, dtype))


SIZES = st.builds(
    StepSizes, COUNTS, COUNTS, COUNTS, COUNTS, words(np.int32), words(np.int32),
    is_shared=st.booleans(), is_scored=st.booleans(), on_host=words(np.bool_),
)  # fmt: skip
STEPS = st.builds(
    PackedStep,
    words(np.int32),
    SIZES,
    SHAPES,
    TOKENS,
    words(np.int64),
    st.lists(st.builds(SpecialRow, COUNTS, ROWS, st.integers(-1, 99)), max_size=3),
    st.lists(st.builds(PromptScores, COUNTS, COUNTS, TOKENS, COUNTS), max_size=3),
    PAIRS,
    PAIRS,
    PAIRS,
    st.booleans(),
    PAIRS,
    PAIRS,
    st.builds(BlockMoves, PAIRS, PAIRS, PAIRS),
)


def plain(value: Any) -> Any:
    """With arrays as lists, so that it can be compared."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, StepSizes):
        return [plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, PackedStep):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, SpecialRow):
        return value.place, value.follows, [plain(getattr(value.row, name)) for name in SampleRow.__struct_fields__]
    if isinstance(value, BlockMoves):
        return [plain(each) for each in (value.copies, value.swap_out, value.swap_in)]
    if isinstance(value, list | tuple | array):
        return [plain(each) for each in value]
    return value


@given(STEPS)
def test_what_is_sent_arrives(step: PackedStep) -> None:
    assert plain(decode_packed(encode_packed(step))) == plain(step)


class Launched:
    def __init__(self, runner: Runner, number: int, is_chosen_late: bool) -> None:
        self.runner, self.number, self.is_chosen_late = runner, number, is_chosen_late

    def choose(self, masks: Masks) -> None:
        self.runner.seen.append((self.number, masks.words.tolist()))


class Runner:
    """Notes what it is to compute. The second of three steps is chosen late."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def follow(self, packed: PackedStep) -> Launched:
        self.seen.append(packed.words.tolist())
        return Launched(self, len(self.seen), len(self.seen) % 3 == 2)


def test_a_rank_computes_what_is_published() -> None:
    """More steps than the board has room for, of which one has masks."""
    sizes = StepSizes(
        1, 1, 1, 1, *[np.ones(1, np.int32)] * 2, is_shared=False, is_scored=False, on_host=np.zeros(1, bool)
    )
    step = PackedStep(np.zeros(0, np.int32), sizes, DecodeShape(1, False), [1], np.zeros(0, np.int64), *[[]] * 5, False)
    masks = Masks([0], np.array([[5, -1]], np.int32))
    descriptor = os.memfd_create("ranks")
    first, other = (RankMemory(descriptor, Rank(index, 2), 0) for index in range(2))
    os.close(descriptor)
    runner, board = Runner(), Board(other, Rank(1, 2))

    def follow() -> None:
        for _ in range(3):
            compute_packed(runner, board)  # type: ignore[arg-type]

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        publish = Board(first, Rank(0, 2)).publish
        publish(encode_packed(replace(step, words=np.arange(3, dtype=np.int32))))
        publish(encode_packed(replace(step, words=np.arange(500_000, dtype=np.int32))))
        publish(encode_masks(masks))
        publish(encode_packed(replace(step, words=np.arange(2, dtype=np.int32))))
        following.result()
    assert runner.seen == [[0, 1, 2], list(range(500_000)), (2, [[5, -1]]), [0, 1]]
