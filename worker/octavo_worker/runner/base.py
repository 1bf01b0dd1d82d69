"""The common part of all devices' runners: a model, its KV cache, and the scores of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo_kernels.features import features
from octavo_worker.contract.cache import common_window, group_window
from octavo_worker.contract.state import StateLayout
from octavo_worker.contract.step import Speeds, StepPlan, StepSeconds
from octavo_worker.contract.windows import WindowBlocks
from octavo_worker.model.causal_model import CacheConfig, CausalModel, GroupedCache, grouped_cache
from octavo_worker.model.numerics import numerics
from octavo_worker.model.recurrent.slots import empty_slots, layer_states
from octavo_worker.model.transfer import dtype_name, on_device
from octavo_worker.runner.parallel.sampling import SplitRows
from octavo_worker.runner.sampler import Scores, WholeRows

PROMPT_ROWS = 128  # logits of a large vocabulary are megabytes a row


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


class BaseRunner:
    """A model bound to one paged KV cache."""

    speeds: Speeds | None = None
    step_seconds: StepSeconds | None = None
    windows: WindowBlocks | None = None
    most_samples: int | None = None  # in one step; None: as many as it has rows
    abreast = 1

    def __init__(self, model: CausalModel, cache: CacheConfig, max_model_len: int, token_budget: int) -> None:
        self.model = model
        self.num_blocks = cache.num_blocks
        self.num_host_blocks = cache.num_host_blocks
        self.block_size = cache.block_size
        self.max_model_len = max_model_len
        self.token_budget = token_budget
        self.vocab_size = model.vocab_size
        self.window = common_window(model.cache)
        self.features = frozenset[str](features(model.device))
        grouped = grouped_cache(model, cache)
        self.layout, pools = grouped.layout, grouped.pools
        self._keep_windows(cache, grouped)
        self.kv_cache, self.host_cache = pools.device, pools.host
        self.first_host_block = pools.first_host_block or cache.num_blocks
        self.reads_host = pools.first_host_block is not None
        self.kv_dtype = dtype_name(self.kv_cache.dtype)
        self.quantization = " + ".join(sorted(model.forms))
        self.numerics = numerics(
            model.device,
            model.dtype,
            self.kv_cache.dtype,
            route=model.route,
            forms=model.forms,
            uniform=model.uniform,
            factors=model.factors,
            ranks=1 if model.group is None else model.group.rank.count,
            whole_experts=model.has_whole_experts,
            states=any(spec is not None for spec in model.states),
            chunks=model.has_chunks,
            expanded=model.expanded is not None,
        )
        self.rows = WholeRows(model.vocab_size) if model.group is None else SplitRows(model.group, model.vocab_size)
        model.bind(grouped.parts, cache.block_size, max_model_len)
        self._bind_states(cache)

    def _keep_windows(self, cache: CacheConfig, grouped: GroupedCache) -> None:
        """The pools of layers with a window, where these are a group of their own."""
        self.window_pools, self.window_layout = grouped.window_pools, grouped.window_layout
        if self.window_pools is not None:
            first = self.window_pools.first_host_block or cache.num_window_blocks
            window = group_window(self.model.cache)
            hosts = cache.num_host_window_blocks
            self.windows = WindowBlocks(cache.num_window_blocks, window, hosts, first, cache.slabs)

    def _bind_states(self, cache: CacheConfig) -> None:
        """Allocates slots of states, of the device and of the host, whose ids are behind the former's."""
        self.num_state_slots, self.num_host_state_slots = cache.num_state_slots, cache.num_host_state_slots
        self.first_host_state_slot = cache.num_state_slots
        self.state_layout = StateLayout.of(self.model.states)
        pools = empty_slots(self.state_layout, cache.num_state_slots, cache.num_host_state_slots, self.model.device)
        self.states, self.host_states = pools
        if self.state_layout.slot_bytes:
            self.model.bind_states(layer_states(self.states, self.state_layout))

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


def prompt_scores(plan: StepPlan, query_starts: Sequence[int] | np.ndarray) -> list[PromptScores]:
    """The scores that the prompts of a step ask for; `query_starts` are the places of the sequences' first tokens in
    the batch."""
    first = plan.num_decodes
    return [
        PromptScores(place, int(query_starts[place]), step.targets, step.prompt_logprobs)
        for place, step in enumerate(plan.sequences[first:], first)
        if step.prompt_logprobs is not None
    ]
