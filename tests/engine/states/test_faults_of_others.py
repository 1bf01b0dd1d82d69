"""Faults of states that other engines had, each by the name under which it was reported."""

from __future__ import annotations

from typing import Any

import pytest
from engine_driver import Driver, assert_complete, expected_tokens, make_request, prompt
from fake_runner import DelayedRunner, FailingRunner, FakeRunner
from proposers import AnswerBook, speculate

from octavo_worker.contract.messages import AddRequest, BeamOptions
from octavo_worker.contract.state import StateMove, StateMoves
from octavo_worker.memory.cost import PreemptionPolicy

SIZE = 8


def engine(device: type[FakeRunner] = FakeRunner, *, blocks: int = 200, **options: Any) -> Driver:
    runner = {"state_slots": 20, "host_state_slots": 20, "num_host_blocks": 200} | options.pop("runner", {})
    return Driver.create(blocks, SIZE, device=device, runner=runner, **options)


def answered(driver: Driver, *requests: AddRequest) -> list[int]:
    for request in requests:
        driver.add(request)
        driver.run()
    assert_complete(driver, *requests)
    return [driver.started[request.id].cached_tokens for request in requests]


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_vllm_56525_a_prompt_that_was_given_up_leaves_no_state_that_was_never_written(device, steps: int) -> None:
    """A state that was published when it was planned made garbage of the prompt's retry."""
    driver = engine(device, token_budget=20)
    first = make_request("first", prompt(60), max_tokens=5)
    driver.add(first)
    for _ in range(steps):
        driver.step()
    driver.scheduler.abort("first")
    again = make_request("again", prompt(60), max_tokens=5)
    answered(driver, again)
    driver.runner.close()


