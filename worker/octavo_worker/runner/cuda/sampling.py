"""The tokens of a step on a GPU: of all rows at once, then again of those that ask for more."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.sampling.adjust import ROW, Adjustment, adjust, pack
from octavo_kernels.step import StepInputs
from octavo_worker.contract.step import Masks
from octavo_worker.model.transfer import on_device
from octavo_worker.runner.cuda.launched import LaunchedStep, Special
from octavo_worker.runner.cuda.packer import PackedStep, SpecialRow, filtered_places
from octavo_worker.runner.parallel.sampling import SplitRows
from octavo_worker.runner.sampler import WholeRows, sample


class StepSampler:
    """Chooses what follows each sampled row of a step: `tokens[samples + guesses]` (int64) at one address, which the
    next step reads. Behind the samples is room for `guesses` of a draft model, which are none of its own.

    Logits are those of this rank's tokens; every rank chooses all tokens. With `reads` choices are copied to the host
    as well: of several ranks the first alone does that.
    """

    def __init__(self, rows: WholeRows | SplitRows, inputs: StepInputs, *, reads: bool, guesses: int) -> None:
        self.tokens = torch.zeros(len(inputs.samples) + guesses, dtype=torch.int64, device=inputs.samples.device)
        self._rows, self._inputs, self._reads = rows, inputs, reads
        self._search_stream = torch.cuda.Stream(self.tokens.device)  # finds the candidates of beam searches
        self._mask_stream = torch.cuda.Stream(self.tokens.device)  # brings masks
        only_masked = pack([Adjustment(masked=True)] * len(inputs.samples))
        self._only_masked = torch.from_numpy(only_masked).to(self.tokens.device)

    def choose(self, logits: Tensor) -> None:
        """All rows, by temperature and, on one rank, by filters: the part of a step that graphs capture."""
        if count := len(logits):
            self._rows.choose(logits, self._inputs.samples[:count], self.tokens[:count])

    def choose_filtered(self, logits: Tensor, step: PackedStep) -> None:
        """Rows with filters again, where rows lie on several ranks and `choose` has left filters out."""
        if isinstance(self._rows, SplitRows):
            places = filtered_places(step.words, self._rows.vocab_size)
            if len(places):
                rows = on_device(places, torch.int64, logits.device)
                self.tokens[rows] = self._rows.choose_filtered(logits[rows], self._inputs.samples[rows])

    def choose_special(
        self, logits: Tensor, rows: list[SpecialRow], step: LaunchedStep, words: np.ndarray | None = None
    ) -> None:
        """Samples that ask for more than temperature and filters, from copies of their logits; `words` are the masks of
        `rows`. No later step depends on candidates before they were read, so they are found while it runs."""
        chosen = [number for number, row in enumerate(rows) if not row.row.candidates]
        searched = [number for number, row in enumerate(rows) if row.row.candidates]
        if chosen:
            self._draw(logits, [rows[number] for number in chosen], step, _masks(words, chosen, logits.device))
        if searched:
            self._search(logits, [rows[number] for number in searched], step, _masks(words, searched, logits.device))

    def choose_masked(self, logits: Tensor, step: LaunchedStep, masks: Masks) -> None:
        """Samples whose masks are known now. Those that ask for nothing else need no word from the host but these: how
        they are sampled is on the device since the step began. Their logits may be changed in place."""
        places = np.array(masks.places, np.int64)
        special = {row.place: row for row in step.packed.special if row.row.masked}
        if not special:
            self._draw_masked(logits, places, masks.words)
            return
        is_special = np.isin(places, step.packed.masked, invert=True)
        rows = [special[place] for place in places[is_special].tolist()]
        if rows:
            self.choose_special(logits, rows, step, masks.words[is_special])
        if len(rows) < len(places):
            self._draw_masked(logits, places[~is_special], masks.words[~is_special])

    def _draw_masked(self, logits: Tensor, places: np.ndarray, words: np.ndarray) -> None:
        """`words` are the masks of the samples at `places`. They travel while the step computes."""
        count = len(places)
        has_gaps = int(places[-1]) >= count
        rows: Tensor | slice = slice(count)
        with torch.cuda.stream(self._mask_stream):
            allowed = on_device(words, torch.int32, logits.device)
            if has_gaps:
                rows = on_device(places, torch.int64, logits.device)
        now = torch.cuda.current_stream()
        now.wait_stream(self._mask_stream)
        for tensor in (allowed, rows):
            if isinstance(tensor, Tensor):
                tensor.record_stream(now)
        chosen = self._rows.gather(logits[rows]).float()
        adjust(chosen, self._only_masked[: count * ROW.itemsize // 4], None, allowed)
        tokens = ops.sample(chosen, self._inputs.samples[rows], None if has_gaps else self.tokens[rows])
        if has_gaps:
            self.tokens[rows] = tokens

    def _draw(self, logits: Tensor, rows: list[SpecialRow], step: LaunchedStep, allowed: Tensor | None) -> None:
        assert step.slot is not None
        places = _places(rows, logits.device)
        follows = on_device([row.follows for row in rows], torch.int64, logits.device)
        latest = torch.where(follows >= 0, self._inputs.token_ids[follows], -1)
        choice = sample(self._rows.gather(logits[places]), [row.row for row in rows], latest, allowed)
        self.tokens[places] = choice.tokens
        if self._reads:
            step.special.append(Special(rows, choice.to_host(), step.slot.done))

    def _search(self, logits: Tensor, rows: list[SpecialRow], step: LaunchedStep, allowed: Tensor | None) -> None:
        copies = self._rows.gather(logits[_places(rows, logits.device)])
        if not self._reads:
            return
        for tensor in (copies, allowed):
            if tensor is not None:
                tensor.record_stream(self._search_stream)
        self._search_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._search_stream):
            choice = sample(copies, [row.row for row in rows], allowed=allowed).to_host()
            step.special.append(Special(rows, choice, self._search_stream.record_event()))


def _masks(words: np.ndarray | None, rows: list[int], device: torch.device) -> Tensor | None:
    return None if words is None else on_device(words[rows], torch.int32, device)


def _places(rows: list[SpecialRow], device: torch.device) -> Tensor:
    return on_device([row.place for row in rows], torch.int64, device)
