"""A prompt begins where both its keys and a state are there. The fake model refuses any other state."""

from __future__ import annotations

from typing import Any

import pytest
from engine_driver import Driver, assert_complete, expected_tokens, make_request, prompt
from fake_runner import DelayedRunner, FakeRunner

from octavo_worker.contract.messages import AddRequest
from octavo_worker.engine.kv.allocation import Allocation
from octavo_worker.engine.sequence import Sequence

SIZE = 8


def engine(device: type[FakeRunner] = FakeRunner, *, blocks: int = 200, slots: int = 20, **options: Any) -> Driver:
    return Driver.create(blocks, SIZE, device=device, runner={"state_slots": slots}, **options)


def answered(driver: Driver, *requests: AddRequest) -> list[int]:
    """Cached tokens of each request; they run one after the other."""
    for request in requests:
        driver.add(request)
        driver.run()
    assert_complete(driver, *requests)
    return [driver.started[request.id].cached_tokens for request in requests]


def text_of(driver: Driver, request: AddRequest) -> list[int]:
    return [*request.prompt, *driver.tokens[request.id, 0]]


@pytest.mark.parametrize("length", range(1, 2 * SIZE + 2))
def test_the_next_turn_begins_with_the_last_token_of_the_answer(length: int) -> None:
    """An ended sequence leaves its state at any place in a block, and that block with it."""
    driver = engine()
    first = make_request("first", prompt(length), max_tokens=5)
    answered(driver, first)
    second = make_request("second", [*text_of(driver, first), 901, 902], max_tokens=5)
    assert answered(driver, second) == [length + 4]
    third = make_request("third", [*text_of(driver, second), 903], max_tokens=5)
    assert answered(driver, third) == [length + 5 + 2 + 4]


