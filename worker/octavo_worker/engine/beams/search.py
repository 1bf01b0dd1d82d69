"""Beam search over log-probabilities: which hypotheses go on, which are finished, when nothing can improve.

The rules are those of transformers' `generate(num_beams=..., do_sample=False)`, so that its answers are ours. Nothing
here knows of memory: the engine maps the parents that `advance` names to block tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from octavo_worker.contract.messages import BeamOptions
from octavo_worker.engine.stop import StopRules

Candidate = tuple[int, float]  # (token, log-probability)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished beam. `score` is the sum of its log-probabilities over its length to the power of the length
    penalty."""

    score: float
    tokens: list[int]
    reason: str


class BeamSearch:
    """The search of one request. It begins with one live hypothesis, the prompt, and keeps up to `width` of them."""

    def __init__(self, options: BeamOptions, rules: StopRules) -> None:
        self.width = options.width
        self._length_penalty = options.length_penalty
        self._early_stopping = options.early_stopping
        self._rules = rules
        self._scores = [0.0]  # of the live hypotheses, best first
        self._finished: list[Hypothesis] = []  # best first, at most `width`

    @property
    def num_candidates(self) -> int:
        """How many of the most likely next tokens `advance` needs of each hypothesis.

        The best `width` that go on are among the best `width` of each, not counting tokens that end it.
        """
        return self.width + len(self._rules.stop_ids)

    def advance(
        self, outputs: Sequence[Sequence[int]], candidates: Sequence[Sequence[Candidate]]
    ) -> list[tuple[int, int]]:
        """Choose the next live hypotheses as (parent, token), best first; none when the search is over.

        `outputs[i]` are the tokens of the i-th live hypothesis, all of one length, `candidates[i]` its most likely next
        tokens.
        """
        count = len(outputs[0]) + 1
        ranked = self._rank(candidates)
        going = []
        for rank, (score, parent, token) in enumerate(ranked):
            reason = self._rules.finish_reason(token, count)
            if reason is None:
                going.append((score, parent, token))
            elif rank < self.width:  # what ends further down is dropped, as in transformers
                self._finish(score, [*outputs[parent], token], reason)
        best = list(islice(going, self.width))
        self._scores = [score for score, _, _ in best]
        return [(parent, token) for _, parent, token in best] if self._can_improve(count) else []

    def results(self, count: int) -> list[Hypothesis]:
        """The best `count` finished hypotheses, best first."""
        return self._finished[:count]

    def best(self, leader: Sequence[int]) -> tuple[float, Sequence[int]]:
        """The best hypothesis so far as (score, tokens), finished or live. `leader` are the tokens of the best live."""
        score = self._scores[0] / len(leader) ** self._length_penalty
        if self._finished and self._finished[0].score >= score:
            return self._finished[0].score, self._finished[0].tokens
        return score, leader

    @property
    def num_finished(self) -> int:
        return len(self._finished)

    def _rank(self, candidates: Sequence[Sequence[Candidate]]) -> list[tuple[float, int, int]]:
        """All continuations as (score, parent, token), best first; equals in the order of parent and token."""
        scored = [
            (base + logprob, parent, token)
            for parent, (base, tokens) in enumerate(zip(self._scores, candidates, strict=True))
            for token, logprob in tokens
        ]
        return sorted(scored, key=lambda item: (-item[0], item[1], item[2]))

    @property
    def _is_full(self) -> bool:
        return len(self._finished) == self.width

    def _finish(self, total: float, tokens: list[int], reason: str) -> None:
        hypothesis = Hypothesis(total / len(tokens) ** self._length_penalty, tokens, reason)
        self._finished = sorted([*self._finished, hypothesis], key=lambda h: -h.score)[: self.width]

    def _can_improve(self, count: int) -> bool:
        """True if a live hypothesis of `count` tokens could still end among the best."""
        if not self._scores:
            return False
        if not self._is_full:
            return True
        if self._early_stopping is True:
            return False
        longest = self._early_stopping == "never" and self._length_penalty > 0
        length = float(self._rules.limit if longest else count)
        best: float = self._scores[0] / length**self._length_penalty
        return best > self._finished[-1].score
