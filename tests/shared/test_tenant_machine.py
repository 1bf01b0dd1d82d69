"""Tenants under any order of calls: exact buckets and accounts, caps never passed, nothing parked for ever."""

from __future__ import annotations

from typing import Any

import redis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from tenant_machine import TenantMachine
from tiers import examples, size


def test_buckets_accounts_and_caps_hold_under_any_order_of_calls(
    world: Any, redis_sync: redis.Redis, request_of: Any
) -> None:
    def machine() -> TenantMachine:
        redis_sync.flushall()
        return TenantMachine(type(world)(redis_sync), request_of)

    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples(40, quick=6), stateful_step_count=size(60, quick=40))
    )
