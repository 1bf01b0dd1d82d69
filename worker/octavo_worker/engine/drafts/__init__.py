"""Drafts: tokens that are guessed, so that one step verifies several.

How a step with drafts goes:

1. Each sequence has `Guesses`: a `Drafter` of the engine's one `Proposer`, and an `Acceptance`. It is told of tokens
   that are final when it is asked, and asked seldom where that was in vain: a token as such costs nothing. Final means
   committed, so drafts are planned only when no step is in flight, and the engine does not plan ahead while drafts are
   worth it (`engine/draft_planner.py`).
2. Once all else of a step is planned, `Guesses.propose` is asked for as many tokens as may follow before the sequence's
   last one, and `choose_lengths` says how many of them are verified. Drafts take free blocks only. They are cut where
   there are none, where a token ends its sequence, and by a grammar that does not allow them. What a grammar forces is
   proposed before anything else. A draft model's drafts are places only, which the runner fills in when it is given the
   step: it says which it guessed, perhaps none.
3. The step's tokens are the sequence's last one and the drafts, each with its sampled row. `count_accepted` compares.
   Accepted tokens and the one after them are taken as if steps had given them one by one: stop rules may end the
   sequence at any of them, and what comes after that is dropped.
4. The rest is taken back from the block table (`KVCacheManager.rewind`), and `Acceptance` learns what came of it. A
   drafter need not be told: it never saw its drafts.

Nothing of this is stored or published. A worker that takes a sequence over begins a drafter with what it said so far,
or does without one.
"""

from octavo_worker.engine.drafts.acceptance import Acceptance, expected_tokens
from octavo_worker.engine.drafts.costs import RowTimes, StepCosts
from octavo_worker.engine.drafts.guesses import Guesses
from octavo_worker.engine.drafts.lengths import choose_lengths, expected_speedup
from octavo_worker.engine.drafts.model import ModelProposer
from octavo_worker.engine.drafts.ngram import NgramProposer
from octavo_worker.engine.drafts.proposer import Drafter, Proposer
from octavo_worker.engine.drafts.speculation import Speculation
from octavo_worker.engine.drafts.suffix import SuffixProposer
from octavo_worker.engine.drafts.verification import count_accepted

__all__ = [
    "Acceptance",
    "Drafter",
    "Guesses",
    "ModelProposer",
    "NgramProposer",
    "Proposer",
    "RowTimes",
    "Speculation",
    "StepCosts",
    "SuffixProposer",
    "choose_lengths",
    "count_accepted",
    "expected_speedup",
    "expected_tokens",
]
