"""The passes of a draft model, one after the other on the device: the host waits for none of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.attention.plan import chunk_count
from octavo_kernels.sampling.sample import SAMPLE_WORDS
from octavo_kernels.step import StepInputs
from octavo_worker.contract.cache import heads_per_kv
from octavo_worker.model.batch import Batch
from octavo_worker.model.causal_model import CausalModel
from octavo_worker.model.transfer import on_device
from octavo_worker.runner.cuda.graphs import StepGraphs
from octavo_worker.runner.cuda.plans import AttentionPlans
from octavo_worker.runner.cuda.shapes import DraftShape


@dataclass(frozen=True, slots=True)
class DraftPlaces:
    """The memory that draft passes share with the step that verifies them: its `inputs`, and the drafts
    `tokens[most, windows]` (int64), number j of window i at place `first + j * windows + i` of those that a message may
    refer to."""

    inputs: StepInputs
    tokens: Tensor
    first: int

    @property
    def all(self) -> range:
        return range(self.first, self.first + self.tokens.numel())

    def references(self, window: int, count: int) -> list[int]:
        """References to the first `count` drafts of a window, which stand for them until they are known."""
        return [~place for place in self.all[window :: self.tokens.shape[1]][:count]]


@dataclass(frozen=True, slots=True)
class GuessedWindow:
    """A decode at `place` of its step, for which `wanted` tokens are guessed. `before` is the token before its own."""

    place: int
    wanted: int
    before: int


class DraftPasses:
    """Guesses for up to `sequences` decodes of a step, from the message of that step.

    Its first pass computes two tokens of each: the last one, and the one before, which the draft lacks where all of the
    last window was right, because nothing followed its last guess. To compute it again costs a row, to ask whether it
    is missing would cost a pass. The others compute one. A pass is one replay of a CUDA graph for a number of
    sequences, a power of two: whatever is guessed, there are two graphs of each. What changes between passes is
    laid out by the first one, and the others take the next row of it.

    A row is computed in vain where fewer tokens are wanted: it is written nowhere and sees nothing.
    """

    def __init__(
        self,
        model: CausalModel,
        places: DraftPlaces,
        as_target: Callable[[Tensor], Tensor],
        *,
        block_size: int,
        sequences: int,
        plans: AttentionPlans | None,
        graphs: bool,
    ) -> None:
        """`as_target` gives logits the width of the target's. `plans` are for two
        queries each; None on a CPU."""
        self._model, self._places, self._as_target = model, places, as_target
        self._block_size, self._plans = block_size, plans
        self._sizes = [1 << power for power in range(sequences.bit_length()) if 1 << power < sequences] + [sequences]
        self._graphs = StepGraphs(self._run, self._try) if graphs else None
        most, blocks, device = len(places.tokens), places.inputs.block_tables.shape[1], model.device

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        i64, i32 = torch.int64, torch.int32
        self._windows = zeros(i64, 3, sequences)  # place, wanted and before of each
        self._tables = zeros(i32, sequences, blocks)
        self._positions, self._slots = zeros(i64, most, sequences), zeros(i64, most, sequences)
        self._contexts, self._samples = zeros(i32, most, sequences), zeros(i32, most, sequences, SAMPLE_WORDS)
        self._latest, self._number = zeros(i64, sequences), zeros(i64, 1)
        self._numbers = torch.arange(most, device=device)[:, None]
        self._starts = torch.arange(sequences + 1, dtype=i32, device=device)
        self._pairs = 2 * self._starts
        self._last_of_pairs = self._pairs[:-1].long() + 1

    @property
    def most(self) -> int:
        """Sequences in a pass."""
        return self._sizes[-1]

    def warm_up(self) -> None:
        """Captures all graphs. Rows of padding alone: nothing is written but guesses, of which there are none yet."""
        if self._graphs is None:
            return
        kinds = (True, False) if len(self._places.tokens) > 1 else (True,)
        for size in reversed(self._sizes):  # smaller ones find their memory in the larger ones' pool
            for is_first in kinds:
                self._number.zero_()
                self._graphs.capture(DraftShape(size, is_first))

    def guess(self, windows: Sequence[GuessedWindow]) -> None:
        """Starts the passes for decodes of the step whose message was unpacked to the inputs."""
        size = self._sizes[bisect_left(self._sizes, len(windows))]
        rows = np.zeros((3, size), np.int64)
        rows[:, : len(windows)] = np.array([(w.place, w.wanted, w.before) for w in windows], np.int64).T
        self._windows[:, :size].copy_(on_device(rows, torch.int64, self._model.device))
        self._run_all(size, max(window.wanted for window in windows))

    def run_some(self, sequences: int, passes: int) -> int:
        """Starts up to so many passes of up to so many sequences, for the windows there were last. Says how many."""
        passes = min(passes, len(self._places.tokens))
        self._run_all(self._sizes[bisect_left(self._sizes, min(sequences, self.most))], passes)
        return passes

    def _run_all(self, size: int, passes: int) -> None:
        launch = self._run if self._graphs is None else self._graphs.replay
        for number in range(passes):
            launch(DraftShape(size, is_first=number == 0))

    def _try(self, shape: DraftShape) -> None:
        with self._model.shortened():
            self._run(shape)

    def _run(self, shape: DraftShape) -> Tensor:
        """One pass: this is what graphs capture. Returns its logits."""
        return self._run_first(shape.sequences) if shape.is_first else self._run_next(shape.sequences)

    def _run_first(self, size: int) -> Tensor:
        place, wanted, before = self._windows[:, :size]
        self._lay_out(place, wanted, size)
        tables, positions = self._tables[:size], self._positions[0, :size]
        first = self._places.inputs.query_start[place].long()
        tokens = torch.stack((before, self._places.inputs.token_ids[first]), 1).view(-1)
        earlier = (positions - 1).clamp(min=0)
        slots = torch.where(wanted > 0, self._slots_of(tables, earlier[None])[0], -1)
        batch = Batch(
            token_ids=self._embeddable(tokens),
            positions=torch.stack((earlier, positions), 1).view(-1),
            slots=torch.stack((slots, self._slots[0, :size]), 1).view(-1),
            block_tables=tables,
            context_lens=self._contexts[0, :size].clamp(min=2),  # padding sees the null block: two queries, two tokens
            query_start=self._pairs[: size + 1],
        )
        if self._plans is not None:
            batch.plans = self._plans.for_step(batch)
        self._number.zero_()
        return self._choose(self._model.forward(batch, self._last_of_pairs[:size]), self._samples[0, :size])

    def _run_next(self, size: int) -> Tensor:
        number = self._number.add_(1)
        batch = Batch(
            token_ids=self._embeddable(self._latest[:size]),
            positions=self._row(self._positions, size),
            slots=self._row(self._slots, size),
            block_tables=self._tables[:size],
            context_lens=self._row(self._contexts, size),
            query_start=self._starts[: size + 1],
        )
        if self._plans is not None:
            batch.plans = self._plans.for_decodes(batch, shared=False)
        samples = self._samples[:, :size].index_select(0, number)[0]
        return self._choose(self._model.forward(batch, None), samples)

    def _row(self, laid_out: Tensor, size: int) -> Tensor:
        """The row of this pass."""
        return laid_out[:, :size].index_select(0, self._number)[0]

    def _lay_out(self, place: Tensor, wanted: Tensor, size: int) -> None:
        """Writes the inputs of each pass, and the noise and options of its draws: those of the samples that verify
        them."""
        inputs, numbers = self._places.inputs, self._numbers
        first = inputs.query_start[place].long()
        is_wanted = numbers < wanted
        positions = torch.where(is_wanted, inputs.positions[first] + numbers, 0)
        tables = inputs.block_tables[place] * (wanted > 0)[:, None]
        # Of decodes alone comes a sample of every token: the place of a token is that of its sample.
        samples = inputs.samples[first + torch.where(is_wanted, numbers, 0)]
        self._tables[:size] = tables
        self._positions[:, :size] = positions
        self._slots[:, :size] = torch.where(is_wanted, self._slots_of(tables, positions), -1)
        self._contexts[:, :size] = torch.where(is_wanted, positions + 1, 0)
        self._samples[:, :size] = samples

    def _slots_of(self, tables: Tensor, positions: Tensor) -> Tensor:
        """Slots of `positions[passes, S]` in `tables[S, blocks]`."""
        blocks = tables.gather(1, (positions // self._block_size).T).T.long()
        return blocks * self._block_size + positions % self._block_size

    def _embeddable(self, tokens: Tensor) -> Tensor:
        """Ids that only the target has rows for are no text; -1 is what a row without a number gives."""
        return tokens.clamp(0, self._model.vocab_size - 1)

    def _choose(self, features: Tensor, samples: Tensor) -> Tensor:
        logits = self._as_target(self._model.logits(features))
        size = len(samples)
        ops.sample(logits, samples, out=self._latest[:size])
        self._places.tokens[:, :size].index_copy_(0, self._number, self._latest[None, :size])
        return logits


def plans_for_passes(
    model: CausalModel, sequences: int, context: int, cache_dtype: torch.dtype | None
) -> AttentionPlans:
    """For decodes, and for two queries of each sequence."""
    plans = AttentionPlans(model, sequences, 2 * sequences, context, groups=False, queries=2, cache_dtype=cache_dtype)
    contexts, queries = np.full(sequences, context, np.int32), np.full(sequences, 2, np.int32)
    plans.make_room(max(chunk_count(contexts, queries, group) for group in heads_per_kv(model.cache)))
    return plans
