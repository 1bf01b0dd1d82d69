"""Results of a GPU's step with drafts of the device: the device's events and memory are stand-ins."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo_worker.runner.cuda.launched import LaunchedStep
from octavo_worker.runner.cuda.packer import PackedStep
from octavo_worker.runner.cuda.shapes import RaggedShape, StepSizes

DRAFTS = st.lists(st.lists(st.tuples(st.integers(0, 999), st.booleans()), max_size=4), min_size=1, max_size=6)
"""For each decode, the tokens that are verified, and whether the device guesses them."""


def step_of(decodes: list[list[tuple[int, bool]]], prompt: int) -> LaunchedStep:
    """Decodes, each of a token and its drafts, and a prompt of so many tokens, the last of which is sampled."""
    counts = [1 + len(drafts) for drafts in decodes]
    queries = np.array([*counts, prompt], np.int32)
    samples, nothing = [*counts, 1], np.zeros(0, np.int32)
    sizes = StepSizes(
        len(queries), len(counts), int(queries.sum()), sum(samples), queries, queries, False, False, nothing
    )
    packed = PackedStep(nothing, sizes, RaggedShape(0, False, False), samples, nothing, [], [], [], [], [], False)
    inputs = [token for drafts in decodes for token in (7, *(draft for draft, _ in drafts))]
    done: Any = SimpleNamespace(synchronize=lambda: None)
    slot: Any = SimpleNamespace(tokens=torch.arange(50), inputs=torch.tensor(inputs), began=done, done=done)
    step = LaunchedStep(packed, [], slot)
    step.drafts = [[~place if left else token for place, (token, left) in enumerate(drafts)] for drafts in decodes]
    step.drafts.append(())
    if any(left for drafts in decodes for _, left in drafts):
        step.guessed = sizes.decoded
    return step


@given(DRAFTS, st.integers(1, 9))
def test_drafts_are_those_that_were_computed(decodes: list[list[tuple[int, bool]]], prompt: int) -> None:
    """Drafts that the host knew and drafts that it has to read, with rows of all lengths."""
    results = step_of(decodes, prompt).result().sequences
    assert [list(result.drafts) for result in results] == [*([token for token, _ in each] for each in decodes), []]
    sampled = [[answer.token for answer in result.samples] for result in results]
    assert [len(tokens) for tokens in sampled] == [*(1 + len(drafts) for drafts in decodes), 1]
    assert list(chain.from_iterable(sampled)) == list(range(sum(map(len, sampled))))


def test_without_a_draft_model_no_sequence_has_drafts() -> None:
    step = step_of([[], []], 3)
    step.drafts = ()
    assert [result.drafts for result in step.result().sequences] == [()] * 3
