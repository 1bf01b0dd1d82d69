"""What a worker claims follows what its engine can take on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from octavo_worker.agent.room import Room, room_for
from octavo_worker.messages import EngineStats, Ready

BLOCK = 16


def room(*prompts: int, free: int, enough: int = 100, computed: bool = False) -> Room | None:
    """With jobs whose prompts have so many tokens, in a pool of 100 blocks."""
    limits = Ready(
        max_model_len=40_000,
        vocab_size=997,
        num_blocks=101,
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
    return room_for(jobs, limits, EngineStats(free_blocks=free))


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
