"""Drafts: tokens that are guessed, so that one step verifies several. Nothing calls this package yet."""

from octavo_worker.engine.drafts.acceptance import Acceptance, expected_tokens
from octavo_worker.engine.drafts.costs import RowTimes, StepCosts
from octavo_worker.engine.drafts.lengths import choose_lengths
from octavo_worker.engine.drafts.ngram import NgramProposer
from octavo_worker.engine.drafts.proposer import Drafter, Proposer
from octavo_worker.engine.drafts.suffix import SuffixProposer
from octavo_worker.engine.drafts.verification import count_accepted

__all__ = [
    "Acceptance",
    "Drafter",
    "NgramProposer",
    "Proposer",
    "RowTimes",
    "StepCosts",
    "SuffixProposer",
    "choose_lengths",
    "count_accepted",
    "expected_tokens",
]
