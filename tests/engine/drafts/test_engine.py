"""Speculation in the engine: whatever is guessed, the tokens are those of plain decoding, and what is right is fast."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from drafted_runs import book, drive
from engine_driver import Driver, assert_complete, expected_beams, expected_tokens, make_request, prompt
from fake_runner import DelayedRunner, FakeRunner, value_of
from proposers import FREE, AnswerBook, speculate

from octavo_worker.contract.messages import AddRequest, BeamOptions, DraftsVerified, Logprob
from octavo_worker.contract.step import Sampled, SequenceStep, StepPlan
from octavo_worker.engine.drafts import NgramProposer, Proposer, RowTimes, StepCosts, SuffixProposer

DEVICES = pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
DEAR = StepCosts(RowTimes([(1, 1.0)]), RowTimes([(512, 1000.0)]))


# How fast


@DEVICES
@pytest.mark.parametrize("most", [1, 3, 7])
def test_a_book_that_knows_all_gets_the_most_tokens_a_step(most: int, device: type[FakeRunner]) -> None:
    request = make_request("a", prompt(9), max_tokens=1 + 5 * (most + 1))
    driver = drive(request, device=device, speculation=speculate(book(request), most))
    assert_complete(driver, request)
    stats = driver.scheduler.stats()
    assert stats.steps == 1 + 5  # the prompt gives the first token
    assert stats.drafted_tokens == stats.accepted_tokens == 5 * most


@DEVICES
def test_a_book_that_knows_nothing_costs_no_token(device: type[FakeRunner]) -> None:
    request = make_request("a", prompt(9), max_tokens=20)
    driver = drive(request, device=device, speculation=speculate(book(request, right=0.0)))
    assert_complete(driver, request)
    stats = driver.scheduler.stats()
    assert (stats.steps, stats.accepted_tokens) == (20, 0)
    assert stats.drafted_tokens > 0


def test_each_step_says_what_it_verified() -> None:
    request = make_request("a", prompt(9), max_tokens=12)
    driver = Driver.create(60, 4, speculation=speculate(book(request), 3))
    driver.add(request)
    said = []
    while driver.busy:
        said += driver.step().verified
    assert said == [DraftsVerified("a", 3, 3)] * 2 + [
        DraftsVerified("a", 2, 2)
    ]  # the last draft would be the last token


class Recorder(DelayedRunner):
    """Keeps what it was asked for."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.launched: list[tuple[StepPlan, list[Any], bool]] = []

    def launch(self, plan: StepPlan) -> Any:
        self.launched.append((plan, value_of(plan, self.block_size), bool(self.under_way)))
        return super().launch(plan)


def launched(*requests: AddRequest, **options: Any) -> list[tuple[StepPlan, list[Any], bool]]:
    runner = drive(*requests, device=Recorder, **options).runner
    assert isinstance(runner, Recorder)
    return runner.launched


FIRST_SEQUENCE = 12  # of a plan's value


def without_runs(value: list[Any]) -> list[Any]:
    return [*value[6:FIRST_SEQUENCE], *([*part[:1], 0, *part[2:]] for part in value[FIRST_SEQUENCE:])]


@pytest.mark.parametrize("proposer", [NgramProposer(), SuffixProposer(), AnswerBook({}), None])
def test_without_a_guess_that_pays_steps_are_the_plain_ones(proposer: Proposer | None) -> None:
    """To the last entry of every plan, and as often ahead."""
    requests = [make_request(str(i), prompt(30, 40 * i), max_tokens=20, n=1 + i % 2) for i in range(4)]
    plain = launched(*requests)
    guessed = launched(*requests, speculation=speculate(proposer or book(*requests), costs=FREE if proposer else DEAR))
    assert [ahead for *_, ahead in guessed] == [ahead for *_, ahead in plain]
    assert [without_runs(value) for _, value, _ in guessed] == [without_runs(value) for _, value, _ in plain]


def test_a_step_with_drafts_is_not_planned_ahead_of_and_one_without_is() -> None:
    """The second request is not guessed at, and has twice as many tokens."""
    first, second = make_request("a", prompt(9), max_tokens=40), make_request("b", prompt(9, 50), max_tokens=60)
    story = launched(first, second, speculation=speculate(book(first), 3))
    drafts = [sum(len(step.drafts) for step in plan.sequences) for plan, *_ in story]
    for place, (_, _, ahead) in enumerate(story[1:]):
        assert not (ahead and drafts[place]), "planned behind drafts"
    assert sum(count > 0 for count in drafts) >= 9
    assert [ahead for *_, ahead in story[-40:]] == [True] * 40


