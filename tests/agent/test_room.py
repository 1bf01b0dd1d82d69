"""A worker claims as much as its engine can take on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from octavo_worker.agent.room import Room, room_for
from octavo_worker.contract.messages import EngineStats, Ready

BLOCK = 16


def room(
    *prompts: int, free: int, cached: int = 0, enough: int = 100, computed: bool = False, blocks: int = 101
) -> Room | None:
    """With jobs whose prompts have so many tokens, in a pool of `blocks` blocks."""
    limits = Ready(
        max_model_len=40_000,
        vocab_size=997,
        num_blocks=blocks,
        block_size=BLOCK,
        max_running=16,
        kv_dtype="float32",
        enough_blocks=enough,
        load_seconds=0.0,
    )
    jobs: list[Any] = [
        SimpleNamespace(is_over=False, open_sequences=1, is_computed=computed, prompt=[0] * tokens)
        for tokens in prompts
    ]
    return room_for(jobs, limits, EngineStats(free_blocks=free, cached_blocks=cached))


def test_a_prompt_on_the_way_takes_its_blocks():
    before, after = room(160, free=100, computed=True), room(160, free=100)
    assert before is not None
    assert after is not None
    assert before.tokens - after.tokens == 160


def test_a_prompt_on_the_way_takes_no_more_than_it_will_hold():
    assert room(16_000, free=100) is None
    behind = room(16_000, free=100, enough=50)
    assert behind is not None
    assert behind.tokens == (100 - 50 - 4) * BLOCK


def test_a_prompt_of_any_length_may_be_claimed_where_it_can_begin():
    some = room(16, free=60, enough=50)
    assert some is not None
    assert some.tokens == 40_000
    few = room(16, free=40, enough=50)
    assert few is not None
    assert few.tokens < 40 * BLOCK


def test_cached_blocks_are_as_good_as_free_ones():
    assert room(16, free=10, cached=50, computed=True) == room(16, free=60, computed=True)


def test_no_more_is_claimed_than_the_batch_has_places():
    left = room(*[16] * 14, free=100, computed=True)
    assert left is not None
    assert left.sequences == 2
    assert room(*[16] * 16, free=100, computed=True) is None


def test_an_idle_worker_takes_a_job_however_small_its_pool():
    assert room(free=3, blocks=4) == Room(sequences=1, tokens=4 * BLOCK, idle=True)
