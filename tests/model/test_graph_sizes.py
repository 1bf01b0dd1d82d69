"""Padded sizes of steps, so that a few graphs serve all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from octavo_worker.runner.cuda import shapes as module
from octavo_worker.runner.cuda.shapes import (
    PROMPT_TOKENS,
    DecodeShape,
    PromptShape,
    RaggedShape,
    StepShapes,
    StepSizes,
    batch_sizes,
    drafted_sizes,
    prompt_sizes,
)


def test_every_batch_has_a_size_that_holds_it() -> None:
    for most in (1, 3, 8, 20, 256):
        sizes = batch_sizes(most)
        assert sizes[-1] == most
        assert sizes == sorted(set(sizes))


def test_every_step_with_prompts_has_sequences_that_hold_it_and_tokens_within_the_budget() -> None:
    for most in (1, 3, 8, 20, 256):
        sequences, tokens = prompt_sizes(most, 100)
        assert sequences[0] == 1
        assert sequences[-1] == most
        assert sequences == sorted(set(sequences))
        assert tokens == [size for size in PROMPT_TOKENS if size <= 100]


def test_decodes_with_drafts_are_padded_to_twice_as_many_at_most() -> None:
    for most in (1, 2, 3, 8, 20, 256):
        sequences = drafted_sizes(most)
        assert sequences[0] == 1
        assert sequences[-1] == most
        assert all(larger <= 2 * smaller for smaller, larger in pairwise(sequences))


def test_a_runner_that_captures_no_prompts_has_no_sizes_for_them() -> None:
    assert prompt_sizes(256, 0)[1] == []


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> StepShapes:
    """A chunk a sequence, whatever kernels are there."""
    monkeypatch.setattr(module, "chunk_count", lambda contexts, queries, heads_per_kv: len(contexts))
    monkeypatch.setattr(module, "only_prompts", lambda contexts, queries, heads_per_kv: bool((queries > 16).all()))
    return StepShapes(
        64,
        300,
        samples=192,
        prompts=True,
        chunks=20,
        heads_per_kv=[4],
        few_queries=4,
        block_size=16,
        block_bytes=1 << 20,
    )


def sizes(queries: list[int], decodes: int, **options: Any) -> StepSizes:
    """Sizes of a step of sequences with contexts of 100 tokens, each of which samples once."""
    count = len(queries)
    flags = {"is_shared": False, "is_scored": False, "on_host": np.zeros(count, bool), "samples": count} | options
    return StepSizes(count, decodes, sum(queries), queries=np.array(queries), contexts=np.full(count, 100), **flags)


def test_a_step_of_one_token_and_one_sample_a_sequence_is_padded_to_a_batch_size(shapes: StepShapes) -> None:
    assert shapes.of(sizes([1] * 17, 17)) == DecodeShape(24, False)
    assert shapes.of(sizes([1] * 3, 3, is_shared=True)) == DecodeShape(4, True)


def test_decodes_with_several_tokens_or_samples_are_padded_as_prompts_are(shapes: StepShapes) -> None:
    assert shapes.of(sizes([1, 3], 2)) == PromptShape(4, 16, 20)
    assert shapes.of(sizes([1, 3], 2, samples=6)) == PromptShape(16, 32, 20)


def test_decodes_that_verify_drafts_sample_every_token(shapes: StepShapes) -> None:
    assert shapes.of(sizes([4], 1, samples=4)) == PromptShape(1, 4, 20, drafts=True, few=True)
    assert shapes.of(sizes([1, 3, 4], 3, samples=8)) == PromptShape(4, 16, 20, drafts=True, few=True)
    assert shapes.of(sizes([4] * 20, 20, samples=80)) == PromptShape(32, 96, 32, drafts=True, few=True)
    assert shapes.of(sizes([4] * 8, 8, samples=32)) == PromptShape(8, 32, 32, drafts=True, few=True)
    assert shapes.of(sizes([3] * 64, 64, samples=192)) == PromptShape(64, 192, 64, drafts=True, few=True)
    assert PromptShape(4, 16, 20, drafts=True).samples == 16
    assert PromptShape(4, 16, 20).samples == 4


def test_a_decode_of_many_drafts_or_in_a_group_needs_the_kernels_of_prompts(shapes: StepShapes) -> None:
    assert shapes.of(sizes([5, 1], 2, samples=6)) == PromptShape(2, 8, 20, drafts=True)
    assert shapes.of(sizes([2, 2], 2, samples=4, is_shared=True)) == PromptShape(2, 4, 20, drafts=True)


def test_drafts_beside_prompts_are_padded_where_there_are_graphs_with_so_many_samples(shapes: StepShapes) -> None:
    assert shapes.of(sizes([4, 30], 1, samples=5)) == PromptShape(16, 48, 20)
    assert isinstance(shapes.of(sizes([4] * 20 + [30], 20, samples=81)), RaggedShape)


@pytest.mark.parametrize("drafts", [0, 1, 3, 8])
def test_all_steps_of_drafts_alone_have_a_shape_that_was_foreseen(shapes: StepShapes, drafts: int) -> None:
    """None else: each is a graph to capture."""
    found = set()
    for count in range(1, 65 if drafts else 1):
        for rows in range(count + 1, min(count * (1 + drafts), 192) + 1):
            queries = [1 + (rows - count) // count] * count
            for extra in range((rows - count) % count):
                queries[extra] += 1
            shape = shapes.of(sizes(queries, count, samples=rows))
            if isinstance(shape, PromptShape):
                assert shape.drafts
                found |= {shape, shapes.of(sizes(queries, count, samples=rows, is_shared=True))}
    assert {replace(shape, chunks=0) for shape in found} == {
        replace(shape, chunks=0) for shape in shapes.verifying(drafts)
    }


def test_what_is_long_or_scored_or_staged_is_not_padded(shapes: StepShapes) -> None:
    assert shapes.of(sizes([1, 280], 1)) == RaggedShape(20, prompts_only=False, is_staged=False)
    assert shapes.of(sizes([40], 0, is_scored=True)) == RaggedShape(20, prompts_only=True, is_staged=False)
    assert shapes.of(sizes([70], 0, on_host=np.array([True]))) == RaggedShape(20, prompts_only=True, is_staged=True)
    assert shapes.of(sizes([64], 0, on_host=np.array([True]))) == PromptShape(1, 64, 20)


def test_room_for_chunks_only_grows(shapes: StepShapes) -> None:
    assert shapes.of(sizes([2] * 30, 0)) == PromptShape(64, 96, 64), "padding has a chunk each"
    assert shapes.of(sizes([2], 0)) == PromptShape(1, 16, 64)


def test_more_than_there_is_room_for_is_refused(shapes: StepShapes) -> None:
    for step in (sizes([301], 0), sizes([193], 1, samples=193)):
        with pytest.raises(ValueError, match="room for 300 tokens and 192 samples"):
            shapes.of(step)


def test_layers_of_several_groups_of_heads_have_room_for_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which chunks there are, and whether all are prompts, depends on how many query heads share keys."""
    monkeypatch.setattr(module, "chunk_count", lambda contexts, queries, group: 100 // group)
    monkeypatch.setattr(module, "only_prompts", lambda contexts, queries, group: group > 2)
    for groups, chunks, alone in (([4], 25, True), ([4, 8], 25, True), ([2, 8], 50, False), ([8, 2], 50, False)):
        made = StepShapes(
            4, 600, samples=4, prompts=True, chunks=1, heads_per_kv=groups, few_queries=4, block_size=16, block_bytes=64
        )
        assert made.of(sizes([550, 3], 0, is_scored=True)) == RaggedShape(chunks, alone, False)
