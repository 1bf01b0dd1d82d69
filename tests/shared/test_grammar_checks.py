"""Grammars are tried once where they are submitted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import psutil
import pytest
from waiting import STALL_S, until

from octavo.dialects.grammar.checks import GrammarChecks
from octavo.dialects.grammar.grammars import TOO_SLOW, Grammar, GrammarError, too_slow
from octavo.dialects.grammar.trials import NotWanted, Trials
from octavo.terms.errors import Busy, OctavoError

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


async def test_nothing_is_left_of_closed_ones() -> None:
    def left() -> tuple[int, int]:
        return len(psutil.Process().children()), sum(thread.name == "deep" for thread in threading.enumerate())

    before = left()
    checks = GrammarChecks()
    await checks.check(DIGITS)
    assert left() > before
    checks.close()
    await until(lambda: left() == before)


async def test_answers_are_remembered_and_the_oldest_forgotten() -> None:
    asked: list[str] = []

    def check(grammar: Grammar, **_: object) -> None:
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


async def test_what_a_busy_machine_could_not_tell_is_tried_again_and_a_slow_grammar_is_not() -> None:
    answers: list[OctavoError] = [Busy("no time was left"), too_slow(5)]

    def check(grammar: Grammar, **_: object) -> None:
        raise answers.pop(0)

    checks = GrammarChecks(check=check)
    with pytest.raises(Busy):
        await checks.check(DIGITS)
    for _ in range(2):
        assert (await refused(checks, DIGITS)).code == TOO_SLOW
    assert answers == []


async def test_many_who_ask_at_once_wait_for_one_trial() -> None:
    go_on, asked = threading.Event(), []

    def check(grammar: Grammar, **_: object) -> None:
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
    def check(grammar: Grammar, **_: object) -> None:
        raise RuntimeError("no process")

    await GrammarChecks(check=check).check(DIGITS)


class Slow:
    """A check that holds each grammar until it is let go, or not wanted any more."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.dropped: list[str] = []
        self.let_go: set[str] = set()

    def __call__(self, grammar: Grammar, *, is_wanted: Callable[[], bool]) -> None:
        self.began.append(grammar.text)
        while grammar.text not in self.let_go:
            if not is_wanted():
                self.dropped.append(grammar.text)
                raise NotWanted
            time.sleep(0.001)


async def asked(checks: GrammarChecks, tenant: str, *texts: str) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(checks.check(Grammar("regex", text), tenant=tenant)) for text in texts]
    await asyncio.sleep(0)
    return tasks


async def test_the_schemas_of_one_tenant_hold_up_no_other() -> None:
    slow = Slow()
    checks = GrammarChecks(check=slow)
    many = await asked(checks, "many", *(f"many{n}" for n in range(12)))
    await until(lambda: len(slow.began) == 2)
    (other,) = await asked(checks, "other", "other")
    await until(lambda: "other" in slow.began)
    assert len(slow.began) == 3
    slow.let_go.add("other")
    await other
    assert not any(task.done() for task in many)
    slow.let_go.update(f"many{n}" for n in range(12))
    await asyncio.gather(*many)
    assert slow.began[:2] == ["many0", "many1"]


async def test_one_grammar_of_two_tenants_waits_behind_neither() -> None:
    slow = Slow()
    checks = GrammarChecks(check=slow)
    many = await asked(checks, "many", "a", "b", "same")
    await until(lambda: len(slow.began) == 2)
    (other,) = await asked(checks, "other", "same")
    slow.let_go.add("same")
    await other
    slow.let_go.update(("a", "b"))
    await asyncio.gather(*many)


async def test_what_nobody_asks_for_any_more_ends_or_never_begins() -> None:
    slow = Slow()
    checks = GrammarChecks(check=slow)
    tasks = await asked(checks, "t", "a", "b", "c", "a")
    await until(lambda: len(slow.began) == 2)
    tasks[0].cancel()  # another one still asks for it
    tasks[1].cancel()
    tasks[2].cancel()
    await until(lambda: slow.dropped == ["b"])
    (again,) = await asked(checks, "t", "b")
    slow.let_go.update("ab")
    await asyncio.gather(tasks[3], again)
    assert slow.began == ["a", "b", "b"]


async def test_a_trial_that_nobody_asks_for_ends_its_process() -> None:
    trials = Trials()
    bomb = Grammar("json_schema", '{"type": "integer", "multipleOf": 9999991}')
    wanted = iter([True, True, False])
    with pytest.raises(NotWanted):
        trials.validate(bomb, limit_s=STALL_S, is_wanted=lambda: next(wanted))
    assert trials._idle == []
