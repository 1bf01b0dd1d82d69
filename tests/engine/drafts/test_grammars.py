"""Drafts under grammars: each row has the mask of the text before it, and what a grammar forces is guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from engine_driver import Driver, expected_tokens, make_request, prompt
from fake_runner import DelayedRunner, FailingRunner, FakeRunner
from followed import (
    DIGITS,
    END,
    PERSON,
    STOPS,
    VOCAB,
    WORDS,
    expected,
    expected_beams,
    followed,
    ids,
    matchers_of,
    schema,
    text_of,
)
from generated_schemas import SCHEMAS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proposers import AnswerBook, speculate
from tiers import examples

from octavo.dialects.grammar.grammars import Grammar, GrammarError
from octavo_worker.contract.messages import AddRequest, BeamOptions
from octavo_worker.engine.drafts import NgramProposer, Proposer
from octavo_worker.engine.grammar import Matcher
from octavo_worker.memory.cost import PreemptionPolicy


def book(*requests: AddRequest, right: float | None = 1.0) -> AnswerBook:
    told = AnswerBook({}, right)
    for request in requests:
        if request.sampling.beam is None:
            told.answers[tuple(request.prompt)] = [
                expected(request, s.index)[0]
                if request.grammar
                else expected_tokens(request, s.index, vocab_size=VOCAB)
                for s in request.sequences
            ]
    return told


def drive(
    *requests: AddRequest,
    proposer: Proposer | None,
    most: int = 4,
    device: type[FakeRunner] = DelayedRunner,
    **more: Any,
) -> Driver:
    blocks, runner = more.pop("blocks", 300), {"vocab_size": VOCAB, **more.pop("runner", {})}
    driver = Driver.create(
        blocks + 1, 4, device=device, runner=runner, speculation=proposer and speculate(proposer, most), **more
    )
    for request in requests:
        driver.add(request, None if request.grammar is None else matchers_of(request))
    driver.run(max_steps=20_000)
    driver.runner.close()
    return driver


def check(driver: Driver, *requests: AddRequest) -> None:
    for request in requests:
        assert request.id not in driver.failed, driver.failed[request.id]
        if request.sampling.beam is not None:
            found = [driver.tokens[request.id, s.index] for s in request.sequences]
            assert found == expected_beams(request)
            continue
        for sequence in request.sequences:
            if sequence.tokens:
                continue  # not those of the fake model: compared with a run without drafts
            found = driver.tokens[request.id, sequence.index]
            if request.grammar is None:
                assert found == expected_tokens(request, sequence.index, vocab_size=VOCAB)
            else:
                wanted, reason = expected(request, sequence.index)
                assert found == wanted
                assert driver.reasons[request.id, sequence.index] == reason


def mixed() -> list[AddRequest]:
    return [
        followed("person", PERSON, n=2),
        make_request("free", prompt(9, 100), max_tokens=40),
        followed("digits", DIGITS, 200, min_tokens=3),
        followed("words", WORDS, 300, n=4),
        followed("early", Grammar("regex", "a{1,40}"), 400, min_tokens=25),
        followed("ignored", Grammar("regex", "a{1,40}"), 500, stop_token_ids=[]),
        followed("stops", DIGITS, 600, stop_token_ids=[END, ids("9")[0]], seed=3),
        followed("cut", PERSON, 700, max_tokens=11),
        followed("beams", DIGITS, 800, n=2, beam=BeamOptions(3)),
        followed("after", Grammar(WORDS.kind, WORDS.text, (11, 12)), 50, published={0: [5, 600, 11, 12]}),
        followed("thinks", Grammar(WORDS.kind, WORDS.text, (11, 12)), 60),
    ]


@pytest.mark.full(but="every value")
@pytest.mark.parametrize("right", [0.0, 0.5, 1.0, None])
@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_no_token_tells_of_drafts(device: type[FakeRunner], right: float | None) -> None:
    requests = mixed()
    plain = drive(*requests, proposer=None, device=device)
    for most in (1, 3, 8):
        driver = drive(*requests, proposer=book(*requests, right=right), most=most, device=device)
        check(driver, *requests)
        assert (driver.tokens, driver.reasons) == (plain.tokens, plain.reasons)
        assert driver.scheduler.stats().accepted_tokens > 5


@pytest.mark.parametrize("policy", ["swap", "recompute"])
@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_preemption_and_swap_change_nothing(policy: str, device: type[FakeRunner]) -> None:
    requests = mixed()
    runner = {"num_host_blocks": 200 if policy == "swap" else 0}
    told = book(*requests, right=0.7)
    driver = drive(*requests, proposer=told, device=device, blocks=30, runner=runner, policy=PreemptionPolicy(policy))
    check(driver, *requests)
    assert driver.scheduler.stats().preemptions > 0


def test_steps_that_fail_leave_the_others_in_step() -> None:
    requests = [followed(str(i), DIGITS if i % 2 else PERSON, 90 * i) for i in range(12)]
    driver = drive(*requests, proposer=book(*requests, right=0.7), device=FailingRunner)
    going = [request for request in requests if request.id not in driver.failed]
    assert going
    check(driver, *going)


@settings(deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(
    drawn=st.lists(st.tuples(SCHEMAS, st.integers(1, 3)), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
    right=st.sampled_from([0.0, 0.6, 1.0, None]),
    most=st.integers(1, 9),
)
def test_any_schema_with_any_guesses(drawn: list[tuple[Any, int]], seed: int, right: float | None, most: int) -> None:
    requests = [
        followed(str(i), schema(value), 50 * i, n=n, seed=seed + i, max_tokens=120)
        for i, (value, n) in enumerate(drawn)
    ]
    check(drive(*requests, proposer=book(*requests, right=right), most=most, blocks=2000), *requests)


@given(cut=st.integers(0, 25), right=st.sampled_from([0.5, 1.0]))
@settings(deadline=None, max_examples=examples(15))
def test_a_takeover_amid_a_window_goes_on_as_if_nothing_had_happened(cut: int, right: float) -> None:
    tokens, reason = expected(followed("a", PERSON), 0)
    heir = followed("a", PERSON, published={0: tokens[: min(cut, len(tokens) - 1)]})
    told = AnswerBook({tuple(heir.prompt): [tokens]}, right)
    driver = drive(heir, proposer=told)
    assert driver.tokens["a", 0] == tokens
    assert driver.reasons["a", 0] == reason


# What must come


def test_what_a_grammar_forces_takes_no_steps_of_its_own() -> None:
    """Nothing is guessed but what must come, and all of that is right."""
    request = followed("a", Grammar("regex", '[0-9]{3}, "a rather long text that is always the same", [0-9]{3}'))
    plain = drive(request, proposer=None)
    driver = drive(request, proposer=AnswerBook({}), most=8)
    check(driver, request)
    stats = driver.scheduler.stats()
    assert stats.drafted_tokens == stats.accepted_tokens > 12
    assert stats.steps < 0.6 * plain.scheduler.stats().steps


def test_nothing_is_forced_where_the_grammar_is_yet_to_begin() -> None:
    request = followed("a", Grammar("regex", "always the same", (11, 12)), max_tokens=30)
    driver = drive(request, proposer=AnswerBook({}))
    assert STOPS.isdisjoint(driver.tokens["a", 0])
    assert driver.scheduler.stats().drafted_tokens == 0


def test_drafts_that_a_grammar_does_not_allow_are_not_computed() -> None:
    request = followed("a", DIGITS)
    wrong = AnswerBook({tuple(request.prompt): [[ids("x")[0]] * 60]})
    driver = drive(request, proposer=wrong)
    check(driver, request)
    assert text_of(driver.tokens["a", 0]).isdigit()


# Masks that cannot be had


class Troubled(NgramProposer):
    """Says what was said, right or wrong."""

    def begin(self, prompt: Sequence[int], output: Sequence[int], salt: bytes) -> Any:
        return AnswerBook({tuple(prompt): [TOKENS]}).begin(prompt, output, salt)


TOKENS = expected(followed("a", DIGITS), 0)[0]


def remembered_copies(monkeypatch: pytest.MonkeyPatch) -> list[Matcher]:
    """Copies of matchers that look ahead, as they are made."""
    copies, copy = list[Matcher](), Matcher.copy

    def remembered(self: Matcher) -> Matcher:
        copies.append(copy(self))
        return copies[-1]

    monkeypatch.setattr(Matcher, "copy", remembered)
    return copies


def timed(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> Driver:
    """The request that says `TOKENS`, run to its end with a clock for its masks."""
    request = followed("a", DIGITS)
    driver = Driver.create(300, 4, runner={"vocab_size": VOCAB}, speculation=speculate(Troubled(), 6))
    monkeypatch.setattr(driver.scheduler.mask_filler, "_clock", clock)
    driver.add(request, matchers_of(request))
    driver.run()
    return driver


def test_a_mask_behind_a_draft_that_cannot_be_had_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies that look ahead fail at every third mask; the masks of what was said do not."""
    copies, calls, fill = remembered_copies(monkeypatch), 0, Matcher.fill

    def failing(self: Matcher, row: Any) -> None:
        nonlocal calls
        calls += self in copies
        if self in copies and calls % 3 == 0:
            raise GrammarError("parser too complex")
        fill(self, row)

    monkeypatch.setattr(Matcher, "fill", failing)
    request = followed("a", DIGITS)
    driver = drive(request, proposer=Troubled(), most=6)
    assert driver.failed == {}
    assert driver.tokens["a", 0] == TOKENS
    assert calls > 9


def test_slow_masks_behind_drafts_are_no_reason_to_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now, copies, fill = 0.0, remembered_copies(monkeypatch), Matcher.fill

    def slow(self: Matcher, row: Any) -> None:
        nonlocal now
        now += 0.3 * (self in copies)
        fill(self, row)

    monkeypatch.setattr(Matcher, "fill", slow)
    driver = timed(monkeypatch, lambda: now)
    assert driver.failed == {}
    assert driver.tokens["a", 0] == TOKENS
    assert now > 1.0


def test_a_request_with_a_slow_mask_gets_no_drafts_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now, masks = 0.0, 0
    fill = Matcher.fill

    def slow_once(self: Matcher, row: Any) -> None:
        nonlocal now, masks
        masks += 1
        now += 0.3 * (masks == 1)
        fill(self, row)

    monkeypatch.setattr(Matcher, "fill", slow_once)
    driver = timed(monkeypatch, lambda: now)
    assert driver.tokens["a", 0] == TOKENS
    assert driver.scheduler.stats().drafted_tokens == 0
