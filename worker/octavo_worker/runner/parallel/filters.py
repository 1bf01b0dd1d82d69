"""Top-k, top-p and min-p of rows whose logits lie on several ranks: the least scaled logit that survives them.

The filters are defined on sets (`ops.sample`), so what they keep follows from the largest values of each rank and from
sums of integers: no rank needs the others' logits.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from octavo_kernels.exchange.ranks import masses
from octavo_worker.contract.messages import EngineSampling
from octavo_worker.ranks.group import Group

LEAST = float(np.finfo(np.float32).min)
"""Least logit of a token that can be chosen: minus infinity never is."""
FIRST_LISTED = 64
"""Largest values listed by each rank: enough for the top-p of nearly all rows."""
MORE = 8
"""So many times as many are listed where they were too few."""


def floors(logits: Tensor, params: list[EngineSampling], vocab_size: int, group: Group) -> Tensor:
    """The least logits that filters keep, float32 `[B]`, of rows of which this rank has `logits[B, n]`; the same on all
    ranks."""
    found = torch.full((len(params),), LEAST)
    rows = [place for place, p in enumerate(params) if _filters(p, vocab_size)]
    if rows:
        temperatures = torch.tensor([params[place].temperature for place in rows], dtype=torch.float32)
        scaled = logits[rows] / temperatures[:, None]
        scaled.masked_fill_(scaled.isnan(), -torch.inf)  # among numbers a NaN is passed over
        found[rows] = _Filters(scaled, [params[place] for place in rows], vocab_size, group).floors()
    return found


def _filters(p: EngineSampling, vocab_size: int) -> bool:
    return p.temperature > 0 and (0 < p.top_k < vocab_size or p.top_p < 1 or p.min_p > 0)


class _Filters:
    """Rows of scaled logits, some filter each."""

    def __init__(self, scaled: Tensor, params: list[EngineSampling], vocab_size: int, group: Group) -> None:
        self._scaled, self._params, self._group = scaled, params, group
        self._vocab_size = vocab_size
        self._tops = group.gather(scaled.amax(dim=1)).amax(dim=0)
        self._floors = torch.full((len(params),), LEAST)

    def floors(self) -> Tensor:
        self._top_k()
        self._top_p()
        for row, p in enumerate(self._params):
            if p.min_p > 0:
                least = np.float32(self._tops[row].item()) + np.float32(math.log(np.float32(p.min_p)))
                self._floors[row] = max(float(least), self._floors[row].item())
        return self._floors

    def _top_k(self) -> None:
        """The k largest of all are among the k largest of each."""
        rows = [row for row, p in enumerate(self._params) if 0 < p.top_k < self._vocab_size]
        if not rows:
            return
        listed = self._listed(self._scaled[rows], max(self._params[row].top_k for row in rows))
        merged = listed.values.sort(dim=1, descending=True).values
        for place, row in enumerate(rows):
            self._floors[row] = max(merged[place, self._params[row].top_k - 1].item(), LEAST)

    def _top_p(self) -> None:
        rows, listed = [row for row, p in enumerate(self._params) if p.top_p < 1], FIRST_LISTED
        if not rows:
            return
        survivors = self._scaled[rows]
        survivors.masked_fill_(survivors < self._floors[rows, None], -torch.inf)
        totals = self._group.gather(masses(survivors, self._tops[rows]).sum(dim=1)).sum(dim=0)
        while rows:
            left = self._settle(rows, survivors, totals, listed)
            rows, survivors, totals = [rows[i] for i in left], survivors[left], totals[left]
            listed *= MORE

    def _settle(self, rows: list[int], survivors: Tensor, totals: Tensor, count: int) -> list[int]:
        """Finds the floors of rows whose `count` largest values of each rank reach their share. Returns the places of
        the others."""
        listed = self._listed(survivors, count)
        merged = listed.values.sort(dim=1, descending=True).values
        reached = masses(merged, self._tops[rows]).cumsum(dim=1)
        left = []
        for place, row in enumerate(rows):
            share = max(float(np.float32(self._params[row].top_p)), 0.0)
            goal = max(1, int(float(totals[place].item()) * share))
            at = int(torch.searchsorted(reached[place], goal))
            if at < merged.shape[1] and merged[place, at] >= listed.complete[place]:
                self._floors[row] = max(merged[place, at].item(), LEAST)
            elif not listed.is_all:
                left.append(place)
        return left

    def _listed(self, values: Tensor, count: int) -> _Listed:
        """The `count` largest values of each rank, side by side; of a rank that has fewer, minus infinities."""
        count = min(count, self._vocab_size)
        mine = torch.full((len(values), count), -torch.inf)
        own = min(count, values.shape[1])
        mine[:, :own] = values.topk(own, dim=1).values
        everyones = self._group.gather(mine)
        return _Listed(everyones.permute(1, 0, 2).flatten(1), everyones[:, :, -1].amax(dim=0))


class _Listed:
    """`values[rows, ranks * count]`, in no order. At or above `complete[rows]` no rank has values that are not listed,
    but for equals of that one."""

    def __init__(self, values: Tensor, complete: Tensor) -> None:
        self.values, self.complete = values, complete
        self.is_all = bool((complete == -torch.inf).all())