def test_vllm_57580_a_preempted_prompt_leaves_no_state_that_was_never_written() -> None:
    driver = engine(DelayedRunner, blocks=14, token_budget=20, policy=PreemptionPolicy("recompute"), priority=None)
    requests = [make_request(str(i), prompt(50, 100 * (i // 2)), max_tokens=20, priority=2 - i // 3) for i in range(6)]
    for request in requests:
        driver.add(request)
        driver.step()
    driver.run()
    assert driver.scheduler.stats().preemptions > 0
    assert_complete(driver, *requests)
    driver.runner.close()


def test_vllm_43090_keys_are_not_kept_where_the_state_is_missing() -> None:
    """`Has a state` was derived from computed tokens: keys were hit, and the state was garbage."""
    driver = engine()
    first = make_request("first", prompt(5 * SIZE), max_tokens=1)
    shorter = make_request("shorter", [*prompt(3 * SIZE), 901], max_tokens=4)
    assert answered(driver, first, shorter) == [0, 0]


def test_vllm_47491_usage_counts_what_was_not_computed_and_nothing_else() -> None:
    driver = engine()
    requests = [make_request(str(i), [*prompt(5 * SIZE), 900 + i], max_tokens=1) for i in range(4)]
    cached = sum(answered(driver, *requests))
    assert driver.runner.tokens_computed == sum(len(request.prompt) for request in requests) - cached


def test_vllm_metal_488_a_request_that_begins_anew_begins_with_zeros() -> None:
    """A request that was preempted by recomputation read its old slot."""
    driver = engine(blocks=12, policy=PreemptionPolicy("recompute"))
    requests = [make_request(str(i), prompt(20, 100 * i), max_tokens=40) for i in range(3)]
    for request in requests:
        driver.add(request)
    driver.run()
    assert driver.scheduler.stats().recomputed_tokens > 0
    assert_complete(driver, *requests)


def test_sglang_22493_a_swap_takes_the_state_along() -> None:
    driver = engine(blocks=12, policy=PreemptionPolicy("swap"))
    requests = [make_request(str(i), prompt(20, 100 * i), max_tokens=40) for i in range(3)]
    for request in requests:
        driver.add(request)
    driver.run()
    stats = driver.scheduler.stats()
    assert stats.swapped_out > 0
    assert stats.recomputed_tokens == 0
    assert_complete(driver, *requests)


def test_vllm_55600_slots_of_the_host_are_named_in_ids_of_their_own() -> None:
    """An index in the wrong unit moved another state."""
    driver = engine(blocks=12, policy=PreemptionPolicy("swap"), runner={"state_slots": 50, "host_state_slots": 7})
    swaps: list[tuple[int, int]] = []
    launch = driver.runner.launch

    def noting(plan: Any) -> Any:
        swaps.extend((slot, host) for slot, host in plan.state_out)
        swaps.extend((slot, host) for host, slot in plan.state_in)
        return launch(plan)

    driver.runner.launch = noting
    for i in range(3):
        driver.add(make_request(str(i), prompt(20, 100 * i), max_tokens=40))
    driver.run()
    first = driver.runner.first_host_state_slot
    assert swaps
    assert all(0 < slot < 50 and first < host < first + 7 for slot, host in swaps)


def test_trt_llm_13278_padding_rows_touch_no_live_slot() -> None:
    moves = StateMoves.of([StateMove(5, 5), StateMove(0, 6, ((3, 7),))], rows=8)
    assert moves.read[2:].tolist() == moves.write[2:].tolist() == [0] * 6
    assert moves.keep_start[2:].tolist() == [1] * 7


@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_vllm_43559_drafts_leave_states_of_the_prefix_cache_alone(device: type[FakeRunner], right: float) -> None:
    """Again #53912, #50172: a verifying step wrote states that others found. Turns of a chat go on from each other."""
    book = AnswerBook({}, right)
    driver = engine(device, speculation=speculate(book, 4))
    text = prompt(21)
    for turn in range(5):
        request = make_request(str(turn), text, max_tokens=13)
        book.answers[tuple(text)] = [expected_tokens(request, 0)]
        (cached,) = answered(driver, request)
        assert cached >= len(text) - 3 if turn else cached == 0
        text = [*text, *driver.tokens[request.id, 0], 900 + turn]
    assert driver.scheduler.stats().drafted_tokens > 0
    driver.runner.close()


@pytest.mark.parametrize("budget", [3, 5, 11, 40])
def test_sglang_33450_a_state_is_that_of_its_sequence_wherever_its_chunks_end(budget: int) -> None:
    """Sequences beside each other do not end on one grid of chunks."""
    driver = engine(token_budget=budget)
    requests = [make_request(str(i), prompt(25 + 7 * i, 100 * i), max_tokens=3) for i in range(4)]
    requests += [make_request(f"again{i}", [*prompt(25 + 7 * i, 100 * i), 901], max_tokens=3) for i in range(4)]
    for request in requests[:4]:
        driver.add(request)
    driver.run()
    cached = answered(driver, *requests[4:])
    assert_complete(driver, *requests)
    assert cached == [25 + 7 * i for i in range(4)] or min(cached) >= SIZE * 3


@pytest.mark.parametrize("shift", [0, 7, 100, 200])
def test_vllm_45238_a_shift_of_the_prompt_costs_no_hits(shift: int) -> None:
    """64 prompts behind a common beginning: a shift by 100 tokens turned 52 hits into none."""
    driver = engine(blocks=800, runner={"state_slots": 100})
    common = prompt(20 * SIZE + shift)
    requests = [make_request(str(i), [*common, 901 + i % 50, *prompt(30, i)], max_tokens=1) for i in range(16)]
    cached = answered(driver, *requests)
    keys_alone = len(common) // SIZE * SIZE * 15
    assert sum(cached) >= 0.9 * keys_alone


def test_sglang_22935_identical_prompts_are_hit() -> None:
    driver = engine()
    assert answered(driver, *(make_request(str(i), prompt(50), max_tokens=3) for i in range(3))) == [0, 48, 48]


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_sglang_34676_running_out_of_slots_ends_nothing(device: type[FakeRunner]) -> None:
    driver = engine(device, runner={"state_slots": 6}, max_running=32)
    requests = [make_request(str(i), prompt(20, 10 * i), n=1 + i % 4, max_tokens=15) for i in range(12)]
    beams = make_request("beams", prompt(20), n=3, max_tokens=9, beam=BeamOptions(3))
    for request in (*requests, beams):
        driver.add(request)
    driver.run()
    assert_complete(driver, *requests)
    assert not driver.failed
    driver.runner.close()


def test_vllm_57267_the_same_batch_again_gives_the_same_tokens() -> None:
    driver = engine()
    for turn in range(3):
        requests = [make_request(f"{turn}-{i}", prompt(20 + 9 * i, i), max_tokens=12) for i in range(6)]
        for request in requests:
            driver.add(request)
        driver.run()
        assert_complete(driver, *requests)


def test_vllm_51250_a_long_prompt_is_hit_though_nothing_ended_on_a_large_grid() -> None:
    """55,009 tokens, no hit."""
    driver = engine(blocks=800, token_budget=500, runner={"max_model_len": 8192})
    first, second = (make_request(str(i), prompt(5509), max_tokens=1) for i in range(2))
    assert answered(driver, first, second) == [0, 5509 // SIZE * SIZE]


def test_vllm_52244_a_hit_ends_in_the_last_block() -> None:
    """Hits were rounded down to units of 276 to 4,416 tokens."""
    driver = engine()
    for length in range(17, 40):
        requests = [make_request(f"{length}-{i}", prompt(length, length), max_tokens=1) for i in range(2)]
        assert answered(driver, *requests)[1] >= length - SIZE


def test_vllm_45845_snapshots_do_not_fill_the_memory() -> None:
    """One for each block was 80 % of a pool."""
    driver = engine(runner={"state_slots": 100})
    answered(driver, *(make_request(str(i), prompt(15 * SIZE, 100 * i), max_tokens=1) for i in range(5)))
    assert driver.scheduler.stats().cached_states <= 2 * 5


def test_llama_cpp_24055_one_request_does_not_invalidate_what_others_left() -> None:
    driver = engine()
    texts = [prompt(30, 100 * i) for i in range(4)]
    answered(driver, *(make_request(f"a{i}", text, max_tokens=1) for i, text in enumerate(texts)))
    driver.add(make_request("given up", prompt(77, 500), max_tokens=40))
    driver.step()
    driver.scheduler.abort("given up")
    assert answered(driver, *(make_request(f"b{i}", text, max_tokens=1) for i, text in enumerate(texts))) == [24] * 4


def test_a_failed_step_behind_which_another_one_runs_spoils_no_state() -> None:
    """Octavo's own: a state that is advanced in place by the step behind it would be wrong for all others."""
    driver = engine(FailingRunner)
    requests = [make_request(str(i), prompt(20, 50 * i), max_tokens=30) for i in range(12)]
    for request in requests:
        driver.add(request)
    driver.run()
    assert isinstance(driver.runner, FailingRunner)
    assert driver.runner.failures > 2
    for request in requests:
        expected = expected_tokens(request, 0)
        tokens = driver.tokens[request.id, 0]
        assert tokens == (expected[: len(tokens)] if request.id in driver.failed else expected)
    driver.runner.close()
