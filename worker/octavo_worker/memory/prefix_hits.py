"""The prefix that all kinds of memory have in common: keys and values, states, whatever else a model keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Reach = Callable[[int], int]
"""The longest prefix, of at most so many tokens, from whose end a sequence can go on, as far as one pool knows."""


def longest_hit(reaches: Sequence[Reach], most: int) -> int:
    """Tokens of the longest prefix of at most `most` tokens that all pools hold. The empty one always is held.

    A fixed point: what one pool has not shortens the question to the others. Each is asked again at most as often as
    there are prefixes that it holds and another does not.
    """
    end = most
    while True:
        asked = end
        for reach in reaches:
            end = reach(end)
        if end == asked:
            return end
