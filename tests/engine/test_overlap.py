"""One step ahead: the next step is launched while the one before it runs, and no token tells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from engine_driver import Driver, expected_tokens, make_request, prompt
from fake_runner import DelayedRunner, FakeRunner, score

from octavo_worker.contract.step import UNKNOWN, StepPlan
from octavo_worker.engine.pipeline import Pipeline
from octavo_worker.memory.cost import PreemptionPolicy


@contextmanager
def ahead(usable_blocks: int = 60, block_size: int = 4, **options: Any) -> Iterator[Driver]:
    driver = Driver.create(usable_blocks + 1, block_size, device=DelayedRunner, **options)
    try:
        yield driver
    finally:
        driver.runner.close()


class Recorder(DelayedRunner):
    """Keeps what it was asked for, and when results were waited for."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.story: list[str] = []
        self.launched: list[StepPlan] = []

    def launch(self, plan):
        self.story.append("launch")
        self.launched.append(plan)
        return super().launch(plan)

    def land(self, flight):
        self.story.append("result")
        return super().land(flight)


def recorded(**options: Any) -> Driver:
    return Driver.create(61, 4, device=Recorder, **options)


def test_a_step_is_launched_before_the_result_of_the_one_before_it_is_asked_for():
    driver = recorded()
    request = make_request("a", range(5), max_tokens=4)
    driver.add(request)
    driver.run()
    assert driver.runner.story == ["launch", *["launch", "result"] * 3, "result"]
    assert driver.tokens["a", 0] == expected_tokens(request, 0)


def test_an_idle_device_begins_with_some_of_many_prompts():
    driver = Driver.create(1024, device=Recorder, token_budget=8192, max_running=128)
    for i in range(64):
        driver.add(make_request(str(i), prompt(100, 101 * i), max_tokens=3))
    driver.run()
    first, second, *_ = driver.runner.launched
    assert [len(step.tokens) for step in first.sequences] == [100] * 21  # 2,048 tokens or more
    assert [len(step.tokens) for step in second.sequences] == [1] * 21 + [100] * 43


def test_unknown_tokens_follow_the_samples_of_the_step_before():
    driver = recorded(token_budget=64)
    driver.add(make_request("a", range(5), n=2, max_tokens=6))
    driver.add(make_request("b", range(50, 57), max_tokens=6))
    driver.run()
    first, second, third, *_ = driver.runner.launched
    assert [len(step.samples) for step in first.sequences] == [2, 1]
    for plan in (second, third):
        assert [list(step.tokens) for step in plan.sequences] == [[UNKNOWN]] * 3
        assert [step.follows for step in plan.sequences] == [0, 1, 2]
    assert [step.start for step in second.sequences] == [5, 5, 7]


def test_a_sequence_that_ends_by_length_is_in_no_step_in_vain():
    computed = []
    for device in (FakeRunner, DelayedRunner):
        driver = Driver.create(61, 4, device=device, runner={"max_model_len": 24})
        for name, length, limit in [("a", 5, 1), ("b", 6, 7), ("context", 10, 100), ("nothing", 9, 0)]:
            driver.add(make_request(name, range(length), max_tokens=limit, n=2))
        driver.run()
        driver.runner.close()
        assert driver.reasons["context", 0] == "length"
        computed.append(driver.runner.tokens_computed)
    assert computed[0] == computed[1]


def test_an_end_by_surprise_costs_one_row_and_says_nothing_more():
    free = expected_tokens(make_request("a", range(10), max_tokens=30), 0)
    stop = free[7]
    with ahead() as driver:
        request = make_request("a", range(10), max_tokens=30, stop_token_ids=[stop])
        driver.add(request)
        driver.run()
        assert driver.tokens["a", 0] == free[: free.index(stop) + 1]
        assert driver.runner.tokens_computed == 10 + free.index(stop) + 1
        assert driver.scheduler.stats().generated_tokens == len(driver.tokens["a", 0])


@pytest.mark.parametrize("index", [None, 0, 1])
def test_an_abort_takes_effect_on_the_step_that_is_under_way(index):
    with ahead() as driver:
        request, other = make_request("a", range(9), n=2, max_tokens=40), make_request("b", range(50, 60), max_tokens=9)
        driver.add(request)
        driver.add(other)
        while not driver.tokens["a", 0]:
            driver.step()
        assert not driver.pipeline.is_empty
        seen = {i: len(driver.tokens["a", i]) for i in range(2)}
        driver.scheduler.abort("a", index)
        driver.scheduler.check_integrity()
        driver.run()
        for i in range(2):
            tokens = driver.tokens["a", i]
            assert tokens == expected_tokens(request, i)[: len(tokens)]
            assert len(tokens) == (seen[i] if index in (None, i) else 40)
        assert driver.tokens["b", 0] == expected_tokens(other, 0)


def test_an_abort_while_the_prompt_is_under_way_sends_nothing():
    with ahead(token_budget=40) as driver:
        driver.add(make_request("a", range(30), n=3))
        driver.step()
        assert not driver.pipeline.is_empty
        driver.scheduler.abort("a")
        driver.run()
        assert driver.started == driver.failed == {}
        assert not any(driver.tokens.values())


