"""Sequences with grammars in the engine: whatever happens to a step, its masks are those of the tokens so far."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema
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
from tiers import examples

from octavo.dialects.grammar.grammars import Grammar, GrammarError
from octavo_worker.contract.messages import AddRequest, BeamOptions
from octavo_worker.engine.grammar import Matcher
from octavo_worker.memory.cost import PreemptionPolicy

UNHURRIED = settings(deadline=None, max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])


@contextmanager
def driven(usable_blocks: int = 200, device: type[FakeRunner] = DelayedRunner, **options: Any) -> Iterator[Driver]:
    runner = {"vocab_size": VOCAB, **options.pop("runner", {})}
    driver = Driver.create(usable_blocks + 1, 4, device=device, runner=runner, **options)
    try:
        yield driver
    finally:
        driver.runner.close()


def add(driver: Driver, *requests: AddRequest) -> None:
    for request in requests:
        driver.add(request, None if request.grammar is None else matchers_of(request))


def check(driver: Driver, *requests: AddRequest) -> None:
    for request in requests:
        assert request.id not in driver.failed, driver.failed[request.id]
        for sequence in request.sequences:
            found = driver.tokens[request.id, sequence.index]
            if request.grammar is None:
                assert found == expected_tokens(request, sequence.index, vocab_size=VOCAB)
            else:
                wanted, reason = expected(request, sequence.index)
                assert found == wanted
                assert driver.reasons[request.id, sequence.index] == reason


@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_the_texts_obey_their_grammars_and_neighbours_are_as_ever(device: type[FakeRunner]) -> None:
    requests = [
        followed("person", PERSON),
        make_request("free", prompt(9, 100), max_tokens=40),
        followed("digits", DIGITS, 200),
        followed("words", WORDS, 300, n=4),
    ]
    with driven(device=device) as driver:
        add(driver, *requests)
        driver.run()
        check(driver, *requests)
        jsonschema.validate(json.loads(text_of(driver.tokens["person", 0])), json.loads(PERSON.text))
        assert {text_of(driver.tokens["words", index]) for index in range(4)} <= set(json.loads(WORDS.text))
        assert len(text_of(driver.tokens["digits", 0])) == 30


def test_they_run_ahead_like_any_other() -> None:
    with driven() as driver:
        add(driver, *(followed(str(i), DIGITS, 100 * i) for i in range(3)))
        driver.run()
        runner = driver.runner
        assert isinstance(runner, DelayedRunner)
        assert runner.launched_ahead == runner.plans - 1


@UNHURRIED
@given(
    st.lists(st.tuples(SCHEMAS, st.integers(1, 3), st.booleans()), min_size=1, max_size=6),
    st.integers(0, 2**32),
    st.sampled_from([1, 2]),
)
def test_every_finished_output_validates(drawn: list[tuple[Any, int, bool]], seed: int, threads: int) -> None:
    requests = [
        followed(str(i), schema(value), 50 * i, n=n, seed=seed + i, max_tokens=300)
        if constrained
        else make_request(str(i), prompt(7, 50 * i), n=n, seed=seed + i, max_tokens=30)
        for i, (value, n, constrained) in enumerate(drawn)
    ]
    with driven(usable_blocks=2000, mask_threads=threads) as driver:
        add(driver, *requests)
        driver.run()
        check(driver, *requests)
        for request, (value, n, constrained) in zip(requests, drawn, strict=True):
            for index in range(n if constrained else 0):
                if driver.reasons[request.id, index] != "length":
                    text = text_of(driver.tokens[request.id, index])
                    jsonschema.validate(json.loads(text), value)


@UNHURRIED
@given(SCHEMAS, st.integers(0, 2**32), st.data())
def test_a_takeover_after_any_token_goes_on_as_if_nothing_had_happened(
    value: Any, seed: int, data: st.DataObject
) -> None:
    whole = followed("a", schema(value), seed=seed, max_tokens=200)
    tokens, reason = expected(whole, 0)
    cut = data.draw(st.integers(0, len(tokens) - 1))
    heir = followed("a", schema(value), seed=seed, max_tokens=200, published={0: tokens[:cut]})
    with driven() as driver:
        add(driver, heir)
        driver.run()
        assert driver.tokens["a", 0] == tokens
        assert driver.reasons["a", 0] == reason


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("device", [FakeRunner, DelayedRunner])
def test_preemption_and_swap_change_nothing(preemption: str, device: type[FakeRunner]) -> None:
    requests = [followed(str(i), DIGITS if i % 2 else PERSON, 90 * i, n=1 + i % 3) for i in range(8)]
    requests += [make_request(f"free{i}", prompt(9, 90 * i + 7), max_tokens=30) for i in range(4)]
    options = {"runner": {"num_host_blocks": 200 if preemption == "swap" else 0}}
    with driven(22, device, policy=PreemptionPolicy(preemption), **options) as driver:
        add(driver, *requests)
        driver.run()
        assert driver.scheduler.stats().preemptions > 0
        if preemption == "swap":
            assert driver.scheduler.stats().swapped_out > 0
        check(driver, *requests)


def test_steps_that_fail_leave_the_others_in_step() -> None:
    requests = [followed(str(i), DIGITS if i % 2 else PERSON, 90 * i) for i in range(12)]
    with driven(device=FailingRunner) as driver:
        add(driver, *requests)
        driver.run()
        runner = driver.runner
        assert isinstance(runner, FailingRunner)
        assert runner.failures_with_one_behind > 0
        going = [request for request in requests if request.id not in driver.failed]
        assert going
        check(driver, *going)


def test_an_abort_amid_a_step_leaves_the_others_in_step() -> None:
    requests = [followed(str(i), DIGITS, 90 * i, n=2) for i in range(4)]
    with driven() as driver:
        add(driver, *requests)
        for _ in range(7):
            driver.step()
        driver.scheduler.abort("1")
        driver.scheduler.abort("2", 0)
        driver.run()
        check(driver, requests[0], requests[3])
        assert driver.tokens["2", 1] == expected(requests[2], 1)[0]
        assert ("2", 0) not in driver.reasons


def test_a_prompt_in_chunks_is_chosen_at_its_end() -> None:
    requests = [followed("a", PERSON, length=70, n=3), followed("b", DIGITS, 400, length=45)]
    with driven(token_budget=16) as driver:
        add(driver, *requests)
        driver.run()
        check(driver, *requests)


# With other rules


def ends_with(driver: Driver, request: AddRequest) -> tuple[str, str]:
    add(driver, request)
    driver.run()
    check(driver, request)
    return text_of(driver.tokens[request.id, 0]), driver.reasons[request.id, 0]


def test_max_tokens_cuts_and_says_so() -> None:
    with driven() as driver:
        text, reason = ends_with(driver, followed("a", DIGITS, max_tokens=5))
        assert reason == "length"
        assert text.isdigit()


def test_the_last_token_that_is_allowed_may_complete_the_text() -> None:
    tokens, _ = expected(followed("a", WORDS), 0)
    with driven() as driver:
        text, reason = ends_with(driver, followed("a", WORDS, max_tokens=len(tokens)))
        assert text in json.loads(WORDS.text)
        assert reason == "complete"


@pytest.mark.parametrize("grammar", [Grammar("regex", "a{1,40}"), WORDS, PERSON], ids=lambda grammar: grammar.kind)
def test_min_tokens_hold_as_long_as_the_grammar_allows_more(grammar: Grammar) -> None:
    with driven() as driver:
        request = followed("a", grammar, min_tokens=25)
        text, reason = ends_with(driver, request)
        if grammar.kind == "regex":
            assert len(driver.tokens["a", 0]) > 25 or text == "a" * 40
        assert reason in ("stop", "complete")


def test_a_model_whose_end_is_ignored_goes_on_as_long_as_the_grammar_allows() -> None:
    for seed in range(6):
        with driven() as driver:
            text, reason = ends_with(
                driver, followed("a", Grammar("regex", "a{1,40}"), seed=seed, stop_token_ids=[], max_tokens=100)
            )
            assert (text, reason) == ("a" * 40, "complete")


def test_a_stop_token_ends_the_text_where_it_comes() -> None:
    nine = ids("9")[0]
    with driven() as driver:
        text, reason = ends_with(driver, followed("a", DIGITS, stop_token_ids=[END, nine], min_tokens=3, seed=3))
        assert reason in ("stop", "complete")
        assert "9" not in text[:-1] or len(text) == 30


def test_a_grammar_after_a_thought_lets_the_thought_be() -> None:
    thought = (11, 12)
    published = [5, 600, 11, 12]
    request = followed("a", Grammar(WORDS.kind, WORDS.text, thought), published={0: published})
    with driven() as driver:
        add(driver, request)
        driver.run()
        assert text_of(driver.tokens["a", 0][4:]) in json.loads(WORDS.text)
    endless = followed("b", Grammar(WORDS.kind, WORDS.text, thought), max_tokens=50)
    with driven() as driver:
        _, reason = ends_with(driver, endless)
        assert reason == "length"
        assert STOPS.isdisjoint(driver.tokens["b", 0])


# Beams


@pytest.mark.full(but="every pair")
@pytest.mark.parametrize("grammar", [PERSON, DIGITS, Grammar("choice", '["yes", "no", "maybe", "perhaps"]')], ids=str)
@pytest.mark.parametrize("width", [1, 3, 6])
@pytest.mark.parametrize("min_tokens", [0, 40])
def test_beams_are_those_of_a_search_among_what_is_allowed(grammar: Grammar, width: int, min_tokens: int) -> None:
    request = followed("a", grammar, n=min(width, 2), beam=BeamOptions(width), min_tokens=min_tokens)
    with driven() as driver:
        add(driver, request, followed("b", DIGITS, 500))
        driver.run()
        check(driver, followed("b", DIGITS, 500))
        found = [driver.tokens["a", index] for index in range(min(width, 2))]
        assert found == expected_beams(request)


def test_beams_that_are_preempted_search_on() -> None:
    requests = [followed(str(i), DIGITS, 90 * i, n=2, beam=BeamOptions(3)) for i in range(4)]
    with driven(34) as driver:
        add(driver, *requests)
        driver.run()
        assert driver.scheduler.stats().preemptions > 0
        for request in requests:
            assert [driver.tokens[request.id, index] for index in range(2)] == expected_beams(request)


def test_a_search_among_too_few_texts_says_so() -> None:
    with driven() as driver:
        add(driver, followed("a", Grammar("choice", '["a", "b"]'), n=4, beam=BeamOptions(4)))
        driver.run()
        failed = driver.failed["a"]
        assert (failed.code, failed.param) == ("invalid_request", "n")
        assert "ask for fewer than 4" in failed.message


# Grammars that cannot be followed


def matcher_of(driver: Driver, id: str) -> Matcher:
    request = driver.scheduler._requests.find(id)
    assert request is not None
    sequence = next(iter(request.sequences.values()))
    assert sequence.matcher is not None
    return sequence.matcher


def test_masks_that_take_too_long_cost_their_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [followed("slow", DIGITS), followed("quick", DIGITS, 300)]
    with driven() as driver:
        add(driver, *requests)
        now = 0.0

        def clock() -> float:
            return now

        monkeypatch.setattr(driver.scheduler.mask_filler, "_clock", clock)
        slow = matcher_of(driver, "slow")
        fill = slow.fill

        def take_long(row: Any) -> None:
            nonlocal now
            now += 0.3
            fill(row)

        monkeypatch.setattr(slow, "fill", take_long)
        driver.run()
        failed = driver.failed["slow"]
        assert (failed.code, failed.param) == ("grammar_too_slow", "grammar")
        assert len(driver.tokens["slow", 0]) == 1
        check(driver, requests[1])


def test_masks_that_take_too_long_together_are_computed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the one that is to blame is found, and a busy machine fails no request."""
    requests = [followed(name, DIGITS, 100 * at) for at, name in enumerate(("slow", "a", "b", "c", "late"))]
    with driven(mask_threads=2) as driver:
        *early, late = requests
        add(driver, *early)
        now = 0.0
        filler, slow = driver.scheduler.mask_filler, matcher_of(driver, "slow")
        fill, together, counts = slow.fill, filler._together.fill, []

        def clock() -> float:
            return now

        def take_long(row: Any) -> None:
            nonlocal now
            now += 0.3
            fill(row)

        def take_long_together(matchers: Any, places: Any, rows: Any) -> Any:
            nonlocal now
            now += 0.3 * (slow in matchers)
            counts.append(len(matchers))
            return together(matchers, places, rows)

        monkeypatch.setattr(filler, "_clock", clock)
        monkeypatch.setattr(filler, "_timer", clock)
        monkeypatch.setattr(slow, "fill", take_long)
        monkeypatch.setattr(filler._together, "fill", take_long_together)
        driver.step()
        add(driver, late)
        driver.run()
        assert counts == [4]
        assert driver.failed.keys() == {"slow"}
        assert driver.failed["slow"].code == "grammar_too_slow"
        assert len(driver.tokens["slow", 0]) == 2
        check(driver, *requests[1:])


