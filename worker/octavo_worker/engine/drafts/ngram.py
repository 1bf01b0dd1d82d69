"""Drafts from the sequence's own text: what followed its last tokens before."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from octavo_worker.engine.drafts.gram_index import GramIndex


class NgramProposer:
    """Prompt lookup. Good where a text quotes: edits, code, JSON, and answers about a document.

    The last `least` to `most` tokens are looked up in prompt and output, the longest first; the draft is what followed
    them the last time. A sequence costs about 200 bytes a token, for `window` tokens of the
    prompt and as many of the output.
    """

    def __init__(self, *, least: int = 2, most: int = 4, window: int = 8192) -> None:
        self._least, self._most, self._window = least, most, window

    def begin(self, prompt: Sequence[int], output: Sequence[int], salt: bytes) -> NgramDrafter:
        """`salt` is of no account: only the sequence itself is looked at."""
        recent = text_before(prompt, output, self._window + self._most)
        return NgramDrafter(GramIndex(recent, least=self._least, most=self._most, window=self._window))


class NgramDrafter:
    __slots__ = ("_index",)

    def __init__(self, index: GramIndex) -> None:
        self._index = index

    def append(self, tokens: Sequence[int]) -> None:
        self._index.append(tokens)

    def propose(self, most: int) -> Sequence[int]:
        match = self._index.find() if most > 0 else None
        return self._index.after(match, most) if match is not None else ()

    def fork(self) -> NgramDrafter:
        return NgramDrafter(self._index.fork())

    def close(self) -> None:
        """Nothing outlives the sequence."""


def text_before(prompt: Sequence[int], output: Sequence[int], count: int) -> array[int]:
    """The last `count` tokens of a prompt and the output after it."""
    text = array("I", prompt[max(0, len(prompt) - max(0, count - len(output))) :])
    text.extend(output[max(0, len(output) - count) :])
    return text
