"""Pauses, later starts, kills and dead letters in bulk, in any order: nothing is lost, nothing runs before it may."""

from __future__ import annotations

from typing import Any

import redis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from lane_machine import LaneMachine
from tiers import examples, size

from octavo import Client


def test_jobs_run_when_they_may_and_end_once_under_any_order_of_calls(
    world: Any, redis_sync: redis.Redis, redis_url: str, request_of: Any
) -> None:
    with Client(redis_url) as client:

        def machine() -> LaneMachine:
            redis_sync.flushall()
            return LaneMachine(type(world)(redis_sync), client, request_of)

        run_state_machine_as_test(
            machine, settings=settings(max_examples=examples(40, quick=8), stateful_step_count=size(60, quick=40))
        )
