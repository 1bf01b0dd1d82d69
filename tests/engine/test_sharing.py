"""Shared blocks: beginnings of prompts, and parallel samples. On a fake model that gives every mistake away."""

from __future__ import annotations

from engine_driver import Driver, assert_complete, expected_tokens, make_request, prompt
from hypothesis import given
from hypothesis import strategies as st


@given(
    prompts=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 130), st.integers(1, 40)), min_size=2, max_size=12),
    ending=st.integers(0, 11),
)
def test_what_neighbours_share_is_what_the_cache_would_give(prompts: list[tuple[int, int, int]], ending: int):
    """Several beginnings in any order; some end, and are neighbours no longer."""
    driver = Driver.create(200, token_budget=4096)
    pool, requests = driver.scheduler.pool, []
    for number, (family, common, own) in enumerate(prompts):
        tokens = prompt(common, 300 * family) + [200 + number] * own
        requests.append(make_request(str(number), tokens, max_tokens=2 if number == ending else 9))
        driver.add(requests[-1])
        if number % 3 == 2:
            driver.step()
    driver.step()
    for sequence in driver.scheduler._requests.sequences():
        full = sequence.computed // 16
        assert sequence.table.blocks[:full] == pool.find_run(sequence.digests[1 : full + 1])
    driver.run()
    assert_complete(driver, *requests)


def test_prefix_hit_that_cannot_be_admitted_takes_no_references():
    driver = Driver.create(11)
    shared = make_request("a", prompt(96), max_tokens=30)
    driver.add(shared)
    driver.step()
    before = list(driver.scheduler.pool.refs)
    waits = make_request("b", prompt(96) + prompt(60, 500), max_tokens=2)
    driver.add(waits)
    assert driver.step().stats.waiting == 1
    after = list(driver.scheduler.pool.refs)
    assert sum(after) - sum(before) == 1  # the block of the first decode
    assert max(after) == 1
    driver.run()
    assert_complete(driver, shared, waits)


def test_preempted_with_a_prefix_hit_recomputes_only_what_was_lost():
    """nano-vllm #211, #233: preemption of a sequence that has shared prefix blocks."""
    driver = Driver.create(14)
    shared = prompt(64)
    first = make_request("a", shared + prompt(15, 500), max_tokens=40)
    second = make_request("b", shared + prompt(15, 700), max_tokens=40)
    driver.add(first)
    driver.step()
    driver.add(second)
    driver.run()
    stats = driver.scheduler.stats()
    assert_complete(driver, first, second)
    assert driver.started["b"].cached_tokens == 64
    assert stats.prompt_tokens == 2 * 79
    assert stats.cached_tokens == 64


def test_burst_of_equal_prompts_shares_within_one_step():
    driver = Driver.create(64)
    requests = [make_request(str(i), prompt(50), seed=i) for i in range(4)]
    for request in requests:
        driver.add(request)
    plan = driver.scheduler.plan()
    assert [len(step.tokens) for step in plan.sequences] == [50, 2, 2, 2]
    assert driver.scheduler.pool.used == 4 + 3
    driver.scheduler.commit(plan, driver.runner.launch(plan).result())
    driver.record(driver.scheduler.take_output())
    driver.run()
    assert_complete(driver, *requests)


def test_tenants_do_not_share_prefixes():
    driver = Driver.create(64)
    for id, salt in [("a", b"x"), ("b", b"y"), ("c", b"x")]:
        driver.add(make_request(id, prompt(50), salt=salt))
        driver.run()
    assert [driver.started[id].cached_tokens for id in "abc"] == [0, 0, 48]


def test_parallel_samples_compute_the_prompt_once_and_share_it():
    driver = Driver.create(64)
    request = make_request("a", prompt(40), n=4, max_tokens=30)
    driver.add(request)
    plan = driver.scheduler.plan()
    assert plan.num_tokens == 40
    assert [spec.index for spec in plan.sequences[0].samples] == [0, 1, 2, 3]
    driver.scheduler.commit(plan, driver.runner.launch(plan).result())
    driver.record(driver.scheduler.take_output())
    assert driver.scheduler.pool.used == 3
    plan = driver.scheduler.plan()
    assert len(plan.copies) == 3  # the last owner of the shared tail writes in place
    driver.scheduler.commit(plan, driver.runner.launch(plan).result())
    driver.record(driver.scheduler.take_output())
    assert driver.scheduler.pool.used == 2 + 4
    driver.run()
    assert_complete(driver, request)


def test_parallel_samples_of_a_block_aligned_prompt_need_no_copy():
    driver = Driver.create(64)
    request = make_request("a", prompt(32), n=3, max_tokens=5)
    driver.add(request)
    driver.step()
    plan = driver.scheduler.plan()
    assert plan.copies == ()
    driver.scheduler.commit(plan, driver.runner.launch(plan).result())
    driver.record(driver.scheduler.take_output())
    driver.run()
    assert_complete(driver, request)


def test_the_last_of_those_that_share_a_block_writes_into_it_without_a_copy():
    driver = Driver.create(4, 4)
    group = make_request("group", range(6), n=2, max_tokens=2)
    driver.add(group)
    driver.run()
    assert driver.scheduler.stats().preemptions == 0, "two blocks of prompt and one copy are three"
    assert [driver.tokens["group", i] for i in range(2)] == [expected_tokens(group, i) for i in range(2)]


def test_a_group_is_admitted_with_room_for_the_tails_that_it_is_about_to_copy():
    driver = Driver.create(11, 4)
    first = make_request("first", range(12), max_tokens=20)
    driver.add(first)
    driver.step()
    driver.add(make_request("group", range(100, 118), n=4, max_tokens=3))
    for _ in range(15):
        driver.step()
    assert ("group" in driver.started) is False, "five blocks of prompt would fit, three copies of the last would not"
    driver.run()
    assert driver.scheduler.stats().preemptions == 0


def test_parallel_samples_survive_preemption_one_by_one():
    driver = Driver.create(12)
    request = make_request("a", prompt(40), n=4, max_tokens=60)
    driver.add(request)
    driver.run()
    assert driver.scheduler.stats().preemptions > 0
    assert_complete(driver, request)
