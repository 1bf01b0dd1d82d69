"""Requests that wait for their grammar: compiled beside the engine's loop, which goes on with the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.metadata import version

from octavo.dialects.grammar.grammars import TOO_SLOW, Busy, GrammarError
from octavo_worker.contract.messages import AddRequest, FailureCode, RequestFailed
from octavo_worker.engine.grammar.compiler import Compilation, Compiler
from octavo_worker.engine.grammar.matcher import Matcher

PARAM = "grammar"  # the field of a job that all refusals are about
PATIENCE_S = 60.0
"""Seconds after which a request whose grammar has not had its turn is better off elsewhere."""


@dataclass(slots=True)
class _Waiting:
    message: AddRequest
    compilation: Compilation
    since: float
    replay: Future[list[Matcher]] | None = None
    dropped: set[int] = field(default_factory=set)  # indices of sequences

    def remaining(self, matchers: list[Matcher]) -> tuple[AddRequest, list[Matcher]]:
        pairs = zip(self.message.sequences, matchers, strict=True)
        kept = [(sequence, matcher) for sequence, matcher in pairs if sequence.index not in self.dropped]
        self.message.sequences = [sequence for sequence, _ in kept]
        return self.message, [matcher for _, matcher in kept]


class Preparation:
    """Requests come in by `start`; `take` gives those whose matchers are ready, each with a matcher for each of its
    `sequences`, which has taken the tokens that were published.

    Both are quick: grammars are compiled, and published tokens replayed, by the compiler's threads, where tenants take
    turns. `compiler` is None where no grammar can be followed, for the `reason`. `library` is what follows them, empty
    if nothing does. `clock` tells seconds since the epoch, `timer` seconds that never go back.
    """

    def __init__(
        self,
        compiler: Compiler | None,
        *,
        reason: str = "",
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compiler = compiler
        self._reason = reason
        self.library = "" if compiler is None else f"llguidance {version('llguidance')}"
        self._clock, self._timer = clock, timer
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def start(self, message: AddRequest) -> RequestFailed | None:
        """Take in a request with a grammar, or say why it is refused."""
        assert message.grammar is not None
        if self._compiler is None:
            return RequestFailed(message.id, "no_grammar", self._reason, PARAM)
        is_tried = any(sequence.tokens for sequence in message.sequences)
        try:
            compilation = self._compiler.start(message.grammar, message.salt, is_tried=is_tried)
        except GrammarError as error:
            return _failure(message, error)
        self._waiting[message.id] = _Waiting(message, compilation, self._timer())
        return None

    def drop(self, request_id: str, index: int | None = None) -> bool:
        """Forget a request, or one of its sequences. Whether it waited here."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return False
        waiting.dropped |= {sequence.index for sequence in waiting.message.sequences if index in (None, sequence.index)}
        if len(waiting.dropped) == len(waiting.message.sequences):
            del self._waiting[request_id]
            self._give_up(waiting)
        return True

    def _give_up(self, waiting: _Waiting) -> None:
        waiting.compilation.drop()
        if waiting.replay is not None:
            waiting.replay.cancel()

    def take(self) -> tuple[list[tuple[AddRequest, list[Matcher]]], list[RequestFailed]]:
        """The requests that are ready, and those that never will be, in the order in which they came."""
        ready, failed = [], []
        for waiting in list(self._waiting.values()):
            try:
                matchers = self._matchers(waiting)
            except (GrammarError, Busy) as error:
                failed.append(_failure(waiting.message, error))
            else:
                if matchers is not None:
                    ready.append(waiting.remaining(matchers))
                elif (failure := self._lateness(waiting)) is not None:
                    failed.append(failure)
                    self._give_up(waiting)
        for request_id in [*(message.id for message, _ in ready), *(failure.id for failure in failed)]:
            del self._waiting[request_id]
        return ready, failed

    def _lateness(self, waiting: _Waiting) -> RequestFailed | None:
        """Why a request waits no longer."""
        message = waiting.message
        if message.deadline is not None and message.deadline < self._clock():
            return RequestFailed(message.id, "deadline", "the job's deadline passed before its grammar was compiled")
        if not waiting.compilation.has_begun and self._timer() - waiting.since >= PATIENCE_S:
            return RequestFailed(message.id, "busy", "other grammars hold all threads that compile")
        return None

    def _matchers(self, waiting: _Waiting) -> list[Matcher] | None:
        """None if they are not ready. Raises GrammarError."""
        outputs = [list(sequence.tokens) for sequence in waiting.message.sequences]
        if waiting.replay is None and waiting.compilation.done:
            first = waiting.compilation.matcher()
            if not any(outputs):
                return [first, *(first.copy() for _ in outputs[1:])]
            assert self._compiler is not None
            replay = lambda: [_replayed(first.copy(), tokens) for tokens in outputs]  # noqa: E731
            waiting.replay = self._compiler.submit(replay, waiting.message.salt)
        return waiting.replay.result() if waiting.replay is not None and waiting.replay.done() else None


def _replayed(matcher: Matcher, tokens: list[int]) -> Matcher:
    """Go on behind published tokens. Raises GrammarError where the grammar does not allow them."""
    if (taken := matcher.accept(tokens)) < len(tokens):
        raise GrammarError(
            f"the grammar does not allow published token {taken}: another version of its library wrote it"
        )
    return matcher


def _failure(message: AddRequest, error: GrammarError | Busy) -> RequestFailed:
    if isinstance(error, Busy):
        return RequestFailed(message.id, "busy", error.message)
    code: FailureCode = "grammar_too_slow" if error.code == TOO_SLOW else "invalid_grammar"
    return RequestFailed(message.id, code, error.message, PARAM)
