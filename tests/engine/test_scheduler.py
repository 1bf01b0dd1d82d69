"""Promises of the scheduler, on a fake model whose tokens give every paging mistake away."""

from __future__ import annotations

import math

import pytest
from engine_driver import Driver, assert_complete, expected_tokens, make_request, prompt
from fake_runner import score

from octavo_worker.contract.messages import BeamOptions, Logprob
from octavo_worker.contract.step import Sampled


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 255, 256, 257])
def test_prompt_lengths_around_block_and_budget(length):
    driver = Driver.create(64)
    first, again = make_request("a", prompt(length), max_tokens=20), make_request("b", prompt(length), max_tokens=20)
    driver.add(first)
    driver.run()
    driver.add(again)  # the whole prompt is cached now, yet its last token must be computed
    driver.run()
    assert_complete(driver, first, again)
    assert driver.started["a"].cached_tokens == 0
    assert driver.started["b"].cached_tokens == (length - 1) // 16 * 16


def test_budget_chunks_a_long_prompt_while_decodes_go_on():
    driver = Driver.create(128, token_budget=64, max_running=8)
    short, long = make_request("short", prompt(10), max_tokens=30), make_request("long", prompt(300, 50))
    driver.add(short)
    driver.step()
    driver.add(long)
    for chunk in (64, 64, 64, 64, 44):
        plan = driver.scheduler.plan()
        assert [len(step.tokens) for step in plan.sequences] == [1, chunk]
        assert plan.num_decodes == 1
        driver.scheduler.commit(plan, driver.runner.launch(plan).result())
    driver.record(driver.scheduler.take_output())
    driver.run()
    assert_complete(driver, short, long)


def test_budget_is_filled_by_several_prompts_in_order():
    driver = Driver.create(128, token_budget=100, max_running=8)
    for i in range(4):
        driver.add(make_request(str(i), prompt(40, 100 * i)))
    plan = driver.scheduler.plan()
    assert [len(step.tokens) for step in plan.sequences] == [40, 40, 20]
    assert [len(step.samples) for step in plan.sequences] == [1, 1, 0]


def test_prompts_beside_decodes_get_the_whole_budget():
    driver = Driver.create(1024, token_budget=8192, max_running=128)
    driver.add(make_request("decoding", prompt(10)))
    driver.step()
    for i in range(64):
        driver.add(make_request(str(i), prompt(128, 129 * i)))
    assert [len(step.tokens) for step in driver.scheduler.plan().sequences] == [1] + [128] * 64


def test_nobody_overtakes_a_head_that_does_not_fit():
    driver = Driver.create(11)
    driver.add(make_request("running", prompt(80), max_tokens=2))
    driver.step()
    driver.add(make_request("big", prompt(150, 300)))
    driver.add(make_request("small", prompt(5, 700)))
    assert driver.scheduler.stats().waiting == 2
    order = []
    while driver.scheduler.has_requests:
        order += [started.id for started in driver.step().started]
    assert order == ["big", "small"]


def test_priority_classes_go_first_and_fcfs_within():
    driver = Driver.create(64, max_running=1, token_budget=64)
    for id, priority in [("b1", 2), ("n1", 1), ("h1", 0), ("n2", 1), ("h2", 0)]:
        driver.add(make_request(id, prompt(20), max_tokens=2, priority=priority))
    order = []
    while driver.scheduler.has_requests:
        order += [started.id for started in driver.step().started]
    assert order == ["h1", "h2", "n1", "n2", "b1"]


def test_urgent_prompt_goes_before_the_rest_of_a_long_one():
    driver = Driver.create(128, token_budget=50, max_running=8)
    long, urgent = make_request("long", prompt(200)), make_request("urgent", prompt(30, 400), priority=0)
    driver.add(long)
    driver.step()
    driver.add(urgent)
    plan = driver.scheduler.plan()
    assert [(step.start, len(step.tokens)) for step in plan.sequences] == [(0, 30), (50, 20)]
    driver.scheduler.commit(plan, driver.runner.launch(plan).result())
    driver.record(driver.scheduler.take_output())
    driver.run()
    assert_complete(driver, long, urgent)