def test_the_next_step_is_under_way_when_verified_tokens_leave() -> None:
    """It could not be planned ahead, but nothing of it waits for what the agent does with them."""
    request = make_request("a", prompt(9), max_tokens=13)
    driver = Driver.create(60, 4, device=Recorder, speculation=speculate(book(request), 3))
    driver.add(request)
    under_way = []
    while driver.busy:
        if driver.step().verified:
            under_way.append(not driver.pipeline.is_empty)
    assert under_way == [True, True, False]
    assert driver.tokens["a", 0] == expected_tokens(request, 0)


def test_all_run_ahead_or_none() -> None:
    """A sequence that alone sat out the plans that are made ahead would be in every other step."""
    requests = [make_request(str(i), prompt(9, 50 * i), max_tokens=40) for i in range(3)]
    story = launched(*requests, speculation=speculate(book(requests[0], right=0.8), 3))
    busy = [plan for plan, *_ in story if plan.num_decodes]
    for plan, behind in itertools.pairwise(busy[1:]):
        ended = 3 - len(behind.sequences)
        assert len(plan.sequences) - len(behind.sequences) <= ended


def test_guesses_that_were_wrong_are_tried_again_some_day() -> None:
    """The book is right about the second half of the text only."""
    request = make_request("a", prompt(9), max_tokens=900)
    told = book(request)
    wrong = [token ^ 1 for token in told.answers[tuple(request.prompt)][0][:300]]

    class LateDrafter:
        def __init__(self) -> None:
            self.inner = told.begin(request.prompt, [], b"")

        def append(self, tokens: Sequence[int]) -> None:
            self.inner.append(tokens)

        def propose(self, most: int) -> Sequence[int]:
            said = len(self.inner.output)
            return [*wrong[said : said + most], *self.inner.propose(most)][:most]

        def fork(self) -> LateDrafter:
            raise NotImplementedError

        def close(self) -> None:
            """Nothing to do."""

    class Late:
        def begin(self, prompt: Sequence[int], output: Sequence[int], salt: bytes) -> LateDrafter:
            return LateDrafter()

    costs = StepCosts(RowTimes([(1, 1.0)]), RowTimes([(1, 1.2), (64, 1.6)]))
    driver = drive(request, blocks=300, device=DelayedRunner, speculation=speculate(Late(), 4, costs))
    assert_complete(driver, request)
    stats = driver.scheduler.stats()
    assert isinstance(driver.runner, DelayedRunner)
    assert stats.drafted_tokens - stats.accepted_tokens < 60
    assert stats.accepted_tokens > 300
    assert driver.runner.launched_ahead > 150


# What ends a sequence


@DEVICES
@pytest.mark.parametrize("limit", range(1, 12))
def test_the_last_token_may_be_anywhere_in_a_window(limit: int, device: type[FakeRunner]) -> None:
    requests = [
        make_request("length", prompt(7), max_tokens=limit),
        make_request("context", prompt(24 - limit, 100), max_tokens=100),
    ]
    teller = book(*requests, max_model_len=24)
    for answers in teller.answers.values():
        answers[0] += [5] * 9  # it would go on
    driver = drive(*requests, device=device, runner={"max_model_len": 24}, speculation=speculate(teller, 4))
    assert_complete(driver, *requests)
    assert set(driver.reasons.values()) == {"length"}


@DEVICES
@pytest.mark.parametrize("at", range(1, 9))
def test_a_stop_token_ends_the_text_wherever_it_comes(at: int, device: type[FakeRunner]) -> None:
    whole = expected_tokens(make_request("a", prompt(7), max_tokens=30), 0)
    request = make_request("a", prompt(7), max_tokens=30, stop_token_ids=[whole[at]])
    driver = drive(request, device=device, speculation=speculate(AnswerBook({tuple(request.prompt): [whole]}), 5))
    assert driver.tokens["a", 0] == whole[: whole.index(whole[at]) + 1]
    assert driver.reasons["a", 0] == "stop"
    stats = driver.scheduler.stats()
    assert stats.drafted_tokens == stats.accepted_tokens, "what comes behind an end is not even tried"


def test_no_token_is_stopped_by_before_its_time() -> None:
    for stops in range(0, 997, 100):
        request = make_request(
            "a", prompt(7), max_tokens=30, min_tokens=9, stop_token_ids=list(range(stops, stops + 90))
        )
        driver = drive(request, speculation=speculate(book(request), 5))
        assert_complete(driver, request)


class Overflowing(FakeRunner):
    """The score of the seventh token is not a number."""

    def _sample(self, step: SequenceStep, number: int, history: list[int], barred: set[int]) -> Sampled:
        sampled = super()._sample(step, number, history, barred)
        if len(step.output_at(number)) == 6:
            sampled.logprob = Logprob(math.nan)
        return sampled


