"""The live hypotheses of one beam search, which advance together."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import TYPE_CHECKING

from octavo_worker.decoding.beam import BeamSearch, Candidate, Hypothesis
from octavo_worker.messages import BeamProgress

if TYPE_CHECKING:
    from octavo_worker.engine.sequence import Sequence


class BeamGroup:
    """Collects what the model says after each live hypothesis; the search chooses once all are in.

    `members` are the sequences of the live hypotheses, the best first. `num_results` sequences were asked for.
    """

    def __init__(self, search: BeamSearch, num_results: int) -> None:
        self.search = search
        self.members: list[Sequence] = []
        self._num_results = num_results
        self._candidates: dict[Sequence, List[Candidate]] = {}

    def offer(self, member: Sequence, candidates: List[Candidate]) -> bool:
        """Take a member's candidates. Whether those of all are in now."""
        if not self.members:
            self.members = [member]
        self._candidates[member] = candidates
        return len(self._candidates) == len(self.members)

    def withdraw(self) -> None:
        """The members lost their memory: whatever they offered they will offer again."""
        self._candidates.clear()

    def choose(self) -> list[tuple[Sequence, int]]:
        """The next live hypotheses, best first, as a member to continue and a token. None when the search is over."""
        members = self.members
        candidates = [self._candidates.pop(member) for member in members]
        choices = self.search.advance([member.output for member in members], candidates)
        return [(members[parent], token) for parent, token in choices]

    def progress(self, request_id: str) -> BeamProgress:
        """After `choose`, once the members have their new tokens."""
        score, tokens = self.search.best(self.members[0].output)
        return BeamProgress(request_id, list(tokens), score, self.search.num_finished)

    def results(self) -> list[Hypothesis]:
        return self.search.results(self._num_results)
