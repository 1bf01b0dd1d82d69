"""Prompts that share a step's budget, where a step takes as long as its longest prompt."""

from __future__ import annotations

import pytest
from engine_driver import Driver, expected_tokens, make_request
from hypothesis import given
from hypothesis import strategies as st

from octavo_worker.contract.messages import BATCH, NORMAL
from octavo_worker.engine.scheduling.abreast import share


def first_chunks(*lengths: int, abreast: int = 4, priorities: tuple[int, ...] = ()) -> list[list[int]]:
    """Tokens of the prompts of each step, until all are computed."""
    driver = Driver.create(400, token_budget=64, abreast=abreast)
    for number, length in enumerate(lengths):
        prompt = [(7 * number + position) % 900 for position in range(length)]
        priority = priorities[number] if priorities else NORMAL
        driver.add(make_request(str(number), prompt, max_tokens=1, priority=priority))
    steps = []
    while (plan := driver.scheduler.plan()) is not None:
        steps.append([len(step.tokens) for step in plan.sequences[plan.num_decodes :]])
        driver.scheduler.commit(plan, driver.runner.launch(plan).result())
    return steps


def test_long_prompts_share_a_step_evenly() -> None:
    assert first_chunks(100, 100, 100, 100, 100)[:5] == [[16] * 4] * 5


def test_one_prompt_alone_has_all_of_it() -> None:
    assert first_chunks(100) == [[64], [36]]


def test_without_company_side_by_side_the_first_comes_first() -> None:
    assert first_chunks(100, 100, abreast=1) == [[64], [36, 28], [64], [8]]


def test_a_short_rest_is_no_step_of_its_own() -> None:
    """A prompt of a part and a half, or less, is computed whole; what it leaves goes to those behind it."""
    assert first_chunks(22, 100, 100, 100)[0] == [22, 14, 14, 14]
    assert first_chunks(25, 100, 100, 100)[0] == [16, 16, 16, 16]


def test_short_prompts_fill_a_step_as_ever() -> None:
    assert first_chunks(*[5] * 12) == [[5] * 12]


def test_a_prompt_shares_nothing_with_what_pauses_for_it() -> None:
    assert first_chunks(100, 100, priorities=(NORMAL, BATCH))[0] == [64]


@given(st.integers(1, 9999), st.integers(1, 9999), st.integers(0, 20), st.integers(1, 8))
def test_a_share_is_of_the_budget_and_at_least_an_even_one(left: int, budget: int, others: int, abreast: int) -> None:
    part = share(left, budget, others, abreast)
    assert 1 <= part <= min(budget, max(left, -(-budget // abreast)))
    assert part >= min(left, budget // min(abreast, 1 + others))


@pytest.mark.parametrize("count", [2, 5, 9])
def test_answers_are_those_of_one_after_the_other(count: int) -> None:
    driver = Driver.create(60, token_budget=64, abreast=4)
    requests = [make_request(str(n), [(n * 13 + at) % 900 for at in range(90 + n)]) for n in range(count)]
    for request in requests:
        driver.add(request)
    driver.run()
    for request in requests:
        assert driver.tokens[request.id, 0] == expected_tokens(request, 0)
