"""Requests wait for their grammars beside the loop; whatever becomes of them there, the others go on."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import pytest
from engine_driver import Driver, make_request, prompt
from followed import COMPILER, END, FOLDER, STOPS, VOCAB, expected, ids
from waiting import STALL_S, eventually

from octavo.dialects.grammar.grammars import Grammar, GrammarError, too_slow
from octavo.dialects.grammar.trials import NotWanted
from octavo.terms.errors import Busy, OctavoError
from octavo_worker.contract.channel import AgentChannel, EngineChannel
from octavo_worker.contract.messages import Abort, AddRequest, Shutdown, StepOutput
from octavo_worker.contract.options import ModelOptions
from octavo_worker.engine.grammar import Compiler, Preparation, Vocabulary
from octavo_worker.engine.grammar.preparation import PATIENCE_S
from octavo_worker.engine.loop import EngineLoop
from octavo_worker.engine.process import preparation_for

DIGITS = Grammar("regex", "[0-9]{12}")


def followed(id: str, grammar: Grammar = DIGITS, **options: object) -> AddRequest:
    request = make_request(id, prompt(9), **{"max_tokens": 40, "stop_token_ids": [END], **options})  # type: ignore[arg-type]
    request.grammar = grammar
    return request


class Gate:
    """A check of grammars that waits until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.held = ""
        self.error: OctavoError | None = None

    def __call__(self, grammar: Grammar, *, limit_s: float, is_wanted: Callable[[], bool]) -> None:
        while self.held in grammar.text and not self.opened.wait(0.001):
            if not is_wanted():
                raise NotWanted
        if self.error is not None:
            raise self.error


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def preparation(gate: Gate) -> Preparation:
    return Preparation(Compiler(COMPILER.vocabulary, limit_s=600, check=gate), clock=lambda: 100.0)


def ready(preparation: Preparation) -> dict[str, AddRequest]:
    """All that waits, once it is ready."""
    found: dict[str, AddRequest] = {}

    def take() -> bool:
        done, failed = preparation.take()
        assert not failed, failed
        for message, matchers in done:
            assert len(matchers) == len(message.sequences)
            found[message.id] = message
        return len(preparation) == 0

    eventually(take)
    return found


def test_requests_come_out_when_their_grammar_is_there(preparation: Preparation, gate: Gate) -> None:
    for id in ("a", "b"):
        assert preparation.start(followed(id)) is None
    assert preparation.take() == ([], [])
    assert len(preparation) == 2
    gate.opened.set()
    assert list(ready(preparation)) == ["a", "b"]


def test_an_aborted_request_never_comes_out(preparation: Preparation, gate: Gate) -> None:
    preparation.start(followed("a"))
    preparation.start(followed("b", n=3))
    assert preparation.drop("a")
    assert not preparation.drop("a")
    assert preparation.drop("b", 1)
    gate.opened.set()
    assert [sequence.index for sequence in ready(preparation)["b"].sequences] == [0, 2]
    preparation.start(followed("c", n=2))
    assert preparation.drop("c", 0)
    assert preparation.drop("c", 1)
    assert len(preparation) == 0


def test_a_deadline_does_not_wait_for_the_compiler(preparation: Preparation) -> None:
    preparation.start(followed("late", deadline=99.0))
    preparation.start(followed("in time", deadline=101.0))
    done, failed = preparation.take()
    assert done == []
    assert [(failure.id, failure.code) for failure in failed] == [("late", "deadline")]
    assert len(preparation) == 1


@pytest.mark.parametrize(
    ("error", "code", "param"),
    [
        (GrammarError("wrong"), "invalid_grammar", "grammar"),
        (too_slow(5), "grammar_too_slow", "grammar"),
        (Busy("no time was left"), "busy", None),
    ],
)
def test_what_cannot_be_compiled_is_refused(
    preparation: Preparation, gate: Gate, error: OctavoError, code: str, param: str | None
) -> None:
    gate.error = error
    preparation.start(followed("a"))
    gate.opened.set()
    failures = eventually(lambda: preparation.take()[1])
    assert [(f.id, f.code, f.message, f.param) for f in failures] == [("a", code, error.message, param)]


def test_a_request_that_was_begun_is_not_tried_again(preparation: Preparation, gate: Gate) -> None:
    gate.error = too_slow(5)
    preparation.start(followed("a", published={0: ids("12")}))
    assert list(ready(preparation)) == ["a"], "and its check was never opened"


