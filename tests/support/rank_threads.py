"""Ranks as threads of the test, over memory that they share as processes do."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from octavo_worker.assembly.models import load_model
from octavo_worker.contract.options import ModelOptions
from octavo_worker.contract.step import SequenceStep
from octavo_worker.model.batch import ragged_batch
from octavo_worker.model.causal_model import CacheConfig, CausalModel
from octavo_worker.ranks.cpu_group import CpuGroup
from octavo_worker.ranks.memory import RankMemory
from octavo_worker.ranks.rank import Rank
from octavo_worker.runner.base import BaseRunner
from octavo_worker.runner.parallel.leader import Member
from octavo_worker.runner.parallel.sampling import SplitRows

T = TypeVar("T")


def on_ranks(count: int, work: Callable[[CpuGroup], T], slot_bytes: int = 1 << 12) -> list[T]:
    """Results of `work` on each of `count` ranks. Rank 0 is this thread: others see what its process does."""
    descriptor = os.memfd_create("ranks")
    try:
        groups = [CpuGroup(RankMemory(descriptor, rank, slot_bytes), rank) for rank in ranks_of(count)]
    finally:
        os.close(descriptor)
    with ThreadPoolExecutor(count - 1) as pool:
        others = [pool.submit(work, group) for group in groups[1:]]
        return [work(groups[0]), *(other.result() for other in others)]


def ranks_of(count: int) -> list[Rank]:
    return [Rank(index, count) for index in range(count)]


def logits_on_ranks(
    options: ModelOptions, count: int, steps: Sequence[SequenceStep], change: Callable[[CausalModel], object] = id
) -> list[torch.Tensor]:
    """Logits of every token of a step, as each rank gathers them, after a `change` of its model."""
    descriptor = os.memfd_create("ranks")

    def work(rank: Rank) -> torch.Tensor:
        model, _ = load_model(options, member=Member(rank, descriptor))
        change(model)
        return _gathered(model, steps)

    try:
        with ThreadPoolExecutor(count - 1) as pool:
            others = [pool.submit(work, rank) for rank in ranks_of(count)[1:]]
            return [work(Rank(0, count)), *(other.result() for other in others)]
    finally:
        os.close(descriptor)


def logits_alone(
    options: ModelOptions, steps: Sequence[SequenceStep], change: Callable[[CausalModel], object] = id
) -> torch.Tensor:
    model, _ = load_model(options)
    change(model)
    return _gathered(model, steps)


@torch.inference_mode()
def _gathered(model: CausalModel, steps: Sequence[SequenceStep]) -> torch.Tensor:
    runner = BaseRunner(model, CacheConfig(33, 16), 384, 64)
    logits = model.logits(model.forward(ragged_batch(steps, 16, model.vocab_size), None))
    return (runner.rows.gather(logits) if isinstance(runner.rows, SplitRows) else logits).float()