def test_one_of_several_samples_aborted_while_their_prompt_is_under_way_leaves_the_others():
    with ahead() as driver:
        request = make_request("a", range(10), n=3, max_tokens=6, prompt_logprobs=0)
        driver.add(request)
        driver.step()
        assert driver.runner.plans <= 1
        driver.scheduler.abort("a", 0)
        driver.run()
        assert [driver.tokens["a", i] for i in range(3)] == [[], *(expected_tokens(request, i) for i in (1, 2))]
        logprobs = driver.started["a"].prompt_logprobs
        assert [entry.logprob for entry in logprobs[1:]] == [score(range(i), i) for i in range(1, 10)]


def test_a_deadline_takes_effect_on_the_step_that_is_under_way():
    now = 100.0
    with ahead(clock=lambda: now) as driver:
        driver.add(make_request("late", range(10), max_tokens=40, deadline=105.0))
        for _ in range(4):
            driver.step()
        seen, now = len(driver.tokens["late", 0]), 106.0
        driver.run()
        assert driver.failed["late"].code == "deadline"
        assert len(driver.tokens["late", 0]) == seen > 0


def test_a_sequence_preempted_while_its_token_is_under_way_keeps_the_token():
    for policy in ("swap", "recompute"):
        host = {"num_host_blocks": 40}
        with ahead(8, 4, runner=host, policy=PreemptionPolicy(policy)) as driver:
            requests = [make_request("a", range(12), max_tokens=20), make_request("b", range(100, 112), max_tokens=20)]
            for request in requests:
                driver.add(request)
            while not driver.scheduler.stats().preemptions:
                before = len(driver.tokens["b", 0])
                driver.step()
            assert len(driver.tokens["b", 0]) == before + 1, "the step that was under way said it"
            driver.run()
            for request in requests:
                assert driver.tokens[request.id, 0] == expected_tokens(request, 0)


def test_a_preempted_sequence_returns_only_once_the_token_under_way_is_known():
    """ "low" held blocks that equal those of "same", because its prompt was scored: without them it needs so few that
    it fits beside "high" in the very step in which it gave way."""
    with ahead(21) as driver:
        prompt = range(33)
        same = make_request("same", prompt, max_tokens=20, priority=0)
        low = make_request("low", prompt, max_tokens=20, priority=1, prompt_logprobs=0)
        high = make_request("high", range(100, 113), max_tokens=3, priority=0)
        driver.add(same)
        driver.add(low)
        while not driver.tokens["low", 0]:
            driver.step()
        driver.add(high)
        driver.run()
        assert driver.scheduler.stats().preemptions > 0
        for request in (same, low, high):
            assert driver.tokens[request.id, 0] == expected_tokens(request, 0)


def test_blocks_stay_in_quarantine_until_the_step_that_copies_them_is_over():
    """Two steps are under way: the end of the first one frees nothing that the second one copies."""
    host = {"num_host_blocks": 40}
    with ahead(8, 4, runner=host, policy=PreemptionPolicy("swap")) as driver:
        driver.add(make_request("a", range(12), max_tokens=20))
        driver.add(make_request("b", range(100, 112), max_tokens=20))
        scheduler, runner = driver.scheduler, driver.runner
        plan = scheduler.plan()
        launched = runner.launch(plan)
        while not (following := scheduler.plan()).swap_out:
            behind = runner.launch(following)
            scheduler.commit(plan, launched.result())
            plan, launched = following, behind
        copied = len(following.swap_out)
        behind = runner.launch(following)
        scheduler.commit(plan, launched.result())
        assert scheduler.pool.quarantined == copied > 0
        scheduler.check_integrity()
        scheduler.commit(following, behind.result())
        assert scheduler.pool.quarantined == 0


def test_what_two_failed_steps_published_is_forgotten():
    with ahead(block_size=4) as driver:
        requests = [make_request(str(i), [*range(10), i], n=2, max_tokens=9) for i in range(3)]
        for request in requests:
            driver.add(request)
        plan, behind = driver.scheduler.plan(), driver.scheduler.plan()
        assert behind.sequences
        driver.scheduler.abandon(plan)
        pool = driver.scheduler.pool
        assert pool.cached == pool.used == pool.quarantined == 0
        driver.scheduler.check_integrity()
        driver.run()
        for request in requests:
            for i in range(2):
                assert driver.tokens[request.id, i] == expected_tokens(request, i)


