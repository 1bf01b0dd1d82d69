"""Tokens that may not come although a grammar allows them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from octavo_worker.engine.grammar.vocabulary import Row, Rows


class Barred:
    """A few tokens that masks are to leave out: `bits[i]` of the word `words[i]` is one of them."""

    def __init__(self, tokens: Collection[int]) -> None:
        ids = np.array(sorted(tokens), np.int64)
        self.words = ids // 32
        self.bits = np.left_shift(1, ids % 32).astype(np.uint32).view(np.int32)

    def bar(self, row: Row) -> None:
        """Take them out of a mask. Where nothing else is left, the grammar wins: what is complete cannot be
        continued."""
        if (row[self.words] & self.bits).any():
            rest = row.copy()
            np.bitwise_and.at(rest, self.words, ~self.bits)
            if rest.any():
                row[:] = rest


NONE_BARRED = Barred(())


def bar_all(barred: Sequence[Barred], places: Sequence[int], rows: Rows) -> None:
    """`Barred.bar` for the rows at `places`, one for each of `barred`, of which most have none of the tokens."""
    words = np.concatenate([each.words for each in barred])
    bits = np.concatenate([each.bits for each in barred])
    owners = np.repeat(np.arange(len(barred)), [len(each.words) for each in barred])
    has = rows[np.array(places)[owners], words] & bits
    for owner in np.unique(owners[has != 0]).tolist():
        barred[owner].bar(rows[places[owner]])
