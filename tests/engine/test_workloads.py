"""Random workloads over tiny pools give the tokens of an engine without paging, whatever is preempted or aborted."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from engine_driver import Driver, expected_beams, expected_tokens, make_request
from fake_runner import DelayedRunner, FailingRunner, FakeRunner, score
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo_worker.memory.block_pool import BlockPool
from octavo_worker.memory.cost import Decision, PreemptionPolicy, Victim
from octavo_worker.messages import AddRequest, BeamOptions

CONTEXT = 200


def random_request(
    rng: random.Random,
    name: str,
    prefixes: list[list[int]],
    *,
    context: int = CONTEXT,
    window: int = 0,
    beam_rate: float = 0.2,
    deadline_rate: float = 0.0,
) -> AddRequest:
    """A prompt that often starts like others, sometimes several samples, sometimes taken over half way."""
    shared = rng.choice([*prefixes, []])
    prompt = shared[: rng.randint(0, len(shared))] + [rng.randrange(50) for _ in range(rng.randint(1, 30))]
    max_tokens, n = rng.randint(1, 40), rng.choice([1, 1, 1, 2, 4])
    if rng.random() < beam_rate:
        return random_beams(rng, name, prompt)
    options = {
        "seed": rng.randrange(3),
        "salt": rng.choice([b"", b"", b"tenant"]),
        "priority": rng.randrange(3),
        "stop_token_ids": [rng.randrange(997) for _ in range(rng.choice([0, 0, 30]))],
        "min_tokens": rng.choice([0, 0, 3]),
        "prompt_logprobs": rng.choice([0, *[None] * 5]),
    }
    if deadline_rate and rng.random() < deadline_rate:
        options["deadline"] = float(rng.randint(5, 400))
    request = make_request(name, prompt, max_tokens=max_tokens, n=n, **options)
    if rng.random() < 0.25:
        whole = {i: expected_tokens(request, i, max_model_len=context, window=window) for i in range(n)}
        published = {i: tokens[: rng.randrange(len(tokens))] for i, tokens in whole.items()}
        request = make_request(name, prompt, max_tokens=max_tokens, published=published, **options)
    return request


def random_beams(rng: random.Random, name: str, prompt: list[int]) -> AddRequest:
    width = rng.randint(1, 6)
    options = BeamOptions(width, rng.choice([0.0, 1.0, 2.0]), rng.choice([True, False, "never"]))
    stops = [rng.randrange(997) for _ in range(rng.choice([0, 60]))]
    return make_request(
        name,
        prompt,
        max_tokens=rng.randint(1, 40),
        n=rng.randint(1, width),
        priority=rng.randrange(3),
        min_tokens=rng.choice([0, 3]) if rng.random() < 0.5 else 0,
        stop_token_ids=stops,
        beam=options,
    )


class MixedPolicy(PreemptionPolicy):
    """Swaps or recomputes by chance."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__("swap")
        self._rng = rng

    def decide(self, victim: Victim, host: BlockPool | None) -> Decision:
        return super().decide(victim, host) if self._rng.random() < 0.5 else Decision.CHEAPER


def run_workload(
    seed: int,
    *,
    usable_blocks: int,
    block_size: int,
    host_blocks: int = 0,
    policy: PreemptionPolicy | None = None,
    count: int = 25,
    abort_rate: float = 0.02,
    max_running: int = 8,
    device: type[FakeRunner] = FakeRunner,
    beam_rate: float = 0.2,
    deadline_rate: float = 0.0,
    context: int = CONTEXT,
    longest_prefix: int = 60,
    **memory: Any,
) -> Driver:
    """A step takes a second of the clock that deadlines go by; the timer goes on by 10 ms whenever it is read."""
    rng, now, ticks = random.Random(seed), 0.0, itertools.count()
    driver = Driver.create(
        usable_blocks + 1,
        block_size,
        runner={"max_model_len": context, "num_host_blocks": host_blocks, **memory},
        device=device,
        clock=lambda: now,
        timer=lambda: next(ticks) / 100,
        policy=policy,
        token_budget=rng.choice([1, 24, max_running + 24, max_running + 248]),
        max_running=max_running,
        watermark=rng.choice([0.0, 0.1]),
    )
    prefixes = [[rng.randrange(50) for _ in range(rng.randint(20, longest_prefix))] for _ in range(3)]
    requests = {
        str(i): random_request(
            rng,
            str(i),
            prefixes,
            context=context,
            window=driver.runner.window,
            beam_rate=beam_rate,
            deadline_rate=deadline_rate,
        )
        for i in range(count)
    }
    arriving, aborted = list(requests.values()), set()
    while arriving or driver.busy:
        for _ in range(rng.choice([0, 0, 1, 3])):
            if arriving:
                driver.add(arriving.pop())
        if rng.random() < abort_rate:
            request = requests[rng.choice(list(requests))]
            index = rng.choice([None, *(s.index for s in request.sequences)])
            if index is None or request.sampling.beam is None:
                aborted.update((request.id, s.index) for s in request.sequences if index in (None, s.index))
            driver.scheduler.abort(request.id, index)
        driver.step()
        now += 1
    driver.runner.close()
    assert driver.scheduler.pool.used == driver.scheduler.pool.quarantined == 0
    if driver.scheduler.kv.host is not None:
        assert driver.scheduler.kv.host.pool.used == driver.scheduler.kv.host.pool.quarantined == 0
    check_tokens(driver, requests, aborted)
    return driver