def test_a_request_that_gets_no_turn_is_better_off_elsewhere(gate: Gate) -> None:
    now = [0.0]
    compiler = Compiler(COMPILER.vocabulary, limit_s=600, check=gate, threads=1)
    preparation = Preparation(compiler, clock=lambda: 100.0, timer=lambda: now[0])
    preparation.start(followed("begun", Grammar("regex", "[0-9]{3}")))
    eventually(lambda: preparation._waiting["begun"].compilation.has_begun)
    preparation.start(followed("waits"))
    now[0] = PATIENCE_S - 1
    assert preparation.take() == ([], [])
    now[0] = PATIENCE_S
    (failure,) = preparation.take()[1]
    assert (failure.id, failure.code) == ("waits", "busy")
    gate.opened.set()
    assert list(ready(preparation)) == ["begun"]


def test_tenants_wait_for_none_but_their_own(preparation: Preparation, gate: Gate) -> None:
    """The check is a gate for the grammars of one tenant; what was aborted frees its thread."""
    gate.held = "[a-z]"
    for n in range(12):
        request = followed(f"many{n}", Grammar("regex", f"[a-z]{{{n}}}[0-9]"))
        request.salt = b"many"
        preparation.start(request)
    preparation.start(followed("other"))
    done = eventually(lambda: preparation.take()[0])
    assert [message.id for message, _ in done] == ["other"]
    for n in range(12):
        assert preparation.drop(f"many{n}")
    late = followed("late", Grammar("regex", "[0-9]{4}"))
    late.salt = b"many"
    preparation.start(late)
    assert list(ready(preparation)) == ["late"]


def test_what_is_malformed_at_first_sight_is_refused_at_once(preparation: Preparation) -> None:
    refused = preparation.start(followed("a", Grammar("choice", "[]")))
    assert refused is not None
    assert (refused.code, refused.param) == ("invalid_grammar", "grammar")
    assert len(preparation) == 0


def test_published_tokens_are_replayed_and_others_refused(preparation: Preparation, gate: Gate) -> None:
    gate.opened.set()
    good, bad = ids("123"), ids("12x")
    preparation.start(followed("good", published={0: good, 1: []}))
    (((_, matchers),), _) = eventually(lambda: (found := preparation.take())[0] and found)
    assert [matcher.taken for matcher in matchers] == [len(good), 0]
    preparation.start(followed("bad", published={0: bad}))
    (failure,) = eventually(lambda: preparation.take()[1])
    assert failure.code == "invalid_grammar"
    assert "does not allow published token 2" in failure.message


def test_a_model_without_a_tokenizer_follows_none() -> None:
    preparation = preparation_for(Driver.create(11).runner, ModelOptions(model="fake:"))
    assert preparation.library == ""
    refused = preparation.start(followed("a"))
    assert refused is not None
    assert refused.code == "no_grammar"


def test_the_bundled_model_follows_grammars() -> None:
    driver = Driver.create(11, runner={"vocab_size": VOCAB})
    assert preparation_for(driver.runner, ModelOptions(model="demo")).library.startswith("llguidance ")
    assert Vocabulary.of_folder(FOLDER, rows=VOCAB, stop_ids=STOPS).stop_ids == STOPS


async def test_the_loop_goes_on_with_others_while_a_grammar_is_compiled(preparation: Preparation, gate: Gate) -> None:
    driver = Driver.create(201, 4, runner={"vocab_size": VOCAB})
    ours, theirs = socket.socketpair()
    loop = EngineLoop(EngineChannel(theirs), driver.runner, driver.scheduler, preparation=preparation)
    serving = asyncio.create_task(asyncio.to_thread(loop.run))
    with theirs:
        channel = await AgentChannel.open(ours)
        tokens: dict[str, list[int]] = {}

        async def collect(id: str, count: int) -> None:
            while len(tokens.get(id, [])) < count:
                message = await asyncio.wait_for(channel.receive(), STALL_S)
                for output in message.tokens if isinstance(message, StepOutput) else ():
                    tokens.setdefault(output.id, []).append(output.token)

        bound = followed("bound", seed=3)
        for message in (bound, followed("dropped"), make_request("free", prompt(5), max_tokens=6), Abort("dropped")):
            channel.send_soon(message)
        await collect("free", 6)
        assert set(tokens) == {"free"}
        gate.opened.set()
        wanted, _ = expected(bound, 0)
        await collect("bound", len(wanted))
        assert tokens["bound"] == wanted
        assert "dropped" not in tokens
        await channel.send(Shutdown())
        await serving
        channel.close()
