"""Proposers that know what will be said, or part of it, or nothing at all."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from octavo_worker.engine.drafts import Drafter, Proposer, RowTimes, Speculation, StepCosts

FREE = StepCosts(RowTimes([(1, 1.0)]), RowTimes([(4096, 1.0)]))
"""Costs by which any draft pays: a step takes as long whatever it computes."""
GARBAGE = (-1, 2**31, 2**40)


def speculate(proposer: Proposer, most: int = 4, costs: StepCosts = FREE, **options: int) -> Speculation:
    return Speculation(proposer, costs, most, **options)


class AnswerBook:
    """Knows all that can follow a prompt. Each token that it proposes is right with probability `right` if those before
    are; None: it proposes whatever comes into its head, also what is no token, and more than it is asked for. It counts
    what it began and what has ended."""

    def __init__(
        self, answers: Mapping[Sequence[int], Iterable[Sequence[int]]], right: float | None = 1.0, seed: int = 0
    ) -> None:
        self.answers = {tuple(prompt): [list(answer) for answer in said] for prompt, said in answers.items()}
        self.right = right
        self.rng = random.Random(seed)
        self.begun = self.closed = 0

    def begin(self, prompt: Sequence[int], output: Sequence[int], salt: bytes) -> BookDrafter:
        return BookDrafter(self, self.answers.get(tuple(prompt), []), list(output))


class BookDrafter:
    def __init__(self, book: AnswerBook, answers: list[list[int]], output: list[int]) -> None:
        self._book = book
        self._answers = answers
        self.output = output
        self.is_open = True
        book.begun += 1

    def append(self, tokens: Sequence[int]) -> None:
        assert self.is_open
        self.output += tokens

    def propose(self, most: int) -> Sequence[int]:
        assert self.is_open
        rng, right, said = self._book.rng, self._book.right, len(self.output)
        if right is None:
            return [rng.choice([*GARBAGE, rng.randrange(50)]) for _ in range(rng.randint(0, most + 2))]
        answer = next((a for a in self._answers if len(a) > said and a[:said] == self.output), [])
        return [token if rng.random() < right else token ^ 1 for token in answer[said : said + most]]

    def fork(self) -> Drafter:
        assert self.is_open
        return BookDrafter(self._book, self._answers, list(self.output))

    def close(self) -> None:
        assert self.is_open, "closed twice"
        self.is_open = False
        self._book.closed += 1
