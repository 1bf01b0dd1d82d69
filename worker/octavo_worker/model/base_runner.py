"""What the runners of all devices have in common: a model, its KV cache, and the scores of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from octavo_kernels.cache.pools import empty_pools
from octavo_kernels.features import features
from octavo_worker.contract.step import Speeds, StepPlan, StepSeconds
from octavo_worker.model.batch import Batch
from octavo_worker.model.numerics import numerics
from octavo_worker.model.parallel.group import Group
from octavo_worker.model.parallel.sampling import SplitRows
from octavo_worker.model.sampler import Scores, WholeRows, on_device

PROMPT_ROWS = 128  # logits of a large vocabulary are megabytes a row


class CausalModel(Protocol):
    """What a runner asks of `Decoder` and `TransformersModel`.

    `forward` gives one row of features for each of `rows` (None: for every token); `logits` turns features into
    logits, float32 or of `dtype`. While it is `shortened`, layers may be left out, but no kernel. `windows` are the
    sliding windows that occur among its layers (0: none), `num_heads` the query heads of a layer, 0 if they are not
    known. `is_capturable`: whether its steps can be captured in CUDA graphs; None: only a trial tells. `uniform`:
    whether each row is to be computed, on a GPU too, as if it were alone. `forms`: those of quantised weights, in
    words. `factors`: those of LongRoPE, short or long; empty: it has none. `kept_bytes` are those of a token that it
    keeps beside keys and values. With a `group` heads are those of one of its ranks, and so are the tokens of `logits`.
    """

    group: Group | None
    forms: frozenset[str]
    uniform: bool
    factors: str
    kept_bytes: int
    num_heads: int
    windows: list[int]
    dtype: torch.dtype
    device: torch.device
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    window: int  # tokens that a query sees in every layer; 0: all, in some layer

    @property
    def is_capturable(self) -> bool | None: ...

    def bind(self, kv_cache: Tensor, block_size: int, max_model_len: int) -> None: ...

    def shortened(self) -> AbstractContextManager[None]: ...

    def forward(self, batch: Batch, rows: Tensor | None) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities of `targets` that sequence `sequence` asks for, and of the `count` most likely tokens, in the
    rows of the tokens from place `first` on."""

    sequence: int
    first: int
    targets: Sequence[int]
    count: int

    @property
    def rows(self) -> range:
        return range(self.first, self.first + len(self.targets))


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The size of a KV cache, null blocks included.

    `num_host_blocks` (0: none) more blocks lie in the host's memory, for swapped sequences and, if the runner
    `reads_host`, for what does not fit of oversized ones: attention reads those at their place. `dtype`: int8 or
    float8_e4m3fn instead of the model's.
    """

    num_blocks: int
    block_size: int
    num_host_blocks: int = 0
    dtype: torch.dtype | None = None


class BaseRunner:
    """A model bound to one paged KV cache."""

    speeds: Speeds | None = None
    step_seconds: StepSeconds | None = None
    most_samples: int | None = None  # in one step; None: as many as it has rows

    def __init__(self, model: CausalModel, cache: CacheConfig, max_model_len: int, token_budget: int) -> None:
        self.model = model
        self.num_blocks = cache.num_blocks
        self.num_host_blocks = cache.num_host_blocks
        self.block_size = cache.block_size
        self.max_model_len = max_model_len
        self.token_budget = token_budget
        self.vocab_size = model.vocab_size
        self.window = model.window
        self.features = frozenset[str](features(model.device))
        shape = (model.num_layers, model.num_kv_heads, cache.block_size, model.head_dim)
        dtype = cache.dtype or model.dtype
        pools = empty_pools(cache.num_blocks, cache.num_host_blocks, *shape, dtype, model.device)
        self.kv_cache, self.host_cache = pools.device, pools.host
        self.first_host_block = pools.first_host_block or cache.num_blocks
        self.reads_host = pools.first_host_block is not None
        self.kv_dtype = str(self.kv_cache.dtype).removeprefix("torch.")
        self.quantization = " + ".join(sorted(model.forms))
        self.numerics = numerics(
            model.device,
            model.dtype,
            self.kv_cache.dtype,
            forms=model.forms,
            uniform=model.uniform,
            factors=model.factors,
            ranks=1 if model.group is None else model.group.rank.count,
        )
        self.rows = WholeRows(model.vocab_size) if model.group is None else SplitRows(model.group, model.vocab_size)
        model.bind(pools.blocks, cache.block_size, max_model_len)

    def _score_prompts(self, features: Tensor, parts: Sequence[PromptScores]) -> list[tuple[int, Scores]]:
        """The scores of `parts`, in pieces, each with its sequence's place; `features` has their rows."""
        scores: list[tuple[int, Scores]] = []
        at = 0
        for part in parts:
            for first in range(0, len(part.targets), PROMPT_ROWS):
                targets = on_device(part.targets[first : first + PROMPT_ROWS], torch.int64, self.model.device)
                logits = self.model.logits(features[at : at + len(targets)])
                at += len(targets)
                found = self.rows.score(logits, targets, [part.count] * len(targets))
                scores.append((part.sequence, found.to_host()))
        return scores


def in_pools(pairs: Sequence[tuple[int, int]], first_host_block: int) -> Tensor:
    """Pairs of a block of the device and one of the host, in any order, as each pool counts its own."""
    ids = torch.tensor(pairs, dtype=torch.int64)
    return ids - first_host_block * (ids >= first_host_block)


def prompt_scores(plan: StepPlan, query_starts: Sequence[int] | np.ndarray) -> list[PromptScores]:
    """What the prompts of a step ask for; `query_starts` are the places of the sequences' first tokens in the batch."""
    first = plan.num_decodes
    return [
        PromptScores(place, int(query_starts[place]), step.targets, step.prompt_logprobs)
        for place, step in enumerate(plan.sequences[first:], first)
        if step.prompt_logprobs is not None
    ]
