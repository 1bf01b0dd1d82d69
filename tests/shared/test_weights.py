"""Weights: tenants share a class by them, and what a job is charged and given back is the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

WEIGHTS = {"one": 1000, "two": 2000, "four": 4000}


def virtual_time(world: Any, tenant: str, priority: str = "normal") -> float:
    found = world.redis.zscore(f"{world.keys.prefix}:v:{priority}:toy", tenant)
    return float(found if found is not None else world.redis.get(f"{world.keys.prefix}:lf:{priority}:{tenant}:toy"))


@pytest.mark.parametrize("priority", ["normal", "batch"])
def test_tenants_get_shares_by_their_weights(world: Any, request_of: Any, priority: str) -> None:
    for tenant, weight in WEIGHTS.items():
        world.limit(tenant=tenant, weight=weight)
        for _ in range(50):
            world.enqueue(request_of(priority=priority, max_tokens=1000), tenant=tenant)
    served: Counter[str] = Counter()
    for _ in range(70):
        claim = world.claim_one()
        served[claim.tenant] += 1
        world.append(claim, 0, [1])
        world.finish(claim, tokens=1)  # nearly all comes back, to each by its weight
    assert abs(served["two"] - 20) <= 1
    assert abs(served["four"] - 40) <= 1
    assert abs(served["one"] - 10) <= 1


@pytest.mark.parametrize("weight", [1, 3, 1000, 7000, 1_000_000])
def test_a_refund_is_what_was_charged_though_the_weight_has_changed(world: Any, weight: int) -> None:
    world.limit(weight=weight)
    job_id = world.enqueue()
    world.enqueue()
    cost = int(world.state(job_id)["cost"])
    claim = world.claim_one()
    assert virtual_time(world, "acme") == pytest.approx(cost * 1000 / weight, abs=0.001)
    world.limit(weight=5)
    world.append(claim, 0, [1])
    world.finish(claim, tokens=1)
    used = int(world.redis.hget(world.keys.job(job_id), "est")) + 1
    assert virtual_time(world, "acme") == pytest.approx(used * 1000 / weight, abs=0.001)


def test_a_tenant_that_comes_late_gets_its_share_and_no_arrears(world: Any, request_of: Any) -> None:
    for _ in range(40):
        world.enqueue(request_of(max_tokens=500), tenant="early")
    for _ in range(20):
        world.claim_one()
    world.limit(tenant="late", weight=2000)
    for _ in range(40):
        world.enqueue(request_of(max_tokens=500), tenant="late")
    served = Counter(world.claim_one().tenant for _ in range(15))
    assert abs(served["late"] - 10) <= 1


def test_a_weight_of_one_is_none_and_jobs_of_before_have_none(world: Any) -> None:
    world.limit(weight=1000)
    job_id = world.enqueue()
    assert "w" not in world.state(job_id)
    world.limit(weight=2000)
    assert world.state(world.enqueue())["w"] == "2000"
