"""Tokens chosen from rows of logits that lie on several ranks, each of which has those of its tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.exchange.ranks import best_part, draw_part, sample_part
from octavo_kernels.sampling.adjust import Adjustment, adjust, pack
from octavo_worker.contract.step import SampleRow
from octavo_worker.ranks.group import Group
from octavo_worker.ranks.rank import Rank, vocabulary_of
from octavo_worker.runner.parallel.filters import floors
from octavo_worker.runner.sampler import Choice, Scores, adjustment_of, adjusts, sample, samples_of, score

MASK_BITS = 32


class SplitRows:
    """Chooses as `model.sampler` does from whole rows: a token's noise is a function of its id, so each rank finds its
    own best token, and the best of those is the row's. Every rank learns all tokens.

    Rows with log-probabilities or with candidates of a beam search are gathered: a sum over all logits of a row has the
    bits of one process only in its order.
    """

    def __init__(self, group: Group, vocab_size: int) -> None:
        self._group = group
        self.vocab_size = vocab_size
        self._ids = vocabulary_of(vocab_size, group.rank)
        self._most = len(vocabulary_of(vocab_size, Rank(0, group.rank.count)))

    def sample(self, logits: Tensor, rows: Sequence[SampleRow], allowed: Tensor | None = None) -> Choice:
        """As `sampler.sample`; `logits[B, n]` are those of this rank's tokens, masks those of all."""
        whole = [place for place, row in enumerate(rows) if _needs_sums(row)]
        split = [place for place, row in enumerate(rows) if not _needs_sums(row)]
        choice = Choice(torch.empty(len(rows), dtype=torch.int64))
        if whole:
            masks = None if allowed is None else allowed[whole]
            found = sample(self.gather(logits[whole]), [rows[place] for place in whole], allowed=masks)
            choice.tokens[whole] = found.tokens
            choice.scored, choice.scores = [whole[place] for place in found.scored], found.scores
            choice.beams, choice.candidates = [whole[place] for place in found.beams], found.candidates
        if split:
            masks = None if allowed is None else allowed[split]
            choice.tokens[split] = self._choose(logits[split].float(), [rows[place] for place in split], masks)
        return choice

    def choose(self, logits: Tensor, samples: Tensor, out: Tensor) -> None:
        """As `ops.sample` without filters, on a GPU."""
        best_part(self._group.gather(draw_part(logits, samples, self._ids.start)), out)

    def choose_filtered(self, logits: Tensor, samples: Tensor) -> Tensor:
        """As `ops.sample`, on a GPU: filters look at whole rows."""
        return ops.sample(self.gather(logits), samples)

    def score(self, logits: Tensor, tokens: Tensor, counts: Sequence[int]) -> Scores:
        """As `sampler.score`."""
        return score(self.gather(logits), tokens, counts)

    def gather(self, logits: Tensor) -> Tensor:
        """Whole rows."""
        mine = logits
        if len(self._ids) < self._most:
            mine = logits.new_full((len(logits), self._most), -torch.inf)
            mine[:, : len(self._ids)] = logits
        return self._group.gather(mine).permute(1, 0, 2).flatten(1)[:, : self.vocab_size]

    def _choose(self, logits: Tensor, rows: list[SampleRow], allowed: Tensor | None) -> Tensor:
        if any(map(adjusts, rows)):
            first = self._ids.start // MASK_BITS
            words = None if allowed is None else allowed[:, first : first + -(-len(self._ids) // MASK_BITS)]
            adjust(logits, torch.from_numpy(pack([self._own(adjustment_of(row)) for row in rows])), None, words)
        least = floors(logits, [row.params for row in rows], self.vocab_size, self._group)
        tokens, reached = sample_part(logits, samples_of(rows, self.vocab_size), self._ids.start, least)
        best = self._group.gather(torch.stack((reached.double(), tokens.double()))).numpy()
        ranks = best[:, 0].argmax(axis=0)  # the first of equals, which has the lower ids
        return torch.from_numpy(best[ranks, 1, np.arange(len(rows))]).long()

    def _own(self, asked: Adjustment) -> Adjustment:
        """The part of an adjustment that concerns this rank's tokens, which it counts from 0."""
        return Adjustment(
            bias={token - self._ids.start: bias for token, bias in asked.bias.items() if token in self._ids},
            prompt=self._counted(asked.prompt),
            output=self._counted(asked.output),
            repetition=asked.repetition,
            presence=asked.presence,
            frequency=asked.frequency,
            forbidden=self._counted(asked.forbidden),
            masked=asked.masked,
        )

    def _counted(self, tokens: Collection[int]) -> Sequence[int]:
        ids = np.fromiter(tokens, np.int64, len(tokens))
        own: list[int] = (ids[(ids >= self._ids.start) & (ids < self._ids.stop)] - self._ids.start).tolist()
        return own


def _needs_sums(row: SampleRow) -> bool:
    return bool(row.candidates) or row.params.logprobs is not None
