"""Random workloads over tiny pools give the tokens of an engine without paging, whatever is preempted or aborted."""

from __future__ import annotations

import random

import pytest
from engine_driver import Driver, expected_tokens, make_request
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_worker.messages import AddRequest

CONTEXT = 200


def random_request(rng: random.Random, name: str, prefixes: list[list[int]]) -> AddRequest:
    """A prompt that often starts like others, sometimes several samples, sometimes taken over half way."""
    shared = rng.choice([*prefixes, []])
    prompt = shared[: rng.randint(0, len(shared))] + [rng.randrange(50) for _ in range(rng.randint(1, 30))]
    max_tokens, n = rng.randint(1, 40), rng.choice([1, 1, 1, 2, 4])
    options = {
        "seed": rng.randrange(3),
        "salt": rng.choice([b"", b"", b"tenant"]),
        "priority": rng.randrange(3),
        "stop_token_ids": [rng.randrange(997) for _ in range(rng.choice([0, 0, 30]))],
        "min_tokens": rng.choice([0, 0, 3]),
    }
    request = make_request(name, prompt, max_tokens=max_tokens, n=n, **options)
    if rng.random() < 0.25:
        whole = {i: expected_tokens(request, i, max_model_len=CONTEXT) for i in range(n)}
        published = {i: tokens[: rng.randrange(len(tokens))] for i, tokens in whole.items()}
        request = make_request(name, prompt, max_tokens=max_tokens, published=published, **options)
    return request


def run_workload(seed: int, *, usable_blocks: int, block_size: int) -> Driver:
    rng = random.Random(seed)
    driver = Driver.create(
        usable_blocks + 1,
        block_size,
        runner={"max_model_len": CONTEXT},
        token_budget=rng.choice([9, 32, 256]),
        max_running=8,
        watermark=rng.choice([0.0, 0.1]),
    )
    prefixes = [[rng.randrange(50) for _ in range(rng.randint(20, 60))] for _ in range(3)]
    requests = {str(i): random_request(rng, str(i), prefixes) for i in range(25)}
    arriving, aborted = list(requests.values()), set()
    while arriving or driver.scheduler.has_requests or driver.scheduler.has_output:
        for _ in range(rng.choice([0, 0, 1, 3])):
            if arriving:
                driver.add(arriving.pop())
        if rng.random() < 0.02:
            request = requests[rng.choice(list(requests))]
            index = rng.choice([None, *(s.index for s in request.sequences)])
            aborted.update((request.id, s.index) for s in request.sequences if index in (None, s.index))
            driver.scheduler.abort(request.id, index)
        driver.step()
    assert driver.scheduler.pool.used == 0
    check_tokens(driver, requests, aborted)
    return driver


def check_tokens(driver: Driver, requests: dict[str, AddRequest], aborted: set[tuple[str, int]]) -> None:
    for (name, index), tokens in driver.tokens.items():
        expected = expected_tokens(requests[name], index, max_model_len=CONTEXT)
        if name in driver.failed:
            assert driver.failed[name].code == "pool_too_small"
        if (name, index) in aborted or name in driver.failed:
            assert tokens == expected[: len(tokens)]
        else:
            assert tokens == expected
            assert (name, index) in driver.reasons
            assert name in driver.started


@pytest.mark.parametrize("seed", range(12))
def test_tiny_pool_gives_the_tokens_of_no_paging(seed):
    driver = run_workload(seed, usable_blocks=16, block_size=8)
    assert driver.scheduler.stats().preemptions > 0
    assert driver.scheduler.stats().cached_tokens > 0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), usable_blocks=st.integers(4, 60), block_size=st.sampled_from([1, 2, 4, 16]))
def test_any_pool_gives_the_tokens_of_no_paging(seed, usable_blocks, block_size):
    run_workload(seed, usable_blocks=usable_blocks, block_size=block_size)


def test_failing_steps_change_no_token():
    """Steps are abandoned at random: what they would have written is computed again."""
    rng = random.Random(5)
    driver = Driver.create(24, 8, runner={"max_model_len": CONTEXT}, token_budget=40, max_running=8)
    prefixes = [[rng.randrange(50) for _ in range(40)]]
    requests = {str(i): random_request(rng, str(i), prefixes) for i in range(12)}
    for request in requests.values():
        driver.add(request)
    abandoned = 0
    while driver.scheduler.has_requests:
        if rng.random() < 0.2 and (plan := driver.scheduler.plan()) is not None:
            abandoned += 1
            driver.scheduler.abandon(plan)
            driver.scheduler.check_integrity()
        driver.step()
    assert abandoned > 10
    check_tokens(driver, requests, set())