def test_takeover_continues_every_sequence_where_it_stood():
    reference = make_request("a", prompt(40), n=3, max_tokens=30)
    published = {i: expected_tokens(reference, i)[:k] for i, k in [(0, 5), (1, 29), (2, 0)]}
    driver = Driver.create(64)
    request = make_request("a", prompt(40), max_tokens=30, published=published)
    driver.add(request)
    driver.run()
    assert_complete(driver, request)
    assert set(driver.reasons.values()) == {"length"}


@pytest.mark.parametrize("step_of_abort", [0, 1, 2, 5])
def test_abort_is_effective_at_once_wherever_the_sequence_is(step_of_abort):
    driver = Driver.create(64, token_budget=32, max_running=8)
    driver.add(make_request("gone", prompt(100), n=2, max_tokens=50))
    other = make_request("stays", prompt(20, 300))
    driver.add(other)
    for _ in range(step_of_abort):
        driver.step()
    driver.scheduler.abort("gone")
    driver.scheduler.abort("gone")
    driver.scheduler.abort("never existed")
    output = driver.step()
    assert all(token.id != "gone" for token in output.tokens)
    driver.run()
    assert_complete(driver, other)
    assert driver.failed == {}


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_abort_of_one_parallel_sample_leaves_the_others(steps):
    driver = Driver.create(64, token_budget=32, max_running=8)
    request = make_request("a", prompt(40), n=3, max_tokens=12)
    driver.add(request)
    for _ in range(steps):
        driver.step()
    driver.scheduler.abort("a", 0)
    seen = len(driver.tokens["a", 0])
    driver.run()
    assert len(driver.tokens["a", 0]) == seen
    for index in (1, 2):
        assert driver.tokens["a", index] == expected_tokens(request, index)


def test_deadline_fails_waiting_and_running_within_a_step():
    now = [100.0]
    driver = Driver.create(64, max_running=1, token_budget=64, clock=lambda: now[0])
    driver.add(make_request("running", prompt(10), max_tokens=500, deadline=105.0))
    driver.add(make_request("waiting", prompt(10), deadline=105.0))
    ended = make_request("ended", prompt(10), deadline=101.0, priority=0, max_tokens=1)
    driver.add(ended)
    driver.step()
    now[0] = 104.9
    driver.step()
    assert driver.failed == {}
    now[0] = 105.0
    driver.step()
    assert {id: failed.code for id, failed in driver.failed.items()} == {"running": "deadline", "waiting": "deadline"}
    assert not driver.scheduler.has_requests
    assert_complete(driver, ended)


def test_stop_rules():
    free = expected_tokens(make_request("a", prompt(10), max_tokens=40), 0)
    stop = free[5]
    driver = Driver.create(64)
    stopped = make_request("stop", prompt(10), max_tokens=40, stop_token_ids=[stop])
    gated = make_request("gated", prompt(10), max_tokens=40, stop_token_ids=[stop], min_tokens=10)
    out_of_vocabulary = make_request("odd", prompt(10), max_tokens=4, stop_token_ids=[10**6], min_tokens=2)
    for request in (stopped, gated, out_of_vocabulary):
        driver.add(request)
    driver.run()
    assert_complete(driver, stopped, gated, out_of_vocabulary)
    assert driver.tokens["stop", 0] == free[: free.index(stop) + 1]
    assert driver.reasons["stop", 0] == "stop"
    assert stop not in driver.tokens["gated", 0][:10]
    assert len(driver.tokens["gated", 0]) > 10


