"""Grammars made into matchers, beside the engine's own thread."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeVar

from llguidance import LLMatcher

from octavo.dialects.grammar.deep_threads import DeepThreads
from octavo.dialects.grammar.grammars import (
    TOO_SLOW,
    Grammar,
    GrammarError,
    library_limits,
    refused,
    source,
    too_slow,
)
from octavo.dialects.grammar.trials import Trials
from octavo_worker.engine.grammar.matcher import Matcher
from octavo_worker.engine.grammar.vocabulary import Vocabulary

T = TypeVar("T")
_LOOK_S = 0.05  # at whether a thread has begun

SHARERS = 2
"""Matchers that share automata, and the lock around them: masks of those are computed one after the other."""
CHEAP_S = 0.05
"""A grammar whose automata take longer to begin has them once."""


@dataclass(slots=True)
class _Entry:
    """A grammar's matcher in its first state, to be copied; when one of the threads began with it, and until when one
    has to. `further` are as the first, with automata of their own: `ordered` counts all, `copied` their copies."""

    latest: float
    begun: float | None = None
    compiled: Future[LLMatcher] = field(default_factory=Future)
    further: list[LLMatcher] = field(default_factory=list)
    seconds: float = 0.0
    ordered: int = 1
    copied: int = 0

    def is_over(self, now: float, limit_s: float) -> bool:
        """True if it is compiled, or too late."""
        return self.compiled.done() or now >= (self.latest if self.begun is None else self.begun + limit_s)

    @property
    def was_late(self) -> bool:
        """A refusal to be tried again: other work on the machine may have been the reason."""
        error = self.compiled.exception() if self.compiled.done() else None
        return isinstance(error, GrammarError) and error.code == TOO_SLOW


class Compilation:
    """A grammar that is being compiled, or has been."""

    def __init__(self, compiler: Compiler, grammar: Grammar, entry: _Entry) -> None:
        self._compiler = compiler
        self._grammar = grammar
        self._entry = entry

    @property
    def done(self) -> bool:
        """True if `matcher` answers at once."""
        return self._entry.is_over(self._compiler.clock(), self._compiler.limit_s)

    def matcher(self) -> Matcher:
        """A new matcher; waits until the grammar is compiled. `GrammarError` if it cannot be, or not in time."""
        while not self.done:
            wait([self._entry.compiled], _LOOK_S)
        if not self._entry.compiled.done():
            raise too_slow(self._compiler.limit_s)
        try:
            number, library = self._compiler.original(self._grammar, self._entry)
        except GrammarError as error:
            raise error.with_traceback(None) from None  # kept, and raised again for the next one with this grammar
        except BaseException as error:  # a panic of Rust code is none of Exception
            raise GrammarError(f"the compiler failed: {error!r}") from None
        return Matcher(self._compiler.vocabulary, self._grammar, library.deep_copy(), number)


class Compiler:
    """Compiles grammars for one vocabulary and keeps the last `capacity` of them, by the digest of kind and text.

    A grammar is refused when it was not compiled `limit_s` seconds after one of the threads began with it, or when none
    did within `patience_s`.
    `check` tries it first, in a process that can be ended. What explodes for this vocabulary only cannot: it holds one
    of the `threads` until the library is done with it, and is there for a later request then.

    Masks of one grammar can be computed in up to `automata` threads at a time: so many are made, one for every few
    matchers.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        limit_s: float = 5.0,
        patience_s: float = 60.0,
        capacity: int = 256,
        threads: int = 2,
        automata: int = 1,
        check: Callable[..., object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.vocabulary = vocabulary
        self.limit_s = limit_s
        self._patience_s = patience_s
        self.clock = clock
        self._check = check or Trials().validate
        self._capacity = capacity
        self._automata = automata
        self._threads = DeepThreads(threads)
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def __len__(self) -> int:
        """How many grammars it keeps."""
        return len(self._entries)

    def start(self, grammar: Grammar) -> Compilation:
        """Begin to compile, unless that was done before. `GrammarError` for what is malformed at first sight."""
        self._check_beginning(grammar.after)
        key = blake2b(f"{grammar.kind}\n{grammar.text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        entry = self._entries.get(key)
        if entry is None or entry.was_late:
            text = source(grammar)
            entry = self._entries[key] = new = _Entry(self.clock() + self._patience_s)
            new.compiled = self._threads.submit(lambda: self._compile(grammar, text, new))
        self._entries.move_to_end(key)
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
        return Compilation(self, grammar, entry)

    def compile(self, grammar: Grammar) -> Matcher:
        """A matcher at the grammar's beginning; waits for it."""
        return self.start(grammar).matcher()

    def original(self, grammar: Grammar, entry: _Entry) -> tuple[int, LLMatcher]:
        """The original of which a compiled grammar's next matcher is a copy, and the number of its automata."""
        originals = [entry.compiled.result(), *entry.further]
        entry.copied += 1
        if entry.ordered < min(self._automata, entry.copied // SHARERS) and entry.seconds < CHEAP_S:
            entry.ordered += 1
            self._threads.submit(lambda: entry.further.append(self._begin(grammar, source(grammar))))
        number = entry.copied % len(originals)
        return number, originals[number]

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Have one of the threads do something else that takes long."""
        return self._threads.submit(call)

    def close(self) -> None:
        """Let the threads end. Does not wait."""
        self._threads.close()

    def _check_beginning(self, after: tuple[int, ...]) -> None:
        for token in after:
            if not self.vocabulary.is_free(token):
                raise GrammarError(f"a grammar cannot begin after token {token}: it ends sequences, or is no token")

    def _compile(self, grammar: Grammar, text: str, entry: _Entry) -> LLMatcher:
        entry.begun = self.clock()
        self._check(grammar, limit_s=self.limit_s)
        began = self.clock()
        library = self._begin(grammar, text)
        entry.seconds = self.clock() - began
        return library

    def _begin(self, grammar: Grammar, text: str) -> LLMatcher:
        """With its first mask, which is the dearest: the library builds its automata as they are needed, and copies
        share them. A grammar that nothing can begin is refused here."""
        library = LLMatcher(self.vocabulary.library, text, log_level=0, limits=library_limits())
        if library.is_error():
            raise refused(grammar, library.get_error())
        Matcher(self.vocabulary, Grammar(grammar.kind, grammar.text), library).mask()
        return library
