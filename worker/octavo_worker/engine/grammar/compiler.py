"""Grammars made into matchers, beside the engine's own thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypeVar

from llguidance import LLMatcher

from octavo.dialects.grammar.cpu_clock import clock_of_this_thread
from octavo.dialects.grammar.deep_threads import DeepThreads
from octavo.dialects.grammar.grammars import (
    Busy,
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
    """A grammar's matcher in its first state, to be copied, and how many of `owner` ask for it while there is none.
    `is_tried`: it was compiled before, by another worker. `computed` tells the seconds that its thread has computed
    since it began with it. `further` are as the first, with automata of their own: `ordered` counts all, `copied` their
    copies."""

    owner: Hashable
    is_tried: bool
    askers: int = 0
    computed: Callable[[], float] | None = None
    compiled: Future[LLMatcher] = field(default_factory=Future)
    further: list[LLMatcher] = field(default_factory=list)
    seconds: float = 0.0
    ordered: int = 1
    copied: int = 0

    def is_over(self, limit_s: float) -> bool:
        """True if it is compiled, or took more than its limit."""
        if self.compiled.done() or self.is_tried or self.computed is None:
            return self.compiled.done()
        return self.computed() >= limit_s

    def serves(self, owner: Hashable, *, is_tried: bool) -> bool:
        """True if another request may wait for it: not in the turns of another owner, nor under a limit that does not
        hold for it, nor for what a busy machine could not tell."""
        if not self.compiled.done():
            return self.owner == owner and self.is_tried >= is_tried
        error = None if self.compiled.cancelled() else self.compiled.exception()
        return not self.compiled.cancelled() and not isinstance(error, Busy) and not (is_tried and error)


class Compilation:
    """A grammar that is being compiled, or has been."""

    def __init__(self, compiler: Compiler, grammar: Grammar, entry: _Entry) -> None:
        self._compiler = compiler
        self._grammar = grammar
        self._entry = entry

    @property
    def has_begun(self) -> bool:
        """True if one of the threads has."""
        return self._entry.compiled.running() or self._entry.compiled.done()

    @property
    def done(self) -> bool:
        """True if `matcher` answers at once."""
        return self._entry.is_over(self._compiler.limit_s)

    def drop(self) -> None:
        """It is not wanted any more: work that no other request waits for ends, or never begins."""
        self._entry.askers -= 1
        if not self._entry.askers:
            self._compiler.forget(self._entry)

    def matcher(self) -> Matcher:
        """A new matcher; waits until the grammar is compiled. `GrammarError` if it cannot be, or takes too much of a
        processor, Busy if this machine cannot tell."""
        while not self.done:
            wait([self._entry.compiled], _LOOK_S)
        if not self._entry.compiled.done():
            raise too_slow(self._compiler.limit_s)
        try:
            number, library = self._compiler.original(self._grammar, self._entry)
        except (GrammarError, Busy) as error:
            raise error.with_traceback(None) from None  # kept, and raised again for the next one with this grammar
        except BaseException as error:  # a panic of Rust code is none of Exception
            raise GrammarError(f"the compiler failed: {error!r}") from None
        return Matcher(self._compiler.vocabulary, self._grammar, library.deep_copy(), number)


class Compiler:
    """Compiles grammars for one vocabulary and keeps the last `capacity` of them, by the digest of kind and text.

    A grammar is refused when one of the `threads` has computed `limit_s` seconds for it, however long that took: a busy
    machine is no fault of a grammar. Owners take turns; what none waits for any more ends.
    `check` tries it first, in a process that can be ended. What explodes for this vocabulary only cannot: it holds one
    of the threads until the library is done with it, and is there for a later request then.

    Masks of one grammar can be computed in up to `automata` threads at a time: so many are made, one for every few
    matchers.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        limit_s: float = 5.0,
        capacity: int = 256,
        threads: int = 3,
        automata: int = 1,
        check: Callable[..., object] | None = None,
        clock: Callable[[], Callable[[], float]] = clock_of_this_thread,
    ) -> None:
        self.vocabulary = vocabulary
        self.limit_s = limit_s
        self._clock = clock
        self._check = check or Trials().validate
        self._capacity = capacity
        self._automata = automata
        self._threads = DeepThreads(threads)
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def __len__(self) -> int:
        """How many grammars it keeps."""
        return len(self._entries)

    def start(self, grammar: Grammar, owner: Hashable = "", *, is_tried: bool = False) -> Compilation:
        """Begin to compile, unless that was done before. `is_tried`: another worker has, so no limit holds. Raises
        GrammarError for what is malformed at first sight."""
        self._check_beginning(grammar.after)
        key = blake2b(f"{grammar.kind}\n{grammar.text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        entry = self._entries.get(key)
        if entry is None or not entry.serves(owner, is_tried=is_tried):
            text = source(grammar)
            entry = self._entries[key] = new = _Entry(owner, is_tried, askers=1)
            new.compiled = self._threads.submit(lambda: self._compile(grammar, text, new), owner)
        else:
            entry.askers += 1
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

    def forget(self, entry: _Entry) -> None:
        """Give up a grammar that is not compiled yet."""
        if not entry.compiled.done():
            entry.compiled.cancel()
            self._entries = OrderedDict((key, kept) for key, kept in self._entries.items() if kept is not entry)

    def submit(self, call: Callable[[], T], owner: Hashable = "") -> Future[T]:
        """Have one of the threads do something else that takes long."""
        return self._threads.submit(call, owner)

    def close(self) -> None:
        """Let the threads end. Does not wait."""
        self._threads.close()

    def _check_beginning(self, after: tuple[int, ...]) -> None:
        for token in after:
            if not self.vocabulary.is_free(token):
                raise GrammarError(f"a grammar cannot begin after token {token}: it ends sequences, or is no token")

    def _compile(self, grammar: Grammar, text: str, entry: _Entry) -> LLMatcher:
        if not entry.is_tried:
            self._check(grammar, limit_s=self.limit_s, is_wanted=lambda: entry.askers > 0)
        computed = self._clock()
        began = computed()
        entry.computed = lambda: computed() - began
        library = self._begin(grammar, text)
        entry.seconds = entry.computed()
        return library

    def _begin(self, grammar: Grammar, text: str) -> LLMatcher:
        """With its first mask, which is the dearest: the library builds its automata as they are needed, and copies
        share them. A grammar that nothing can begin is refused here."""
        library = LLMatcher(self.vocabulary.library, text, log_level=0, limits=library_limits())
        if library.is_error():
            raise refused(grammar, library.get_error())
        Matcher(self.vocabulary, Grammar(grammar.kind, grammar.text), library).mask()
        return library
