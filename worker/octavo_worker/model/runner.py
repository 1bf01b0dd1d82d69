"""The model runner: one `StepPlan` in, one `StepResult` out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from octavo_kernels import ops
from octavo_kernels.pools import empty_pools
from octavo_worker.contract.options import TOKEN_BUDGET
from octavo_worker.contract.step import (
    Done,
    Sampled,
    SequenceResult,
    SequenceStep,
    SharedReading,
    Speeds,
    StepError,
    StepPlan,
    StepResult,
)
from octavo_worker.messages import Logprob
from octavo_worker.model.backing import Backing
from octavo_worker.model.batch import Batch, ragged_batch
from octavo_worker.model.numerics import numerics
from octavo_worker.model.sampler import sample, score

PROMPT_ROWS = 128  # logits of a large vocabulary are megabytes a row


class CausalModel(Protocol):
    """What the runner asks of `Decoder` and `TransformersModel`.

    `forward` gives one row of features for each of `rows` (None: for every token); `logits` turns features into
    logits, float32 or of `dtype`. `windows` are the sliding windows that occur among its layers (0: none), `num_heads`
    the query heads of a layer, 0 if they are not known. `is_capturable`: whether its steps can be captured in CUDA
    graphs; None: that is to be tried. `uniform`: whether each row is to be computed, on a GPU too, as if it were alone.
    """

    is_capturable: bool | None
    uniform: bool
    num_heads: int
    windows: Sequence[int]
    dtype: torch.dtype
    device: torch.device
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    window: int  # tokens that a query sees in every layer; 0: all, in some layer

    def bind(self, kv_cache: Tensor, block_size: int, max_model_len: int) -> None: ...

    def forward(self, batch: Batch, rows: Tensor | None) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


class PagedRunner:
    """Runs plans on the CPU against one paged KV cache.

    `num_host_blocks` (0: none) more blocks are the host pool, where preempted sequences wait and oversized ones keep
    what does not fit. Both pools are one piece of memory, so attention reads a host block where it lies. `cache_dtype`:
    int8 or float8_e4m3fn instead of the model's.
    """

    asynchronous = False
    shared_reading: SharedReading | None = None
    speeds: Speeds | None = None
    reads_host = True

    def __init__(
        self,
        model: CausalModel,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        *,
        token_budget: int = TOKEN_BUDGET["cpu"],
        num_host_blocks: int = 0,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.token_budget = token_budget
        self.num_blocks = num_blocks
        self.num_host_blocks, self.first_host_block = num_host_blocks, num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.vocab_size = model.vocab_size
        self.window = model.window
        shape = (model.num_layers, model.num_kv_heads, block_size, model.head_dim)
        pools = empty_pools(num_blocks, num_host_blocks, *shape, cache_dtype or model.dtype, model.device)
        self.kv_cache, self.host_cache = pools.device, pools.host
        self.kv_dtype = str(self.kv_cache.dtype).removeprefix("torch.")
        self.numerics = numerics(model.device, model.dtype, self.kv_cache.dtype)
        model.bind(pools.blocks, block_size, max_model_len)
        self._backing = Backing(self.kv_cache)

    def launch(self, plan: StepPlan) -> Done:
        """Computes the step. It fails with a `StepError` for a sequence whose tokens the model cannot embed."""
        try:
            return Done(self._compute(plan))
        except StepError as error:
            return Done(error)

    @torch.inference_mode()
    def _compute(self, plan: StepPlan) -> StepResult:
        if plan.swap_in:
            ops.swap_blocks(self.host_cache, self.kv_cache, self._in_pools(plan.swap_in))
        if plan.swap_out:
            ops.swap_blocks(self.kv_cache, self.host_cache, self._in_pools(plan.swap_out))
        if plan.copies:
            ops.copy_blocks(self.kv_cache, torch.tensor(plan.copies, dtype=torch.int64))
        if not plan.sequences:
            return StepResult([])
        batch = ragged_batch(plan.sequences, self.block_size, self.vocab_size)
        self._backing.reach(int(batch.slots.max()) // self.block_size)
        starts = batch.query_start.tolist()
        sampled_rows = [
            start + row  # parallel sequences that leave one prompt share its row
            for start, s in zip(starts, plan.sequences, strict=False)
            for row in dict.fromkeys(s.rows)
        ]
        prompt_rows = [
            row
            for start, s in zip(starts, plan.sequences, strict=False)
            if s.prompt_logprobs is not None
            for row in range(start, start + len(s.targets))
        ]
        rows = sampled_rows + prompt_rows
        every_token_once = not prompt_rows and len(rows) == len(batch.token_ids)
        features = self.model.forward(batch, None if every_token_once else torch.tensor(rows, dtype=torch.int64))
        samples = self._sample(features[: len(sampled_rows)], plan.sequences)
        prompts = self._prompt_logprobs(features[len(sampled_rows) :], plan.sequences)
        return StepResult([SequenceResult(s, p) for s, p in zip(samples, prompts, strict=True)])

    def _in_pools(self, pairs: Sequence[tuple[int, int]]) -> Tensor:
        """Pairs of a block of the device and one of the host, as each pool counts its own."""
        ids = torch.tensor(pairs, dtype=torch.int64)
        return ids - self.first_host_block * (ids >= self.first_host_block)

    def _sample(self, features: Tensor, sequences: Sequence[SequenceStep]) -> list[list[Sampled]]:
        """The samples of each sequence; `features` has a row for each place that is sampled at all."""
        samples = [s.sample_row(number) for s in sequences for number in range(len(s.samples))]
        if not samples:
            return [[] for _ in sequences]
        logits = self.model.logits(features)
        if len(samples) > len(logits):
            logits = logits.repeat_interleave(torch.tensor(_sharers(sequences)), dim=0)
        results = iter(sample(logits, samples).result())
        return [[next(results) for _ in s.samples] for s in sequences]

    def _prompt_logprobs(self, features: Tensor, sequences: Sequence[SequenceStep]) -> list[list[Logprob]]:
        answers: list[list[Logprob]] = []
        at = 0
        for sequence in sequences:
            answer: list[Logprob] = []
            if sequence.prompt_logprobs is not None:
                for first in range(0, len(sequence.targets), PROMPT_ROWS):
                    targets = sequence.targets[first : first + PROMPT_ROWS]
                    logits = self.model.logits(features[at : at + len(targets)])
                    at += len(targets)
                    counts = [sequence.prompt_logprobs] * len(targets)
                    answer += score(logits, torch.tensor(targets, dtype=torch.int64), counts).result()
            answers.append(answer)
        return answers


def _sharers(sequences: Sequence[SequenceStep]) -> list[int]:
    """How many samples read each row that is sampled."""
    return [len(list(same)) for s in sequences for _, same in groupby(s.rows)]
