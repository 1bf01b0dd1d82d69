"""How long steps take, by the rows that they compute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


class RowTimes:
    """Measured (rows, seconds). Between two sizes, time grows evenly, or, if steps are `padded`, is that of the larger;
    past the largest one, it grows as rows do. No step takes longer than a larger one: what was measured otherwise is
    noise, which only ever adds."""

    def __init__(self, measured: Iterable[tuple[int, float]], *, padded: bool = False) -> None:
        """Raises ValueError for no times, or for any that are not positive."""
        points = sorted(measured)
        if not points or points[0][0] < 1 or min(seconds for _, seconds in points) <= 0.0:
            raise ValueError("times of steps are needed: (rows, seconds), one or more of each")
        self._padded = padded
        self._rows = np.array([rows for rows, _ in points])
        self._seconds = np.minimum.accumulate([seconds for _, seconds in reversed(points)])[::-1]
        self._by_rows = self.seconds(np.arange(self.most_rows + 1))

    @property
    def most_rows(self) -> int:
        """The rows of the largest step that was measured."""
        return int(self._rows[-1])

    def following(self, rows: int, count: int) -> NDArray[np.float64]:
        """The seconds of steps of one row more than `rows`, two more, up to `count` more, within those that were
        measured. They are looked up, because this is asked for in every step."""
        return self._by_rows[rows + 1 : rows + 1 + count]

    def seconds(self, rows: ArrayLike) -> NDArray[np.float64]:
        wanted = np.asarray(rows)
        beyond = np.maximum(1.0, wanted / self.most_rows)
        if self._padded:
            within = self._seconds[np.searchsorted(self._rows, np.minimum(wanted, self.most_rows))]
        else:
            within = np.interp(wanted, self._rows, self._seconds)
        return np.asarray(within * beyond, np.float64)


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Times of `plain` steps, in which each sequence computes one token, and of `ragged` ones, in which some compute
    several: these take other kernels and graphs, and no step runs ahead of them, which their seconds include. With a
    draft model, `drafting` are its passes, which give some sequences one token more each, and `catching_up` its seconds
    for a token that it missed."""

    plain: RowTimes
    ragged: RowTimes
    drafting: RowTimes | None = None
    catching_up: float = 0.0

    def least_acceptance(self, decodes: int, others: int, most: int) -> float:
        """The probability that the likeliest of up to `most` drafts must exceed, or no number of them gives more tokens
        per second than a step without: each is worth no more than that one. 1 or more: none can pay."""
        room = min(most, self.ragged.most_rows - decodes - others)
        drafts = np.arange(1, max(1, room + 1))
        if not len(drafts):
            return 1.0
        slower = self.ragged.seconds(decodes + others + drafts) / self.without_drafts(decodes, others)
        return float(np.min(decodes * (slower - 1.0) / drafts))

    def passes(self, places: Sequence[int]) -> list[float]:
        """Seconds of all passes that a model makes for the first 1, 2, ... of some drafts. `places[i]` is that of a
        draft in its sequence, from 1: as many passes lead to it; 0 if it comes from elsewhere."""
        if self.drafting is None or not any(places):
            return [0.0] * len(places)
        times = [0.0, *self.drafting.seconds(np.arange(1, len(places) + 1)).tolist()]
        rows, total, found = [0] * (1 + max(places)), 0.0, list[float]()
        for place in places:
            if place:
                rows[place] += 1
                total += times[rows[place]] - times[rows[place] - 1]
            found.append(total)
        return found

    def without_drafts(self, decodes: int, others: int) -> float:
        """Seconds of a step of so many decodes and `others`, rows of prompts."""
        times, rows = self.ragged if others else self.plain, decodes + others
        return float(times.following(rows - 1, 1)[0] if rows <= times.most_rows else times.seconds(rows))
