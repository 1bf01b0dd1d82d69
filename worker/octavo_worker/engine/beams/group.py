"""The live hypotheses of one beam search, which advance together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from octavo_worker.contract.messages import BeamProgress
from octavo_worker.engine.beams.search import BeamSearch, Candidate, Hypothesis


class Member(Protocol):
    """A live hypothesis: a sequence of the engine."""

    output: list[int]


M = TypeVar("M", bound=Member)


class BeamGroup(Generic[M]):
    """Collects the candidates that follow each live hypothesis; the search chooses once all have arrived.

    `members` are the sequences of the live hypotheses, the best first. `num_results` sequences were asked for. A
    grammar may leave fewer than the search is wide: `spare` are the indices that have no sequence then.
    """

    def __init__(self, search: BeamSearch, num_results: int) -> None:
        self.search = search
        self.members: list[M] = []
        self.num_results = num_results
        self.spare: list[int] = []
        self._candidates: dict[M, Sequence[Candidate]] = {}

    def offer(self, member: M, candidates: Sequence[Candidate]) -> bool:
        """Take a member's candidates. Whether those of all members have arrived now."""
        if not self.members:
            self.members = [member]
        self._candidates[member] = candidates
        return len(self._candidates) == len(self.members)

    def withdraw(self) -> None:
        """The members were preempted: they will compute their candidates again."""
        self._candidates.clear()

    def choose(self) -> list[tuple[M, int]]:
        """The next live hypotheses, best first, as a member to continue and a token; nothing when the search is over.
        Fewer than its width only if a grammar allows no more, or logits are not numbers."""
        members = self.members
        candidates = [self._candidates.pop(member) for member in members]
        choices = self.search.advance([member.output for member in members], candidates)
        return [(members[parent], token) for parent, token in choices]

    def progress(self, request_id: str) -> BeamProgress:
        """After `choose`, once the members have their new tokens."""
        score, tokens = self.search.best(self.members[0].output)
        return BeamProgress(request_id, list(tokens), score, self.search.num_finished)

    def results(self) -> list[Hypothesis]:
        return self.search.results(self.num_results)
