"""Grammars are tried once where they are submitted."""

from __future__ import annotations

import asyncio
import threading

import pytest
from waiting import STALL_S, until

from octavo.dialects.grammar.checks import GrammarChecks
from octavo.dialects.grammar.grammars import TOO_SLOW, Grammar, GrammarError, too_slow

DIGITS = Grammar("regex", "[0-9]+")


async def refused(checks: GrammarChecks, grammar: Grammar, field: str | None = None) -> GrammarError:
    with pytest.raises(GrammarError) as caught:
        await checks.check(grammar, field)
    return caught.value


async def test_the_real_trial_says_where() -> None:
    checks = GrammarChecks()
    await checks.check(None)
    await checks.check(DIGITS)
    error = await refused(checks, Grammar("json_schema", '{"properties": {"a": {"type": "strin"}}}'), "guided_json")
    assert (error.code, error.param) == ("invalid_grammar", "guided_json")
    assert "(at #/properties/a/type)" in error.message


async def test_answers_are_remembered_and_the_oldest_forgotten() -> None:
    asked: list[str] = []

    def check(grammar: Grammar) -> None:
        asked.append(grammar.text)
        if grammar.text == "bad":
            raise GrammarError("no")

    checks = GrammarChecks(capacity=2, check=check)
    for text in ("a", "bad", "a", "bad", "a"):
        grammar = Grammar("regex", text, (len(asked),))
        if text == "bad":
            assert (await refused(checks, grammar)).param == "grammar"
        else:
            await checks.check(grammar)
    assert asked == ["a", "bad"]
    await checks.check(Grammar("regex", "c"))
    await refused(checks, Grammar("regex", "bad"))
    await checks.check(Grammar("lark", "a"))
    assert asked == ["a", "bad", "c", "bad", "a"]


async def test_what_a_busy_machine_refused_is_tried_again() -> None:
    answers = [too_slow(5), None]

    def check(grammar: Grammar) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    checks = GrammarChecks(check=check)
    assert (await refused(checks, DIGITS)).code == TOO_SLOW
    await checks.check(DIGITS)
    await checks.check(DIGITS)
    assert answers == []


async def test_many_who_ask_at_once_wait_for_one_trial() -> None:
    go_on, asked = threading.Event(), []

    def check(grammar: Grammar) -> None:
        asked.append(grammar)
        assert go_on.wait(STALL_S)

    checks = GrammarChecks(check=check)
    waiting = [asyncio.create_task(checks.check(DIGITS)) for _ in range(5)]
    await until(lambda: bool(asked))
    waiting[0].cancel()  # its client is gone
    go_on.set()
    await asyncio.gather(*waiting[1:])
    assert len(asked) == 1


async def test_where_none_can_be_tried_the_worker_decides() -> None:
    def check(grammar: Grammar) -> None:
        raise RuntimeError("no process")

    await GrammarChecks(check=check).check(DIGITS)