@pytest.mark.parametrize("most", range(1, 9))
def test_a_failure_amid_a_window_ends_the_request_there(most: int) -> None:
    request = make_request("a", prompt(9), max_tokens=30, logprobs=0)
    driver = drive(request, device=Overflowing, speculation=speculate(book(request), most))
    assert driver.failed["a"].code == "invalid_logits"
    assert driver.tokens["a", 0] == expected_tokens(request, 0)[:6]


def test_drafts_that_are_no_tokens_are_not_computed() -> None:
    requests = [make_request(str(i), prompt(9, 20 * i), max_tokens=30, n=2) for i in range(3)]
    driver = drive(*requests, runner={"vocab_size": 997}, speculation=speculate(book(right=None), 6))
    assert_complete(driver, *requests)
    assert driver.failed == {}


# What is beside


@DEVICES
def test_beams_go_beside_drafts_without_any(device: type[FakeRunner]) -> None:
    beams = make_request("beams", prompt(9), max_tokens=20, n=2, beam=BeamOptions(3))
    request = make_request("a", prompt(9, 50), max_tokens=40)
    driver = drive(beams, request, device=device, speculation=speculate(book(request), 3))
    assert_complete(driver, request)
    assert [driver.tokens["beams", i] for i in range(2)] == expected_beams(beams)
    assert driver.scheduler.stats().accepted_tokens > 20


@DEVICES
def test_an_abort_amid_a_window_frees_all_and_says_nothing_more(device: type[FakeRunner]) -> None:
    for steps in range(2, 8):
        requests = [make_request(str(i), prompt(9, 50 * i), max_tokens=40, n=2) for i in range(2)]
        teller = book(*requests, right=0.7)
        driver = Driver.create(60, 4, device=device, speculation=speculate(teller, 4))
        for request in requests:
            driver.add(request)
        for _ in range(steps):
            driver.step()
        seen = len(driver.tokens["0", 0])
        driver.scheduler.abort("0")
        driver.scheduler.check_integrity()
        driver.run()
        driver.runner.close()
        assert len(driver.tokens["0", 0]) == seen
        assert_complete(driver, requests[1])
        assert teller.begun == teller.closed


def test_a_deadline_passes_amid_a_window() -> None:
    now = 100.0
    late = make_request("late", prompt(9), max_tokens=90, deadline=105.0)
    driver = Driver.create(60, 4, device=DelayedRunner, clock=lambda: now, speculation=speculate(book(late), 3))
    driver.add(late)
    for _ in range(5):
        driver.step()
    now = 106.0
    driver.run()
    driver.runner.close()
    assert driver.failed["late"].code == "deadline"
    said = driver.tokens["late", 0]
    assert said == expected_tokens(late, 0)[: len(said)]
    assert driver.scheduler.pool.used == 0


def test_a_failed_step_gives_up_its_drafts_and_counts_what_was_computed() -> None:
    request = make_request("a", prompt(9), max_tokens=40)
    driver = Driver.create(60, 4, speculation=speculate(book(request), 4))
    driver.add(request)
    while not driver.scheduler.stats().accepted_tokens:
        driver.step()
    plan = driver.scheduler.plan()
    assert plan is not None
    assert plan.sequences[0].drafts
    driver.scheduler.abandon(plan)
    driver.scheduler.check_integrity()
    (sequence,) = driver.scheduler._requests.sequences()
    assert sequence.peak == sequence.length
    driver.run()
    assert_complete(driver, request)


def test_tenants_have_their_salt_and_heirs_their_output() -> None:
    begun = []

    class Watch(AnswerBook):
        def begin(self, prompt: Sequence[int], output: Sequence[int], salt: bytes) -> Any:
            begun.append((list(prompt), list(output), salt))
            return super().begin(prompt, output, salt)

    heir = make_request("a", prompt(5), max_tokens=9, published={0: [1, 2], 1: [3]}, salt=b"tenant")
    drive(heir, make_request("none", prompt(5), max_tokens=0), speculation=speculate(Watch({})))
    assert begun == [(prompt(5), [1, 2], b"tenant"), (prompt(5), [3], b"tenant")]


def test_no_step_has_more_samples_than_the_runner_takes() -> None:
    requests = [make_request(str(i), prompt(9, 20 * i), max_tokens=30, n=2) for i in range(3)]
    story = launched(*requests, speculation=speculate(book(*requests), 5, most_samples=9))
    counts = [sum(len(step.samples) for step in plan.sequences) for plan, *_ in story]
    assert max(counts) == 9