def test_a_prompt_that_is_admitted_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although it is asked first whether others are about to leave it a longer state."""
    driver, looked_up = engine(), []
    place = driver.scheduler.kv.place

    def counted(members: list[Sequence], **options: Any) -> Allocation:
        looked_up.extend(member.request.id for member in members)
        return place(members, **options)

    monkeypatch.setattr(driver.scheduler.kv, "place", counted)
    requests = [make_request(str(number), prompt(20, 100 * number)) for number in range(3)]
    for request in requests:
        driver.add(request)
    driver.run()
    assert_complete(driver, *requests)
    assert looked_up == ["0", "1", "2"]


def test_of_several_snapshots_amid_a_block_the_longest_that_fits_is_taken() -> None:
    driver = engine()
    text = prompt(SIZE)
    answered(
        driver, *(make_request(str(i), [*text, *more], max_tokens=1) for i, more in enumerate(([1, 2], [1, 2, 3, 4])))
    )
    asked = [
        make_request(f"b{i}", [*text, *more], max_tokens=1) for i, more in enumerate(([1, 2, 9, 9, 9], [1, 9, 9, 9, 9]))
    ]
    assert answered(driver, *asked) == [SIZE + 2, SIZE]


def test_the_last_block_of_a_snapshot_is_copied_before_it_is_written() -> None:
    """Two prompts go on differently from the same place amid a block, and a third finds it again."""
    driver = engine()
    first = make_request("first", prompt(SIZE + 3), max_tokens=2)
    answered(driver, first)
    text = text_of(driver, first)
    others = [make_request(str(token), [*text, token, 7, 7], max_tokens=9) for token in (901, 902, 903)]
    assert answered(driver, *others) == [len(text) - 1] * 3


@pytest.mark.parametrize(("more", "cached"), [(0, 5 * SIZE + 4), (1, 0)])
def test_a_prompt_that_fills_the_memory_begins_amid_no_block(more: int, cached: int) -> None:
    """A block amid which it begins has to be copied, and no block is left for that."""
    driver = engine(blocks=8 - more)
    first = make_request("first", prompt(5 * SIZE + 3), max_tokens=2)
    answered(driver, first)
    second = make_request("second", [*text_of(driver, first), 901, 902], max_tokens=1)
    assert answered(driver, second) == [cached]


def test_a_token_that_was_computed_in_vain_is_part_of_the_state() -> None:
    """One step ahead the token that stops a sequence is computed before it is known to stop it."""
    driver = engine(DelayedRunner)
    plain = make_request("plain", prompt(SIZE + 1), max_tokens=4)
    stop = expected_tokens(plain, 0)[3]
    first = make_request("first", prompt(SIZE + 1), max_tokens=9, stop_token_ids=[stop])
    answered(driver, first)
    assert driver.tokens["first", 0][-1] == stop
    text = text_of(driver, first)
    assert answered(driver, make_request("second", [*text, 901], max_tokens=3)) == [len(text)]
    assert answered(driver, make_request("third", [*text[:-1], 902], max_tokens=3)) == [SIZE]
    driver.runner.close()


def test_an_identical_prompt_begins_at_its_last_boundary() -> None:
    driver = engine()
    prompts = [make_request(str(i), prompt(5 * SIZE + extra), max_tokens=1) for i, extra in enumerate((0, 0, 3, 3))]
    assert answered(driver, *prompts) == [0, 4 * SIZE, 5 * SIZE, 5 * SIZE]


def test_where_keys_are_found_further_than_a_state_one_is_kept() -> None:
    driver = engine()
    requests = [make_request(str(i), [*prompt(4 * SIZE + 2), 900 + i, *prompt(30, i)], max_tokens=3) for i in range(4)]
    assert answered(driver, *requests) == [0, 0, 4 * SIZE, 4 * SIZE]
    stats = driver.scheduler.stats()
    assert stats.stateless_tokens == 4 * SIZE
    assert stats.cached_tokens == 8 * SIZE
    assert stats.prompt_tokens == sum(len(request.prompt) for request in requests)


def test_prompts_of_one_batch_wait_for_what_the_first_one_computes() -> None:
    """It cannot be shared in the same step, and is not computed again."""
    driver = engine(slots=30)
    requests = [make_request(str(i), [*prompt(6 * SIZE), 900 + i, *prompt(5, i)], max_tokens=3) for i in range(9)]
    for request in requests:
        driver.add(request)
    driver.run()
    assert_complete(driver, *requests)
    assert [driver.started[str(i)].cached_tokens for i in range(9)] == [0, *[6 * SIZE] * 8]
    assert driver.runner.tokens_computed == 6 * SIZE + 9 * 6 + 9 * 2


@pytest.mark.parametrize("own", [1, 50])
def test_a_prompt_in_chunks_keeps_the_state_where_others_will_part_from_it(own: int) -> None:
    """The others are looked at when it has long passed that place."""
    driver = engine(token_budget=20)
    requests = [make_request(str(i), [*prompt(10 * SIZE), 900 + i, *prompt(own)], max_tokens=3) for i in range(3)]
    for request in requests:
        driver.add(request)
    driver.run()
    assert_complete(driver, *requests)
    assert [driver.started[str(i)].cached_tokens for i in range(3)] == [0, 10 * SIZE, 10 * SIZE]


def test_others_pass_those_that_wait_for_a_state() -> None:
    driver = engine(slots=30)
    alike = [make_request(f"alike{i}", [*prompt(6 * SIZE), 900 + i], max_tokens=9) for i in range(3)]
    other = make_request("other", prompt(9, 500), max_tokens=9)
    for request in (*alike, other):
        driver.add(request)
    driver.step()
    assert driver.scheduler.stats().running == 2
    assert "other" in driver.started
    driver.run()
    assert_complete(driver, *alike, other)


def test_a_prompt_does_not_wait_for_one_of_a_lower_class_that_pauses_for_it() -> None:
    driver = engine(token_budget=20)
    low = make_request("low", [*prompt(6 * SIZE), 901], max_tokens=9, priority=2)
    high = make_request("high", [*prompt(6 * SIZE), 902], max_tokens=9, priority=0)
    driver.add(low)
    driver.step()
    driver.add(high)
    driver.step()
    assert driver.scheduler.stats().running == 2
    driver.run()
    assert_complete(driver, low, high)


def test_an_interval_keeps_states_on_the_way() -> None:
    driver = engine(state_interval=2 * SIZE)
    long = make_request("long", prompt(9 * SIZE), max_tokens=1)
    answered(driver, long)
    assert (
        driver.scheduler.stats().cached_states == 5
    )  # four on the way, one at the last boundary, which is one of them
    assert answered(driver, make_request("part", [*prompt(5 * SIZE), 901], max_tokens=1)) == [4 * SIZE]


def test_without_an_interval_a_prompt_leaves_one_state_and_an_answer_one() -> None:
    driver = engine()
    answered(driver, make_request("long", prompt(20 * SIZE), max_tokens=1))
    assert driver.scheduler.stats().cached_states == 2
    answered(driver, make_request("other", prompt(3, 500), max_tokens=9))
    assert driver.scheduler.stats().cached_states == 3


@pytest.mark.parametrize("budget", [1, 3, 7, 8, 20, 256])
def test_a_chunk_may_end_off_the_grid(budget: int) -> None:
    """The state that is kept is that of the boundary, wherever chunks end."""
    driver = engine(token_budget=budget)
    requests = [make_request(str(i), [*prompt(5 * SIZE + 3), 900 + i], max_tokens=3) for i in range(3)]
    assert answered(driver, *requests) == [0, 5 * SIZE, 5 * SIZE]


def test_tenants_share_no_state() -> None:
    driver = engine()
    requests = [make_request(str(i), prompt(30), max_tokens=3, salt=salt) for i, salt in enumerate((b"a", b"b", b"a"))]
    assert answered(driver, *requests) == [0, 0, 3 * SIZE]


def test_keys_that_are_gone_make_a_state_useless() -> None:
    driver = engine(blocks=12)
    first = make_request("first", prompt(30), max_tokens=3)
    answered(driver, first, make_request("other", prompt(80, 300), max_tokens=3))
    again = make_request("again", prompt(30), max_tokens=3)
    assert answered(driver, again) == [0]


def test_a_tail_whose_block_or_state_was_evicted_is_whole_again_when_the_text_comes_again() -> None:
    driver = engine()
    states = driver.scheduler.kv.states
    assert states is not None
    first = make_request("first", prompt(SIZE + 3), max_tokens=2)
    answered(driver, first)
    text = text_of(driver, first)
    (digest,) = states.pool._tail_of
    for number, pool in enumerate((driver.scheduler.pool, states.pool)):
        pool.unpublish(pool.find(digest))
        again = make_request(f"again{number}", first.prompt, max_tokens=2)
        next_turn = make_request(f"next{number}", [*text, 901 + number], max_tokens=2)
        assert answered(driver, again, next_turn) == [SIZE, len(text) - 1]


def test_samples_share_the_state_of_their_prompt() -> None:
    driver = engine()
    request = make_request("four", prompt(21), n=4, max_tokens=20)
    assert answered(driver, request) == [0]
    assert driver.runner.tokens_computed == 21 + 4 * 19


def test_samples_that_were_taken_over_compute_their_prompt_once() -> None:
    whole = make_request("four", prompt(5 * SIZE), n=4, max_tokens=20)
    published = {i: expected_tokens(whole, i)[:6] for i in range(4)}
    driver = engine()
    request = make_request("four", prompt(5 * SIZE), published=published, max_tokens=20)
    answered(driver, request)
    assert driver.runner.tokens_computed == 5 * SIZE + 4 * (6 + 13)


@pytest.mark.parametrize("steps", range(2, 12))
def test_a_text_that_was_given_up_one_step_ahead_goes_on_with_the_right_state(steps: int) -> None:
    """The step ahead has computed a token that was never said: what it leaves is not the state of the text."""
    driver = engine(DelayedRunner)
    driver.add(make_request("given up", prompt(SIZE + 1), max_tokens=40))
    for _ in range(steps):
        driver.step()
    said = list(driver.tokens["given up", 0])
    driver.scheduler.abort("given up")
    driver.run()
    answered(driver, make_request("again", [*prompt(SIZE + 1), *said, 901], max_tokens=3))
    driver.runner.close()


def test_a_state_is_kept_once() -> None:
    """Prompts whose scores are asked for share nothing, and wait for no other."""
    driver = engine()
    requests = [make_request(str(i), [*prompt(30), 900 + i], max_tokens=2, prompt_logprobs=0) for i in range(3)]
    for request in requests:
        driver.add(request)
    driver.run()
    assert_complete(driver, *requests)
    assert driver.runner.states is not None
    assert driver.runner.states.kept == 1


def test_the_state_of_a_system_message_outlasts_what_evicts_all_others() -> None:
    driver = engine(blocks=800, slots=7)

    def ask(name: str) -> int:
        (cached,) = answered(driver, make_request(name, [*prompt(4 * SIZE), 901, *prompt(9, 30)], max_tokens=2))
        return cached

    driver.add(make_request("first", [*prompt(4 * SIZE), 902], max_tokens=1))
    driver.run()
    assert [ask(str(i)) >= 4 * SIZE for i in range(3)] == [True] * 3
    answered(driver, *(make_request(f"other{i}", prompt(40, 50 + 50 * i), max_tokens=2) for i in range(12)))
    assert ask("last") >= 4 * SIZE