def test_a_sequence_back_on_blocks_of_a_step_that_fails_computes_again():
    """ "back" left for the host and finds all that it had in blocks that a step in flight fills for another request. No
    block is left for its next token, so it is in no step itself when that one fails."""
    driver = Driver.create(6, 4, runner={"num_host_blocks": 20}, policy=PreemptionPolicy("swap"), max_running=1)
    scheduler = driver.scheduler
    back = make_request("back", range(6), max_tokens=9, priority=2)
    driver.add(back)
    for _ in range(3):
        driver.step()
    driver.add(make_request("evicts what is cached", range(100, 119), max_tokens=1))
    driver.add(make_request("other", range(200, 209), max_tokens=9))
    while not driver.tokens["other", 0]:
        driver.step()
    assert scheduler.stats().swapped == 1
    driver.add(make_request("same", [*range(6), *expected_tokens(back, 0)[:2]], priority=0))
    failing = scheduler.plan()
    assert failing.swap_out
    scheduler.abort("same")
    scheduler.abort("other")
    assert scheduler.plan() is None
    assert (scheduler.stats().running, scheduler.stats().swapped) == (1, 0)
    scheduler.abandon(failing)
    driver.run()
    assert driver.tokens["back", 0] == expected_tokens(back, 0)


def test_a_request_that_was_aborted_is_not_blamed_for_the_step_it_spoiled():
    with ahead(runner={"poison": 900}) as driver:
        driver.add(make_request("bad", [1, 2, 900]))
        driver.step()
        driver.scheduler.abort("bad")
        driver.run()
        assert driver.failed == {}


def test_decoded_blocks_are_found_by_others_as_soon_as_they_are_full():
    """Generated blocks serve the next turn of a conversation, wherever the step boundary fell."""
    hits = []
    for device in (FakeRunner, DelayedRunner):
        driver = Driver.create(61, 4, device=device)
        first = make_request("a", range(9), max_tokens=12)
        driver.add(first)
        driver.run()
        driver.add(make_request("b", [*range(9), *expected_tokens(first, 0), 5], max_tokens=2))
        driver.run()
        driver.runner.close()
        hits.append(driver.started["b"].cached_tokens)
    assert hits == [20, 20]


@pytest.mark.parametrize("beside", range(20, 28))
def test_prompt_logprobs_survive_a_preemption_while_they_are_under_way(beside):
    with ahead(32, 4, token_budget=40, max_running=8) as driver:
        other = make_request("other", range(500, 500 + beside), max_tokens=60, priority=0)
        driver.add(other)
        driver.step()
        request = make_request("a", range(100), prompt_logprobs=0)
        driver.add(request)
        driver.run()
        assert driver.scheduler.stats().preemptions > 0
        assert driver.tokens["a", 0] == expected_tokens(request, 0)
        logprobs = driver.started["a"].prompt_logprobs
        assert [entry.logprob for entry in logprobs[1:]] == [score(range(i), i) for i in range(1, 100)]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_pipeline_may_be_told_to_wait_and_waits_for_runners_that_compute_at_once(overlap):
    for device in (FakeRunner, DelayedRunner):
        driver = Driver.create(61, 4, device=device)
        driver.pipeline = Pipeline(driver.runner, driver.scheduler, ahead=overlap)
        driver.add(make_request("a", range(5), max_tokens=4))
        driver.run()
        driver.runner.close()
        if device is DelayedRunner:
            assert (driver.runner.launched_ahead > 0) == overlap


def test_host_blocks_are_not_written_twice_at_a_time():
    """The swap of the step under way goes on although its sequence was aborted: the next swap goes elsewhere."""
    host = {"num_host_blocks": 40}
    with ahead(8, 4, runner=host, policy=PreemptionPolicy("swap")) as driver:
        driver.add(make_request("a", range(12), max_tokens=20))
        driver.add(make_request("b", range(100, 112), max_tokens=20))
        scheduler, runner = driver.scheduler, driver.runner
        plan = scheduler.plan()
        launched = runner.launch(plan)
        while not (following := scheduler.plan()).swap_out:
            behind = runner.launch(following)
            scheduler.commit(plan, launched.result())
            plan, launched = following, behind
        host_pool, written = scheduler.kv.host.pool, {host for _, host in following.swap_out}
        scheduler.abort("b")
        assert host_pool.quarantined == len(written)
        assert not written & set(host_pool.allocate(host_pool.available))


def test_a_request_starts_with_all_scores_whenever_their_scorer_is_aborted():
    """Long samples run one after the other. What the first one computed last is under way when it is aborted, and the
    second one begins to score the prompt anew before that arrives."""
    reference = make_request("a", range(60), n=2, max_tokens=14)
    published = {i: expected_tokens(reference, i)[:10] for i in range(2)}
    started_before = 0
    for steps in range(1, 16):
        host = {"num_host_blocks": 61, "reads_host": True}
        with ahead(10, 4, runner=host, policy=PreemptionPolicy("swap")) as driver:
            driver.add(make_request("a", range(60), max_tokens=14, published=published, prompt_logprobs=0))
            for _ in range(steps):
                driver.step()
            driver.scheduler.abort("a", 0)
            started_before += "a" in driver.started
            driver.run()
            logprobs = driver.started["a"].prompt_logprobs
            assert [entry.logprob for entry in logprobs[1:]] == [score(range(i), i) for i in range(1, 60)]
            assert driver.tokens["a", 1] == expected_tokens(reference, 1)
    assert 0 < started_before < 15
