"""Whatever is guessed, and however much of it: the tokens are those of plain decoding."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from engine_driver import Driver, expected_tokens, make_request
from fake_model import next_token
from hypothesis import given, settings
from hypothesis import strategies as st
from verified_step import verify

from octavo_worker.engine.drafts import (
    Acceptance,
    Drafter,
    NgramProposer,
    Proposer,
    RowTimes,
    StepCosts,
    SuffixProposer,
    choose_lengths,
    count_accepted,
)
from octavo_worker.engine.drafts import (
    expected_tokens as mean_tokens,
)

VOCABULARY = 7
MODELS: dict[str, Callable[[Sequence[int], int], int]] = {
    "hash": lambda text, seed: next_token(text, seed, 0, VOCABULARY),
    "loop": lambda text, seed: next_token(text[-2:], seed, 0, VOCABULARY),
}
COSTS = StepCosts(RowTimes([(1, 1.0)]), RowTimes([(4, 1.2), (8, 1.4), (16, 2.5)]))

Model = Callable[[list[int]], int]
Guess = Callable[[list[int], int], Sequence[int]]
"""From a text and the number wanted to drafts."""


def decode(model: Model, prompt: list[int], count: int) -> list[int]:
    """Plain decoding."""
    text = list(prompt)
    while len(text) < len(prompt) + count:
        text.append(model(text))
    return text[len(prompt) :]


class Speculation:
    """An engine of one sequence: draws a token after the text and after each draft, in one step."""

    def __init__(self, model: Model, prompt: list[int]) -> None:
        self.model = model
        self.prompt = prompt
        self.output: list[int] = []
        self.steps = 0

    def step(self, drafts: Sequence[int]) -> list[int]:
        text = [*self.prompt, *self.output]
        drawn = [self.model([*text, *drafts[:row]]) for row in range(len(drafts) + 1)]
        said = drawn[: count_accepted(drafts, drawn) + 1]
        self.output += said
        self.steps += 1
        return said


def guesser(model: Model, right: float, rng: random.Random) -> Guess:
    """Knows the tokens to come, each with probability `right`."""

    def guess(text: list[int], count: int) -> list[int]:
        coming = decode(model, text, count)
        return [token if rng.random() < right else (token + 1) % VOCABULARY for token in coming]

    return guess


def garbage(rng: random.Random) -> Guess:
    return lambda _, count: [rng.choice([-1, 2**31, rng.randrange(VOCABULARY)]) for _ in range(rng.randint(0, count))]


@given(
    kind=st.sampled_from(list(MODELS)),
    seed=st.integers(0, 2**32),
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12),
    right=st.sampled_from([0.0, 0.5, 1.0, None]),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=12),
)
def test_random_guesses_change_no_token(
    kind: str, seed: int, prompt: list[int], right: float | None, lengths: list[int]
) -> None:
    rng = random.Random(seed)

    def model(text: list[int]) -> int:
        return MODELS[kind](text, seed)

    guess = garbage(rng) if right is None else guesser(model, right, rng)
    speculation = Speculation(model, prompt)
    for length in lengths:
        drafts = guess([*prompt, *speculation.output], length)
        said = speculation.step(drafts)
        assert right != 1.0 or len(said) == length + 1
        assert right != 0.0 or len(said) == 1
    assert speculation.output == decode(model, prompt, len(speculation.output))


@settings(deadline=None)
@given(
    kind=st.sampled_from(list(MODELS)),
    seed=st.integers(0, 2**32),
    prompts=st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12), min_size=1, max_size=3),
    proposer=st.sampled_from([NgramProposer, SuffixProposer]),
    offers=st.lists(st.integers(0, 8), min_size=10, max_size=20),
)
def test_proposers_and_chosen_lengths_change_no_token(
    kind: str, seed: int, prompts: list[list[int]], proposer: Callable[[], Proposer], offers: list[int]
) -> None:
    def model(text: list[int]) -> int:
        return MODELS[kind](text, seed)

    source = proposer()
    for prompt in [*prompts, *prompts]:  # the second time the store has seen it
        speculation, drafter, acceptance = Speculation(model, prompt), source.begin(prompt, [], b""), Acceptance()
        for most in offers:
            drafts = drafter.propose(most)
            (length,) = choose_lengths([len(drafts)], [acceptance.estimate], COSTS)
            said = speculation.step(drafts[:length])
            acceptance.observe(length, len(said) - 1)
            drafter.append(said)
        drafter.close()
        assert speculation.output == decode(model, prompt, len(speculation.output))


@pytest.mark.parametrize("right", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("length", [1, 4])
def test_tokens_a_step_are_those_of_the_closed_form(right: float, length: int) -> None:
    def model(text: list[int]) -> int:
        return (text[-1] + 1) % VOCABULARY

    guess, said = guesser(model, right, random.Random(11)), 0
    for place in range(3000):
        prompt = [place % VOCABULARY]
        said += len(Speculation(model, prompt).step(guess(prompt, length)))
    assert said / 3000 == pytest.approx(mean_tokens(right, length), rel=0.03)


def steps_of(proposer: Proposer, model: Model, prompt: list[int], count: int) -> int:
    speculation, drafter = Speculation(model, prompt), proposer.begin(prompt, [], b"")
    while len(speculation.output) < count:
        drafter.append(speculation.step(drafter.propose(4)))
    drafter.close()
    return speculation.steps


def test_what_repeats_takes_fewer_steps() -> None:
    """A text that loops, by its own text; one that does not, when it is said again."""

    def looping(text: list[int]) -> int:
        return MODELS["loop"](text, 3)

    def rambling(text: list[int]) -> int:
        return next_token(text, 3, 0, 5000)

    assert steps_of(NgramProposer(), looping, [1, 2], 200) < 100
    assert steps_of(NgramProposer(), rambling, [1, 2], 100) == 100
    proposer = SuffixProposer()
    assert steps_of(proposer, rambling, [1, 2], 100) == 100
    assert steps_of(proposer, looping, [1, 2], 200) < 100  # meanwhile the store takes in what was said
    assert steps_of(proposer, rambling, [1, 2], 100) < 30


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("source", [NgramProposer, SuffixProposer])
@pytest.mark.parametrize("options", [{}, {"window": 9}, {"num_host_blocks": 60}], ids=["plain", "sliding", "swapped"])
def test_proposals_through_the_scheduler_change_no_token(
    n: int, source: Callable[[], Proposer], options: dict[str, int]
) -> None:
    """Drafts of text over few ids are often offered and now and then right. Preemptions leave drafters as they are."""
    driver = Driver.create(30, 4, runner={"vocab_size": 3, **options})
    requests = [make_request(str(i), [i, *[0, 1, 2] * 5], max_tokens=40, n=n, seed=i, salt=b"s") for i in range(3)]
    proposer, drafters, accepted = source(), dict[tuple[str, int], Drafter](), 0
    expected = {}
    for request in requests:
        driver.add(request)
        first = proposer.begin(request.prompt, [], request.salt)
        for index in range(n):
            drafters[request.id, index] = first.fork()
            expected[request.id, index] = expected_tokens(request, index, vocab_size=3, window=driver.runner.window)
    known = dict.fromkeys(drafters, 0)
    while driver.busy:
        driver.step()
        for sequence in list(driver.scheduler._batch.running.decoding):
            name = sequence.request.id, sequence.indices[0]
            if sequence.computed != sequence.length - 1 or len(sequence.output) > 34:
                continue
            drafters[name].append(sequence.output[known[name] :])
            known[name] = len(sequence.output)
            accepted += verify(driver, sequence, drafters[name].propose(4))
    assert driver.tokens == expected
    assert driver.scheduler.pool.used == 0
    assert accepted > 5
