"""The model runner on a CPU: a step is over when its launch returns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_worker.contract.options import TOKEN_BUDGET
from octavo_worker.contract.step import (
    Done,
    Masks,
    SequenceResult,
    SequenceStep,
    SharedReading,
    StepError,
    StepPlan,
    StepResult,
)
from octavo_worker.contract.windows import BlockMoves
from octavo_worker.model.batch import ragged_batch
from octavo_worker.model.causal_model import CacheConfig, CausalModel, in_pools
from octavo_worker.runner.backing import Backing
from octavo_worker.runner.base import BaseRunner, prompt_scores
from octavo_worker.runner.draft_model import DraftModel
from octavo_worker.runner.parallel.leader import Leader
from octavo_worker.runner.parallel.sampling import SplitRows
from octavo_worker.runner.sampler import WholeRows


class Computed:
    """A step whose logits are there, one row for each sample. `results` lack the samples until `choose`."""

    def __init__(
        self,
        sequences: Sequence[SequenceStep],
        logits: Tensor | None,
        rows: WholeRows | SplitRows,
        leader: Leader | None,
    ) -> None:
        self.results = [SequenceResult([]) for _ in sequences]
        self._sequences = sequences
        self._logits = logits
        self._rows, self._leader = rows, leader

    def choose(self, masks: Masks) -> None:
        if self._leader is not None:
            self._leader.masks(masks)
        self.choose_now(masks)

    @torch.inference_mode()
    def choose_now(self, masks: Masks) -> None:
        """Choose all samples at once: each row is computed as if it were alone."""
        logits, self._logits = self._logits, None
        if logits is None:
            return
        rows = [s.sample_row(number) for s in self._sequences for number in range(len(s.samples))]
        allowed = None
        if any(row.masked for row in rows):
            words = np.full((len(rows), -(-self._rows.vocab_size // 32)), -1, np.int32)
            if len(masks.places):
                words[list(masks.places)] = masks.words
            allowed = torch.from_numpy(words)
        found = iter(self._rows.sample(logits, rows, allowed).result())
        for result, step in zip(self.results, self._sequences, strict=True):
            result.samples = [next(found) for _ in step.samples]

    def result(self) -> StepResult:
        return StepResult(self.results)


class PagedRunner(BaseRunner):
    """Runs steps on the CPU. Both pools are one piece of memory, so attention reads a host block where it lies. With a
    `leader` it is rank 0 of several, which compute the same steps."""

    asynchronous = False
    draft_model: DraftModel | None = None
    shared_reading: SharedReading | None = None

    def __init__(
        self,
        model: CausalModel,
        cache: CacheConfig,
        max_model_len: int,
        token_budget: int = TOKEN_BUDGET["cpu"],
        leader: Leader | None = None,
    ) -> None:
        super().__init__(model, cache, max_model_len, token_budget)
        self._leader = leader
        self._backing = Backing(self.kv_cache)
        self._window_backing = None if self.window_pools is None else Backing(self.window_pools.device)

    def warm_up(self) -> None:
        """Nothing: only graphs and kernels of a GPU have to be tried before they are needed."""

    def launch(self, plan: StepPlan) -> Computed | Done:
        """Computes the step. It fails with a `StepError` for a sequence whose tokens the model cannot embed."""
        if self._leader is not None:
            self._leader.plan(plan, self.block_size)
        try:
            return self._compute(plan)
        except StepError as error:
            return Done(error)

    @torch.inference_mode()
    def _compute(self, plan: StepPlan) -> Computed | Done:
        moves = BlockMoves(plan.copies, plan.swap_out, plan.swap_in)
        _move(self.kv_cache, self.host_cache, self.first_host_block, moves)
        if self.windows is not None and self.window_pools is not None:
            pools = self.window_pools
            _move(pools.device, pools.host, self.windows.first_host_block, plan.windows)
        states = BlockMoves(swap_out=plan.state_out, swap_in=plan.state_in)
        _move(self.states, self.host_states, self.first_host_state_slot, states)
        sequences = (plan if self.draft_model is None else self.draft_model.of_plan(plan)).sequences
        if not sequences:
            return Done(StepResult([]))
        batch = ragged_batch(sequences, self.block_size, self.vocab_size)
        self._backing.reach(int(batch.slots.max()) // self.block_size)
        if self._window_backing is not None and batch.windows is not None:
            self._window_backing.reach(int(batch.windows.slots.max()) // self.block_size)
        starts = batch.query_start.tolist()
        sampled_rows = [
            start + row  # parallel sequences that leave one prompt share its row
            for start, s in zip(starts, sequences, strict=False)
            for row in dict.fromkeys(s.rows)
        ]
        scores = prompt_scores(plan, starts)
        rows = sampled_rows + [row for part in scores for row in part.rows]
        every_token_once = not scores and len(rows) == len(batch.token_ids)
        features = self.model.forward(batch, None if every_token_once else torch.tensor(rows, dtype=torch.int64))
        logits = self._logits(features[: len(sampled_rows)], sequences)
        computed = Computed(sequences, logits, self.rows, self._leader)
        for result, planned, step in zip(computed.results, plan.sequences, sequences, strict=True):
            result.drafts = step.drafts if planned.wanted else ()
        for place, found in self._score_prompts(features[len(sampled_rows) :], scores):
            computed.results[place].prompt_logprobs += found.result()
        if not plan.has_masked:
            computed.choose_now(Masks.none())
        return computed

    def _logits(self, features: Tensor, sequences: Sequence[SequenceStep]) -> Tensor | None:
        """A row for each sample; `features` has one for each place that is sampled at all."""
        count = sum(len(s.samples) for s in sequences)
        if not count:
            return None
        logits = self.model.logits(features)
        return logits if len(logits) == count else logits.repeat_interleave(torch.tensor(_sharers(sequences)), dim=0)


def _move(device: Tensor, host: Tensor, first_host_block: int, moves: BlockMoves) -> None:
    """Swaps and copies of a step in one group of blocks."""
    if moves.swap_in:
        ops.swap_blocks(host, device, in_pools(moves.swap_in, first_host_block))
    if moves.swap_out:
        ops.swap_blocks(device, host, in_pools(moves.swap_out, first_host_block))
    if moves.copies:
        ops.copy_blocks(device, torch.tensor(moves.copies, dtype=torch.int64))


def _sharers(sequences: Sequence[SequenceStep]) -> list[int]:
    """How many samples read each row that is sampled."""
    return [len(list(same)) for s in sequences for _, same in groupby(s.rows)]
