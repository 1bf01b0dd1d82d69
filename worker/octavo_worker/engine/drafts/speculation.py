"""How an engine speculates."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_worker.engine.drafts.costs import StepCosts
from octavo_worker.engine.drafts.proposer import Proposer


@dataclass(frozen=True, slots=True)
class Speculation:
    """A proposer, what steps cost, and the bounds: `most` drafts of a sequence in a step, `most_samples` samples of
    all sequences (None: as many as a step has rows)."""

    proposer: Proposer
    costs: StepCosts
    most: int
    most_samples: int | None = None
