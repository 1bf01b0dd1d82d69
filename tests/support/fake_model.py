"""The fake model's tokens: hashes of everything before. And a step of it that chooses late."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from octavo_worker.contract.step import Done, Masks, StepError, StepResult


def next_token(history: Sequence[int], seed: int, index: int, vocab_size: int, forbidden: Collection[int] = ()) -> int:
    """The fake model's token after `history`."""
    digest = blake2b(repr((list(history), seed, index)).encode(), digest_size=8).digest()
    token = int.from_bytes(digest, "big") % vocab_size
    while token in forbidden:
        token = (token + 1) % vocab_size
    return token


def masked_out(words: NDArray[np.int32], vocab_size: int) -> set[int]:
    """The ids that a mask does not allow."""
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:vocab_size]
    return set(np.flatnonzero(bits == 0).tolist())


def candidates(
    history: Sequence[int], count: int, vocab_size: int, forbidden: Collection[int] = ()
) -> list[tuple[int, float]]:
    """The fake model's `count` most likely tokens after `history`, best first."""
    found: dict[int, float] = {}
    state, logprob = repr(list(history)).encode(), 0.0
    while len(found) < min(count, vocab_size - len(forbidden)):
        state = blake2b(state, digest_size=8).digest()
        token = int.from_bytes(state[:4], "big") % vocab_size
        if token not in found and token not in forbidden:
            logprob -= int.from_bytes(state[4:], "big") / 2**31
            found[token] = logprob
    return list(found.items())


def score(history: Sequence[int], target: int) -> float:
    """The fake log-probability of `target` after `history`."""
    digest = blake2b(repr((list(history), target)).encode(), digest_size=4).digest()
    return -int.from_bytes(digest, "big") / 2**32


class LateStep:
    """A step of `FakeRunner` that is computed when its masks are there."""

    def __init__(self, compute: Callable[[Masks], StepResult]) -> None:
        self._compute = compute
        self._done: Done | None = None

    def choose(self, masks: Masks) -> None:
        assert self._done is None, "a step chooses twice"
        try:
            self._done = Done(self._compute(masks))
        except StepError as error:
            self._done = Done(error)

    def result(self) -> StepResult:
        assert self._done is not None, "the result of a step that has not chosen"
        return self._done.result()
