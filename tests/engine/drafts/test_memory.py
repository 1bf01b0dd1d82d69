"""The memory of drafts: free blocks, and none of them is ever found by others."""

from __future__ import annotations

import pytest
from drafted_runs import book, drive
from engine_driver import Driver, assert_complete, expected_tokens, make_request, prompt
from fake_runner import DelayedRunner, FakeRunner
from proposers import AnswerBook, speculate

from octavo_worker.contract.step import SharedReading

DEVICES = pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])


def test_drafts_take_free_blocks_only() -> None:
    """The pool has just the blocks of both texts: drafts that need one more are left out, and nothing is preempted."""
    requests = [make_request(str(i), prompt(8, 50 * i), max_tokens=25) for i in range(2)]
    for right in (0.5, 1.0):
        driver = drive(*requests, blocks=16, speculation=speculate(book(*requests, right=right), 7))
        assert_complete(driver, *requests)
        assert driver.scheduler.stats().preemptions == 0
        assert driver.scheduler.stats().accepted_tokens > 5


@DEVICES
def test_full_blocks_are_found_by_others_as_without_drafts(device: type[FakeRunner]) -> None:
    for most in range(1, 7):
        first = make_request("a", range(9), max_tokens=12)
        driver = Driver.create(61, 4, device=device, speculation=speculate(book(first), most))
        driver.add(first)
        driver.run()
        driver.add(make_request("b", [*range(9), *expected_tokens(first, 0), 5], max_tokens=2))
        driver.run()
        driver.runner.close()
        assert driver.started["b"].cached_tokens == 20


def test_others_share_a_block_as_soon_as_accepted_tokens_fill_it() -> None:
    first = make_request("a", range(9), max_tokens=30)
    driver = Driver.create(61, 4, speculation=speculate(book(first), 5))
    driver.add(first)
    while len(driver.tokens["a", 0]) < 20:
        driver.step()
    text = [*range(9), *driver.tokens["a", 0]]
    driver.add(make_request("b", text, max_tokens=2))
    driver.run()
    assert driver.started["b"].cached_tokens == (len(text) - 1) // 4 * 4


def test_no_wrong_draft_is_ever_found_by_others() -> None:
    """Requests that look up what was guessed, and is not what was said, compute it themselves."""
    request = make_request("a", range(8), max_tokens=40)
    whole = expected_tokens(request, 0)
    wrong = AnswerBook({tuple(request.prompt): [whole]}, right=0.6, seed=1)
    driver = Driver.create(90, 4, device=DelayedRunner, speculation=speculate(wrong, 6))
    driver.add(request)
    others = []
    while driver.busy:
        driver.step()
        said = driver.tokens["a", 0]
        if len(said) in range(4, 36, 4) and len(others) < 8:
            text = [*range(8), *said, *(token ^ 1 for token in whole[len(said) : len(said) + 8])]
            others.append(make_request(f"b{len(others)}", text, max_tokens=3))
            driver.add(others[-1])
    driver.runner.close()
    assert_complete(driver, request, *others)


class SharingRunner(DelayedRunner):
    shared_reading = SharedReading(unit_blocks=2, least_tokens=8, most_queries=3)


@pytest.mark.parametrize("most", [2, 5])
def test_what_sequences_share_is_read_once_with_drafts_up_to_as_many_as_the_kernel_takes(most: int) -> None:
    requests = [make_request(str(i), [*prompt(40), 500 + i], max_tokens=24) for i in range(4)]
    reading = SharingRunner.shared_reading
    speculation = speculate(book(*requests, right=0.8), most)
    driver = drive(*requests, device=SharingRunner, shared_reading=reading, speculation=speculation)
    assert_complete(driver, *requests)
    assert (driver.runner.grouped_plans > 3) == (1 + most <= 3)
    assert driver.scheduler.stats().accepted_tokens > 10