def test_context_ends_a_sequence_with_length():
    driver = Driver.create(64, runner={"max_model_len": 50})
    driver.add(make_request("a", prompt(45), max_tokens=10**6))
    driver.run()
    assert len(driver.tokens["a", 0]) == 5
    assert driver.reasons["a", 0] == "length"


def test_prompt_logprobs_cover_the_whole_prompt_despite_cache_and_chunks():
    driver = Driver.create(64, token_budget=33, max_running=8)
    driver.add(make_request("warm", prompt(100)))
    driver.run()
    request = make_request("a", prompt(100), prompt_logprobs=0, logprobs=0)
    driver.add(request)
    driver.run()
    assert_complete(driver, request)
    got = driver.started["a"].prompt_logprobs
    assert got[0] is None
    assert [g.logprob for g in got[1:]] == [score(prompt(i), prompt(100)[i]) for i in range(1, 100)]


def test_prompt_logprobs_start_over_after_a_preempted_prefill():
    driver = Driver.create(11, token_budget=40, max_running=8)
    other = make_request("other", prompt(30, 500), max_tokens=60, priority=0)
    driver.add(other)
    driver.step()
    request = make_request("a", prompt(100), prompt_logprobs=0)
    driver.add(request)
    driver.run()
    assert_complete(driver, request, other)
    assert [g.logprob for g in driver.started["a"].prompt_logprobs[1:]] == [
        score(prompt(i), prompt(100)[i]) for i in range(1, 100)
    ]


def test_max_tokens_zero_only_starts():
    driver = Driver.create(64, token_budget=33, max_running=8)
    driver.add(make_request("a", prompt(100), max_tokens=0, n=2, prompt_logprobs=0))
    driver.run()
    assert driver.tokens["a", 0] == []
    assert len(driver.started["a"].prompt_logprobs) == 100


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"prompt": []}, "invalid_request", "prompt"),
        ({"prompt": [1, 997]}, "invalid_request", "prompt"),
        ({"prompt": [1, 2**32 - 1]}, "invalid_request", "prompt"),
        ({"prompt": list(range(500)) * 9}, "prompt_too_long", "prompt"),
        ({"prompt": list(range(160))}, "pool_too_small", "prompt"),
        ({"logit_bias": {5000: 1.0}}, "invalid_request", "logit_bias"),
        ({"n": 33}, "invalid_request", "n"),
        ({"published": {0: [1, 2, 3]}, "max_tokens": 3}, "invalid_request", "max_tokens"),
        ({"published": {0: [1, 10**9]}}, "invalid_request", "prompt"),
        ({"published": {0: [1, -1]}}, "invalid_request", "prompt"),
        ({"priority": 3}, "invalid_request", "priority"),
        ({"beam": BeamOptions(8), "n": 9}, "invalid_request", "beam_width"),
    ],
)
def test_what_can_never_run_is_refused_and_costs_nothing(change, code, param):
    driver = Driver.create(11)
    driver.add(make_request("bad", **({"prompt": [1, 2]} | change)))
    assert not driver.scheduler.has_requests
    driver.step()
    assert driver.failed["bad"].code == code
    assert driver.failed["bad"].param == param
    assert driver.runner.plans == 0


def test_a_search_has_as_many_beams_as_tokens_that_go_on():
    for width, ends, is_refused in ((5, [], False), (6, [], True), (4, [1, 9], False), (5, [1, 9], True)):
        driver = Driver.create(200, runner={"vocab_size": 5})
        beam = BeamOptions(width)
        driver.add(make_request("a", [1, 2, 3], max_tokens=6, n=width, beam=beam, stop_token_ids=ends))
        driver.run()
        assert ("a" in driver.failed) == is_refused
        if is_refused:
            assert driver.failed["a"].param == "beam_width"


def test_prompt_that_exactly_fits_the_pool_runs():
    driver = Driver.create(11)
    request = make_request("a", prompt(159), max_tokens=1)
    driver.add(request)
    driver.run()
    assert_complete(driver, request)