def check_tokens(driver: Driver, requests: dict[str, AddRequest], aborted: set[tuple[str, int]]) -> None:
    beams = {
        name: expected_beams(request, max_model_len=driver.runner.max_model_len, window=driver.runner.window)
        for name, request in requests.items()
        if request.sampling.beam is not None
    }
    for (name, index), tokens in driver.tokens.items():
        if name in beams:
            expected = beams[name][index]
        else:
            expected = expected_tokens(
                requests[name], index, max_model_len=driver.runner.max_model_len, window=driver.runner.window
            )
        if name in driver.failed:
            assert driver.failed[name].code in ("pool_too_small", "step_failed", "deadline")
        if (name, index) in aborted or name in driver.failed:
            assert tokens == expected[: len(tokens)]
        else:
            assert tokens == expected
            assert (name, index) in driver.reasons
            assert name in driver.started
            check_scores(driver, requests[name])


def check_scores(driver: Driver, request: AddRequest) -> None:
    if request.sampling.prompt_logprobs is not None:
        got, prompt, window = driver.started[request.id].prompt_logprobs, request.prompt, driver.runner.window
        seen = [prompt[max(0, i - window) if window else 0 : i] for i in range(1, len(prompt))]
        assert [entry.logprob for entry in got[1:]] == [score(s, t) for s, t in zip(seen, prompt[1:], strict=True)]


@pytest.mark.parametrize("seed", range(12))
def test_tiny_pool_gives_the_tokens_of_no_paging(seed):
    driver = run_workload(seed, usable_blocks=16, block_size=8)
    assert driver.scheduler.stats().preemptions > 0
    assert driver.scheduler.stats().cached_tokens > 0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), usable_blocks=st.integers(4, 60), block_size=st.sampled_from([1, 2, 4, 16]))
def test_any_pool_gives_the_tokens_of_no_paging(seed, usable_blocks, block_size):
    run_workload(seed, usable_blocks=usable_blocks, block_size=block_size)


def test_who_finds_everything_in_the_cache_leaves_nothing_on_the_host():
    """The last one comes back from the host without a copy and ends: no step follows that would settle anything."""
    run_workload(210, usable_blocks=6, block_size=16, host_blocks=6, policy=PreemptionPolicy("swap"))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    usable_blocks=st.integers(6, 60),
    host_blocks=st.sampled_from([2, 6, 20, 300]),
    block_size=st.sampled_from([1, 2, 4, 16]),
    mode=st.sampled_from(["swap", "mixed"]),
    device=st.sampled_from([FakeRunner, DelayedRunner]),
)
def test_any_host_pool_gives_the_tokens_of_no_paging(seed, usable_blocks, host_blocks, block_size, mode, device):
    policy = MixedPolicy(random.Random(seed)) if mode == "mixed" else PreemptionPolicy("swap")
    sizes = {"usable_blocks": usable_blocks, "block_size": block_size, "host_blocks": host_blocks}
    run_workload(seed, **sizes, policy=policy, device=device)


@settings(max_examples=60, deadline=None)
@example(539, 4, 6, 2, 0, "swap", FakeRunner)  # a block comes from the host and leaves for it in one step
@given(
    seed=st.integers(0, 2**32),
    usable_blocks=st.integers(4, 40),
    host_blocks=st.sampled_from([0, 6, 40, 300]),
    block_size=st.sampled_from([1, 2, 4, 16]),
    window=st.sampled_from([0, 1, 2, 5, 16, 33, 80]),
    mode=st.sampled_from(["swap", "recompute", "mixed"]),
    device=st.sampled_from([FakeRunner, DelayedRunner]),
)
def test_sliding_and_long_sequences_get_the_tokens_of_no_paging(
    seed, usable_blocks, host_blocks, block_size, window, mode, device
):
    policy = MixedPolicy(random.Random(seed)) if mode == "mixed" else PreemptionPolicy(mode)
    memory = {"host_blocks": host_blocks, "window": window, "reads_host": True}
    run_workload(seed, usable_blocks=usable_blocks, block_size=block_size, policy=policy, device=device, **memory)


