"""How far a sequence has come in its grammar."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLExecutor, LLMatcher
from numpy.typing import NDArray

from octavo.dialects.grammar.grammars import Grammar, GrammarError, refused
from octavo_worker.engine.grammar.vocabulary import Row, Rows, Vocabulary


class Matcher:
    """The state of a sequence: a pure function of the grammar and of the tokens taken. A worker that takes a sequence
    over gives its published tokens to `accept` and gets the masks, bit by bit, that the first one had.

    Before the grammar begins (`Grammar.after`), every token of the vocabulary may come but stop tokens. Errors of the
    library are `GrammarError`; the matcher is of no use after one. Not for two threads at a time. Of matchers of one
    grammar those with the same number of `automata` share them, and wait for each other.
    """

    def __init__(self, vocabulary: Vocabulary, grammar: Grammar, library: LLMatcher, automata: int = 0) -> None:
        self.automata = automata
        self._vocabulary = vocabulary
        self._grammar = grammar
        self._library = library
        self._before: list[int] = []  # the tokens up to the grammar's beginning
        self._begun = not grammar.after
        self._inside = 0  # tokens the library has taken
        self._closed = False  # the last token was a stop token, which the library has not seen

    @property
    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    @property
    def words(self) -> int:
        """The length of a mask."""
        return self._vocabulary.words

    @property
    def taken(self) -> int:
        """How many tokens it has accepted."""
        return len(self._before) + self._inside + self._closed

    @property
    def may_end(self) -> bool:
        """True if the text so far obeys the grammar: stop tokens are allowed exactly here."""
        return self._begun and (self._closed or self._library.is_accepting())

    @property
    def is_finished(self) -> bool:
        """True if nothing but a stop token may follow."""
        return self._closed or (self._begun and self._library.is_stopped())

    def accept(self, tokens: Sequence[int]) -> int:
        """Take tokens up to the first that may not come, and say how many. A refused token leaves no trace."""
        count = self._accept_before(tokens)
        if not self._begun or self._closed:
            return count
        end = next((i for i in range(count, len(tokens)) if self._is_apart(tokens[i])), len(tokens))
        count += self._consume(list(tokens[count:end]))
        if count == end < len(tokens) and tokens[end] in self._vocabulary.stop_ids and self.may_end:
            self._closed = True
            count += 1
        return count

    def take(self, token: int) -> bool:
        """`accept` of one token, as every step asks for it. Whether it may come."""
        if not self._is_inside or self._is_apart(token):
            return self.accept((token,)) == 1
        return self._consume([token]) == 1

    def valid_prefix(self, tokens: Sequence[int]) -> int:
        """How many of these tokens `accept` would take."""
        return self.copy().accept(tokens)

    def forced(self) -> Sequence[int]:
        """Tokens that must come next, because nothing else is allowed, as far as the library looks for them."""
        if not self._begun or self.is_finished:
            return ()
        return tuple(self._library.compute_ff_tokens())

    def fill(self, row: Row) -> None:
        """Write what may follow into a mask: int32, `Vocabulary.words` long, contiguous. It is never empty: a state
        that nothing can follow is an error. Raises ValueError for another row, `GrammarError` where nothing can
        follow."""
        if row.dtype != np.int32 or row.shape != (self._vocabulary.words,) or not row.flags.c_contiguous:
            raise ValueError(f"a mask is a contiguous row of {self._vocabulary.words} int32: {row.shape} {row.dtype}")
        if self._is_inside:
            self._library.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._complete(row)

    @property
    def _is_inside(self) -> bool:
        """True if the library says what may follow."""
        return self._begun and not self._closed

    def _complete(self, row: Row) -> None:
        """Make a mask of what the library has written, if it was asked."""
        if not self._begun:
            row[:] = self._vocabulary.unconstrained
        elif self._closed:
            row[:] = self._vocabulary.stops
        else:
            self._check()
            if not self._library.is_accepting():
                row &= self._vocabulary.texts  # the library allows a stop token that has a text wherever that may come
            if not row.any():
                raise GrammarError(f"no token can follow the {self.taken} tokens so far")

    def mask(self) -> Row:
        """`fill` into a new row."""
        row = np.zeros(self._vocabulary.words, np.int32)
        self.fill(row)
        return row

    def copy(self) -> Matcher:
        """An independent matcher in the same state, for a fork of the sequence."""
        twin = Matcher(self._vocabulary, self._grammar, self._library.deep_copy(), self.automata)
        twin._before, twin._begun = list(self._before), self._begun
        twin._inside, twin._closed = self._inside, self._closed
        return twin

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens. Raises ValueError for more than it took."""
        if not 0 <= count <= self.taken:
            raise ValueError(f"cannot take {count} tokens back: {self.taken} were accepted")
        if count and self._closed:
            self._closed = False
            count -= 1
        inside = min(count, self._inside)
        if inside:
            self._library.rollback(inside)
            self._check()
            self._inside -= inside
        if count > inside:
            del self._before[len(self._before) - (count - inside) :]
            self._begun = False

    def _accept_before(self, tokens: Sequence[int]) -> int:
        after, count = list(self._grammar.after), 0
        while not self._begun and count < len(tokens) and self._vocabulary.is_free(tokens[count]):
            self._before.append(tokens[count])
            self._begun = self._before[-len(after) :] == after
            count += 1
        return count

    def _consume(self, tokens: list[int]) -> int:
        taken = self._library.try_consume_tokens(tokens) if tokens else 0
        self._check()
        self._inside += taken
        return taken

    def _is_apart(self, token: int) -> bool:
        """True if a token is not for the library: a stop token, or no token at all."""
        return token in self._vocabulary.stop_ids or not 0 <= token < self._vocabulary.rows

    def _check(self) -> None:
        if self._library.is_error():
            raise refused(self._grammar, self._library.get_error())