@pytest.mark.parametrize("beams", [False, True])
@pytest.mark.parametrize("method", ["fill", "take"])
def test_a_grammar_that_runs_into_the_librarys_limits_costs_its_request_alone(
    monkeypatch: pytest.MonkeyPatch, method: str, beams: bool
) -> None:
    """At a mask or at a token: the grammar is at fault, not the engine."""
    requests = [followed("bad", DIGITS, beam=BeamOptions(2) if beams else None), followed("good", DIGITS, 300)]
    with driven() as driver:
        add(driver, *requests)
        driver.step()
        driver.step()

        def fail(*_: Any) -> None:
            raise GrammarError("parser too complex")

        monkeypatch.setattr(matcher_of(driver, "bad"), method, fail)
        driver.run()
        failed = driver.failed["bad"]
        assert (failed.code, failed.message, failed.param) == ("invalid_grammar", "parser too complex", "grammar")
        check(driver, requests[1])


def test_a_token_that_should_not_have_been_chosen_is_the_engines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with driven() as driver:
        add(driver, followed("bad", DIGITS))
        driver.step()
        driver.step()
        monkeypatch.setattr(matcher_of(driver, "bad"), "take", lambda token: False)
        driver.run()
        failed = driver.failed["bad"]
        assert (failed.code, failed.param) == ("step_failed", None)
