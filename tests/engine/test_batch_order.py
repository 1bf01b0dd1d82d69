"""In the class batch the longest goes first, into memory that it can grow in: that shortens the end of a batch, starves
no request, and concerns no other class."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest
from engine_driver import Driver, expected_tokens, make_request
from fake_runner import DelayedRunner
from hypothesis import given
from hypothesis import strategies as st

from octavo_worker.contract.messages import BATCH, AddRequest
from octavo_worker.engine.scheduling.forecast import HORIZON, most_growth, peak_growth
from octavo_worker.engine.scheduling.policy import BATCH_PACE
from octavo_worker.memory.cost import PreemptionPolicy

NEVER = 1e9


def one_at_a_time(timer: Callable[[], float] = lambda: 0.0, clock: Callable[[], float] = lambda: 0.0) -> Driver:
    return Driver.create(100, 16, max_running=1, token_budget=64, timer=timer, clock=clock, aging_s=NEVER)


def finished(driver: Driver) -> list[str]:
    """Run to the end. The names in the order in which they ended, which for one slot is that of admission."""
    driver.run()
    return [name for name, _ in driver.reasons]


def add_all(driver: Driver, limits: list[int], **options: object) -> None:
    for i, limit in enumerate(limits):
        driver.add(make_request(str(i), range(5), max_tokens=limit, **options))


def test_the_longest_of_a_batch_goes_first_and_equal_ones_as_they_came():
    driver = one_at_a_time()
    add_all(driver, [3, 9, 5, 9, 3], priority=2)
    assert finished(driver) == ["1", "3", "2", "0", "4"]


@pytest.mark.parametrize("priority", [0, 1])
def test_other_classes_keep_the_order_of_arrival(priority):
    driver = one_at_a_time()
    add_all(driver, [3, 9, 5, 9, 3], priority=priority)
    assert finished(driver) == ["0", "1", "2", "3", "4"]


def test_a_deadline_goes_before_length():
    driver = one_at_a_time()
    driver.add(make_request("long", range(5), max_tokens=30, priority=2))
    driver.add(make_request("due", range(5), max_tokens=2, priority=2, deadline=100.0))
    assert finished(driver) == ["due", "long"]


def test_what_is_published_already_or_exceeds_the_context_is_not_left_to_generate():
    driver = Driver.create(100, 16, max_running=1, token_budget=64, runner={"max_model_len": 40}, timer=lambda: 0.0)
    over = make_request("over", range(35), max_tokens=99, priority=2)  # the context leaves it 5
    taken = make_request("taken", range(5), max_tokens=20, priority=2)
    taken.sequences[0].tokens = expected_tokens(taken, 0)[:16]
    for request in (taken, make_request("short", range(5), max_tokens=3, priority=2), over):
        driver.add(request)
    assert finished(driver) == ["over", "taken", "short"]


arrivals = st.lists(
    st.tuples(
        st.integers(0, 2),  # class
        st.sampled_from([None, None, 1e6, 2e6]),  # deadline
        st.integers(1, 12),  # limit
        st.sampled_from([0.0, 0.0, 1 / BATCH_PACE, 5 / BATCH_PACE]),  # seconds until the next one comes
    ),
    min_size=2,
    max_size=12,
)


@given(arrivals)
def test_classes_then_deadlines_then_turns_with_bounded_overtaking(given_requests):
    now = 0.0
    driver = one_at_a_time(timer=lambda: now)
    driver.add(make_request("first", [1], max_tokens=2, priority=0, deadline=1.0))  # holds the slot meanwhile
    driver.step()
    came: dict[str, tuple[AddRequest, float]] = {}
    for i, (priority, deadline, limit, pause) in enumerate(given_requests):
        request = make_request(str(i), range(5), max_tokens=limit, priority=priority, deadline=deadline)
        driver.add(request)
        came[request.id] = request, now
        now += pause
    order = [name for name in finished(driver) if name != "first"]
    assert sorted(order) == sorted(came)
    for (before, at), (after, later) in pairwise([came[name] for name in order]):
        rank = [(r.priority, NEVER if r.deadline is None else r.deadline) for r in (before, after)]
        assert rank[0] <= rank[1]
        if rank[0] == rank[1] and int(before.id) > int(after.id):
            longer = before.sampling.max_tokens - after.sampling.max_tokens
            assert before.priority == BATCH, "only in a batch does a request overtake"
            assert longer > 0, "and only a longer one"
            assert at - later <= longer / BATCH_PACE + 1e-9, "and came no later than that explains"


def test_a_stream_of_long_ones_does_not_starve_a_short_one():
    """Without any aging: every second a long one comes, and the slot is never free."""
    now = 0.0
    driver = one_at_a_time(timer=lambda: now)
    driver.add(make_request("running", range(5), max_tokens=4, priority=2))
    driver.step()
    driver.add(make_request("short", range(5), max_tokens=2, priority=2))
    overtakers = 0
    while ("short", 0) not in driver.reasons:
        driver.add(make_request(f"long{now}", range(5), max_tokens=2 + 4 * int(BATCH_PACE), priority=2))
        while driver.scheduler.stats().waiting > 0 and ("short", 0) not in driver.reasons:
            before = len(driver.reasons)
            driver.step()
            if len(driver.reasons) > before:
                break
        overtakers += 1
        now += 1.0
        assert overtakers < 10
    assert 4 <= overtakers <= 7, "those of the four seconds that it is shorter by"


@pytest.mark.parametrize("priority", [1, 2])
def test_a_request_that_rises_by_waiting_takes_nothing_from_the_class_it_came_from(priority):
    now = 0.0
    driver = Driver.create(100, 4, max_running=2, token_budget=64, clock=lambda: now, aging_s=3.0)
    requests = [make_request(str(i), range(100 * i, 100 * i + 4), max_tokens=20, priority=priority) for i in range(4)]
    for request in requests:
        driver.add(request)
    while driver.busy:
        driver.step()
        now += 1.0
    assert driver.scheduler.stats().preemptions == 0
    assert driver.reasons.keys() == {(request.id, 0) for request in requests}


def test_a_request_that_rises_by_waiting_still_takes_from_lower_classes():
    now = 0.0
    driver = Driver.create(100, 4, max_running=2, token_budget=64, clock=lambda: now, aging_s=3.0)
    for name, priority in [("batch", 2), ("running", 1)]:
        driver.add(make_request(name, range(4), max_tokens=30, priority=priority))
    for _ in range(2):
        driver.step()
    driver.add(make_request("normal", range(4), max_tokens=2, priority=1))
    driver.step()
    assert driver.scheduler.stats().preemptions == 1
    driver.run()


def drawn(priority: int) -> list[AddRequest]:
    rng = random.Random(4)
    prompts = [[rng.randrange(900) for _ in range(rng.randint(8, 80))] for _ in range(96)]
    return [
        make_request(str(i), prompt, max_tokens=rng.randint(8, 80), priority=priority, seed=i)
        for i, prompt in enumerate(prompts)
    ]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_a_drawn_batch_takes_fewer_steps_than_in_the_order_of_arrival(mode):
    """The pool holds two fifths of what they become, as that of a large model does: `mixed256` in small."""
    steps, last = {}, {}
    for priority in (1, BATCH):
        driver = Driver.create(
            860,
            4,
            max_running=96,
            token_budget=400,
            runner={"num_host_blocks": 600},
            policy=PreemptionPolicy(mode),
            device=DelayedRunner,
            timer=lambda: 0.0,
        )
        for request in drawn(priority):
            driver.add(request)
        few = 0
        while driver.busy:
            driver.step()
            few += driver.scheduler.stats().waiting == 0 and driver.scheduler.stats().running < 12
        driver.runner.close()
        steps[priority], last[priority] = driver.scheduler.stats().steps, few
        for request in drawn(priority):
            assert driver.tokens[request.id, 0] == expected_tokens(request, 0)
    assert steps[BATCH] < 0.95 * steps[1], steps
    assert last[BATCH] < 0.5 * last[1], "steps in which few are left"


def growth_by_stepping(sequences: list[tuple[int, int, int]]) -> int:
    """Sequences that have tokens left take one each in every step, and give all back after their last."""
    peak = 0
    for step in range(1, HORIZON + 1):
        peak = max(peak, sum(width * step if step <= left else -length for left, length, width in sequences))
    return peak


@given(st.lists(st.tuples(st.integers(0, 2 * HORIZON), st.integers(1, 3000), st.integers(1, 3)), max_size=8))
def test_the_peak_is_that_of_stepping_through_the_horizon(sequences):
    seen = [
        SimpleNamespace(length=length, width=width, request=SimpleNamespace(final=length + left))
        for left, length, width in sequences
    ]
    assert peak_growth(seen) == growth_by_stepping(sequences)
    assert peak_growth(seen) <= most_growth(sum(width for _, _, width in sequences))


def fill(priority: int, host_blocks: int = 0, limit: int = 225) -> Driver:
    """One long request and forty that take thirteen blocks each in the end, two of them of the prompt, as the long one
    does by then, in a pool that holds ten of those."""
    host = {"num_host_blocks": host_blocks}
    driver = Driver.create(131, 8, timer=lambda: 0.0, runner=host, max_running=100, token_budget=700)
    for i in range(41):
        limits = 89 if i else limit
        driver.add(make_request(str(i), range(20 * i, 20 * i + 16), max_tokens=limits, priority=priority))
    driver.step()
    driver.step()
    return driver


def test_short_ones_of_a_batch_are_admitted_as_far_as_they_can_grow():
    running = {priority: fill(priority).scheduler.stats().running for priority in (1, BATCH)}
    assert running == {1: 41, BATCH: 10}
    driver = fill(BATCH)
    while ("1", 0) not in driver.reasons:
        driver.step()
    assert driver.scheduler.stats().preemptions == 0
    driver.run()


def test_a_request_about_as_long_as_the_longest_does_not_wait_for_that():
    """It would run alone at the end."""
    assert fill(BATCH, limit=89).scheduler.stats().running == 41
    assert fill(BATCH, limit=120).scheduler.stats().running == 41
    assert fill(BATCH, limit=130).scheduler.stats().running < 20


def test_free_host_memory_counts_as_room_to_grow():
    assert fill(BATCH, host_blocks=66).scheduler.stats().running == 15


def test_a_limit_far_away_keeps_no_memory_free_beyond_the_horizon():
    driver = Driver.create(2 + HORIZON // 2, 16, max_running=50)
    for i in range(50):
        limit = 2000 if i else 4000
        driver.add(make_request(str(i), range(19 * i, 19 * i + 16), max_tokens=limit, priority=BATCH))
    driver.step()
    driver.step()
    assert driver.scheduler.stats().running == 8 * HORIZON // (HORIZON + 16)


def test_a_request_that_has_risen_from_a_batch_holds_up_none_behind_it():
    """It needs no room to grow any more, only what it has."""
    now = 0.0
    driver = Driver.create(131, 8, timer=lambda: 0.0, clock=lambda: now, aging_s=5.0, max_running=100)
    for i in range(11):
        limit = 89 if i else 225
        driver.add(make_request(str(i), range(20 * i, 20 * i + 16), max_tokens=limit, priority=BATCH))
    driver.step()
    assert driver.scheduler.stats().waiting == 1
    now = 6.0
    driver.add(make_request("normal", range(10), max_tokens=2))
    driver.step()
    assert driver.scheduler.stats().waiting == 0
