"""Steps with several rows of a decode: accepted tokens are those of decoding one by one, the others are taken back."""

from __future__ import annotations

import random

import pytest
from engine_driver import Driver, expected_tokens, make_request
from fake_runner import FakeRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples
from verified_step import verify

from octavo_worker.engine.sequence import Sequence
from octavo_worker.memory.cost import PreemptionPolicy

KINDS = {
    "plain": {},
    "sliding": {"window": 9},
    "oversized": {"num_host_blocks": 150, "reads_host": True},
    "swapped": {"num_host_blocks": 60},
}


def drafts_for(rng: random.Random, expected: list[int], done: int) -> list[int]:
    """Some of the tokens to come, the last of them wrong more often than not. Never the last token of all."""
    drafts = expected[done : done + rng.randint(0, min(9, len(expected) - done - 2))]
    return [*drafts[:-1], rng.choice([drafts[-1], 996])] if drafts else []


def run(kind: str, seed: int, *, block_size: int, n: int) -> tuple[Driver, int]:
    """A few requests to their ends, verifying drafts between the scheduler's own steps. Also how many were accepted."""
    rng = random.Random(seed)
    blocks = (60 if kind == "oversized" else 100) // block_size + 6
    policy = PreemptionPolicy("swap" if kind == "swapped" else "auto")
    driver = Driver.create(blocks + 1, block_size, runner=KINDS[kind], device=FakeRunner, policy=policy)
    requests = [make_request(str(i), range(3 * i, 3 * i + 20), max_tokens=70, n=n, seed=seed) for i in range(3)]
    for request in requests:
        driver.add(request)
    expected = {
        (request.id, index): expected_tokens(request, index, window=driver.runner.window)
        for request in requests
        for index in range(n)
    }
    accepted = 0
    while driver.busy:
        driver.step()
        decoding = [s for s in driver.scheduler._batch.running.decoding if rng.random() < 0.5]
        for sequence in decoding:
            whole = expected[sequence.request.id, sequence.indices[0]]
            if sequence.computed == sequence.length - 1 and len(sequence.output) < len(whole) - 2:
                accepted += verify(driver, sequence, drafts_for(rng, whole, len(sequence.output)))
    assert driver.tokens == expected
    assert driver.scheduler.pool.used == 0
    return driver, accepted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 3])
def test_accepted_tokens_are_those_of_decoding_one_by_one(kind: str, n: int) -> None:
    driver, accepted = run(kind, 1, block_size=4, n=n)
    assert accepted > 20
    assert (driver.runner.cold_reads > 0) == (kind == "oversized")
    assert driver.scheduler.stats().swapped_out > 0 or kind in ("plain", "sliding") or n == 1


@settings(max_examples=examples(30), deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    seed=st.integers(0, 2**32),
    block_size=st.sampled_from([1, 2, 4, 16]),
    n=st.integers(1, 3),
)
def test_any_drafts_change_no_token(kind: str, seed: int, block_size: int, n: int) -> None:
    run(kind, seed, block_size=block_size, n=n)


def decoding(tokens: int = 10, **options: object) -> tuple[Driver, Sequence]:
    """A request that has a few tokens, and nothing in flight."""
    driver = Driver.create(30, 4, **options)  # type: ignore[arg-type]
    driver.add(make_request("a", range(tokens), max_tokens=50))
    while len(driver.tokens["a", 0]) < 3:
        driver.step()
    (sequence,) = driver.scheduler._batch.running
    return driver, sequence


def test_blocks_past_the_end_are_free_again() -> None:
    driver, sequence = decoding()
    used, kv = driver.scheduler.pool.used, driver.scheduler.kv
    sequence.table.reserve(sequence.computed + 9)
    sequence.computed += 9
    assert driver.scheduler.pool.used > used
    kv.rewind(sequence, 9)
    assert driver.scheduler.pool.used == used
    driver.run()


def test_published_tokens_are_not_taken_back() -> None:
    driver, sequence = decoding()
    before = list(sequence.table.blocks), sequence.computed
    assert sequence.computed == 12
    assert sequence.published == 3
    with pytest.raises(ValueError, match="final"):
        driver.scheduler.kv.rewind(sequence, 1)
    assert (list(sequence.table.blocks), sequence.computed) == before


def test_what_the_window_left_is_not_taken_back() -> None:
    driver, sequence = decoding(30, runner={"window": 9})
    driver.scheduler.kv.offload([sequence], 0, driver.scheduler.kv.step)
    with pytest.raises(ValueError, match=r"final|window"):
        driver.scheduler.kv.rewind(sequence, sequence.computed - 20)


def test_a_prompt_is_not_taken_back() -> None:
    driver = Driver.create(30, 4, token_budget=8)
    driver.add(make_request("a", range(20), max_tokens=5))
    driver.step()
    (sequence,) = driver.scheduler._batch.running
    with pytest.raises(ValueError, match="decodes"):
        driver.scheduler.kv.rewind(sequence, 1)