class Together:
    """Fills the masks of several matchers at a time, in so many threads of the library."""

    def __init__(self, threads: int) -> None:
        self._executor = LLExecutor(threads)

    def fill(self, matchers: Sequence[Matcher], places: Sequence[int], rows: Rows) -> list[GrammarError | None]:
        """`Matcher.fill` of each matcher into the row at its place in `rows[R, words]`, contiguous. Returns the
        errors. Raises ValueError for other rows."""
        words = matchers[0].words
        if rows.dtype != np.int32 or rows.shape[1:] != (words,) or not rows.flags.c_contiguous:
            raise ValueError(f"masks are contiguous rows of {words} int32: {rows.shape} {rows.dtype}")
        pairs = zip(matchers, places, strict=True)
        in_order = sorted(pairs, key=lambda pair: pair[0].automata)  # a thread takes neighbours: none waits for it
        if inside := [(matcher._library, place) for matcher, place in in_order if matcher._is_inside]:
            self._executor.unsafe_compute_mask_ptr(inside, rows.ctypes.data, rows.strides[0], len(rows))
        return _complete(matchers, np.array(places), rows)


def _complete(matchers: Sequence[Matcher], places: NDArray[np.int64], rows: Rows) -> list[GrammarError | None]:
    """`Matcher._complete` of all of them. What the library has written needs more than a look only where it is empty or
    has a stop token: numpy takes longer to begin than to look at all rows."""
    vocabulary = matchers[0].vocabulary
    stops = rows[places[:, None], vocabulary.stop_words] & vocabulary.stops[vocabulary.stop_words]
    is_plain = (np.bitwise_or.reduce(rows, axis=1)[places] != 0) & ~stops.any(axis=1)
    return [
        None if plain and matcher._is_inside and not matcher._library.is_error() else _error(matcher, rows[place])
        for matcher, place, plain in zip(matchers, places.tolist(), is_plain.tolist(), strict=True)
    ]


def _error(matcher: Matcher, row: Row) -> GrammarError | None:
    try:
        matcher._complete(row)
    except GrammarError as error:
        return error
    return None