def test_lone_sequence_that_outgrows_the_pool_fails_clearly_and_frees_it():
    driver = Driver.create(11)
    driver.add(make_request("a", prompt(100), max_tokens=500, n=2))
    driver.run()
    assert driver.failed["a"].code == "pool_too_small"
    assert "160 tokens" in driver.failed["a"].message
    after = make_request("after", prompt(100))
    driver.add(after)
    driver.run()
    assert_complete(driver, after)


def test_watermark_is_kept_free_at_admission_but_not_from_a_lone_request():
    driver = Driver.create(11, watermark=0.2)
    driver.add(make_request("a", prompt(80), max_tokens=40))
    driver.step()
    driver.add(make_request("b", prompt(60, 300)))  # 4 blocks of the 5 that are left, 2 must stay
    assert driver.step().stats.waiting == 1
    driver.scheduler.abort("a")
    assert driver.step().stats.waiting == 0
    driver.scheduler.abort("b")
    driver.add(make_request("c", prompt(158, 600), max_tokens=2))
    driver.run()
    assert len(driver.tokens["c", 0]) == 2


def test_abandoned_step_unpublishes_what_it_would_have_filled():
    driver = Driver.create(64)
    requests = [make_request(str(i), prompt(50), seed=i, n=2) for i in range(3)]
    for request in requests:
        driver.add(request)
    driver.scheduler.abandon(driver.scheduler.plan())
    assert driver.scheduler.pool.cached == 0
    assert driver.scheduler.pool.used == 0
    driver.scheduler.check_integrity()
    driver.run()
    assert_complete(driver, *requests)


def test_culprit_of_a_step_fails_alone():
    driver = Driver.create(64, runner={"poison": 950})
    good = [make_request(str(i), prompt(50), max_tokens=20) for i in range(2)]
    driver.add(good[0])
    driver.step()
    driver.add(make_request("bad", [*prompt(40), 950]))
    driver.add(good[1])
    driver.run()
    assert driver.failed["bad"].code == "step_failed"
    for request in good:
        assert driver.tokens[request.id, 0] == expected_tokens(request, 0)


def test_slots_bound_the_batch_and_count_parallel_samples_before_they_fork():
    driver = Driver.create(64, max_running=4, token_budget=64)
    requests = [make_request(str(i), prompt(10, 20 * i), n=3) for i in range(2)]
    for request in requests:
        driver.add(request)
    output = driver.step()
    assert output.stats.waiting == 1
    assert {token.id for token in output.tokens} == {"0"}
    driver.run()
    assert_complete(driver, *requests)


def test_two_plans_at_most_are_open_and_end_in_their_order():
    driver = Driver.create(64)
    driver.add(make_request("a", prompt(10)))
    plan, ahead = driver.scheduler.plan(), driver.scheduler.plan()
    with pytest.raises(RuntimeError, match="neither committed nor abandoned"):
        driver.scheduler.plan()
    with pytest.raises(RuntimeError, match="not the plan that is next to end"):
        driver.scheduler.abandon(ahead)
    driver.scheduler.abandon(plan)
    with pytest.raises(RuntimeError, match="not the plan that is next to end"):
        driver.scheduler.abandon(ahead)


@pytest.mark.parametrize("broken", [Sampled(-1), Sampled(5, Logprob(math.nan))])
def test_logits_that_are_no_numbers_fail_their_request_alone(broken):
    driver = Driver.create(11)
    for name in ("broken", "fine"):
        driver.add(make_request(name, prompt(5), logprobs=0, max_tokens=2))
    plan = driver.scheduler.plan()
    result = driver.runner.launch(plan).result()
    result.sequences[0].samples[0] = broken
    driver.scheduler.commit(plan, result)
    driver.run()
    assert (driver.failed["broken"].code, driver.tokens["broken", 0]) == ("invalid_logits", [])
    assert len(driver.tokens["fine", 0]) == 2
