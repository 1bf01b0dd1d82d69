"""Preemption: which sequence gives way, what it keeps, and when it comes back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from engine_driver import Driver, assert_complete, expected_tokens, make_request, prompt
from fake_runner import DelayedRunner, FakeRunner

from octavo_worker.memory.block_pool import BlockPool
from octavo_worker.memory.cost import Decision, Mode, PreemptionPolicy, Victim


def test_preempted_during_decode_keeps_its_token():
    """vLLM's test_preempt_during_execution: 10 usable blocks, two prompts of 5 blocks, one has to yield.

    It comes back one token past a block, where nano-vllm (#217) lost a token.
    """
    driver = Driver.create(11)
    first, second = make_request("a", prompt(80)), make_request("b", prompt(80, 400))
    driver.add(first)
    driver.add(second)
    assert len(driver.step().tokens) == 2
    assert driver.scheduler.pool.available == 0
    output = driver.step()
    assert [token.id for token in output.tokens] == ["a"]
    assert output.stats.preemptions == 1
    assert (output.stats.running, output.stats.waiting) == (1, 1)
    driver.run()
    assert_complete(driver, first, second)


def test_victim_is_the_latest_of_the_lowest_class():
    driver = Driver.create(16)
    requests = [
        make_request(id, prompt(80, 200 * i), priority=p) for i, (id, p) in enumerate([("a", 1), ("b", 1), ("h", 0)])
    ]
    for request in requests:
        driver.add(request)
    assert len(driver.step().tokens) == 3
    assert [token.id for token in driver.step().tokens] == ["h", "a"]
    driver.run()
    assert_complete(driver, *requests)


def test_unfinished_prompt_yields_to_an_older_decode():
    driver = Driver.create(11, token_budget=20, max_running=8)
    old, prompting = make_request("old", prompt(31)), make_request("prompting", prompt(128, 300))
    driver.add(old)
    for _ in range(2):
        driver.step()
    driver.add(prompting)
    assert driver.step().stats.running == 2
    assert driver.scheduler.pool.available == 0
    output = driver.step()  # position 32 opens a third block for "old"
    assert [token.id for token in output.tokens] == ["old"]
    assert output.stats.preemptions == 1
    driver.run()
    assert_complete(driver, old, prompting)


def test_step_that_preempts_admits_nobody():
    driver = Driver.create(11)
    for request in (make_request("a", prompt(80)), make_request("b", prompt(80, 400))):
        driver.add(request)
    driver.step()
    driver.add(make_request("later", prompt(10, 700)))
    output = driver.step()
    assert output.stats.preemptions == 1
    assert [token.id for token in output.tokens] == ["a"]


def test_preempted_sequence_returns_to_the_front_of_its_class():
    driver = Driver.create(11)
    for id, start in [("a", 0), ("b", 300)]:
        driver.add(make_request(id, prompt(80, start), max_tokens=20))
    driver.step()
    driver.add(make_request("late", prompt(10, 600)))
    order = []
    while driver.scheduler.has_requests:
        output = driver.step()
        order += [token.id for token in output.tokens]
    assert output.stats.preemptions > 0
    assert next(id for id in order if id != "a") == "b"


def test_forced_preemption_counts_recomputed_tokens_apart_from_hits():
    driver = Driver.create(11)
    requests = [make_request(id, prompt(70, 300 * i), max_tokens=40) for i, id in enumerate("ab")]
    for request in requests:
        driver.add(request)
    driver.run()
    stats = driver.scheduler.stats()
    assert_complete(driver, *requests)
    assert stats.preemptions > 0
    assert stats.recomputed_tokens > 0
    assert stats.cached_tokens == 0
    assert stats.prompt_tokens == 140


class InTurn(PreemptionPolicy):
    """Decides as it was told, one victim after the other."""

    def __init__(self, *modes: Mode) -> None:
        super().__init__()
        self._policies = [PreemptionPolicy(mode) for mode in modes]

    def decide(self, victim: Victim, host: BlockPool | None) -> Decision:
        return self._policies.pop(0).decide(victim, host)


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_a_preempted_sequence_comes_back_in_a_later_step(mode, device):
    """ "twin" held what equals the blocks of "same", because its prompt was scored. It gives way to "high", and without
    its copies there is room enough for "late", which gave way before it in the same step."""
    usable = 41 + 41 + 15 + 7
    driver = Driver.create(
        usable + 1,
        4,
        device=device,
        runner={"num_host_blocks": 100},
        policy=InTurn(mode, "recompute"),
        token_budget=100,
        max_running=8,
    )
    prompt = range(161)
    same = make_request("same", prompt, max_tokens=30, priority=0)
    twin = make_request("twin", prompt, max_tokens=9, priority=2, prompt_logprobs=0)
    late = make_request("late", range(300, 360), max_tokens=9, priority=2, prompt_logprobs=0)
    high = make_request("high", range(500, 590), max_tokens=3, priority=0)
    driver.add(same)
    while not driver.tokens["same", 0]:
        driver.step()
    driver.add(twin)
    driver.step()
    driver.add(late)
    while not driver.tokens["twin", 0]:
        driver.step()
    driver.add(high)
    driver.step()
    assert driver.scheduler.stats().preemptions == 2
    assert driver.scheduler.stats().waiting == 2, "one gave way and came back in one step"
    driver.run()
    driver.runner.close()
    for request in (same, twin, late, high):
        assert driver.tokens[request.id, 0] == expected_tokens(request, 0)
    assert len(driver.started["late"].prompt_logprobs) == 60


def test_not_even_a_head_that_has_aged_is_admitted_in_a_step_that_preempts():
    now = 0.0
    driver = Driver.create(11, clock=lambda: now, aging_s=1.0)
    for request in (make_request("a", prompt(80)), make_request("b", prompt(80, 400))):
        driver.add(request)
    driver.step()
    driver.add(make_request("aged", prompt(10, 700)))
    now = 2.0
    output = driver.step()
    assert output.stats.preemptions == 1
    assert [token.id for token in output.tokens] == ["a"]


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_no_sequence_is_preempted_twice_within_a_block(mode):
    driver = Driver.create(11, 4, runner={"num_host_blocks": 50}, policy=PreemptionPolicy(mode))
    requests = [make_request(str(i), prompt(8, 100 * i), max_tokens=20) for i in range(5)]
    for request in requests:
        driver.add(request)
    preempted: dict[str, list[int]] = {}
    while driver.busy:
        before = {request.id: len(driver.tokens[request.id, 0]) for request in requests}
        seen = {s.request.id for s in driver.scheduler._batch.running}
        driver.step()
        for gone in seen - {s.request.id for s in driver.scheduler._batch.running} - {i for i, _ in driver.reasons}:
            preempted.setdefault(gone, []).append(before[gone])
    assert any(len(counts) > 1 for counts in preempted.values())
    for counts in preempted.values():
        assert all(later - earlier >= 4 for earlier, later in pairwise(counts))


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_scores_of_a_prompt_are_told_although_what_computed_them_was_aborted_on_the_host(steps):
    driver = Driver.create(
        100, 4, max_running=2, token_budget=8, runner={"num_host_blocks": 90}, policy=PreemptionPolicy("swap")
    )
    published = {index: expected_tokens(make_request("r", prompt(20), n=2), index) for index in range(2)}
    request = make_request("r", prompt(20), max_tokens=12, published=published, priority=2, prompt_logprobs=0)
    driver.add(request)
    for _ in range(steps):
        driver.step()
    driver.add(make_request("high", prompt(4, 500), max_tokens=2, n=2, priority=0))
    driver.step()
    assert "r" not in driver.started
    driver.scheduler.abort("r", 0)
    driver.run()
    assert len(driver.started["r"].prompt_logprobs) == 20
    assert driver.tokens["r", 1] == expected_tokens(request, 1)