@pytest.mark.parametrize("memory", [{"window": 20}, {"host_blocks": 150, "reads_host": True}], ids=["sliding", "long"])
def test_nothing_is_too_long_for_a_pool_much_smaller_than_the_context(memory):
    driver = run_workload(3, usable_blocks=9, block_size=8, policy=PreemptionPolicy("swap"), **memory)
    assert all("beams" in failed.message for failed in driver.failed.values())
    assert (driver.runner.cold_reads > 0) == ("reads_host" in memory)


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
@pytest.mark.parametrize("mode", ["none", "recompute", "swap", "mixed"])
def test_500_requests_get_the_tokens_of_no_paging(mode, device):
    """Greedy or seeded, parallel samples and beams: with a large pool, and with each way of preemption; one step after
    the other, and one step ahead."""
    policy = MixedPolicy(random.Random(1)) if mode == "mixed" else PreemptionPolicy(mode if mode != "none" else "auto")
    driver = run_workload(
        2024,
        usable_blocks=2000 if mode == "none" else 45,
        block_size=8,
        host_blocks=80 if mode in ("swap", "mixed") else 0,
        policy=policy,
        count=500,
        abort_rate=0.0,
        max_running=512 if mode == "none" else 24,
        beam_rate=0.2 if device is FakeRunner else 0.02,  # nothing runs ahead of beams
        device=device,
    )
    if device is DelayedRunner:
        assert driver.runner.launched_ahead > 0.5 * driver.runner.plans
    stats = driver.scheduler.stats()
    assert not driver.failed
    assert (stats.preemptions > 100) == (mode != "none")
    assert (stats.swapped_out > 50) == (mode in ("swap", "mixed"))
    assert (stats.recomputed_tokens > 500) == (mode in ("recompute", "mixed"))


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_256_sequences_run_at_once_and_outgrow_the_pool(mode):
    driver = Driver.create(
        400,
        runner={"num_host_blocks": 400},
        policy=PreemptionPolicy(mode),
        max_running=256,
        token_budget=8192,
    )
    requests = [make_request(str(i), range(i, i + 15 + i % 3), max_tokens=20) for i in range(256)]
    for request in requests:
        driver.add(request)
    most = 0
    while driver.busy:
        driver.step()
        most = max(most, driver.scheduler.stats().running)
    assert most == 256
    assert driver.scheduler.stats().preemptions > 20
    assert all(driver.tokens[request.id, 0] == expected_tokens(request, 0) for request in requests)


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
@pytest.mark.parametrize("mode", ["recompute", "swap", "mixed"])
def test_long_prompts_aborts_and_deadlines_leave_the_others_their_tokens(mode, device):
    """Prompts of up to 330 tokens that share prefixes of several hundred; some are given up on, or late."""
    driver = run_workload(
        7,
        usable_blocks=32,
        block_size=16,
        host_blocks=80 if mode != "recompute" else 0,
        policy=MixedPolicy(random.Random(1)) if mode == "mixed" else PreemptionPolicy(mode),
        count=200,
        abort_rate=0.05,
        deadline_rate=0.2,
        max_running=12,
        beam_rate=0.1 if device is FakeRunner else 0.02,
        device=device,
        context=400,
        longest_prefix=300,
    )
    stats = driver.scheduler.stats()
    assert stats.preemptions > 10
    assert (stats.swapped_out > 5) == (mode != "recompute")
    assert stats.cached_tokens > 2000
    assert any(failed.code == "deadline" for failed in driver.failed.values())


def test_failing_steps_change_no_token():
    """Steps are abandoned at random: what they would have written is computed again."""
    rng = random.Random(5)
    driver = Driver.create(
        24,
        8,
        runner={"max_model_len": CONTEXT, "num_host_blocks": 40},
        policy=PreemptionPolicy("swap"),
        token_budget=40,
        max_running=8,
    )
    prefixes = [[rng.randrange(50) for _ in range(40)]]
    requests = {str(i): random_request(rng, str(i), prefixes) for i in range(20)}
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


@pytest.mark.parametrize("seed", range(4))
def test_a_step_that_fails_takes_the_one_behind_it_along_and_costs_one_request(seed):
    """What both should have written is nonsense; nobody reads it, in a cached block or on the host."""
    driver = run_workload(
        seed,
        usable_blocks=45,
        block_size=8,
        host_blocks=80,
        policy=PreemptionPolicy("swap"),
        count=100,
        max_running=24,
        beam_rate=0.02,
        device=FailingRunner,
    )
    assert driver.runner.failures > 5
    assert driver.runner.failures_with_one_behind > 3
    failed = [failed for failed in driver.failed.values() if failed.code == "step_failed"]
    assert 5 < len(failed) <= driver.runner.failures
